"""An API server in memory: a `nodewise.kube.api_server_interface.Api` with paged lists, watches, bookmarks,
410 and conflicts, served kinds, and the subset of server-side apply that nodewise uses.

It passes `tests/unit/kube/api_suite.py`, as the real API server does. It has no admission and no validation of kinds.
Of server-side apply it has owned labels by key, and the fields of a status.
"""

import asyncio
import base64
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from nodewise.base import clock
from nodewise.base.errors import NodewiseError
from nodewise.kube import api_server_interface
from nodewise.kube.api_server_interface import (
    DEADLINE_S,
    NONE,
    WATCH_DEADLINE_S,
    ApiCall,
    BeforeBody,
    ErrorStatus,
    Params,
    Patch,
    StatusCause,
    StatusDetails,
)
from nodewise.kube.resource_kinds import EVENTS, LEASES, NAMESPACES, NODES, PODS, Resource

Object = dict[str, Any]


class RequestPath(NamedTuple):
    """The parsed path of a request; an empty name is a collection, an empty namespace means all namespaces."""

    resource: Resource
    namespace: str
    name: str
    sub: str


_FIRST_REVISION: Final = 10
_BOOKMARK: Final = Resource("", "", "", "Bookmark")


class _LoggedChange(NamedTuple):
    """A change at a revision: the object before and after."""

    revision: int
    resource: Resource
    old: Object | None
    new: Object | None


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

    def field(path: str) -> Any:
        value: Any = item
        for step in path.split("."):
            value = value.get(step, "") if isinstance(value, dict) else ""
        return value

    labels = item["metadata"].get("labels", {})
    return _selector_matches(params.get("fieldSelector", ""), field) and _selector_matches(
        params.get("labelSelector", ""), labels.get
    )


def _selector_matches(selector: str, value_of: Callable[[str], Any]) -> bool:
    """Whether a selector such as `a=b,c!=d,e` matches; `e` exists."""
    for part in filter(None, selector.split(",")):
        name, is_comparison, value = part.partition("=")
        key = name.removesuffix("!")
        is_met = value_of(key) == value if is_comparison else value_of(key) is not None
        if is_met == name.endswith("!"):
            return False
    return True


def apply(before: Object, configuration: Object, manager: str) -> tuple[Object, dict[str, str]]:
    """Return the object after an apply, and its conflicts: label fields that others own, with their managers.

    Labels that the manager applied before and omits now are removed, unless another manager owns them too.
    """
    if "labels" not in configuration.get("metadata", {}):
        return _apply_status(before, configuration, manager), {}
    labels = dict(before["metadata"].get("labels") or {})
    wanted: Mapping[str, str] = configuration["metadata"]["labels"]
    owners: dict[str, set[str]] = {}
    for entry in before["metadata"].get("managedFields") or []:
        for name in entry["fieldsV1"].get("f:metadata", {}).get("f:labels", {}):
            owners.setdefault(name.removeprefix("f:"), set()).add(entry["manager"])
    conflicts = _label_conflicts(labels, wanted, owners, manager)
    labels.update(wanted)
    for key, managers in owners.items():
        if key not in wanted and managers == {manager}:
            labels.pop(key, None)
    metadata = {**_metadata_with_uid(before, configuration), "labels": labels}
    metadata["managedFields"] = _managed_fields(before, manager, wanted)
    return {**before, "metadata": metadata}, conflicts


def _apply_status(before: Object, configuration: Object, manager: str) -> Object:
    """The object after an apply of its status, without fields that only this manager applied before and omits now."""
    wanted: Object = configuration.get("status", {})
    entries = before["metadata"].get("managedFields") or []
    others = [entry for entry in entries if entry["manager"] != manager]
    owned = {name for entry in entries for name in entry["fieldsV1"].get("f:status", {})}
    owned_by_others = {name for entry in others for name in entry["fieldsV1"].get("f:status", {})}
    omitted = {name.removeprefix("f:") for name in owned - owned_by_others} - wanted.keys()
    status = {key: value for key, value in before.get("status", {}).items() if key not in omitted} | wanted
    fields: Object = {"f:status": {f"f:{key}": {} for key in wanted}}
    entry = {"manager": manager, "operation": "Apply", "subresource": "status", "fieldsV1": fields}
    metadata = {**_metadata_with_uid(before, configuration), "managedFields": [*others, entry]}
    return {**before, "metadata": metadata, "status": status}


def _label_conflicts(
    labels: Mapping[str, str], wanted: Mapping[str, str], owners: Mapping[str, set[str]], manager: str
) -> dict[str, str]:
    """By field, the other managers of labels whose values would change."""
    conflicts: dict[str, str] = {}
    for key in [key for key, value in wanted.items() if labels.get(key, value) != value]:
        others = owners.get(key, set()) - {manager}
        if others or key not in owners:
            conflicts[f".metadata.labels.{key}"] = ", ".join(sorted(others)) or "another manager"
    return conflicts


