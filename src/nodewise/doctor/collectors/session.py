"""One run of doctor: reads the API server and files, and keeps the facts that were collected so far.

It changes nothing. A collector reads one fact, and gets further facts from the session, which runs each collector once.
Whatever cannot be read raises `MissingFact`.
"""

import asyncio
import base64
import posixpath
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

import httpx2
import msgspec

from nodewise.base.errors import UNREADABLE, BadInput, NodewiseError, Refused, short
from nodewise.doctor.facts import UnavailableFact
from nodewise.doctor.parsing import certificates, objects
from nodewise.doctor.parsing.certificates import Chain
from nodewise.doctor.parsing.objects import Container, Workload, get_text
from nodewise.kube import api_server_interface
from nodewise.kube.api_server_interface import Api, Expired, NotFound
from nodewise.kube.resource_kinds import CONFIG_MAPS, SECRETS, Resource

T = TypeVar("T")
D = TypeVar("D")

SYSTEM_NAMESPACE: Final = "kube-system"
_MAX_CONCURRENT: Final = 12
_PAGE_SIZE: Final = "500"
_PAGE_TIMEOUT_S: Final = 30.0  # a page of a list may take longer than one object
_PROXY_TIMEOUT_S: Final = 5.0
_LIST_ATTEMPTS: Final = 3
_FORBIDDEN: Final = "forbidden"
_MAX_BYTES: Final = 2**20
_COPY: Final = "copy it from there and name the copy: --scheduler-config FILE"
_FORWARD: Final = (
    "kubectl -n {0} port-forward {1} 10259, and --scheduler-url https://127.0.0.1:10259; or copy the file and name the"
    " copy: --scheduler-config FILE"
)


class MissingFact(Exception):
    """A fact cannot be read, or needs another one that cannot be read."""

    def __init__(self, unavailable: UnavailableFact) -> None:
        super().__init__(unavailable.reason)
        self.unavailable = unavailable


def missing_fact(
    what: str, reason: str, right: str = "", *, remedy: str = "", is_minor: bool = False
) -> MissingFact:
    return MissingFact(UnavailableFact(what, reason, right, remedy, is_minor))


def missing_after_error(what: str, right: str, error: NodewiseError) -> MissingFact:
    """Why something could not be read, with the missing right if that is the reason."""
    if isinstance(error, Refused) and _FORBIDDEN in str(error):
        return missing_fact(what, "forbidden", right)
    return missing_fact(what, short(str(error)))


async def attempt(reading: Awaitable[T]) -> T | UnavailableFact:
    """What was read, or why it is unavailable."""
    try:
        return await reading
    except MissingFact as missing:
        return missing.unavailable


