"""Attributes of nodes that metric sources need: names and addresses, and allocatable resources."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping
from ipaddress import ip_address
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import cooperative_scheduling, quantity
from nodewise.base.errors import UNREADABLE
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
    allocatable: Mapping[str, NodeAllocatable]
    """By node name."""
    names: Mapping[str, str]
    """Node names by everything that identifies a node, in lower case: its name, else an address (`_ADDRESS_TYPES`)."""
    short_names: Mapping[str, str] = {}
    """Node names by the first label of their domain names, such as `db1` of `db1.example.org`."""
    qualified: frozenset[str] = frozenset()
    """Those of `names` without a domain that are the first label of a known domain name, so that no other one fits."""
    is_partial: bool = False
    """Whether other nodes exist, with shards, so that series of no node are usual."""

    def find(self, text: str) -> str | None:
        """The node that a name or an address identifies, in any case, with or without a port; None if there is none."""
        node = self.names.get(text)
        if node is None and text:
            node = self.names.get(host_of(text))
        return node

    def find_all(self, texts: Collection[str]) -> Generator[None, None, dict[str, str]]:
        """The nodes that these texts identify, by text; yields between parts of the work.

        Beyond `find`, the first label of a domain name identifies a node, if only one side has a domain, and if it is
        unambiguous: two names that differ in their domains never match, nor do two of them match one node.
        """
        nodes: dict[str, str] = {}
        by_first_label: dict[str, dict[str, list[str]]] = {}
        for number, text in enumerate(texts):
            if (node := self.find(text)) is not None:
                nodes[text] = node
            elif (node := self._node_of_first_label(host := host_of(text))) is not None:
                by_first_label.setdefault(node, {}).setdefault(host, []).append(text)
            if not number % _STRIDE:
                yield
        identified = frozenset(nodes.values()) if by_first_label else frozenset()
        for number, (node, hosts) in enumerate(by_first_label.items()):
            [host, *others] = hosts
            # beside the node's own series, one of another site's host of this name
            is_foreign = node in identified and host not in self.short_names
            if not others and not is_foreign:
                nodes.update((text, node) for text in hosts[host])
            if not number % _STRIDE:
                yield
        return nodes

    def _node_of_first_label(self, host: str) -> str | None:
        label = first_label(host)
        if label:
            return None if label in self.qualified else self.names.get(label)
        return self.short_names.get(host)


_STRIDE: Final = 32
"""Number of nodes in one part of the work, which takes about 0.1 ms."""
_ADDRESS_TYPES: Final = ("ExternalDNS", "ExternalIP", "InternalDNS", "Hostname", "InternalIP")
"""The types of addresses that identify a node. The last type of one address decides."""

NO_NODES: Final = NodeAttributes({}, {})

NodeLookup = Callable[[], Awaitable[NodeAttributes]]
"""Returns the current attributes of all nodes."""


def read_node_attributes(nodes: Iterable[Any]) -> Generator[None, None, NodeAttributes]:
    """The attributes of these nodes; yields between parts. An address of two nodes identifies neither of them."""
    allocatable: dict[str, NodeAllocatable] = {}
    owners: dict[str, dict[str, str | None]] = {kind: {} for kind in _ADDRESS_TYPES}
    for number, node in enumerate(nodes):
        allocatable[node.metadata.name] = _parse_allocatable(node.status.allocatable)
        _add_addresses(owners, node)
        if not number % _STRIDE:
            yield
    names: dict[str, str] = {}
    for number, (address, owner) in enumerate(chain.from_iterable(map(dict.items, owners.values()))):
        if owner is not None and address:
            names[address] = owner
        if not number % _STRIDE:
            yield
    names.update(zip(allocatable, allocatable, strict=True))
    short_names, qualified = yield from _names_by_first_label(names)
    return NodeAttributes(allocatable, names, short_names, qualified)


def _add_addresses(owners: Mapping[str, dict[str, str | None]], node: Any) -> None:
    """Add the addresses of a node to the owners by type and address; None for an address of two nodes."""
    name = node.metadata.name
    for entry in node.status.addresses or ():
        if isinstance(entry.address, str) and entry.type in owners:
            owned, address = owners[entry.type], host_of(entry.address)
            owned[address] = name if owned.get(address, name) == name else None


def _names_by_first_label(
    names: Mapping[str, str],
) -> Generator[None, None, tuple[dict[str, str], frozenset[str]]]:
    """`NodeAttributes.short_names` and `qualified`; yields between parts.

    A first label of two nodes identifies neither of them, but a kubelet, which reports its addresses itself, cannot
    take the first label of another node's name.
    """
    by_name: dict[str, str | None] = {}
    by_address: dict[str, str | None] = {}
    qualified: set[str] = set()
    for number, (name, node) in enumerate(names.items()):
        if label := first_label(name):
            owners = by_name if name == node else by_address
            owners[label] = node if owners.get(label, node) == node else None
            if label in names and (name == node or names[label] == node):
                qualified.add(label)
        if not number % _STRIDE:
            yield
    owners = by_address | by_name
    return {label: node for label, node in owners.items() if node and label not in names}, frozenset(
        qualified
    )


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

    def __init__(self, store: Store[Any], *, is_partial: bool = False) -> None:
        self._store = store
        self._is_partial = is_partial
        self._nodes = NO_NODES
        self._changed = True
        self._reading = asyncio.Lock()
        store.subscribe(self._note_node_changes)

    async def read(self) -> NodeAttributes:
        """The current attributes. For 5,000 nodes the first call takes about 15 ms, and yields in between."""
        async with self._reading:
            if self._changed:
                self._changed = False
                nodes = await cooperative_scheduling.run(read_node_attributes(self._store.values()))
                self._nodes = nodes._replace(is_partial=self._is_partial)
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


def host_of(text: str) -> str:
    """The host of a text with or without a port, as `NodeAttributes.names` has it: names of hosts have no case."""
    return _canonical_address(strip_port(text).lower().removesuffix("."))


def first_label(host: str) -> str:
    """The first label of a domain name; empty for an address, and for a name without a domain."""
    label, dot, domain = host.partition(".")
    is_address = label.isdigit() or ":" in host
    return label if dot and domain and not is_address else ""


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