def _metadata_with_uid(before: Object, configuration: Object) -> Object:
    """The existing metadata, with the uid of the request if it has one."""
    uid = configuration.get("metadata", {}).get("uid")
    return {**before["metadata"], **({"uid": uid} if uid else {})}


def _managed_fields(before: Object, manager: str, wanted: Mapping[str, str]) -> list[Object]:
    others = [entry for entry in before["metadata"].get("managedFields") or [] if entry["manager"] != manager]
    if not wanted:
        return others
    fields: Object = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in wanted}}}
    return [*others, {"manager": manager, "operation": "Apply", "apiVersion": "v1", "fieldsV1": fields}]


# ruff: noqa: ARG002 - the deadlines of the interface mean nothing in memory


CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")


class FakeApi:
    """`put` and `remove` act like another client; `cut`, `compact`, `bookmark` and `fail` inject faults and events."""

    def __init__(self, *resources: Resource) -> None:
        served = (NAMESPACES, NODES, PODS, LEASES, EVENTS, CONFIGMAPS, *resources)
        self._kinds = {(resource.api_version, resource.plural): resource for resource in served}
        self._objects: dict[tuple[Resource, str, str], Object] = {}
        self._revision = _FIRST_REVISION
        """The newest one."""
        self._changes: list[_LoggedChange] = []
        self._oldest = 0
        """Watches from older revisions and pages get 410."""
        self._news = asyncio.Event()
        self._cuts = 0
        self._pages: dict[tuple[int, RequestPath, tuple[str, str]], list[Object]] = {}
        """By version, collection and selectors."""
        self._ids = itertools.count(1)
        self._faults: deque[NodewiseError] = deque()
        self.calls: list[tuple[str, str]] = []
        """Verb and path of every call, in order."""
        self.raw: dict[str, bytes] = {}
        """Responses of `get` for paths of aggregated APIs, such as metrics."""

    # for tests

    def put(self, resource: Resource, item: Mapping[str, Any]) -> Object:
        """Create or replace an object."""
        meta = item["metadata"]
        key = (resource, meta.get("namespace", "") if resource.namespaced else "", meta["name"])
        return self._store_object(key, json.loads(json.dumps(item)))

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        self._delete_object((resource, namespace, name))

    def objects(self, resource: Resource) -> dict[tuple[str, str], Object]:
        """All objects of a kind, by namespace and name."""
        return {(key[1], key[2]): item for key, item in self._objects.items() if key[0] == resource}

    def changes(self, resource: Resource) -> list[tuple[Object | None, Object | None]]:
        """All changes of objects of a kind, oldest first: before and after."""
        return [(change.old, change.new) for change in self._changes if change.resource == resource]

    def serve(self, resource: Resource) -> None:
        """Serve a kind, as after the creation of its CustomResourceDefinition."""
        self._kinds[resource.api_version, resource.plural] = resource

    def hide(self, resource: Resource) -> None:
        """Stop to serve a kind without deleting its objects, and end all watches."""
        del self._kinds[resource.api_version, resource.plural]
        self.cut()

    def fail(self, error: NodewiseError, times: int = 1) -> None:
        """Make the next calls fail, including watches."""
        self._faults.extend([error] * times)

    def cut(self) -> None:
        """End every watch, like a server that stops."""
        self._cuts += 1
        self._wake_watches()

    def compact(self) -> None:
        """Discard the history: requests for older versions and pages get 410. Open watches continue."""
        self._oldest = self._revision
        self._pages.clear()

    def bookmark(self) -> None:
        """Send a bookmark to every watch that allows it."""
        self._append_change(_BOOKMARK, None, None)

    # the Api

    async def get(
        self,
        path: str,
        params: Params = NONE,
        *,
        timeout_s: float = DEADLINE_S,
        before_body: BeforeBody | None = None,
    ) -> bytes:
        await self._record_call("get", path)
        body = self._response_body(path, params)
        if before_body is not None:
            await before_body()
        return body

    async def create(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        await self._record_call("create", path)
        place = self._parse_path("create", path)
        item = _decode_request_body("create", path, body)
        if place.sub == "binding":
            return self._bind_pod(path, place, item)
        meta = item.setdefault("metadata", {})
        name = meta.get("name") or f"{meta.get('generateName', '')}{next(self._ids)}"
        if place.resource.namespaced:
            meta.setdefault("namespace", place.namespace)
        key = (place.resource, place.namespace, name)
        if key in self._objects:
            raise _api_error("create", path, 409, f'{place.resource.plural} "{name}" already exists')
        meta["name"] = name
        return msgspec.json.encode(self._store_object(key, item))

    async def replace(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        await self._record_call("replace", path)
        place = self._parse_path("replace", path)
        before = self._get_object("replace", path, place)
        item = _decode_request_body("replace", path, body)
        return self._update_object("replace", path, place, before, item)

    async def patch(
        self, path: str, body: object, kind: Patch, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        await self._record_call("patch", path)
        place = self._parse_path("patch", path)
        before = self._get_object("patch", path, place)
        patch = _decode_request_body("patch", path, body)
        if kind == "apply":
            manager, force = params.get("fieldManager", ""), params.get("force") == "true"
            item, conflicts = apply(before, patch, manager)
            if conflicts and not force:
                causes = tuple(StatusCause(field, f"owned by {owner}") for field, owner in conflicts.items())
                text = f"Apply failed with {len(conflicts)} conflicts"
                status = ErrorStatus(kind="Status", message=text, code=409, details=StatusDetails(causes))
                raise api_server_interface.error_from_status(ApiCall("patch", path), 409, status)
        elif kind == "merge":
            item = _merge_patch(before, patch)
        else:
            raise NotImplementedError(f"the API server in memory does not support {kind} patches")
        return self._update_object("patch", path, place, before, item)

    async def delete(
        self, path: str, body: object = b"", params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        await self._record_call("delete", path)
        place = self._parse_path("delete", path)
        item = self._get_object("delete", path, place)
        options = _decode_request_body("delete", path, body) if body else {}
        for field, wanted in (options.get("preconditions") or {}).items():
            if item["metadata"][field] != wanted:
                raise _api_error("delete", path, 409, f"the {field} in the precondition does not match")
        self._delete_object((place.resource, item["metadata"].get("namespace", ""), place.name))
        return b'{"kind":"Status","status":"Success"}'

    async def watch(
        self, path: str, params: Params = NONE, *, timeout_s: float = WATCH_DEADLINE_S
    ) -> AsyncGenerator[bytes, None]:
        await self._record_call("watch", path)
        place = self._parse_path("watch", path)
        version = int(params.get("resourceVersion") or self._revision)
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

    async def close(self) -> None:
        self.cut()

    # internal

    async def _record_call(self, verb: str, path: str) -> None:
        self.calls.append((verb, path))
        await asyncio.sleep(0)
        if self._faults:
            raise self._faults.popleft()

    def _append_change(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        """Add a change at the newest revision; None for the object before its creation, and after its deletion."""
        self._changes.append(_LoggedChange(self._revision, resource, old, new))
        self._wake_watches()

    def _wake_watches(self) -> None:
        """Let every watch send what it has not sent yet."""
        self._news.set()
        self._news = asyncio.Event()

    def _discovery_document(self, path: str) -> dict[str, Any] | None:
        """The API groups, or the kinds of one version of a group; None for other paths."""
        resources = [resource for resource in self._kinds.values() if resource.group]
        if path == "/apis":
            versions = sorted({(resource.group, resource.api_version) for resource in resources})
            groups = [{"name": group, "versions": [{"groupVersion": text}]} for group, text in versions]
            return {"kind": "APIGroupList", "groups": groups}
        version = path.removeprefix("/apis/")
        names = [{"name": resource.plural} for resource in resources if resource.api_version == version]
        return {"kind": "APIResourceList", "resources": names} if names else None

    def _parse_path(self, verb: str, path: str) -> RequestPath:
        """The kind and the names in a path. Raises NotFound for a kind that is not served."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        size = 2 if parts[0] == "api" else 3
        version, rest = "/".join(parts[1:size]), parts[size:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":  # noqa: PLR2004 - /namespaces/NAME/KIND, not /namespaces/NAME
            namespace, rest = rest[1], rest[2:]
        rest += [""] * 3
        resource = self._kinds.get((version, rest[0]))
        if resource is None:
            known = any(version == api_version for api_version, _ in self._kinds)
            text = "the server could not find the requested resource" if known else "404 page not found"
            raise _api_error(verb, path, 404, text)
        return RequestPath(resource, namespace, rest[1], rest[2])

    def _response_body(self, path: str, params: Params) -> bytes:
        if path in self.raw:
            return self.raw[path]
        if (document := self._discovery_document(path)) is not None:
            return msgspec.json.encode(document)
        place = self._parse_path("get", path)
        content = self._get_object("get", path, place) if place.name else self._list_objects(place, params)
        return msgspec.json.encode(content)

    def _bind_pod(self, path: str, place: RequestPath, binding: Object) -> bytes:
        """Bind like BindingREST (kubernetes v1.36 pkg/registry/core/pod/storage): preconditions, annotations."""
        pod = self._get_object("create", path, place)
        meta = binding["metadata"]
        for field in ("uid", "resourceVersion"):
            if meta.get(field, pod["metadata"][field]) != pod["metadata"][field]:
                raise _api_error("create", path, 409, f"the {field} in the precondition does not match")
        if pod["metadata"].get("deletionTimestamp"):
            raise _api_error(
                "create", path, 409, f"pod {place.name} is being deleted, cannot be assigned to a host"
            )
        if node := pod.get("spec", {}).get("nodeName"):
            raise _api_error("create", path, 409, f'pod {place.name} is already assigned to node "{node}"')
        annotations = {**pod["metadata"].get("annotations", {}), **meta.get("annotations", {})}
        item = {
            **pod,
            "metadata": {**pod["metadata"], "annotations": annotations},
            "spec": {**pod.get("spec", {}), "nodeName": binding["target"]["name"]},
        }
        self._store_object((place.resource, place.namespace, place.name), item)
        return b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}'

    def _get_object(self, verb: str, path: str, place: RequestPath) -> Object:
        item = self._objects.get((place.resource, place.namespace, place.name))
        if item is None:
            raise _api_error(verb, path, 404, f'{place.resource.plural} "{place.name}" not found')
        return item

    def _list_objects(self, place: RequestPath, params: Params) -> Object:
        limit = int(params.get("limit", 0)) or 1 << 40
        selectors = params.get("fieldSelector", ""), params.get("labelSelector", "")
        if token := params.get("continue"):
            revision, start = json.loads(base64.b64decode(token))
            if (revision, place, selectors) not in self._pages:
                raise _api_error(
                    "get", place.resource.plural, 410, "the provided continue parameter is too old"
                )
            items = self._pages[revision, place, selectors]
        else:
            revision, start = self._revision, 0
            items = [
                item
                for key, item in sorted(self._objects.items())
                if is_selected(item, key[0], place, params)
            ]
            self._pages[revision, place, selectors] = items
        meta = {"resourceVersion": str(revision)}
        if start + limit < len(items):
            meta["continue"] = base64.b64encode(json.dumps([revision, start + limit]).encode()).decode()
        resource = place.resource
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta}
        return head | {"items": items[start : start + limit]}

    def _update_object(self, verb: str, path: str, place: RequestPath, before: Object, item: Object) -> bytes:
        meta = before["metadata"]
        other = [
            field
            for field in ("resourceVersion", "uid")
            if item["metadata"].get(field, "") not in {"", meta[field]}
        ]
        if "uid" in other and verb == "patch":
            cause = StatusCause("metadata.uid", "field is immutable")
            raise api_server_interface.error_from_status(
                ApiCall(verb, path), 422, ErrorStatus(kind="Status", details=StatusDetails((cause,)))
            )
        if other:
            raise _api_error(verb, path, 409, "the object has been modified; please apply your changes")
        return msgspec.json.encode(
            self._store_object((place.resource, meta.get("namespace", ""), place.name), item)
        )

    def _store_object(self, key: tuple[Resource, str, str], item: Object) -> Object:
        old = self._objects.get(key)
        self._revision += 1
        kept = (
            {field: old["metadata"][field] for field in ("uid", "creationTimestamp")}
            if old
            else {
                "uid": f"uid-{next(self._ids)}",
                "creationTimestamp": clock.format_rfc3339(1_700_000_000 + self._revision),
            }
        )
        meta = {**item["metadata"], **kept, "resourceVersion": str(self._revision)}
        head = {"apiVersion": key[0].api_version, "kind": key[0].kind}
        new = {**item, **head, "metadata": meta}
        self._objects[key] = new
        self._append_change(key[0], old, new)
        return new

    def _delete_object(self, key: tuple[Resource, str, str]) -> None:
        old = self._objects.pop(key)
        self._revision += 1
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self._revision)}}
        self._append_change(key[0], last, None)


def _merge_patch(before: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(before) if isinstance(before, dict) else {}
    for field, value in patch.items():
        if value is None:
            merged.pop(field, None)
        else:
            merged[field] = _merge_patch(merged.get(field), value)
    return merged


def _decode_request_body(verb: str, path: str, body: object) -> Object:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    try:
        decoded: Object = json.loads(data)
    except ValueError as error:
        raise _api_error(verb, path, 400, str(error)) from error
    return decoded


def _api_error(verb: str, path: str, code: int, message: str) -> NodewiseError:
    return api_server_interface.error_from_status(
        ApiCall(verb, path), code, ErrorStatus(kind="Status", message=message, code=code)
    )
