"""What pods can have of a node: `status.allocatable`."""

from typing import Any, Final, NamedTuple

import msgspec

from nodewise.errors import UNREADABLE
from nodewise.statistics import amounts


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    """The part of a Node's status that is read. Kept raw, as agents read other resources of it."""

    allocatable: msgspec.Raw = msgspec.Raw(b"null")


class Capacity(NamedTuple):
    """Whole numbers; 0 for what the node does not say, or says in a form that is no quantity."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    gpu: int = 0
    """Of the resource that is called `gpu` and nothing else."""
    ephemeral_storage_bytes: int = 0


class _Given(msgspec.Struct, frozen=True, gc=False):
    cpu: Any = None
    memory: Any = None
    pods: Any = None
    gpu: Any = None
    ephemeral_storage: Any = msgspec.field(default=None, name="ephemeral-storage")


_decode: Final = msgspec.json.Decoder(_Given | None).decode


def read(allocatable: msgspec.Raw) -> Capacity:
    """The capacity that a node states."""
    try:
        given = _decode(allocatable) or _Given()
    except UNREADABLE:
        given = _Given()
    plain = (given.memory, given.pods, given.gpu, given.ephemeral_storage)
    return Capacity(amounts.milli(given.cpu), *map(amounts.units, plain))
