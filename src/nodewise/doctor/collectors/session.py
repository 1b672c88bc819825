"""One run of doctor: what to examine, and the facts that were collected so far.

A collector reads one fact. It gets further facts from the session, which runs each collector once.
"""

import asyncio
import base64
import binascii
import posixpath
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

import httpx2
import msgspec

from nodewise.base.errors import UNREADABLE, BadInput, NodewiseError, Refused, short
from nodewise.doctor.facts import UnavailableFact
from nodewise.doctor.parsing import certificates
from nodewise.doctor.parsing import objects as workloads
from nodewise.doctor.parsing.certificates import Chain
from nodewise.doctor.parsing.objects import Container, Workload, get_text
from nodewise.kube import resource_kinds
from nodewise.kube.api_server_interface import Api, Expired, NotFound
from nodewise.kube.resource_kinds import CONFIG_MAPS, SECRETS, Resource

DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", "DaemonSet")
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", "StatefulSet")
CRON_JOBS: Final = Resource("batch", "v1", "cronjobs", "CronJob")
SERVICES: Final = Resource("", "v1", "services", "Service")
ADMISSION_POLICIES: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    namespaced=False,
)
ADMISSION_BINDINGS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
MUTATING_POLICIES: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingadmissionpolicies",
    "MutatingAdmissionPolicy",
    namespaced=False,
)
MUTATING_BINDINGS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicyBinding",
    namespaced=False,
)
API_SERVICES: Final = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)

_MAX_CONCURRENT: Final = 12
_PAGE_SIZE: Final = "500"
_PAGE_TIMEOUT_S: Final = 30.0
"""A page of a list may take longer than one object."""
_PROXY_TIMEOUT_S: Final = 5.0
_LIST_ATTEMPTS: Final = 3
_FORBIDDEN: Final = "forbidden"


class _ListMetadata(msgspec.Struct, frozen=True):
    token: str = msgspec.field(default="", name="continue")
    remaining: int = msgspec.field(default=0, name="remainingItemCount")


class _Page(msgspec.Struct, frozen=True):
    items: tuple[msgspec.Raw, ...] | None = None
    metadata: _ListMetadata = _ListMetadata()


class ClusterReader:
    """Reads the API server with a few requests at once. `say` reports progress."""

    def __init__(self, api: Api, timeout_s: float, say: Callable[[str], None]) -> None:
        self.api = api
        self.say = say
        self._timeout_s = timeout_s
        self._requests = asyncio.Semaphore(_MAX_CONCURRENT)

    async def connect(self) -> None:
        """Raise if the API server does not respond. A missing right is no error here."""
        try:
            await self.api.get("/version", timeout_s=self._timeout_s)
        except Refused as error:
            if _FORBIDDEN not in str(error):
                raise

    async def get(self, what: str, right: str, path: str, *, is_proxied: bool = False) -> Any:
        """The JSON at a path; None if there is no such object."""
        body = await self.get_bytes(what, right, path, is_proxied=is_proxied)
        if body is None or isinstance(body, UnavailableFact):
            return body
        try:
            return msgspec.json.decode(body)
        except UNREADABLE as error:
            return UnavailableFact(what, f"the response is no JSON: {short(str(error))}")

    async def get_bytes(
        self, what: str, right: str, path: str, *, is_proxied: bool = False
    ) -> bytes | UnavailableFact | None:
        """The same as bytes. `is_proxied`: the API server passes the request on to a server that may not respond."""
        timeout_s = min(self._timeout_s, _PROXY_TIMEOUT_S) if is_proxied else self._timeout_s
        try:
            async with self._requests:
                return await self.api.get(path, timeout_s=timeout_s)
        except NotFound:
            return None
        except NodewiseError as error:
            return unavailable(what, right, error)

    async def review(self, body: Mapping[str, Any], right: str) -> Any:
        """The response to a SubjectAccessReview, which the API server does not store."""
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        try:
            async with self._requests:
                response = await self.api.create(path, body, timeout_s=self._timeout_s)
            return msgspec.json.decode(response)
        except NodewiseError as error:
            return unavailable("SubjectAccessReviews", right, error)
        except UNREADABLE as error:
            return UnavailableFact("SubjectAccessReviews", short(str(error)))

    async def is_served(self, resource: Resource) -> bool | UnavailableFact:
        """Whether the API server has a kind."""
        try:
            async with self._requests:
                return await resource_kinds.is_served(self.api, resource)
        except NodewiseError as error:
            return unavailable("the kinds of the API server", "get the path /apis", error)

    async def get_list(
        self,
        resource: Resource,
        parse: Callable[[bytes], T | None],
        *,
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        limit: int = 0,
    ) -> list[T] | UnavailableFact:
        """All objects of a kind, each parsed by `parse`; None leaves it out.

        A kind that the API server does not have is empty. `limit`: with more objects the list is not read.
        """
        name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        what = f"{name} in namespace {namespace}" if namespace else name
        for _ in range(_LIST_ATTEMPTS):
            try:
                return await self._read_pages(resource, namespace, dict(selectors or {}), parse, limit)
            except Expired:  # the continue token is too old: read the list from its beginning
                continue
            except NotFound:
                return []
            except NodewiseError as error:
                return unavailable(what, f"list {what}", error)
            except UNREADABLE as error:
                return UnavailableFact(what, f"the response is no list: {short(str(error))}")
        return UnavailableFact(what, "the list expired before it was complete", is_minor=True)

    async def _read_pages(
        self,
        resource: Resource,
        namespace: str,
        selectors: dict[str, str],
        parse: Callable[[bytes], T | None],
        limit: int,
    ) -> list[T] | UnavailableFact:
        objects: list[T] = []
        token, count = "", 0
        while True:
            params = {**selectors, "limit": _PAGE_SIZE, **({"continue": token} if token else {})}
            async with self._requests:
                body = await self.api.get(resource.path(namespace), params, timeout_s=_PAGE_TIMEOUT_S)
            page = msgspec.json.decode(body, type=_Page)
            items = page.items or ()
            if limit and len(items) + page.metadata.remaining > limit and not token:
                reason = f"there are more than {limit:,}, which are too many to read"
                return UnavailableFact(resource.plural, reason, is_minor=True)
            objects += filter(None, (parse(bytes(item)) for item in items))
            count += len(items)
            if token and page.metadata.token == token:
                return UnavailableFact(resource.plural, "the list begins again where it should continue")
            token = page.metadata.token
            self.say(f"reading {count:,} {resource.plural}")
            if not token:
                return objects
            await asyncio.sleep(0)  # parsing a page takes time: let other collectors run in between


