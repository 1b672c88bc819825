"""Which schedulers there are, and the configuration, certificates and server of each."""

import asyncio
import re
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2

from nodewise.cli.doctor import handshakes
from nodewise.cli.doctor.asking import Asker, anything
from nodewise.cli.doctor.files import Files, host_path, is_here, is_of_host
from nodewise.cli.doctor.handshakes import Call
from nodewise.cli.doctor.kinds import SERVICES, SLICES
from nodewise.cli.doctor.pods import container_of
from nodewise.configure.doctor import configurations, papers, workloads
from nodewise.configure.doctor.configurations import parts
from nodewise.configure.doctor.facts import (
    Chain,
    Configuration,
    Container,
    Entry,
    Papers,
    Pod,
    Scheduler,
    Server,
    Service,
    Unread,
)
from nodewise.configure.doctor.objects import items, number, text
from nodewise.configure.doctor.reaching import is_loopback
from nodewise.errors import BadSettings, Problem
from nodewise.kube.resources import selector
from nodewise.visible import short

_SERVICE: Final = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc(\.[a-z0-9.-]+)?\.?")
_MOST_ENDPOINTS: Final = 2
_OLD: Final = ("policy-config-file", "policy-configmap")


class Asked(NamedTuple):
    """What the command line says of schedulers."""

    files: Sequence[str]
    url: str
    client: "Client | None" = None
    """Where a URL is given."""


class Client(NamedTuple):
    """Who we are to kube-scheduler: the kubeconfig's certificate or its headers."""

    context: ssl.SSLContext
    auth: httpx2.Auth | None


class Ground(NamedTuple):
    """What is asked with."""

    ask: Asker
    files: Files
    named: frozenset[str] = frozenset()
    """Configurations that the command line names, whose files are of this host."""


async def read(ground: Ground, asked: Asked, pods: Sequence[Pod] | Unread) -> tuple[Scheduler, ...] | Unread:
    """Every scheduler that is known, each with its configuration or why there is none."""
    named = [_of_file(path) for path in asked.files]
    if asked.url:
        named.append(await _of_url(asked))
    if isinstance(pods, Unread):
        if not named:
            return pods
        pods = ()
    running = await asyncio.gather(*(_of_pod(ground, pod) for pod in pods))
    found = _joined(named, list(running))
    ground = ground._replace(named=frozenset(one.where for one in named))
    return tuple(await asyncio.gather(*(_whole(ground, one) for one in found)))


def _joined(named: list[Scheduler], running: list[Scheduler]) -> list[Scheduler]:
    """Files that somebody names are those of the static pods whose own cannot be read from here."""
    if not named:
        return running
    hidden = [one for one in running if isinstance(one.configuration, Unread) and _is_of_host(one.pod)]
    if hidden:
        named = [one._replace(pod=hidden[0].pod) if one.pod is None else one for one in named]
    return [*named, *(one for one in running if one not in hidden)]


def _is_of_host(pod: Pod | None) -> bool:
    return pod is not None and (pod.is_static or pod.host_network)


def _of_file(path: str) -> Scheduler:
    """A file that was named on the command line. `BadSettings` where it cannot be read."""
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        problem = Problem("--scheduler-config", f"{path}: {error}", "a readable KubeSchedulerConfiguration")
        raise BadSettings("settings", [problem]) from error
    found = configurations.parse(data)
    if found.problems and not found.profiles:
        seen = f"{path}: {'; '.join(found.problems)}"
        raise BadSettings("settings", [Problem("--scheduler-config", seen, "a KubeSchedulerConfiguration")])
    return Scheduler(path, found)


