"""What pods can have of a node: `status.allocatable`."""

from typing import Any, Final, NamedTuple

import msgspec

from nodewise.errors import UNREADABLE
from nodewise.statistics import amounts


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    """The part of a Node's status that is read. Kept raw, as agents read other resources of it."""

    allocatable: msgspec.Raw = msgspec.Raw(b"null")


GPU: Final = "gpu"


class Capacity(NamedTuple):
    """Whole numbers; 0 for what the node does not say, or says in a form that is no quantity."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    gpu: int = 0
    """Of the resource that is called `gpu`, unless another one was asked for."""
    ephemeral_storage_bytes: int = 0


class _Given(msgspec.Struct, frozen=True, gc=False):
    cpu: Any = None
    memory: Any = None
    pods: Any = None
    gpu: Any = None
    ephemeral_storage: Any = msgspec.field(default=None, name="ephemeral-storage")


_decode: Final = msgspec.json.Decoder(_Given | None).decode
_decode_all: Final = msgspec.json.Decoder(dict[str, Any] | None).decode


def read(allocatable: msgspec.Raw, gpu: str = GPU) -> Capacity:
    """The capacity that a node states; `gpu` is the name of the resource that counts as such."""
    try:
        given = _decode(allocatable) or _Given()
    except UNREADABLE:
        given = _Given()
    cards = given.gpu if gpu == GPU else _other(allocatable, gpu)
    plain = (given.memory, given.pods, cards, given.ephemeral_storage)
    return Capacity(amounts.milli(given.cpu), *map(amounts.units, plain))


def _other(allocatable: msgspec.Raw, name: str) -> Any:
    try:
        return (_decode_all(allocatable) or {}).get(name)
    except UNREADABLE:
        return None
