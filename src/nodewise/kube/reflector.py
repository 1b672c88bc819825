"""Keeps a store in sync with the objects of one kind in the API server; lists them once for commands that do not watch.

    ListState ──last page──▶ WatchState ──410 Gone──▶ ListState
       └─next page─▶ ListState    ├─event, bookmark─▶ WatchState
                                  └─failure─▶ VersionCheckState ──▶ WatchState, or ListState if the server has an
                                                                    older version

Functions without I/O compute the next state from a state and a response. A list requests the newest state (no
resourceVersion), page by page: `resourceVersion=0` ignores the page limit and may return an older state. Source:
kubernetes.io/docs/reference/using-api/api-concepts, client-go v0.36 reflector.go.

An object that cannot be decoded counts as absent; it is logged and counted. So the contents of the store depend only on
the server's objects, not on the order of its events.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from functools import lru_cache
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from nodewise.base import cooperative_scheduling
from nodewise.base.clock import Clock
from nodewise.base.errors import UNREADABLE, NodewiseError, Problem, Refused, Unavailable
from nodewise.kube import api_server_interface
from nodewise.kube.api_server_interface import Api, ApiCall, Backoff, Expired, NotFound
from nodewise.kube.resource_kinds import Resource
from nodewise.kube.store import Key, KubernetesObject, Store, StoreWriter
from nodewise.kube.struct_type_merge import ReadKeys, split_read_keys
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

FIRST_LIMIT: Final = 100
MOST_LIMIT: Final = 500
"""client-go's page size."""
PAGE_BYTES: Final = 1 << 20
"""Splitting a page into objects blocks the event loop: 1 MiB takes about half a millisecond."""

WATCH_S: Final = (25, 30)
"""Shortest and longest duration of a watch; random, so that replicas do not reconnect at the same time.

The API server ends a watch after this time, two seconds before which it sends a bookmark (apiserver v0.36
cacher/cache_watcher.go). So a watch that does not end is on a connection that has gone silent, for example because a
NAT gateway lost its entry; keepalive probes may still be answered by a proxy. Bookmarks alone, one a minute, would show
it later. The next watch continues from the last version, on the same connection, and the server sends nothing twice.
client-go watches for 5 to 10 minutes and detects a silent connection by HTTP/2 pings within 45 s."""


class ListState(NamedTuple):
    """The next request is for a page of the list; an empty `token` means the first page."""

    token: str = ""
    reason: Literal["start", "expired", "older", "doubt"] = "start"


class WatchState(NamedTuple):
    """The next request is a watch from `version`."""

    version: str


class VersionCheckState(NamedTuple):
    """After a failure, the next request is for the server's current version, before the watch continues from `version`.

    A server whose etcd was restored from a backup has an older version, and sends no watch events until it has made as
    many changes again.
    """

    version: str


ListWatchState = ListState | WatchState | VersionCheckState


class ListPage(NamedTuple):
    """A page of the list: its objects as JSON."""

    items: list[msgspec.Raw]
    is_first: bool
    is_last: bool


class WatchEvent(NamedTuple):
    """An event of a watch: an object that was added or modified, one that was deleted, or a bookmark."""

    kind: Literal["put", "gone", "bookmark"]
    key: Key
    object: msgspec.Raw
    version: str = ""
    """The resource version of the change: all changes up to it have been sent. Empty if unknown."""


class _ListMeta(msgspec.Struct, frozen=True, rename={"token": "continue"}):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    token: str = ""