async def _of_url(asked: Asked) -> Scheduler:
    """A running kube-scheduler, by its own /configz."""
    url = asked.url.rstrip("/")
    scheme, host, _, _ = parts(url)
    if scheme not in ("http", "https") or not host:
        problem = Problem("--scheduler-url", repr(asked.url), "https://HOST:10259")
        raise BadSettings("settings", [problem])
    try:
        assert asked.client is not None, "it comes with the URL"
        # its certificate is self-signed: whoever is not on this machine gets no token
        auth = asked.client.auth if is_loopback(host) else None
        async with httpx2.AsyncClient(
            verify=asked.client.context, auth=auth, timeout=5.0, trust_env=False
        ) as client:
            answer = await client.get(f"{url}/configz")
        if answer.status_code != httpx2.codes.OK:
            right = "get the non-resource URL /configz" if answer.status_code in (401, 403) else ""
            return Scheduler(url, Unread(f"{url}/configz", f"HTTP status {answer.status_code}", right))
        return Scheduler(url, configurations.of_configz(answer.json()))
    except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError, OSError, ValueError) as error:
        return Scheduler(url, Unread(f"{url}/configz", short(str(error) or type(error).__name__)))


async def _of_pod(ground: Ground, pod: Pod) -> Scheduler:
    """A scheduler's pod: its --config, of a ConfigMap, a Secret or this host."""
    container = container_of(pod, "scheduler")
    assert container is not None, "only pods with one are asked about"
    path = workloads.flag(container, "config")
    if not path:
        old = [name for name in _OLD if workloads.flag(container, name) is not None]
        if old:
            return Scheduler(
                pod.where, Unread(pod.where, f"it is configured by --{old[0]}, which is not read"), pod
            )
        name = workloads.flag(container, "scheduler-name") or "default-scheduler"
        own = Configuration()
        return Scheduler(pod.where, own._replace(profiles=(own.profiles[0]._replace(scheduler=name),)), pod)
    data = await ground.files.of_pod(pod, container, path)
    if isinstance(data, Unread):
        return Scheduler(pod.where, data, pod)
    return Scheduler(_place(pod, container, path), _configuration(pod, path, data), pod)


def _configuration(pod: Pod, path: str, data: bytes) -> Configuration | Unread:
    found = configurations.parse(data)
    if found.problems and not found.profiles:
        return Unread(f"{path} of {pod.where}", "; ".join(found.problems))
    return found


def _place(pod: Pod, container: Container, path: str) -> str:
    mounted = workloads.mount(container, path)
    if mounted is None or mounted[0].kind == "hostPath":
        return pod.where
    kind = "ConfigMap" if mounted[0].kind == "configMap" else "Secret"
    return f"{kind}/{pod.namespace}/{mounted[0].name}"


async def _whole(ground: Ground, one: Scheduler) -> Scheduler:
    """With certificates, Services and servers of nodewise's entries."""
    if isinstance(one.configuration, Unread):
        return one
    ours = [entry for entry in one.configuration.entries if entry.is_ours]
    found = await asyncio.gather(*(_of_entry(ground, one, entry) for entry in ours))
    return one._replace(
        papers={entry.number: own for entry, (own, _, _) in zip(ours, found, strict=True)},
        services={
            entry.number: service
            for entry, (_, service, _) in zip(ours, found, strict=True)
            if service is not None
        },
        servers={entry.number: server for entry, (_, _, server) in zip(ours, found, strict=True)},
    )


async def _of_entry(
    ground: Ground, one: Scheduler, entry: Entry
) -> tuple[Papers, Service | Unread | None, Server]:
    local = _Local(one, container_of(one.pod, "scheduler") if one.pod else None, one.where in ground.named)
    own = await _papers(ground, local, entry)
    service, addresses = await _service(ground, entry)
    server = Server(tried=("it is the scheduler's own pod",))
    if not _is_inside(one.pod, entry) or one.where in ground.named:
        ground.ask.say(f"asking {entry.url}")
        shown = local.path(entry.cert_file), local.path(entry.key_file)
        trusted = () if own.ca is None or isinstance(own.ca, Unread) else own.ca
        server = await handshakes.call(Call(entry, tuple(addresses), *shown, trusted))
    return own, service, server


