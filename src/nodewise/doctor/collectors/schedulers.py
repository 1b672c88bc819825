"""Schedulers: the configuration of each, and the certificates, Services and servers of nodewise's entries.

The probe connects to an entry's address as kube-scheduler does, and reads the server's certificates.
"""

import asyncio
import os
import re
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2

from nodewise.base.errors import BadSettings, Problem, short
from nodewise.doctor.collectors.session import (
    ClusterReader,
    ExaminationTarget,
    MissingFact,
    Session,
    attempt,
    host_path_of_container_file,
    is_this_host,
    may_read_host_files,
    missing_fact,
    parse_json,
    read_certificate_chain,
    read_local_file,
)
from nodewise.doctor.collectors.workloads import (
    collect_program_workloads,
    find_container,
    runs_kube_scheduler,
)
from nodewise.doctor.facts import (
    EntryCertificates,
    ProbedServer,
    SchedulerInfo,
    Service,
    UnavailableFact,
    readable,
)
from nodewise.doctor.parsing import objects, scheduler_configuration
from nodewise.doctor.parsing.certificates import Chain, is_signed_by, is_valid_for, parse_der, parse_pem
from nodewise.doctor.parsing.objects import (
    Container,
    Workload,
    get,
    get_list,
    get_number,
    get_text,
    get_text_list,
)
from nodewise.doctor.parsing.scheduler_configuration import (
    ExtenderEntry,
    Profile,
    SchedulerConfiguration,
    split_url,
)
from nodewise.install.scheduler_configuration import DEFAULT_SCHEDULER
from nodewise.kube.resource_kinds import ENDPOINT_SLICES, SERVICES, selector
from nodewise.server.options import is_loopback
from nodewise.server.server_tls_context import peer_certificates
from nodewise.tls.x509_certificates import public_key_of_private_key

_CONNECT_TIMEOUT_S: Final = 3.0
_RESPONSE_TIMEOUT_S: Final = 5.0
_MAX_ADDRESSES: Final = 4
IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"
"""The variable that every container of a cluster has."""
_PATH, _BINDER_PATH = "/nodewise-doctor", "/decisions?namespace=kube-system&pod=nodewise-doctor&limit=1"
"""Paths of requests with the client certificate: nodewise answers that of a client whose name it does not accept with
403 at any path, and with --any-client only at paths for the client that binds pods. They do not count as calls of
kube-scheduler."""
_REQUEST: Final = "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
_MAX_RESPONSE: Final = 2**13

Address = tuple[str, int]


class Probe(NamedTuple):
    """A server to connect to, and the client certificate to present: files of this host, or empty."""

    entry: ExtenderEntry
    addresses: Sequence[Address] = ()
    """Addresses to try after that of the URL."""
    cert_file: str = ""
    key_file: str = ""
    authorities: Chain = ()
    """The CA of the entry."""

    @property
    def host(self) -> str:
        return split_url(self.entry.url)[1]

    @property
    def server_name(self) -> str:
        return self.entry.server_name or self.host


async def connect(probe: Probe) -> ProbedServer:
    """The first address that responds: its certificates, and whether it accepts the client certificate."""
    _, host, _, port = split_url(probe.entry.url)
    if not host:
        return ProbedServer()
    # an address means the same server from everywhere, unless it is the name of a Service
    is_absolute = ".svc" not in f"{host}."
    attempts: list[str] = []
    refusals = 0
    addresses = list(dict.fromkeys([(host, port), *probe.addresses]))[:_MAX_ADDRESSES]
    for address in addresses:
        name = f"{address[0]}:{address[1]}"
        try:
            server = await _probe_address(probe, address)
            if (is_absolute and address[0] == host) or _is_server_of_entry(probe, server):
                return await _probe_client_certificate(probe, address, server)
            attempts.append(f"{name}: another server responds")
        except ConnectionRefusedError:
            refusals += 1
            attempts.append(f"{name}: connection refused")
        except TimeoutError:
            attempts.append(f"{name}: no response within {_CONNECT_TIMEOUT_S:g} s")
        except (OSError, ssl.SSLError, ValueError) as error:
            attempts.append(f"{name}: {_tls_error_text(error)}")
    return ProbedServer(attempts=tuple(attempts), is_refused=refusals == len(addresses))