def unavailable(what: str, right: str, error: NodewiseError) -> UnavailableFact:
    """Why something could not be read, with the missing right if that is the reason."""
    if isinstance(error, Refused) and _FORBIDDEN in str(error):
        return UnavailableFact(what, "forbidden", right)
    return UnavailableFact(what, short(str(error)))


def parse_json(body: bytes) -> Any:
    """An object of any shape; None if the bytes are no JSON."""
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        return None


_MAX_BYTES: Final = 2**20
_COPY: Final = "copy it from there and name the copy: --scheduler-config FILE"
_FORWARD: Final = (
    "kubectl -n {0} port-forward {1} 10259, and --scheduler-url https://127.0.0.1:10259; or copy the file and name the"
    " copy: --scheduler-config FILE"
)


class FileReader:
    """Reads files of containers and of this host. Callers keep only the public key of a private key."""

    def __init__(self, reader: ClusterReader) -> None:
        self._reader = reader
        self._objects: dict[str, Any] = {}

    async def read(self, workload: Workload, container: Container, path: str) -> bytes | UnavailableFact:
        """A file as a container sees it."""
        what = f"{path} of {workload.where}"
        source = workloads.find_mount(container, path)
        if source is None:
            return UnavailableFact(what, "it is part of the image", remedy=_COPY)
        mount, inside = source
        if mount.kind == "hostPath":
            return _read_host_path(
                what, posixpath.join(mount.name, inside) if inside else mount.name, workload
            )
        if mount.kind == "configMap":
            return await self._read_config_map_or_secret_key(
                CONFIG_MAPS, workload.namespace, mount.name, inside
            )
        if mount.kind == "secret":
            return await self._read_config_map_or_secret_key(SECRETS, workload.namespace, mount.name, inside)
        return UnavailableFact(what, "its volume is of a kind that cannot be read from here")

    async def read_certificate_chain(
        self, workload: Workload, container: Container, path: str
    ) -> Chain | UnavailableFact:
        """The certificates of a file."""
        return parse_certificate_chain(await self.read(workload, container, path))

    async def _read_config_map_or_secret_key(
        self, resource: Resource, namespace: str, name: str, key: str
    ) -> bytes | UnavailableFact:
        """A key of a ConfigMap or a Secret."""
        value = await self._read_object_once(resource, namespace, name)
        if isinstance(value, UnavailableFact):
            return value
        what = f"{resource.kind}/{namespace}/{name}"
        if value is None:
            return UnavailableFact(what, "it does not exist, and a pod mounts it")
        text = get_text(value, "data", key)
        if resource is CONFIG_MAPS and text:
            return text.encode(errors="replace")[:_MAX_BYTES]
        encoded = get_text(value, "binaryData", key) if resource is CONFIG_MAPS else text
        return _decode_utf8(encoded) or UnavailableFact(what, f"it has no key {key}")

    async def _read_object_once(self, resource: Resource, namespace: str, name: str) -> Any:
        """An object, read once."""
        what = f"{resource.kind}/{namespace}/{name}"
        try:
            path = resource.path(namespace, name)
        except BadInput as error:  # the API server accepts volumes with such a name
            return UnavailableFact(what, str(error))
        if path not in self._objects:
            right = f"get {resource.plural} {name} in namespace {namespace}"
            self._objects[path] = await self._reader.get(what, right, path)
        return self._objects[path]