class _Local(NamedTuple):
    """Which of an entry's files are of this host: those of a configuration that was named, and of its static pod."""

    scheduler: Scheduler
    container: Container | None
    is_named: bool

    def path(self, file: str) -> str:
        """The file's name here; empty where it is not of this host."""
        pod = self.scheduler.pod
        if pod is not None and self.container is not None and is_of_host(pod) and is_here(pod.node):
            return host_path(self.container, file)
        return file if self.is_named else ""


def _is_inside(pod: Pod | None, entry: Entry) -> bool:
    """Whether the address means something only where the scheduler runs."""
    if pod is None or not is_loopback(parts(entry.url)[1]):
        return False
    return not (pod.host_network and is_here(pod.node))


async def _papers(ground: Ground, local: _Local, entry: Entry) -> Papers:
    """What an entry's certificates are; of its key the public half."""
    own = Papers()
    if entry.ca_data:
        own = own._replace(ca=papers.chain(entry.ca_data))
    elif entry.ca_file:
        own = own._replace(ca=_as_chain(await _file(ground, local, entry.ca_file)))
    if entry.cert_data:
        own = own._replace(client=papers.chain(entry.cert_data))
    elif entry.cert_file:
        own = own._replace(client=_as_chain(await _file(ground, local, entry.cert_file)))
    if entry.key_data:
        return own._replace(key=entry.key_data)
    if entry.key_file:
        found = await _file(ground, local, entry.key_file)
        return own._replace(key=found if isinstance(found, Unread) else papers.public(found))
    return own


def _as_chain(found: bytes | Unread) -> Chain | Unread:
    return found if isinstance(found, Unread) else papers.chain(found)


_THERE: Final = "call doctor on the host where these files are, or have copies of them under the same names"


async def _file(ground: Ground, local: _Local, name: str) -> bytes | Unread:
    if here := local.path(name):
        found = ground.files.here(here)
        return found._replace(remedy=_THERE) if isinstance(found, Unread) else found
    pod = local.scheduler.pod
    if pod is None or local.container is None:
        return Unread(name, "nobody says where it lies")
    return await ground.files.of_pod(pod, local.container, name)


async def _service(ground: Ground, entry: Entry) -> tuple[Service | Unread | None, list[tuple[str, int]]]:
    """The Service that an address names, and where its endpoints are."""
    _, host, _, port = parts(entry.url)
    match = _SERVICE.fullmatch(host)
    if match is None:
        return None, []
    name, namespace = match[1], match[2]
    where = f"Service/{namespace}/{name}"
    found, slices = await asyncio.gather(
        ground.ask.get(
            where, f"get services {name} in namespace {namespace}", SERVICES.path(namespace, name)
        ),
        ground.ask.listed(
            SLICES,
            anything,
            namespace=namespace,
            selectors={"labelSelector": selector("kubernetes.io/service-name", name)},
        ),
    )
    if isinstance(found, Unread):
        return found, []
    if found is None:
        return Service(where, None), []
    ports = tuple(number_ for one in items(found, "spec", "ports") if (number_ := number(one, "port")))
    address = text(found, "spec", "clusterIP")
    if isinstance(slices, Unread):
        return Service(where, ports, slices), [(address, port)]
    ready = list(_ready(slices))
    known = [(address, port)] if address and address != "None" else []
    return Service(where, ports, len(ready)), [*ready[:_MOST_ENDPOINTS], *known]


def _ready(slices: Iterable[Any]) -> Iterable[tuple[str, int]]:
    for one in slices:
        numbers = [found for each in items(one, "ports") if (found := number(each, "port"))]
        for endpoint in items(one, "endpoints"):
            conditions = endpoint.get("conditions") if isinstance(endpoint, dict) else None
            is_ready = not isinstance(conditions, dict) or conditions.get("ready") is not False
            for address in [each for each in items(endpoint, "addresses") if isinstance(each, str)][:1]:
                if is_ready:
                    yield address, numbers[0] if numbers else 0