def _is_server_of_entry(probe: Probe, server: ProbedServer) -> bool:
    """Whether it is the server of the entry: outside of the cluster another one may have its addresses."""
    if IN_CLUSTER in os.environ:
        return True
    if not server.certificates:
        return False
    leaf, *intermediates = server.certificates
    return is_valid_for(leaf, probe.server_name) or is_signed_by(leaf, intermediates, probe.authorities)


async def _probe_address(probe: Probe, address: Address) -> ProbedServer:
    name = f"{address[0]}:{address[1]}"
    is_tls = split_url(probe.entry.url)[0] != "http"
    options = {"ssl": _unverified_tls_context(), "server_hostname": probe.server_name} if is_tls else {}
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        _, writer = await asyncio.open_connection(*address, **options)  # type: ignore[arg-type]
    try:
        if not is_tls:
            return ProbedServer(name, source="a connection")
        chain = parse_der(peer_certificates(writer.get_extra_info("ssl_object")))
        return ProbedServer(name, certificates=chain, source=f"a handshake at {name}")
    finally:
        writer.transport.abort()


def _unverified_tls_context() -> ssl.SSLContext:
    """Accepts every server: checks verify its certificates, and no request contains anything secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _probe_client_certificate(probe: Probe, address: Address, server: ProbedServer) -> ProbedServer:
    """The server with its answer to a request with the client certificate; unchanged if no request can be made."""
    if not (probe.cert_file and probe.key_file) or split_url(probe.entry.url)[0] == "http":
        return server
    context = _unverified_tls_context()
    try:
        context.load_cert_chain(probe.cert_file, probe.key_file, password="")
    except (OSError, ssl.SSLError, ValueError):
        return server
    path = _BINDER_PATH if probe.entry.bind_verb else _PATH
    try:
        async with asyncio.timeout(_RESPONSE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                *address, ssl=context, server_hostname=probe.server_name
            )
            try:
                writer.write(_REQUEST.format(path=path, host=probe.host).encode("ascii", "replace"))
                response = await reader.read(_MAX_RESPONSE)
            finally:
                writer.transport.abort()
    except TimeoutError:
        return server
    except (OSError, ssl.SSLError) as error:
        return server._replace(rejection=_tls_error_text(error))
    if not response.startswith(b"HTTP/"):
        return server._replace(rejection="it closes the connection")
    head, _, body = response.partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"403"]:
        return server._replace(rejection="")
    refusal = get_text(parse_json(body), "error") or head.partition(b"\r\n")[0].decode("latin-1")
    return server._replace(rejection="", refusal=short(refusal, 300))


def _tls_error_text(error: Exception) -> str:
    return short(getattr(error, "strerror", None) or str(error) or type(error).__name__)


_SERVICE_HOST: Final = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc(\.[a-z0-9.-]+)?\.?")
_MAX_ENDPOINTS: Final = 2
_OLD_FLAGS: Final = ("policy-config-file", "policy-configmap")
_WRONG_HOST: Final = (
    "call doctor on the host that has these files, or have copies of them under the same names"
)


async def collect_schedulers(session: Session) -> tuple[SchedulerInfo, ...]:
    """All schedulers: of the command line, then of the cluster.

    `BadSettings` if the command line names a file or a URL that cannot be used.
    """
    target = session.target
    named = [read_configuration_file(path) for path in target.scheduler_files]
    if target.scheduler_url:
        named.append(await _read_configz(target))
    listed = await session.get(collect_program_workloads)
    if isinstance(listed, UnavailableFact):
        if not named:
            raise MissingFact(listed)
        running = []
    else:
        running = await asyncio.gather(
            *(_read_scheduler_of_workload(session, pod) for pod in listed.schedulers)
        )
    names = {scheduler.where for scheduler in named}
    return tuple(
        await asyncio.gather(
            *(
                _collect_nodewise_entries(session, scheduler, is_named=scheduler.where in names)
                for scheduler in _merge_named_and_running(named, running)
            )
        )
    )


def _merge_named_and_running(named: list[SchedulerInfo], running: list[SchedulerInfo]) -> list[SchedulerInfo]:
    """A configuration of the command line is taken for that of the static pods whose own cannot be read from here."""
    if not named:
        return running
    hidden = [
        scheduler
        for scheduler in running
        if isinstance(scheduler.configuration, UnavailableFact)
        and scheduler.workload is not None
        and (scheduler.workload.is_static or scheduler.workload.host_network)
    ]
    workload = hidden[0].workload if hidden else None
    merged = [scheduler._replace(workload=scheduler.workload or workload) for scheduler in named]
    return [*merged, *(scheduler for scheduler in running if scheduler not in hidden)]


def read_configuration_file(path: str) -> SchedulerInfo:
    """A file of the command line. `BadSettings` if it contains no configuration."""
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        problem = Problem("--scheduler-config", f"{path}: {error}", "a readable KubeSchedulerConfiguration")
        raise BadSettings("settings", [problem]) from error
    configuration = scheduler_configuration.parse(data)
    if configuration.problem:
        actual = f"{path}: {configuration.problem}"
        raise BadSettings("settings", [Problem("--scheduler-config", actual, "a KubeSchedulerConfiguration")])
    return SchedulerInfo(path, configuration)


async def _read_configz(target: ExaminationTarget) -> SchedulerInfo:
    """A running kube-scheduler, by its /configz."""
    url = target.scheduler_url.rstrip("/")
    scheme, host, _, _ = split_url(url)
    if scheme not in ("http", "https") or not host:
        problem = Problem("--scheduler-url", repr(target.scheduler_url), "https://HOST:10259")
        raise BadSettings("settings", [problem])
    assert target.scheduler_client is not None, "it is set with the URL"
    context, auth = target.scheduler_client
    try:
        # kube-scheduler's certificate is self-signed, so only a server of this host gets a token
        async with httpx2.AsyncClient(
            verify=context, auth=auth if is_loopback(host) else None, timeout=5.0, trust_env=False
        ) as client:
            response = await client.get(f"{url}/configz")
        if response.status_code != httpx2.codes.OK:
            right = "get the non-resource URL /configz" if response.status_code in (401, 403) else ""
            reason = f"HTTP status {response.status_code}"
            return SchedulerInfo(url, UnavailableFact(f"{url}/configz", reason, right))
        return SchedulerInfo(url, scheduler_configuration.parse_configz(response.json()))
    except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError, OSError, ValueError) as error:
        return SchedulerInfo(
            url, UnavailableFact(f"{url}/configz", short(str(error) or type(error).__name__))
        )


async def _read_scheduler_of_workload(session: Session, workload: Workload) -> SchedulerInfo:
    """A scheduler of the cluster with the configuration that its --config names. It is named after the object that
    contains the configuration, or after the workload if it is a file of the host.
    """
    container = find_container(workload, runs_kube_scheduler)
    path = objects.flag(container, "config")
    if not path:
        return SchedulerInfo(workload.where, _scheduler_without_config_flag(workload, container), workload)
    try:
        data = await session.files.read(workload, container, path)
    except MissingFact as missing:
        return SchedulerInfo(workload.where, missing.unavailable, workload)
    where, source = workload.where, objects.find_mount(container, path)
    if source is not None and source[0].kind != "hostPath":
        kind = "ConfigMap" if source[0].kind == "configMap" else "Secret"
        where = f"{kind}/{workload.namespace}/{source[0].name}"
    configuration = scheduler_configuration.parse(data)
    if configuration.problem:
        problem = UnavailableFact(f"{path} of {workload.where}", configuration.problem)
        return SchedulerInfo(where, problem, workload, refusal=configuration.problem)
    return SchedulerInfo(where, configuration, workload)


def _scheduler_without_config_flag(
    workload: Workload, container: Container
) -> SchedulerConfiguration | UnavailableFact:
    old = [name for name in _OLD_FLAGS if objects.flag(container, name) is not None]
    if old:
        return UnavailableFact(workload.where, f"it is configured by --{old[0]}, which doctor does not read")
    name = objects.flag(container, "scheduler-name") or DEFAULT_SCHEDULER
    return SchedulerConfiguration((Profile(name),))


class _EntryFiles(NamedTuple):
    """Reads the files that an entry names. They are files of this host if the command line names the configuration,
    or if the scheduler is a static pod of this host.
    """

    session: Session
    workload: Workload | None
    container: Container | None
    is_named: bool

    def local_path(self, file: str) -> str:
        """The file's path on this host; empty if it is none of this host."""
        if self.workload is not None and self.container is not None and may_read_host_files(self.workload):
            return host_path_of_container_file(self.container, file)
        return file if self.is_named else ""

    async def read(self, file: str) -> bytes:
        if path := self.local_path(file):
            return read_local_file(path, _WRONG_HOST)
        if self.workload is None or self.container is None:
            raise missing_fact(file, "its host is unknown")
        return await self.session.files.read(self.workload, self.container, file)

    async def read_chain(self, data: bytes, file: str) -> Chain | UnavailableFact | None:
        """The certificates in the configuration, or else in a file; None without both."""
        if data:
            return parse_pem(data)
        return await read_certificate_chain(self.read(file)) if file else None


