"""List and watch as pure functions: a state and a response in, the next state and its content out. No I/O.

    ListState ──last page──▶ WatchState ──410 Gone──▶ ListState
       └─next page─▶ ListState    ├─event, bookmark─▶ WatchState
                                  └─failure─▶ VersionCheckState ──▶ WatchState, or ListState if the server has an
                                                                    older version

A list requests the newest state (no resourceVersion), page by page: `resourceVersion=0` ignores the page limit and may
return an older state. Source: kubernetes.io/docs/reference/using-api/api-concepts, client-go v0.36 reflector.go.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from nodewise.base.errors import UNREADABLE, Problem, Unavailable
from nodewise.kube import api_server_interface
from nodewise.kube.api_server_interface import ApiCall, Expired
from nodewise.kube.store import Key

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
