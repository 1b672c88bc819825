"""What sources need to know of nodes: what others call them, and how much of a resource they can give to pods."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from ipaddress import ip_address
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from nodewise import cooperative_scheduling, quantity
from nodewise.errors import UNREADABLE
from nodewise.kube.store import Changes, Store


class NodeAddress(msgspec.Struct, frozen=True, gc=False):
    """One of `status.addresses`. Values are read as anything, so that an odd one loses no node."""

    type: Any = ""
    address: Any = ""


class Allocatable(msgspec.Struct, frozen=True, gc=False):
    """What pods can have of a node, as Kubernetes quantities. Kept raw, as agents read other resources of it."""

    cpu: Any = None
    memory: Any = None


class NodeStatusFields(msgspec.Struct, frozen=True, gc=False):
    """The part of a Node's status that sources read."""

    addresses: tuple[NodeAddress, ...] | None = None
    allocatable: msgspec.Raw = msgspec.Raw(b"null")


class NodeAttributeFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a Node that sources read, to be merged into the type that stores hold (`kube.field_merge`)."""

    status: NodeStatusFields = NodeStatusFields()


class NodeAllocatable(NamedTuple):
    """Allocatable of a node in nano-units (cores, bytes); None where the Node does not say, or says no quantity."""

    cpu: int | None
    memory: int | None


class NodeAttributes(NamedTuple):
    """All nodes at one moment."""

    allocatable: Mapping[str, NodeAllocatable]
    """By node name."""
    names: Mapping[str, str]
    """Node names by everything that means one: the name itself, else an InternalIP, else a Hostname."""

    def find(self, text: str) -> str | None:
        """The node that a name or an address means, with or without a port; None if none does."""
        node = self.names.get(text)
        if node is None and text:
            node = self.names.get(_plain(without_port(text)))
        return node


_STRIDE: Final = 32
"""So many nodes are one part of the work, some 0.1 ms."""

NO_NODES: Final = NodeAttributes({}, {})

NodeLookup = Callable[[], Awaitable[NodeAttributes]]
"""How a source learns of the nodes as they are now."""


def read(nodes: Iterable[Any]) -> Generator[None, None, NodeAttributes]:
    """What `NodeAttributeFields` of these nodes say. An address that two nodes have means neither of them."""
    allocatable: dict[str, NodeAllocatable] = {}
    owners: dict[str, dict[str, str | None]] = {"Hostname": {}, "InternalIP": {}}
    for number, node in enumerate(nodes):
        name = node.metadata.name
        allocatable[name] = _parse_allocatable(node.status.allocatable)
        for entry in node.status.addresses or ():
            if isinstance(entry.address, str) and entry.type in owners:
                owned, address = owners[entry.type], _plain(entry.address)
                owned[address] = name if owned.get(address, name) == name else None
        if not number % _STRIDE:
            yield
    names: dict[str, str] = {}
    for number, (address, owner) in enumerate(chain.from_iterable(map(dict.items, owners.values()))):
        if owner is not None:
            names[address] = owner
        if not number % _STRIDE:
            yield
    names.update(zip(allocatable, allocatable, strict=True))
    return NodeAttributes(allocatable, names)


_ALLOCATABLE: Final = msgspec.json.Decoder(Allocatable | None)


def _parse_allocatable(allocatable: msgspec.Raw) -> NodeAllocatable:
    try:
        amounts = _ALLOCATABLE.decode(allocatable) or Allocatable()
    except UNREADABLE:
        amounts = Allocatable()
    return NodeAllocatable(_amount(amounts.cpu), _amount(amounts.memory))


class NodeAttributesCache:
    """Cache of the `NodeAttributes` of a store of Nodes. They are computed again only when `NodeAttributeFields`
    changed.
    """

    def __init__(self, store: Store[Any]) -> None:
        self._store = store
        self._nodes = NO_NODES
        self._changed = True
        self._reading = asyncio.Lock()
        store.subscribe(self._note)

    async def read(self) -> NodeAttributes:
        """The nodes as they are now. At 5,000 the first reading takes some 15 ms, in slices."""
        async with self._reading:
            if self._changed:
                self._changed = False
                self._nodes = await cooperative_scheduling.run(read(self._store.values()))
        return self._nodes

    def _note(self, changes: Changes[Any] | None) -> None:
        self._changed = (
            self._changed
            or changes is None
            or any(old is None or new is None or old.status != new.status for old, new in changes.values())
        )


def without_port(text: str) -> str:
    """The host of `10.0.0.7:9100`, `[fd00::7]:9100` and `host:9100`; what has no port stays."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, colon, port = text.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else text


def _plain(host: str) -> str:
    """An IPv6 address in its one canonical form; anything else as it is."""
    if ":" not in host:
        return host
    try:
        return str(ip_address(host))
    except ValueError:
        return host


def _amount(quantity_text: Any) -> int | None:
    if isinstance(quantity_text, bool) or not isinstance(quantity_text, str | int | float):
        return None
    try:
        return quantity.parse(str(quantity_text))
    except ValueError:
        return None