async def _collect_nodewise_entries(
    session: Session, scheduler: SchedulerInfo, *, is_named: bool
) -> SchedulerInfo:
    """With certificates, Services and servers of nodewise's entries."""
    if isinstance(scheduler.configuration, UnavailableFact):
        return scheduler
    workload = scheduler.workload
    container = find_container(workload, runs_kube_scheduler) if workload else None
    files = _EntryFiles(session, workload, container, is_named)
    entries = scheduler.configuration.nodewise_entries
    results = await asyncio.gather(*(_read_entry_certificates_and_server(files, entry) for entry in entries))
    by_number = {entry.number: result for entry, result in zip(entries, results, strict=True)}
    return scheduler._replace(
        certificates={number: result[0] for number, result in by_number.items()},
        services={number: result[1] for number, result in by_number.items() if result[1] is not None},
        servers={number: result[2] for number, result in by_number.items()},
    )


async def _read_entry_certificates_and_server(
    files: _EntryFiles, entry: ExtenderEntry
) -> tuple[EntryCertificates, Service | UnavailableFact | None, ProbedServer]:
    key: bytes | UnavailableFact | None = entry.key_data or None
    if not key and entry.key_file:
        pem = await attempt(files.read(entry.key_file))
        key = pem if isinstance(pem, UnavailableFact) else public_key_of_private_key(pem)
    own = EntryCertificates(
        await files.read_chain(entry.ca_data, entry.ca_file),
        await files.read_chain(entry.cert_data, entry.cert_file),
        key,
    )
    reader, workload = files.session.reader, files.workload
    service, addresses = await _read_service(reader, entry)
    if (
        not files.is_named
        and workload is not None
        and is_loopback(split_url(entry.url)[1])
        and not (workload.host_network and is_this_host(workload.node))
    ):
        return own, service, ProbedServer(attempts=("it is the scheduler's own pod",))
    reader.say(f"connecting to {entry.url}")
    cert_file, key_file = files.local_path(entry.cert_file), files.local_path(entry.key_file)
    server = await connect(Probe(entry, addresses, cert_file, key_file, readable(own.ca)))
    return own, service, server


