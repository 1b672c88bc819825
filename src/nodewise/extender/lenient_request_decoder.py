"""Lenient decoding of requests: what Go's JSON decoder accepts and a strict one does not.

Go matches keys in any case and ignores bytes after the first JSON value. kube-scheduler's own requests need neither, so
decoding is strict and fast first, and lenient only if that fails or leaves a required field empty. msgspec does all the
work, values that are not used are not built, and the work is limited: `MOST_BYTES`, `request_limits.MOST_VALUES`,
`MOST_KEYS` of an object and `MOST_NODES`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nodewise.base.errors import UNREADABLE
from nodewise.extender import request_limits

MOST_BYTES: Final = 2**26
"""Longest body whose keys are matched in any case, bytes: 5,000 whole nodes have 52 MB. Each level of keys is copied
once more.
"""
MOST_KEYS: Final = 1024
"""Keys of an object whose keys are renamed; an object with more is left unchanged."""
MOST_NODES: Final = 2**14
"""Whole nodes of one request with keys in other case: three times as many as Kubernetes supports."""

Shape = Mapping[str, Any]
"""Keys in their right case that lead to the fields in use; an empty shape stands for a value that is not changed."""

NODE_NAME: Final[Shape] = {"metadata": {"name": {}}}
NODE: Final[Shape] = {
    "metadata": {"name": {}, "annotations": {}, "labels": {}},
    "status": {"allocatable": {}, "capacity": {}},
}
_CONTAINERS: Final[Shape] = {"name": {}, "resources": {"requests": {}, "limits": {}}, "restartPolicy": {}}
BINDING: Final[Shape] = {"PodName": {}, "PodNamespace": {}, "PodUID": {}, "Node": {}}
REQUEST: Final[Shape] = {
    **BINDING,
    "Pod": {
        "metadata": {"name": {}, "namespace": {}, "uid": {}, "labels": {}, "annotations": {}},
        "spec": {"containers": _CONTAINERS, "initContainers": _CONTAINERS},
    },
    "Nodes": {"items": {}},
    "NodeNames": {},
    "NodeNameToVictims": {},
    "NodeNameToMetaVictims": {},
}

_encode: Final = msgspec.json.Encoder().encode
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    name: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    annotations: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    labels: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _NodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    capacity: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _NodeKeys(msgspec.Struct, frozen=True, gc=False):
    metadata: _NodeMetadata = _NodeMetadata()
    status: _NodeStatus = _NodeStatus()


_node_keys: Final = msgspec.json.Decoder(_NodeKeys).decode


def normalize_request_json(body: bytes) -> bytes | None:
    """The body with the keys of `REQUEST` in their right case and without trailing bytes; None if that changes nothing.

    `BadInput` for a body with too many bytes or values.
    """
    request_limits.check_lenient_decoding_size(body, MOST_BYTES)
    rewritten = rename_keys(body.strip(), REQUEST)
    return None if rewritten == body else rewritten


def is_complete(node: msgspec.Raw) -> bool:
    """Whether a whole node has all keys that agents read, in their right case."""
    try:
        keys = _node_keys(node)
    except UNREADABLE:
        return False
    values = (*msgspec.structs.astuple(keys.metadata), *msgspec.structs.astuple(keys.status))
    return msgspec.UNSET not in values


def rename_keys(raw: bytes, shape: Shape) -> bytes:
    """An object, or each object of a list, with its keys as in `shape`, recursively; anything else unchanged.

    A list inside a list is not changed either: it holds no field in use, and each level would be a copy.
    """
    if not shape:
        return raw
    try:
        if raw[:1] == b"[":
            items = map(bytes, _items(raw))
            return _encode(
                [msgspec.Raw(item if item[:1] == b"[" else rename_keys(item, shape)) for item in items]
            )
        fields = _fields(raw)
    except UNREADABLE:
        return raw
    if len(fields) > MOST_KEYS:
        return raw
    known = {key.lower(): key for key in shape}
    renamed: dict[str, msgspec.Raw] = {}
    for key, value in fields.items():
        name = known.get(key.lower(), key)
        inner = shape.get(name)
        renamed[name] = msgspec.Raw(rename_keys(bytes(value), inner)) if inner else value
    return _encode(renamed)
