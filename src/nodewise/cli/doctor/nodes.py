"""Nodes: how many, what measures them, their cards, and the policies of kubelets that have pools."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise import turns
from nodewise.agents.gpu import cards as gpu_cards
from nodewise.agents.gpu import profile as gpu_profiles
from nodewise.agents.gpu.cards import GpuNode
from nodewise.agents.gpu.profile import Profile
from nodewise.cli.doctor.asking import Asker, anything
from nodewise.configure.doctor.facts import Cards, Extender, Kubelet, Unread
from nodewise.configure.doctor.objects import fields, labels, text
from nodewise.cpu.names import LABEL
from nodewise.errors import UNREADABLE
from nodewise.kube.resources import NODES
from nodewise.metrics import nodes as node_facts
from nodewise.metrics.nodes import MeasuredStatus, Nodes
from nodewise.visible import short

_MOST_KUBELETS: Final = 50
_MOST_CARDS: Final = 5000


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    labels: msgspec.Raw = msgspec.Raw(b"null")


class NodeRead(msgspec.Struct, frozen=True, gc=False):
    """What is read of every node; `gpu` is what the gpu agent reads of one that has cards."""

    metadata: _Metadata = _Metadata()
    status: MeasuredStatus = MeasuredStatus()


class Kept(NamedTuple):
    """A node, with no more than somebody looks at."""

    metadata: _Metadata
    status: MeasuredStatus
    cards: Cards | None
    has_pools: bool
    offered: frozenset[str]


class NodesRead(NamedTuple):
    """All nodes."""

    nodes: Nodes
    cards: tuple[Cards, ...]
    pools: tuple[str, ...]
    total: int
    offered: frozenset[str]
    """Resources that a node has allocatable."""


async def read(ask: Asker, profiles: Sequence[Profile]) -> NodesRead | Unread:
    """Every node; cards by these profiles."""

    def taken(body: bytes) -> Kept | None:
        return _kept(body, profiles)

    found = await ask.listed(NODES, taken)
    if isinstance(found, Unread):
        return found
    return NodesRead(
        turns.result(node_facts.read(found)),
        tuple(one.cards for one in found if one.cards)[:_MOST_CARDS],
        tuple(one.metadata.name for one in found if one.has_pools),
        len(found),
        frozenset().union(*(one.offered for one in found)),
    )


def _kept(body: bytes, profiles: Sequence[Profile]) -> Kept | None:
    try:
        node = msgspec.json.decode(body, type=NodeRead)
    except UNREADABLE:
        return None
    tags = labels(anything(bytes(node.metadata.labels)))
    # raw parts keep the whole page alive, so what is kept is a copy
    status = MeasuredStatus(node.status.addresses, msgspec.Raw(bytes(node.status.allocatable)))
    amounts = fields(anything(bytes(node.status.allocatable)))
    offered = frozenset(sys.intern(name) for name, amount in amounts.items() if str(amount) not in ("0", ""))
    cards = next((one for each in profiles if (one := _cards(body, node, each, offered))), None)
    return Kept(_Metadata(node.metadata.name), status, cards, tags.get(LABEL) == "true", offered)


def _cards(body: bytes, node: NodeRead, profile: Profile, resources: frozenset[str]) -> Cards | None:
    """A node whose device plugin offers cards, as the gpu agent reads it; None for one that offers none."""
    offered = [name for name in profile.counts if name in resources]
    if not offered:
        return None
    name = node.metadata.name
    try:
        found = gpu_cards.read(msgspec.json.decode(body, type=GpuNode), profile)
    except UNREADABLE as error:
        return Cards(name, 0, offered[0], (short(str(error)),))
    return Cards(name, len(found.cards), offered[0], tuple(map(short, found.problems[:1])))


def profiles_of(extenders: tuple[Extender, ...] | Unread) -> list[Profile]:
    """Whose cards the replicas give away; none where the gpu agent is off."""
    if isinstance(extenders, Unread):
        return []
    names = {one.settings.get("gpu_profile", "intel") for one in extenders if "gpu" in one.agents}
    return [gpu_profiles.PROFILES[name] for name in sorted(names) if name in gpu_profiles.PROFILES]


async def kubelets(ask: Asker, names: Sequence[str]) -> tuple[Kubelet | Unread, ...]:
    """The policies of kubelets on nodes with pools; of very many only some, spread over the list."""
    stride = max(1, -(-len(names) // _MOST_KUBELETS))
    asked = names[::stride]
    found = list(await asyncio.gather(*(_kubelet(ask, name) for name in asked)))
    if len(asked) < len(names):
        why = f"of {len(names)} nodes with pools {len(asked)} were asked"
        found.append(Unread("kubelets", why, is_minor=True))
    return tuple(found)


async def _kubelet(ask: Asker, name: str) -> Kubelet | Unread:
    path = NODES.path(name=name, subresource="proxy") + "/configz"
    what = f"kubelet of Node/{name}"
    found: Any = await ask.get(what, "get nodes/proxy", path, quick=True)
    if isinstance(found, Unread):
        return found if found.right else found._replace(is_minor=True)
    told = fields(found, "kubeletconfig")
    if not told:
        return Unread(what, "it shows no configuration", is_minor=True)
    return Kubelet(
        name,
        short(text(told, "cpuManagerPolicy"), 40),
        short(text(told, "topologyManagerPolicy"), 40),
        short(text(told, "memoryManagerPolicy"), 40),
    )
