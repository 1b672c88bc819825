from typing import Any

import msgspec
import pytest

from nodewise.base.errors import Conflict, NodewiseError, Refused, Unavailable
from nodewise.kube import reflector
from nodewise.kube.api_server_interface import Expired
from nodewise.kube.reflector import ListState, ListWatchState, VersionCheckState, WatchEvent, WatchState


def event(type_: str, **item: Any) -> bytes:
    return msgspec.json.encode({"type": type_, "object": item})


META = {"name": "a", "namespace": "n", "resourceVersion": "7"}


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        pytest.param(ListState(), {"limit": "50"}, id="the first page asks for the newest state"),
        pytest.param(ListState("t"), {"limit": "50", "continue": "t"}, id="a later page"),
        pytest.param(VersionCheckState("7"), {"limit": "1"}, id="a look at the version"),
        pytest.param(
            WatchState("7"),
            {"resourceVersion": "7", "allowWatchBookmarks": "true", "timeoutSeconds": "27"},
            id="a watch, with bookmarks, for half a minute",
        ),
    ],
)
def test_parameters_of_requests(state: ListWatchState, wanted: dict[str, str]) -> None:
    assert reflector.list_or_watch_parameters(state, 50, lambda: 0.5) == wanted


def test_a_page_that_is_not_the_last_leads_to_the_next() -> None:
    state, page = reflector.parse_page(ListState(), b'{"metadata": {"continue": "t"}, "items": [{"x": 1}]}')
    assert state == ListState("t")
    assert (page.is_first, page.is_last, [bytes(item) for item in page.items]) == (True, False, [b'{"x": 1}'])


def test_the_last_page_leads_to_the_watch() -> None:
    state, page = reflector.parse_page(
        ListState("t"), b'{"metadata": {"resourceVersion": "9"}, "items": null}'
    )
    assert state == WatchState("9")
    assert (page.is_first, page.is_last, page.items) == (False, True, [])


@pytest.mark.parametrize("body", [b"", b"[]", b'{"items": 3}', b'{"items": [{]}', b"\xff"])
def test_invalid_page_is_unavailable(body: bytes) -> None:
    with pytest.raises(Unavailable):
        reflector.parse_page(ListState(), body)


@pytest.mark.parametrize(
    ("line", "kind", "key"),
    [
        pytest.param(event("ADDED", metadata=META), "put", ("n", "a"), id="added"),
        pytest.param(event("MODIFIED", metadata=META), "put", ("n", "a"), id="modified"),
        pytest.param(event("DELETED", metadata=META), "gone", ("n", "a"), id="deleted"),
        pytest.param(
            event("BOOKMARK", metadata={"resourceVersion": "7"}), "bookmark", ("", ""), id="bookmark"
        ),
    ],
)
def test_watch_line_has_an_event_and_the_next_version(line: bytes, kind: str, key: tuple[str, str]) -> None:
    state, frame = reflector.parse_watch_line(WatchState("6"), line)
    assert state == WatchState("7")
    assert (frame.kind, frame.key) == (kind, key)


def test_an_object_without_a_version_does_not_lose_ours() -> None:
    state, frame = reflector.parse_watch_line(WatchState("6"), event("ADDED", metadata={"name": "a"}))
    assert state == WatchState("6")
    assert isinstance(frame, WatchEvent)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        pytest.param(event("ERROR", kind="Status", code=410, message="too old"), Expired, id="410 Gone"),
        pytest.param(event("ERROR", kind="Status", code=500), Unavailable, id="500"),
        pytest.param(event("ERROR", kind="Status", code=403), Refused, id="403"),
        pytest.param(event("ERROR"), Refused, id="an error that says nothing"),
        pytest.param(event("SURPRISE"), Refused, id="a type that we do not know"),
        pytest.param(b'{"type": "ADDED", "object": {"meta', Unavailable, id="cut off"),
        pytest.param(b'{"type": "ADDED", "object": {"metadata": 3}}', Unavailable, id="no object"),
        pytest.param(b"null", Unavailable, id="no event"),
        pytest.param(b"\x00\xff", Unavailable, id="no JSON"),
    ],
)
def test_invalid_watch_line_is_an_error(line: bytes, kind: type[NodewiseError]) -> None:
    with pytest.raises(kind):
        reflector.parse_watch_line(WatchState("6"), line)


@pytest.mark.parametrize(
    ("state", "after"),
    [
        pytest.param(ListState("t"), ListState("t"), id="a page is asked for again"),
        pytest.param(
            WatchState("7"),
            VersionCheckState("7"),
            id="before a watch goes on the server's version is looked at",
        ),
        pytest.param(VersionCheckState("7"), VersionCheckState("7"), id="and looked at again"),
    ],
)
def test_after_a_failure_we_go_on_where_we_were(state: ListWatchState, after: ListWatchState) -> None:
    for error in (Unavailable("down"), Refused("no"), Conflict("other")):
        assert reflector.state_after_error(state, error) == after
    assert reflector.state_after_error(state, Expired("gone")) == ListState(reason="expired")


@pytest.mark.parametrize(
    ("resource_version", "after"),
    [
        pytest.param("700", WatchState("700"), id="nothing happened"),
        pytest.param("1000", WatchState("700"), id="newer, although it sorts before as a text"),
        pytest.param("90", ListState(reason="older"), id="put back"),
        pytest.param("x7", WatchState("700"), id="no number"),
        pytest.param("", WatchState("700"), id="none"),
    ],
)
def test_a_server_that_was_put_back_is_listed_anew(resource_version: str, after: ListWatchState) -> None:
    body = msgspec.json.encode(
        {"metadata": {"resourceVersion": resource_version, "continue": "t"}, "items": []}
    )
    assert reflector.parse_version_check(VersionCheckState("700"), body) == after


def test_a_look_at_the_version_that_is_no_list_is_an_error() -> None:
    with pytest.raises(Unavailable):
        reflector.parse_version_check(VersionCheckState("7"), b"[]")


@pytest.mark.parametrize(
    ("limit", "count", "size_bytes", "wanted"),
    [
        pytest.param(100, 0, 100, 100, id="an empty page teaches nothing"),
        pytest.param(100, 100, 1000, 200, id="small objects: more, but at most twice"),
        pytest.param(400, 400, 4000, 500, id="never more than client-go asks for"),
        pytest.param(100, 100, 1 << 20, 100, id="just right"),
        pytest.param(100, 100, 10 << 20, 10, id="large objects: fewer"),
        pytest.param(100, 1, 10 << 20, 1, id="at least one"),
    ],
)
def test_pages_grow_and_shrink_with_the_objects(limit: int, count: int, size_bytes: int, wanted: int) -> None:
    assert reflector.next_limit(limit, count, size_bytes) == wanted