class _ListResponse(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class ObjectMetadata(msgspec.Struct, frozen=True):
    """Name and version of any object; empty if it has none."""

    name: str = ""
    namespace: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _ObjectHeader(msgspec.Struct, frozen=True):
    metadata: ObjectMetadata = ObjectMetadata()


class _WatchLine(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"{}")


_LIST: Final = msgspec.json.Decoder(_ListResponse)
_HEAD: Final = msgspec.json.Decoder(_ObjectHeader)
_LINE: Final = msgspec.json.Decoder(_WatchLine)
_STATUS: Final = msgspec.json.Decoder(api_server_interface.ErrorStatus)
_KINDS: Final[Mapping[str, Literal["put", "gone", "bookmark"]]] = {
    "ADDED": "put",
    "MODIFIED": "put",
    "DELETED": "gone",
    "BOOKMARK": "bookmark",
}


def list_or_watch_parameters(
    state: ListWatchState, limit: int, random: Callable[[], float]
) -> dict[str, str]:
    """The parameters of the next request."""
    if isinstance(state, ListState):
        return {"limit": str(limit)} | ({"continue": state.token} if state.token else {})
    if isinstance(state, VersionCheckState):
        return {"limit": "1"}
    shortest_s, longest_s = WATCH_S
    seconds = shortest_s + int((longest_s - shortest_s) * random())
    return {"resourceVersion": state.version, "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}


def _decode_list(body: bytes) -> _ListResponse:
    try:
        return _LIST.decode(body)
    except UNREADABLE as error:
        raise Unavailable("list", [Problem("", str(error), "a list of objects")]) from error


def parse_page(state: ListState, body: bytes) -> tuple[ListWatchState, ListPage]:
    """The next state and the page of a response. `Unavailable` if the response is not a list."""
    response = _decode_list(body)
    token = response.metadata.token
    after = state._replace(token=token) if token else WatchState(response.metadata.resource_version)
    return after, ListPage(response.items or [], is_first=not state.token, is_last=not token)


def parse_version_check(state: VersionCheckState, body: bytes) -> ListWatchState:
    """The next state, given a page of a list. `Unavailable` if the response is not a list.

    Resource versions of a kind are integers that increase (KEP-5504). The check passes for other versions.
    """
    resource_version = _decode_list(body).metadata.resource_version
    are_numbers = resource_version.isdecimal() and state.version.isdecimal()
    if are_numbers and int(resource_version) < int(state.version):
        return ListState(reason="older")
    return WatchState(state.version)


def parse_watch_line(state: WatchState, data: bytes) -> tuple[ListWatchState, WatchEvent]:
    """The next state and the event of a line. Raises the error that the line reports; `Unavailable` if it is not an
    event.
    """
    try:
        event = _LINE.decode(data)
        kind = _KINDS.get(event.type)
        if kind is None:
            status = _STATUS.decode(event.object)
            raise api_server_interface.error_from_status(
                ApiCall("watch", f"event {event.type}"), status.code, status
            )
        meta = _HEAD.decode(event.object).metadata
    except UNREADABLE as error:
        raise Unavailable("watch", [Problem("", str(error), "a watch event")]) from error
    watch_event = WatchEvent(kind, (meta.namespace, meta.name), event.object, meta.resource_version)
    return WatchState(meta.resource_version or state.version), watch_event


def state_after_error(state: ListWatchState, error: Exception) -> ListWatchState:
    """The state after a failure: the list starts again if the version has expired, a watch checks its version."""
    if isinstance(error, Expired):
        return ListState(reason="expired")
    return VersionCheckState(state.version) if isinstance(state, WatchState) else state


def object_metadata(data: msgspec.Raw) -> ObjectMetadata:
    """The metadata of an object that may be invalid otherwise; empty if they cannot be read."""
    try:
        return _HEAD.decode(data).metadata
    except UNREADABLE:
        return ObjectMetadata()


def next_limit(limit: int, count: int, size_bytes: int) -> int:
    """The limit of the next page, from the size of a page of `count` objects. It at most doubles."""
    if not count:
        return limit
    fitting = PAGE_BYTES * count // max(size_bytes, 1)
    return max(1, min(fitting, 2 * limit, MOST_LIMIT))


T = TypeVar("T", bound=KubernetesObject)

_MOST_NAMED: Final = 100
"""Number of unreadable objects that are logged by name; others are only counted."""


class ObjectDecoder(Generic[T]):
    """Decodes objects into a store of `kind`.

    An object for which `keep` returns None counts as absent. One for which it raises ValueError does, too, and is
    logged and counted like one that cannot be decoded.
    """

    def __init__(
        self,
        kind: str,
        type_: type[T],
        metrics_registry: MetricsRegistry,
        keep: Callable[[T], T | None] | None = None,
    ) -> None:
        self._kind = kind
        self._keep = keep
        self._decoder = msgspec.json.Decoder(type_)
        self._fields = tuple(_find_fields_to_reduce(type_))
        self._metrics_registry = metrics_registry
        self._writer: StoreWriter[T] = StoreWriter()
        self._named: set[Key] = set()
        self._shown_count = -1

    @property
    def store(self) -> Store[T]:
        return self._writer.store

    def restart(self) -> None:
        """Start a list."""
        self._writer.restart()

    def add(self, data: msgspec.Raw) -> None:
        """Add an object of the list."""
        item = self._decode_and_filter(data)
        if item is not None:
            self._writer.add(item)

    async def add_page(self, page: ListPage) -> None:
        """Add the objects of a page, with pauses."""
        if page.is_first:
            self.restart()
        async for item in cooperative_scheduling.iterate_with_pauses(page.items):
            self.add(item)

    def finish(self, version: str = "") -> None:
        """Apply the complete list."""
        self._writer.finish(version)
        self._update_gauge()

    def apply_response(self, data: bytes) -> T | None:
        """Apply the server's response to our write before the watch delivers it (`StoreWriter.apply_response`)."""
        raw = msgspec.Raw(data)
        item = self._decode_and_filter(raw)
        if item is None:
            return None
        return self._writer.apply_response(item, object_metadata(raw).resource_version)

    def apply(self, watch_event: WatchEvent) -> None:
        if watch_event.kind == "bookmark":
            self._writer.advance_resource_version(watch_event.version)
            return
        item = self._decode_and_filter(watch_event.object) if watch_event.kind == "put" else None
        if item is None:
            self._writer.remove(watch_event.key, watch_event.version)
        else:
            self._writer.apply(item, watch_event.version)
        self._update_gauge()

    def _update_gauge(self) -> None:
        if len(self.store) != self._shown_count:
            self._shown_count = len(self.store)
            self._metrics_registry.set("kube_objects", self._shown_count, kind=self._kind)

    def _decode_and_filter(self, data: msgspec.Raw) -> T | None:
        try:
            item = self._reduce_fields(self._decoder.decode(data))
            return item if self._keep is None else self._keep(item)
        except UNREADABLE as error:
            self._metrics_registry.count("kube_unreadable_total", kind=self._kind)
            metadata = object_metadata(data)
            namespace, name = key = metadata.namespace, metadata.name
            if key not in self._named and len(self._named) < _MOST_NAMED:
                self._named.add(key)
                logs.emit(
                    "object_unreadable", kind=self._kind, namespace=namespace, name=name, error=str(error)
                )
            return None

    def _reduce_fields(self, item: T) -> T:
        """The object without what nobody reads of raw fields and dicts.

        Raw fields are copied: slices would keep the whole page in memory. Objects share equal copies, such as the
        capacity of nodes of one type.
        """
        for path, name, read_keys in self._fields:
            part: Any = item
            for step in path:
                part = getattr(part, step)
            if part is None or (value := getattr(part, name)) is None:
                continue
            if read_keys is None:
                msgspec.structs.force_setattr(part, name, _copy(bytes(value)))
            else:
                _drop_unread_entries(part, name, value, read_keys)
        return item


def _copy(content: bytes) -> msgspec.Raw:
    return _shared_copy(content) if len(content) <= _MOST_SHARED_BYTES else msgspec.Raw(content)


_shared_copy: Final = lru_cache(maxsize=256)(msgspec.Raw)
_MOST_SHARED_BYTES: Final = 512
"""Longer ones, such as specs of policies, are rarely equal, and the cache would keep those of deleted objects."""


class _ReducedField(NamedTuple):
    path: tuple[str, ...]
    """The fields that lead to the struct with this field."""
    name: str
    read_keys: ReadKeys | None
    """The keys to keep of a dict; None for raw JSON."""


def _find_fields_to_reduce(type_: Any, path: tuple[str, ...] = ()) -> Iterator[_ReducedField]:
    """The fields of a struct, and of the structs in it, with raw JSON or `ReadKeys`."""
    for field in msgspec.structs.fields(type_):
        _, read_keys = split_read_keys(field.type)
        if field.type is msgspec.Raw or read_keys is not None:
            yield _ReducedField(path, field.name, read_keys)
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _find_fields_to_reduce(field.type, (*path, field.name))


def _drop_unread_entries(part: Any, name: str, entries: dict[str, str], read_keys: ReadKeys) -> None:
    """Keep the read entries of a dict, whose keys are then the same objects in all structs."""
    kept = {key: entries[key] for key in read_keys.keys if key in entries}
    if read_keys.prefixes:
        kept |= {key: value for key, value in entries.items() if key.startswith(read_keys.prefixes)}
    if len(kept) < len(entries) and read_keys.bytes_field:
        size_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in entries.items())
        msgspec.structs.force_setattr(part, read_keys.bytes_field, size_bytes)
    msgspec.structs.force_setattr(part, name, kept)


PAGE_S: Final = 40.0
"""Timeout of a page. An API server that has just started is slow, and a retry would make it slower."""

_BACKOFF: Final = Backoff(most_s=5.0, reset_s=10.0)
"""All stores must be in sync two periods after the API server came back, so a delay is at most one period. A retry is
one small call per kind and replica, which a server that has just started can serve; client-go waits up to 30 s."""

MOST_RETRY_AFTER_S: Final = 60.0
"""Limit of Retry-After."""

NOT_SERVED_S: Final = 30.0
"""Longest delay between lists of a kind that the API server does not serve."""

MISSING_GRACE_S: Final = 60.0
"""Stored objects are kept for this long while their kind is not served.

The deletion of a CustomResourceDefinition first deletes its objects, each with an event of the watch. So a kind that is
missing while objects are stored is rather an API server that does not know the kind yet, or not at the moment."""

MISSING_AT_START_S: Final = 3.0
"""At the start, a kind has no objects after it has not been served for this long. Readiness waits for it."""

_SHOWN_S: Final = 0.25
"""The time of the last response in metrics is at most this much too early."""

_AT_ONCE_S: Final = 1.0
"""A watch that ends within this time without an event counts as failed (client-go: VeryShortWatchError)."""


class ReflectorTarget(NamedTuple, Generic[T]):
    """The objects to reflect: kind, type with the declared fields, namespace (empty: all) and selectors."""

    resource: Resource
    type: type[T]
    namespace: str = ""
    selectors: Mapping[str, str] = {}
    """`fieldSelector` and `labelSelector`, as the API accepts them."""
    keep: Callable[[T], T | None] | None = None
    """Returns the object to store, None to ignore the object; without this function all objects are stored. ValueError
    for an object that is ignored and logged."""
    label: str = ""
    """The kind in metrics and log lines, if several reflectors of a program watch the same kind."""
    is_optional: bool = False
    """Whether a kind that the API server refuses or does not serve from the start has no objects at once."""


class Reflector(Generic[T]):
    """Reflects the objects of one kind. Run it as a task until cancelled; it ends by itself only by a defect.

    A kind that the API server does not serve, because its CustomResourceDefinition is missing, has no objects. While it
    is missing for a moment only, its objects stay.
    """

    def __init__(
        self,
        api: Api,
        target: ReflectorTarget[T],
        clock: Clock,
        metrics_registry: MetricsRegistry,
        random: Callable[[], float],
    ) -> None:
        self._api = api
        self._target = target
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._random = random
        self._kind = target.label or target.resource.kind
        self._path = target.resource.path(target.namespace)
        self._decoder = ObjectDecoder(self._kind, target.type, metrics_registry, target.keep)
        self._state: ListWatchState = ListState()
        self._limit = FIRST_LIMIT
        self._failures = 0
        self._failed_by: type[NodewiseError] | None = None
        self._failed_at_s = float("-inf")
        self._last_response_s = self._shown_s = float("-inf")
        self._problem = ""
        self._is_served = True
        self._switched_at_s = float("-inf")
        self._missing_since_s: float | None = None
        self._synced = asyncio.Event()
        self._relist_requested = False
        self._listed = asyncio.Event()
        self._pace = cooperative_scheduling.Pacer()

    @property
    def store(self) -> Store[T]:
        return self._decoder.store

    @property
    def synced(self) -> bool:
        return self.store.synced

    def apply_response(self, response: bytes) -> T | None:
        """Apply the server's response to our write. Returns the object in the store afterwards, or None."""
        return self._decoder.apply_response(response)

    def request_relist(self) -> None:
        """List again (resync) at the next response of the server. A watch has a bookmark twice a minute."""
        self._relist_requested = True
        self._listed.clear()

    def age_s(self) -> float:
        """Seconds since the last response; infinite before the first. A watch has a bookmark twice a minute."""
        return self._clock.monotonic() - self._last_response_s

    async def wait_until_synced(self) -> None:
        """Wait for the first complete list."""
        await self._synced.wait()

    async def wait_until_listed(self) -> None:
        """Wait for a complete list that began after the last call of `request_relist`."""
        await self._listed.wait()

    async def run(self) -> None:
        """List, then watch, until cancelled; after a failure continue from there."""
        while True:
            try:
                await self._send_next_request(self._state)
            except NodewiseError as error:
                if isinstance(error, NotFound) and await self._switch_version():
                    continue
                # once an optional kind was readable, its objects stay while the API server starts and refuses all
                is_left_out = self._target.is_optional and not (self.synced and self._is_served)
                if is_left_out and isinstance(error, Refused):
                    await self._leave_out(error)
                elif isinstance(error, NotFound):
                    await self._handle_missing_collection(error)
                else:
                    self._state = state_after_error(self._state, error)
                    await self._wait_before_retry(error)

    async def _switch_version(self) -> bool:
        """Whether the API server serves the kind in another version, which is listed from now on."""
        target, now_s = self._target.resource, self._clock.monotonic()
        # during an upgrade replicas of the API server disagree: not back and forth without a pause
        if not target.older_versions or now_s - self._switched_at_s < NOT_SERVED_S:
            return False
        try:
            served = await api_server_interface.served_version(self._api, target)
        except NodewiseError:
            return False
        if served is None or served.path(self._target.namespace) == self._path:
            return False
        self._path, self._state = served.path(self._target.namespace), ListState()
        self._switched_at_s = now_s
        return True

    async def _send_next_request(self, state: ListWatchState) -> None:
        """One request: a page, a check of the version, or a watch until it ends."""
        if self._relist_requested:
            self._relist_requested = False
            state = self._state = ListState(reason="doubt")
        parameters = list_or_watch_parameters(state, self._limit, self._random)
        if isinstance(state, ListState):
            await self._list_page(state, {**self._target.selectors, **parameters})
        elif isinstance(state, VersionCheckState):
            body = await self._api.get(self._path, parameters)
            self._record_server_response()
            self._state = parse_version_check(state, body)
        else:
            await self._watch_until_end({**self._target.selectors, **parameters})

    async def _list_page(self, state: ListState, params: Mapping[str, str]) -> None:
        body = await self._api.get(self._path, params, timeout_s=PAGE_S)
        self._record_server_response()
        # splitting a page into objects and decoding them take half a millisecond each: yield in between
        await asyncio.sleep(0)
        after, page = parse_page(state, body)
        self._limit = next_limit(self._limit, len(page.items), len(body))
        if page.is_first:
            self._metrics_registry.count("kube_lists_total", kind=self._kind, reason=state.reason)
        await asyncio.sleep(0)
        await self._decoder.add_page(page)
        self._state = after
        self._missing_since_s = None
        if isinstance(after, WatchState):
            if not self._is_served:
                self._is_served = True
                logs.emit("kube_back", kind=self._kind)
            self._decoder.finish(after.version)
            self._synced.set()
            if not self._relist_requested:
                self._listed.set()

    async def _watch_until_end(self, params: Mapping[str, str]) -> None:
        began_s = self._clock.monotonic()
        is_empty = True
        async with aclosing(self._api.watch(self._path, params)) as lines:
            async for line in lines:
                is_empty = False
                await self._pace.pause()
                self._record_server_response()
                if isinstance(self._state, WatchState):
                    self._state, watch_event = parse_watch_line(self._state, line)
                    self._decoder.apply(watch_event)
                if self._relist_requested:
                    break
        if is_empty and self._clock.monotonic() - began_s < _AT_ONCE_S:
            raise Unavailable(f"watch {self._path}", [Problem("", "it ended at once", "")])
        self._record_server_response()

    def _record_server_response(self) -> None:
        self._last_response_s = self._clock.monotonic()
        if self._last_response_s - self._shown_s < _SHOWN_S and not self._problem:
            return  # each event of a watch is a response
        self._shown_s = self._last_response_s
        self._metrics_registry.set("kube_contact_timestamp_seconds", self._clock.now(), kind=self._kind)
        self._metrics_registry.set("kube_connected", 1.0, kind=self._kind)
        if self._problem:
            self._problem = ""
            logs.emit("kube_back", kind=self._kind)

    async def _leave_out(self, error: Refused) -> None:
        """Count an optional kind that cannot be read as without objects, and list it again later."""
        self._record_server_response()
        self._state = ListState()
        self._decoder.restart()
        self._decoder.finish()
        self._synced.set()
        if self._is_served:
            self._is_served = False
            logs.emit("kube_kind_left_out", kind=self._kind, error=str(error))
        await self._clock.sleep(NOT_SERVED_S)

    async def _handle_missing_collection(self, error: NotFound) -> None:
        """Empty the store once the kind has not been served for the grace period; until then retry.

        Objects of a kind that is served later take effect at most `NOT_SERVED_S` after that.
        """
        try:
            is_served = await api_server_interface.is_served(self._api, self._target.resource)
        except NodewiseError:
            is_served = True  # unknown: keep the objects
        if is_served:
            self._is_served = True
            self._missing_since_s = None
            self._state = state_after_error(self._state, error)
            await self._wait_before_retry(error)
            return
        now_s = self._clock.monotonic()
        self._missing_since_s = now_s if self._missing_since_s is None else self._missing_since_s
        missing_s = now_s - self._missing_since_s
        self._state = ListState()
        grace_s = MISSING_GRACE_S if self.synced else MISSING_AT_START_S
        if self._is_served and missing_s < grace_s:
            # the same text for a list and a watch, so that it is logged once
            problem = Problem("", "the API server does not serve the kind at the moment", "")
            await self._wait_before_retry(NotFound(self._path, [problem]))
            return
        self._record_server_response()
        self._decoder.restart()
        self._decoder.finish()
        self._synced.set()
        self._failures = 0
        # a kind that is installed after nodewise takes effect soon
        delay_s = min(NOT_SERVED_S, missing_s)
        if self._is_served:
            self._is_served = False
            logs.emit("kube_kind_not_served", kind=self._kind, error=str(error), again_in_s=round(delay_s, 1))
        await self._clock.sleep(delay_s)

    async def _wait_before_retry(self, error: NodewiseError) -> None:
        """Wait before a retry: longer with each failure of the same kind, at least Retry-After. A failure is logged
        once.

        A starting server first refuses connections, then permissions, then versions: a new kind of failure is progress,
        so it resets the delay.
        """
        now_s = self._clock.monotonic()
        recent = now_s - self._failed_at_s < _BACKOFF.reset_s
        self._failures = self._failures + 1 if recent and type(error) is self._failed_by else 1
        self._failed_by = type(error)
        retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
        delay_s = _BACKOFF.delay_s(self._failures, self._random, retry_after_s)
        delay_s = max(delay_s, min(retry_after_s, MOST_RETRY_AFTER_S))
        if not isinstance(error, Expired):
            self._metrics_registry.set("kube_connected", 0.0, kind=self._kind)
            self._shown_s = float("-inf")
        if str(error) != self._problem and not isinstance(error, Expired):
            self._problem = str(error)
            logs.emit("kube_lost", kind=self._kind, error=self._problem, again_in_s=round(delay_s, 1))
        await self._clock.sleep(delay_s)
        self._failed_at_s = self._clock.monotonic()


_MAX_ATTEMPTS = 3
"""Number of attempts for a list whose pages expire."""


async def list_objects(
    api: Api,
    target: ReflectorTarget[T],
    metrics_registry: MetricsRegistry,
    report_count: Callable[[int], None],
) -> Store[T]:
    """The objects in a store, as a reflector would store them: an object that cannot be decoded counts as absent, and
    is logged.

    `report_count` is called after each page with the number of objects so far. Errors are those of `Api.get`.
    """
    decoder = ObjectDecoder(target.resource.kind, target.type, metrics_registry, target.keep)
    path = target.resource.path(target.namespace)
    state: ListWatchState = ListState()
    limit, count, expired = FIRST_LIMIT, 0, 0

    def request_page() -> asyncio.Task[bytes]:
        params = {**target.selectors, **list_or_watch_parameters(state, limit, float)}
        return asyncio.create_task(api.get(path, params, timeout_s=PAGE_S))

    request = request_page()
    try:
        while isinstance(state, ListState):
            try:
                body = await request
            except Expired as error:
                expired += 1
                if expired == _MAX_ATTEMPTS:
                    raise
                state = state_after_error(state, error)
                request = request_page()
                continue
            except NotFound:
                older = target.resource.older_versions
                served = await api_server_interface.served_version(api, target.resource) if older else None
                if served is None or served.path(target.namespace) == path:
                    raise
                path = served.path(target.namespace)
                request = request_page()
                continue
            state, page = parse_page(state, body)
            limit = next_limit(limit, len(page.items), len(body))
            if isinstance(state, ListState):
                request = request_page()  # the server works on it while this page is decoded
            await decoder.add_page(page)
            count = len(page.items) + (0 if page.is_first else count)
            report_count(count)
    finally:
        request.cancel()
    decoder.finish(state.version)
    return decoder.store