async def read_all(readings: Iterable[Awaitable[T]]) -> list[T]:
    """All results, read at once. Raises the first `MissingFact` in the order of the readings."""
    values: list[T] = []
    for value in await asyncio.gather(*map(attempt, readings)):
        if isinstance(value, UnavailableFact):
            raise MissingFact(value)
        values.append(value)
    return values


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
        self.timeout_s = timeout_s
        self._requests = asyncio.Semaphore(_MAX_CONCURRENT)

    async def connect(self) -> None:
        """Raise if the API server does not respond. A missing right is no error here."""
        try:
            await self.api.get("/version", timeout_s=self.timeout_s)
        except Refused as error:
            if _FORBIDDEN not in str(error):
                raise

    async def get(self, what: str, right: str, path: str, *, is_proxied: bool = False) -> Any:
        """The JSON at a path; None if there is no such object."""
        body = await self.get_bytes(what, right, path, is_proxied=is_proxied)
        try:
            return None if body is None else msgspec.json.decode(body)
        except UNREADABLE as error:
            raise missing_fact(what, f"the response is no JSON: {short(str(error))}") from error

    async def get_bytes(self, what: str, right: str, path: str, *, is_proxied: bool = False) -> bytes | None:
        """The same as bytes. `is_proxied`: the API server passes the request on to a server that may not respond."""
        timeout_s = min(self.timeout_s, _PROXY_TIMEOUT_S) if is_proxied else self.timeout_s
        try:
            async with self._requests:
                return await self.api.get(path, timeout_s=timeout_s)
        except NotFound:
            return None
        except NodewiseError as error:
            raise missing_after_error(what, right, error) from error

    async def review(self, body: Mapping[str, Any], right: str) -> Any:
        """The response to a SubjectAccessReview, which the API server does not store."""
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        try:
            async with self._requests:
                return msgspec.json.decode(await self.api.create(path, body, timeout_s=self.timeout_s))
        except NodewiseError as error:
            raise missing_after_error("SubjectAccessReviews", right, error) from error
        except UNREADABLE as error:
            raise missing_fact("SubjectAccessReviews", short(str(error))) from error

    async def is_served(self, resource: Resource) -> bool:
        """Whether the API server has a kind."""
        try:
            async with self._requests:
                return await api_server_interface.is_served(self.api, resource)
        except NodewiseError as error:
            what = "the kinds of the API server"
            raise missing_after_error(what, "get the path /apis", error) from error

    async def get_list(
        self,
        resource: Resource,
        parse: Callable[[bytes], T | None],
        *,
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        limit: int = 0,
    ) -> list[T]:
        """All objects of a kind, each parsed by `parse`; None leaves it out.

        A kind that the API server does not have is empty; an older version is read if it has only that. `limit`: with
        more objects the list is not read.
        """
        name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        what = f"{name} in namespace {namespace}" if namespace else name
        for _ in range(_LIST_ATTEMPTS):
            try:
                return await self._read_pages(resource, namespace, selectors or {}, parse, limit)
            except Expired:  # the continue token is too old: read the list from its beginning
                continue
            except NotFound:
                older = await self._find_older_version(resource)
                if older is None:
                    return []
                resource = older
            except NodewiseError as error:
                raise missing_after_error(what, f"list {what}", error) from error
            except UNREADABLE as error:
                raise missing_fact(what, f"the response is no list: {short(str(error))}") from error
        raise missing_fact(what, "the list expired before it was complete", is_minor=True)

    async def _find_older_version(self, resource: Resource) -> Resource | None:
        """The kind in a version that the API server has instead; None if it has none."""
        if not resource.older_versions:
            return None
        try:
            async with self._requests:
                served = await api_server_interface.served_version(self.api, resource)
        except NodewiseError as error:
            raise missing_after_error("the kinds of the API server", "get the path /apis", error) from error
        return None if served == resource else served

    async def _read_pages(
        self,
        resource: Resource,
        namespace: str,
        selectors: Mapping[str, str],
        parse: Callable[[bytes], T | None],
        limit: int,
    ) -> list[T]:
        parsed: list[T] = []
        token, count = "", 0
        while True:
            params = {**selectors, "limit": _PAGE_SIZE, **({"continue": token} if token else {})}
            async with self._requests:
                body = await self.api.get(resource.path(namespace), params, timeout_s=_PAGE_TIMEOUT_S)
            page = msgspec.json.decode(body, type=_Page)
            items = page.items or ()
            if limit and len(items) + page.metadata.remaining > limit and not token:
                reason = f"there are more than {limit:,}, which are too many to read"
                raise missing_fact(resource.plural, reason, is_minor=True)
            parsed += filter(None, (parse(bytes(item)) for item in items))
            count += len(items)
            if token and page.metadata.token == token:
                raise missing_fact(resource.plural, "the list begins again where it should continue")
            token = page.metadata.token
            self.say(f"reading {count:,} {resource.plural}")
            if not token:
                return parsed
            await asyncio.sleep(0)  # parsing a page takes time: let other collectors run in between


def parse_json(body: bytes) -> Any:
    """An object of any shape; None if the bytes are no JSON."""
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        return None


