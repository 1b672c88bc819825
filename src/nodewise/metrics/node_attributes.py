"""Attributes of nodes that metric sources need: names and addresses, and allocatable resources."""

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
    """One of `status.addresses`. Values may have any type, so that an invalid one does not make the node unreadable."""

    type: Any = ""
    address: Any = ""


class Allocatable(msgspec.Struct, frozen=True, gc=False):
    """Allocatable resources as Kubernetes quantities. The field is raw JSON, as agents read other resources of it."""

    cpu: Any = None
    memory: Any = None


class NodeStatusFields(msgspec.Struct, frozen=True, gc=False):
    """The part of the status of a Node that sources read."""

    addresses: tuple[NodeAddress, ...] | None = None
    allocatable: msgspec.Raw = msgspec.Raw(b"null")


class NodeAttributeFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a Node that sources read, to be merged into the type that stores hold
    (`kube.struct_type_merge`).
    """

    status: NodeStatusFields = NodeStatusFields()


class NodeAllocatable(NamedTuple):
    """Allocatable resources of a node in nano-units (cores, bytes); None if missing or not a quantity."""

    cpu: int | None
    memory: int | None


class NodeAttributes(NamedTuple):
    """The attributes of all nodes."""

    allocatable: Mapping[str, NodeAllocatable]
    """By node name."""
    names: Mapping[str, str]
    """Node names by everything that identifies a node: its name, else an InternalIP, else a Hostname."""

    def find(self, text: str) -> str | None:
        """The node that a name or an address identifies, with or without a port; None if there is none."""
        node = self.names.get(text)
        if node is None and text:
            node = self.names.get(_canonical_address(strip_port(text)))
        return node


_STRIDE: Final = 32
"""Number of nodes in one part of the work, which takes about 0.1 ms."""

NO_NODES: Final = NodeAttributes({}, {})

NodeLookup = Callable[[], Awaitable[NodeAttributes]]
"""Returns the current attributes of all nodes."""


def read_node_attributes(nodes: Iterable[Any]) -> Generator[None, None, NodeAttributes]:
    """The attributes of these nodes; yields between parts. An address of two nodes identifies neither of them."""
    allocatable: dict[str, NodeAllocatable] = {}
    owners: dict[str, dict[str, str | None]] = {"Hostname": {}, "InternalIP": {}}
    for number, node in enumerate(nodes):
        name = node.metadata.name
        allocatable[name] = _parse_allocatable(node.status.allocatable)
        for entry in node.status.addresses or ():
            if isinstance(entry.address, str) and entry.type in owners:
                owned, address = owners[entry.type], _canonical_address(entry.address)
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
    return NodeAllocatable(_parse_amount(amounts.cpu), _parse_amount(amounts.memory))


class NodeAttributesCache:
    """Cache of the `NodeAttributes` of a store of Nodes. They are computed again only when `NodeAttributeFields`
    changed.
    """

    def __init__(self, store: Store[Any]) -> None:
        self._store = store
        self._nodes = NO_NODES
        self._changed = True
        self._reading = asyncio.Lock()
        store.subscribe(self._note_node_changes)

    async def read(self) -> NodeAttributes:
        """The current attributes. For 5,000 nodes the first call takes about 15 ms, and yields in between."""
        async with self._reading:
            if self._changed:
                self._changed = False
                self._nodes = await cooperative_scheduling.run(read_node_attributes(self._store.values()))
        return self._nodes

    def _note_node_changes(self, changes: Changes[Any] | None) -> None:
        self._changed = (
            self._changed
            or changes is None
            or any(old is None or new is None or old.status != new.status for old, new in changes.values())
        )


def strip_port(text: str) -> str:
    """The host of `10.0.0.7:9100`, `[fd00::7]:9100` and `host:9100`; a text without a port is unchanged."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, colon, port = text.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else text


def _canonical_address(host: str) -> str:
    """An IPv6 address in its canonical form; any other text is unchanged."""
    if ":" not in host:
        return host
    try:
        return str(ip_address(host))
    except ValueError:
        return host


def _parse_amount(quantity_text: Any) -> int | None:
    if isinstance(quantity_text, bool) or not isinstance(quantity_text, str | int | float):
        return None
    try:
        return quantity.parse(str(quantity_text))
    except ValueError:
        return None
