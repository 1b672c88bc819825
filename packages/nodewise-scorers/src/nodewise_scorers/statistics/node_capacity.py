"""The allocatable resources of nodes (`status.allocatable`)."""

from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import quantity
from nodewise.base.errors import UNREADABLE


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    """The field of a Node's status that is read; raw, because agents read other resources of it."""

    allocatable: msgspec.Raw = msgspec.Raw(b"null")


GPU: Final = "gpu"


class Capacity(NamedTuple):
    """Allocatable resources in whole numbers; 0 where absent or invalid."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    gpu: int = 0
    """Of the resource named `gpu`, or of the name passed to `parse_capacity`."""
    ephemeral_storage_bytes: int = 0


class _Allocatable(msgspec.Struct, frozen=True, gc=False):
    cpu: Any = None
    memory: Any = None
    pods: Any = None
    gpu: Any = None
    ephemeral_storage: Any = msgspec.field(default=None, name="ephemeral-storage")


_decode: Final = msgspec.json.Decoder(_Allocatable | None).decode
_decode_all: Final = msgspec.json.Decoder(dict[str, Any] | None).decode


def parse_capacity(allocatable: msgspec.Raw, gpu: str = GPU) -> Capacity:
    """Read a node's capacity; `gpu` is the name of the resource that is counted as GPU."""
    try:
        fields = _decode(allocatable) or _Allocatable()
    except UNREADABLE:
        fields = _Allocatable()
    devices = fields.gpu if gpu == GPU else _other_resource(allocatable, gpu)
    quantities = (fields.memory, fields.pods, devices, fields.ephemeral_storage)
    return Capacity(quantity.milli(fields.cpu), *map(quantity.units, quantities))


def _other_resource(allocatable: msgspec.Raw, name: str) -> Any:
    try:
        return (_decode_all(allocatable) or {}).get(name)
    except UNREADABLE:
        return None