async def _read_service(
    reader: ClusterReader, entry: ExtenderEntry
) -> tuple[Service | UnavailableFact | None, list[Address]]:
    """The Service that an address names, and the addresses of its endpoints."""
    _, host, _, port = split_url(entry.url)
    match = _SERVICE_HOST.fullmatch(host)
    if match is None:
        return None, []
    name, namespace = match[1], match[2]
    where = f"Service/{namespace}/{name}"
    right = f"get services {name} in namespace {namespace}"
    selectors = {"labelSelector": selector("kubernetes.io/service-name", name)}
    service, slices = await asyncio.gather(
        attempt(reader.get(where, right, SERVICES.path(namespace, name))),
        attempt(reader.get_list(ENDPOINT_SLICES, parse_json, namespace=namespace, selectors=selectors)),
    )
    if isinstance(service, UnavailableFact):
        return service, []
    if service is None:
        return Service(where, None), []
    numbers = (get_number(item, "port") for item in get_list(service, "spec", "ports"))
    ports = tuple(number for number in numbers if number)
    cluster_ip = get_text(service, "spec", "clusterIP")
    if isinstance(slices, UnavailableFact):
        return Service(where, ports, slices), [(cluster_ip, port)]
    ready = list(_ready_endpoint_addresses(slices))
    own = [(cluster_ip, port)] if cluster_ip and cluster_ip != "None" else []
    return Service(where, ports, len(ready)), [*ready[:_MAX_ENDPOINTS], *own]


def _ready_endpoint_addresses(slices: Iterable[Any]) -> Iterable[Address]:
    """The first address of each ready endpoint. A condition that is not set means ready."""
    for endpoint_slice in slices:
        numbers = (get_number(port, "port") for port in get_list(endpoint_slice, "ports"))
        port = next((number for number in numbers if number), 0)
        for endpoint in get_list(endpoint_slice, "endpoints"):
            if get(endpoint, "conditions", "ready") is not False:
                for address in get_text_list(endpoint, "addresses")[:1]:
                    yield address, port