def read_local_file(path: str) -> bytes | UnavailableFact:
    """A file of this host."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        return UnavailableFact(path, error.strerror or str(error))
    except ValueError:
        return UnavailableFact(path, "it is no file name")


def parse_certificate_chain(pem: bytes | UnavailableFact) -> Chain | UnavailableFact:
    return pem if isinstance(pem, UnavailableFact) else certificates.parse_pem(pem)


def host_path_of_container_file(container: Container, path: str) -> str:
    """The path on its host of a container's file; empty if the file is not of the host."""
    source = workloads.find_mount(container, path)
    if source is None or source[0].kind != "hostPath":
        return ""
    mount, inside = source
    return posixpath.join(mount.name, inside) if inside else mount.name


def may_read_host_files(workload: Workload) -> bool:
    """Whether doctor may read files that a workload mounts from this host: only of a static pod of the control plane.

    Tenants can make pods that name any path and any node, but no static pods of kube-system.
    """
    return workload.is_static and workload.namespace == "kube-system" and is_this_host(workload.node)


def is_this_host(node: str) -> bool:
    """Whether doctor runs on a node, by its name."""
    return bool(node) and _first_host_name_label(node) == _first_host_name_label(socket.gethostname())


def _first_host_name_label(host: str) -> str:
    return host.partition(".")[0].lower()


def _read_host_path(what: str, path: str, workload: Workload) -> bytes | UnavailableFact:
    if may_read_host_files(workload):
        data = read_local_file(path)
        return data._replace(remedy=_COPY) if isinstance(data, UnavailableFact) else data
    kind, namespace, name = workload.where.split("/")
    remedy = _FORWARD.format(namespace, name) if kind == "Pod" else _COPY
    return UnavailableFact(what, f"it lies on host {workload.node or 'of the pod'}, as {path}", remedy=remedy)


def _decode_utf8(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)[:_MAX_BYTES]
    except (binascii.Error, ValueError):
        return b""


T = TypeVar("T")

SYSTEM_NAMESPACE: Final = "kube-system"

Collector = Callable[["Session"], Awaitable[T | UnavailableFact]]


class SchedulerClient(NamedTuple):
    """How doctor authenticates to kube-scheduler: with the kubeconfig's certificate or headers."""

    context: ssl.SSLContext
    auth: httpx2.Auth | None


class ExaminationTarget(NamedTuple):
    """What to examine, according to the command line."""

    scheduler_files: Sequence[str] = ()
    scheduler_url: str = ""
    scheduler_client: SchedulerClient | None = None
    """Set with `scheduler_url`."""
    namespaces: Sequence[str] = ()
    """The namespaces of nodewise and what belongs to it, besides kube-system."""
    connect_as_node: Callable[[str], Api] | None = None
    """Connects as a user of the group system:nodes; None if the kubeconfig impersonates a user itself."""


class MissingFact(Exception):
    """A collector needs a fact that is unavailable."""

    def __init__(self, unavailable: UnavailableFact) -> None:
        super().__init__(unavailable.reason)
        self.unavailable = unavailable


class Session:
    """Runs collectors."""

    def __init__(self, reader: ClusterReader, target: ExaminationTarget) -> None:
        self.reader = reader
        self.files = FileReader(reader)
        self.target = target
        self._tasks: dict[Collector[Any], asyncio.Task[Any]] = {}

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (*self.target.namespaces, SYSTEM_NAMESPACE)

    async def get(self, collector: Collector[T]) -> T | UnavailableFact:
        """A fact, or why it is unavailable."""
        if collector not in self._tasks:
            self._tasks[collector] = asyncio.create_task(self._run_collector_once(collector))
        return cast("T | UnavailableFact", await self._tasks[collector])

    async def require(self, collector: Collector[T]) -> T:
        """A fact. If it is unavailable, the fact of the collector that requires it is so, too, for the same reason."""
        value = await self.get(collector)
        if isinstance(value, UnavailableFact):
            raise MissingFact(value)
        return value

    async def _run_collector_once(self, collector: Collector[T]) -> T | UnavailableFact:
        try:
            return await collector(self)
        except MissingFact as missing:
            return missing.unavailable

    async def close(self) -> None:
        """End collectors that still run after an error."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
