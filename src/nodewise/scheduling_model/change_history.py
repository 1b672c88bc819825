"""The changes of objects in the API server in memory, and watches of them, with selectors and bookmarks."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.kube.api_server_interface import Params
from nodewise.kube.resource_kinds import Resource
from nodewise.scheduling_model.served_kinds import RequestPath

Object = dict[str, Any]

_FIRST_REVISION: Final = 10
_BOOKMARK: Final = Resource("", "", "", "Bookmark")


class _LoggedChange(NamedTuple):
    """A change at a revision: the object before and after."""

    revision: int
    resource: Resource
    old: Object | None
    new: Object | None


class ChangeHistory:
    """All changes in their order. A change is appended at the newest revision, which `next_revision` begins."""

    def __init__(self) -> None:
        self.revision = _FIRST_REVISION
        """The newest one."""
        self._changes: list[_LoggedChange] = []
        self._oldest = 0
        self._news = asyncio.Event()
        self._cuts = 0

    def next_revision(self) -> int:
        """Begin a new revision."""
        self.revision += 1
        return self.revision

    def append(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        """Add a change; None for the object before its creation, and after its deletion."""
        self._changes.append(_LoggedChange(self.revision, resource, old, new))
        self.wake_watches()

    def add_bookmark(self) -> None:
        """Send a bookmark to every watch that allows it."""
        self.append(_BOOKMARK, None, None)

    def changes(self, resource: Resource) -> list[tuple[Object | None, Object | None]]:
        """All changes of objects of a kind, oldest first: before and after."""
        return [(change.old, change.new) for change in self._changes if change.resource == resource]

    def compact(self) -> None:
        """Answer watches from older revisions with 410. Open watches continue."""
        self._oldest = self.revision

    def cut(self) -> None:
        """End every watch."""
        self._cuts += 1
        self.wake_watches()

    def wake_watches(self) -> None:
        """Let every watch send what it has not sent yet."""
        self._news.set()
        self._news = asyncio.Event()

    async def watch(self, place: RequestPath, params: Params) -> AsyncGenerator[bytes, None]:
        """The lines of a watch from a revision on, the newest one without `resourceVersion`, until `cut`."""
        version = int(params.get("resourceVersion") or self.revision)
        if version < self._oldest:
            text = f"too old resource version: {version} ({self._oldest})"
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": text}
            yield msgspec.json.encode({"type": "ERROR", "object": gone})
            return
        position = next(
            (number for number, change in enumerate(self._changes) if change.revision > version),
            len(self._changes),
        )
        cuts = self._cuts
        while cuts == self._cuts:
            while position < len(self._changes):
                line = _watch_event_line(self._changes[position], place, params)
                position += 1
                if line:
                    yield line
            await self._news.wait()


def _watch_event_line(change: _LoggedChange, place: RequestPath, params: Params) -> bytes:
    """The watch event of a change for one watcher; empty if the change does not concern it."""
    if change.resource is _BOOKMARK:
        if params.get("allowWatchBookmarks") != "true":
            return b""
        item: Object = {"kind": place.resource.kind, "metadata": {"resourceVersion": str(change.revision)}}
        return msgspec.json.encode({"type": "BOOKMARK", "object": item})
    was = change.old is not None and is_selected(change.old, change.resource, place, params)
    now = change.new is not None and is_selected(change.new, change.resource, place, params)
    if not was and not now:
        return b""
    kind = "DELETED" if not now else "MODIFIED" if was else "ADDED"
    item = dict((change.new if now else change.old) or {})
    item["metadata"] = {**item["metadata"], "resourceVersion": str(change.revision)}
    return msgspec.json.encode({"type": kind, "object": item})


def is_selected(item: Object, resource: Resource, place: RequestPath, params: Params) -> bool:
    """Whether a list or watch of a collection, with its selectors, contains an object of a kind."""
    if resource != place.resource or (place.namespace and item["metadata"]["namespace"] != place.namespace):
        return False
    labels = item["metadata"].get("labels", {})
    return _selector_matches(
        params.get("fieldSelector", ""), lambda path: _value_at_field_path(item, path.split("."))
    ) and _selector_matches(params.get("labelSelector", ""), labels.get)


def _selector_matches(selector: str, value_of: Callable[[str], Any]) -> bool:
    """Whether a selector such as `a=b,c!=d` matches."""
    for part in filter(None, selector.split(",")):
        name, _, value = part.partition("=")
        if (value_of(name.removesuffix("!")) == value) == name.endswith("!"):
            return False
    return True


def _value_at_field_path(item: Any, path: list[str]) -> Any:
    for step in path:
        item = item.get(step, "") if isinstance(item, dict) else ""
    return item