class FileReader:
    """Reads files as containers see them: from ConfigMaps and Secrets through the API server, or from this host.

    Callers keep only the public key of a private key.
    """

    def __init__(self, reader: ClusterReader) -> None:
        self._reader = reader
        self._objects: dict[str, Any] = {}

    async def read(self, workload: Workload, container: Container, path: str) -> bytes:
        """A file as a container sees it."""
        what = f"{path} of {workload.where}"
        source = objects.find_mount(container, path)
        if source is None:
            raise missing_fact(what, "it is part of the image", remedy=_COPY)
        mount, key = source
        if mount.kind == "hostPath":
            return _read_host_path(what, host_path_of_container_file(container, path), workload)
        if mount.kind not in ("configMap", "secret"):
            raise missing_fact(what, "its volume is of a kind that cannot be read from here")
        resource = CONFIG_MAPS if mount.kind == "configMap" else SECRETS
        value = await self._read_object_once(resource, workload.namespace, mount.name)
        what = f"{resource.kind}/{workload.namespace}/{mount.name}"
        if value is None:
            raise missing_fact(what, "it does not exist, and a pod mounts it")
        text = get_text(value, "data", key)
        if resource is CONFIG_MAPS and text:
            return text.encode(errors="replace")[:_MAX_BYTES]
        encoded = get_text(value, "binaryData", key) if resource is CONFIG_MAPS else text
        try:
            data = base64.b64decode(encoded, validate=True)[:_MAX_BYTES]
        except ValueError:
            data = b""
        if not data:
            raise missing_fact(what, f"it has no key {key}")
        return data

    async def _read_object_once(self, resource: Resource, namespace: str, name: str) -> Any:
        what = f"{resource.kind}/{namespace}/{name}"
        try:
            path = resource.path(namespace, name)
        except BadInput as error:  # the API server accepts volumes with such a name
            raise missing_fact(what, str(error)) from error
        if path not in self._objects:
            right = f"get {resource.plural} {name} in namespace {namespace}"
            self._objects[path] = await attempt(self._reader.get(what, right, path))
        if isinstance(self._objects[path], UnavailableFact):
            raise MissingFact(self._objects[path])
        return self._objects[path]


async def read_certificate_chain(file: Awaitable[bytes]) -> Chain | UnavailableFact:
    """The certificates of a file that is read."""
    pem = await attempt(file)
    return pem if isinstance(pem, UnavailableFact) else certificates.parse_pem(pem)


def read_local_file(path: str, remedy: str = "") -> bytes:
    """A file of this host."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        raise missing_fact(path, error.strerror or str(error), remedy=remedy) from error
    except ValueError as error:
        raise missing_fact(path, "it is no file name", remedy=remedy) from error


def host_path_of_container_file(container: Container, path: str) -> str:
    """The path on its host of a container's file; empty if the file is not of the host."""
    source = objects.find_mount(container, path)
    if source is None or source[0].kind != "hostPath":
        return ""
    mount, inside = source
    return posixpath.join(mount.name, inside) if inside else mount.name


def may_read_host_files(workload: Workload) -> bool:
    """Whether doctor may read files that a workload mounts from this host: only of a static pod of the control plane.

    Tenants can make pods that name any path and any node, but no static pods of kube-system.
    """
    return workload.is_static and workload.namespace == SYSTEM_NAMESPACE and is_this_host(workload.node)


def is_this_host(node: str) -> bool:
    """Whether doctor runs on a node, by its name."""
    labels = [name.partition(".")[0].lower() for name in (node, socket.gethostname())]
    return bool(node) and labels[0] == labels[1]


def _read_host_path(what: str, path: str, workload: Workload) -> bytes:
    if may_read_host_files(workload):
        return read_local_file(path, _COPY)
    kind, namespace, name = workload.where.split("/")
    remedy = _FORWARD.format(namespace, name) if kind == "Pod" else _COPY
    raise missing_fact(what, f"it lies on host {workload.node or 'of the pod'}, as {path}", remedy=remedy)


Collector = Callable[["Session"], Awaitable[T]]


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
    servers: Sequence[str] = ()
    """Admin ports of replicas that this machine reaches."""


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
            self._tasks[collector] = asyncio.create_task(attempt(collector(self)))
        return cast("T | UnavailableFact", await self._tasks[collector])

    async def get_or(self, collector: Collector[T], default: D) -> T | D:
        """A fact; the default if it is unavailable."""
        value = await self.get(collector)
        return default if isinstance(value, UnavailableFact) else value

    async def require(self, collector: Collector[T]) -> T:
        """A fact. If it is unavailable, the fact of the collector that requires it is so, too, for the same reason."""
        value = await self.get(collector)
        if isinstance(value, UnavailableFact):
            raise MissingFact(value)
        return value

    async def close(self) -> None:
        """End collectors that still run after an error."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
