"""The second reading of a request: what Go's JSON decoder accepts and a strict one does not.

Go matches keys in any case and ignores bytes after the first JSON value. kube-scheduler's own requests need neither, so
the first reading is strict and fast, and this one follows only where it fails or finds something missing. Everything is
done by msgspec, no value is built that nobody reads, and the work is bounded: `MOST_BYTES`, `bounds.MOST_VALUES`,
`MOST_KEYS` of an object and `MOST_NODES`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nodewise.errors import UNREADABLE
from nodewise.extender import bounds

MOST_BYTES: Final = 2**26
"""Longest body whose keys are read in any case, bytes: 5,000 whole nodes have 52 MB. Each level of keys is one more
copy.
"""
MOST_KEYS: Final = 1024
"""Keys of an object on the way to what is read; an object with more stays as it is."""
MOST_NODES: Final = 2**14
"""Whole nodes of one request whose own keys are in other case: three times as many as Kubernetes is made for."""

Shape = Mapping[str, Any]
"""The keys on the way to what is read, by their right spelling; an empty one stands for a value that stays as it is."""

NODE_NAME: Final[Shape] = {"metadata": {"name": {}}}
NODE: Final[Shape] = {
    "metadata": {"name": {}, "annotations": {}, "labels": {}},
    "status": {"allocatable": {}, "capacity": {}},
}
_CONTAINERS: Final[Shape] = {"name": {}, "resources": {"requests": {}, "limits": {}}}
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


def second_reading(body: bytes) -> bytes | None:
    """The body with the keys that lead to what is read as they should be; None where that changes nothing.

    `BadInput` for a body of more bytes or values than are read in this way.
    """
    bounds.check_second_reading(body, MOST_BYTES)
    again = recased(body.strip(), REQUEST)
    return None if again == body else again


def is_complete(node: msgspec.Raw) -> bool:
    """Whether a whole node has all the keys that agents read, each in its right case."""
    try:
        keys = _node_keys(node)
    except UNREADABLE:
        return False
    values = (*msgspec.structs.astuple(keys.metadata), *msgspec.structs.astuple(keys.status))
    return msgspec.UNSET not in values


def recased(raw: bytes, shape: Shape) -> bytes:
    """An object, or each of a list, with its keys as `shape` spells them, and so on inside; anything else as it is.

    A list in a list too: nothing is read there, and each level would be a copy.
    """
    if not shape:
        return raw
    try:
        if raw[:1] == b"[":
            items = map(bytes, _items(raw))
            return _encode(
                [msgspec.Raw(item if item[:1] == b"[" else recased(item, shape)) for item in items]
            )
        fields = _fields(raw)
    except UNREADABLE:
        return raw
    if len(fields) > MOST_KEYS:
        return raw
    known = {key.lower(): key for key in shape}
    respelt: dict[str, msgspec.Raw] = {}
    for key, value in fields.items():
        name = known.get(key.lower(), key)
        inner = shape.get(name)
        respelt[name] = msgspec.Raw(recased(bytes(value), inner)) if inner else value
    return _encode(respelt)
