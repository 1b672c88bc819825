"""List and watch as a pure step: a state and a frame in, the next state and what the frame says out. No I/O.

    Listing ──last page──▶ Watching ──410 Gone──▶ Listing
       └─next page─▶ Listing    ├─event, bookmark─▶ Watching
                                └─failure─▶ Checking ──▶ Watching, or Listing where the server has an older version

The list asks for the newest state (no resourceVersion), page by page. `resourceVersion=0` would be cheaper
for an old API server, but it ignores the page limit and may answer with a state older than one we have seen;
since 1.31 (KEP-2340) the newest state comes from the API server's memory too.
Source: kubernetes.io/docs/reference/using-api/api-concepts, and client-go v0.36 tools/cache/reflector.go.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from nodewise.errors import UNREADABLE, Problem, Unavailable
from nodewise.kube import error_responses
from nodewise.kube.api import Expired
from nodewise.kube.error_responses import ApiCall
from nodewise.kube.store import Key

FIRST_LIMIT: Final = 100
MOST_LIMIT: Final = 500
"""client-go's page size."""
PAGE_BYTES: Final = 1 << 20
"""Finding the objects in a page is one step of the event loop: 1 MiB takes about half a millisecond."""

SHORTEST_WATCH_S: Final = 300
"""A watch is asked to last from this to twice this, by chance, so that replicas do not come back in step."""


class ListState(NamedTuple):
    """The next thing to ask for is a page of the list; an empty `token` is the first page."""

    token: str = ""
    reason: Literal["start", "expired", "older", "doubt"] = "start"


class WatchState(NamedTuple):
    """The next thing to ask for is what happened after `version`."""

    version: str


class VersionCheckState(NamedTuple):
    """After a failure the next thing to ask for is the server's version, before we go on after `version`.

    One whose etcd was put back from a backup has an older version than we have seen, and tells a watch nothing until
    it has made as many changes again.
    """

    version: str


ListWatchState = ListState | WatchState | VersionCheckState


class ListPage(NamedTuple):
    """Some objects of the list, as JSON."""

    items: list[msgspec.Raw]
    is_first: bool
    is_last: bool


class WatchEvent(NamedTuple):
    """What a line of a watch says: an object that is there now, one that went, or a sign of life."""

    kind: Literal["put", "gone", "bookmark"]
    key: Key
    object: msgspec.Raw
    version: str = ""
    """The server's, of the change; everything until then was told. Empty if the server does not say."""


class _ListMeta(msgspec.Struct, frozen=True, rename={"token": "continue"}):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    token: str = ""


class _ListResponse(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _ObjectMeta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _ObjectHeader(msgspec.Struct, frozen=True):
    metadata: _ObjectMeta = _ObjectMeta()


class _WatchLine(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"{}")


_LIST: Final = msgspec.json.Decoder(_ListResponse)
_HEAD: Final = msgspec.json.Decoder(_ObjectHeader)
_LINE: Final = msgspec.json.Decoder(_WatchLine)
_STATUS: Final = msgspec.json.Decoder(error_responses.ErrorStatus)
_KINDS: Final[Mapping[str, Literal["put", "gone", "bookmark"]]] = {
    "ADDED": "put",
    "MODIFIED": "put",
    "DELETED": "gone",
    "BOOKMARK": "bookmark",
}


def request_parameters(state: ListWatchState, limit: int, random: Callable[[], float]) -> dict[str, str]:
    """The parameters of the next request."""
    if isinstance(state, ListState):
        return {"limit": str(limit)} | ({"continue": state.token} if state.token else {})
    if isinstance(state, VersionCheckState):
        return {"limit": "1"}
    seconds = SHORTEST_WATCH_S + int(SHORTEST_WATCH_S * random())
    return {
        "resourceVersion": state.version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(seconds),
    }


def parse_page(state: ListState, body: bytes) -> tuple[ListWatchState, ListPage]:
    """One page of the list. `Unavailable` if it is none."""
    try:
        response = _LIST.decode(body)
    except UNREADABLE as error:
        raise Unavailable("list", [Problem("", str(error), "a list of objects")]) from error
    token = response.metadata.token
    after = state._replace(token=token) if token else WatchState(response.metadata.resource_version)
    return after, ListPage(response.items or [], is_first=not state.token, is_last=not token)


def parse_version_check(state: VersionCheckState, body: bytes) -> ListWatchState:
    """Where to go on, given a page of a list. `Unavailable` if it is none.

    Versions of a kind are whole numbers that grow (KEP-5504); a server whose versions are not is believed.
    """
    try:
        resource_version = _LIST.decode(body).metadata.resource_version
    except UNREADABLE as error:
        raise Unavailable("list", [Problem("", str(error), "a list of objects")]) from error
    are_numbers = resource_version.isdecimal() and state.version.isdecimal()
    if are_numbers and int(resource_version) < int(state.version):
        return ListState(reason="older")
    return WatchState(state.version)


def parse_watch_line(state: WatchState, data: bytes) -> tuple[ListWatchState, WatchEvent]:
    """One line of the watch. Raises what the server reports in it; `Unavailable` if the line is no event."""
    try:
        event = _LINE.decode(data)
        kind = _KINDS.get(event.type)
        if kind is None:
            status = _STATUS.decode(event.object)
            raise error_responses.error_from_status(
                ApiCall("watch", f"event {event.type}"), status.code, status
            )
        meta = _HEAD.decode(event.object).metadata
    except UNREADABLE as error:
        raise Unavailable("watch", [Problem("", str(error), "a watch event")]) from error
    frame = WatchEvent(kind, (meta.namespace, meta.name), event.object, meta.resource_version)
    return WatchState(meta.resource_version or state.version), frame


def state_after_error(state: ListWatchState, error: Exception) -> ListWatchState:
    """Where to go on after a failure: where we were if the server is still there, else from the beginning."""
    if isinstance(error, Expired):
        return ListState(reason="expired")
    return VersionCheckState(state.version) if isinstance(state, WatchState) else state


def key_of(data: msgspec.Raw) -> Key:
    """Namespace and name of an object that may be wrong in every other respect; empty if in this one too."""
    try:
        meta = _HEAD.decode(data).metadata
    except UNREADABLE:
        return "", ""
    return meta.namespace, meta.name


def version_of(data: msgspec.Raw) -> str:
    """The server's version of an object; empty if it has none."""
    try:
        return _HEAD.decode(data).metadata.resource_version
    except UNREADABLE:
        return ""


def next_limit(limit: int, count: int, size_bytes: int) -> int:
    """How many objects to ask for next, from how large a page of `count` was; it at most doubles."""
    if not count:
        return limit
    fitting = PAGE_BYTES * count // max(size_bytes, 1)
    return max(1, min(fitting, 2 * limit, MOST_LIMIT))
