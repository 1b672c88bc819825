"""Nodes in, the pigeon slot of the snapshot out; and the memory of the pods that were asked about."""

import operator
from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.agent import ClusterState, Inputs, NodeIndex, ObjectKey, StateBuilder
from nodewise.agents.pigeon import resources
from nodewise.agents.pigeon.config import DEFAULT, Aim
from nodewise.agents.pigeon.details import Bits, bits
from nodewise.agents.pigeon.holding import Holdings
from nodewise.agents.pigeon.memory import Memory
from nodewise.agents.pigeon.moments import Floats
from nodewise.agents.pigeon.objectives import A_BINPACK, LAYOUTS, Layout, Table
from nodewise.agents.pigeon.resources import Amounts, Row
from nodewise.statistics.annotations import AllocationAnnotations
from nodewise.statistics.capacity import NodeStatus
from nodewise.statistics.requests import RequestingPod

PODS: Final = "pigeon_pods"
"""The key of the pods in `World.objects`."""
_STRIDE: Final = 128
"""Nodes between two pauses."""


class NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: AllocationAnnotations | None = None


class PigeonNode(msgspec.Struct, frozen=True, gc=False):
    """What is read of a node."""

    metadata: NodeMetadata = NodeMetadata()
    status: NodeStatus = NodeStatus()


_NOBODY: Final = PigeonNode()


class PodMetadata(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class PigeonPod(RequestingPod, frozen=True, gc=False):
    """What is read of a pod."""

    metadata: PodMetadata = PodMetadata()


class Slot(NamedTuple):
    """All nodes, as the objective sees them."""

    room: Floats
    """(R, N+1): what is left of what a node has, below 0 for the node that we do not know."""
    layout: Layout
    scale: Row
    """(R): what a node has on average, of those that have any."""
    missing: Bits
    """(N+1)"""
    memory: Memory
    """Grows as pods are asked about, while the slot stands."""


class _Amounts(NamedTuple):
    capacity: Amounts
    requested: Amounts


class _Read(msgspec.Struct, frozen=True, gc=False):
    """A node, and what it says. There are thousands, and the garbage collector is not to look at each."""

    node: Any
    amounts: _Amounts
    """The same object as before where it is equal to what was there before."""


_NEVER: Final = _Read(None, _Amounts((), ()))


class PigeonState(StateBuilder[Slot]):
    """Remembers what was read of nodes, and of the pods that came."""

    memory_scope = "replica"

    def __init__(self, aim: Aim, gpu: str = resources.GPU, *, from_pods: bool = False) -> None:
        self._aim = aim
        self._gpu = gpu
        self._memory = Memory()
        self._read: dict[str, _Read] = {}
        self._holdings = Holdings(gpu) if from_pods else None
        self.inputs = Inputs(frozenset({PODS} if from_pods else ()), node_objects=True, metrics=False)
        self._made: tuple[NodeIndex, Sequence[_Amounts], Slot] | None = None

    def problems(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> Mapping[str, tuple[str, ...]]:  # noqa: ARG002
        """What is odd about the file."""
        return {DEFAULT: self._aim.problems} if self._aim.problems else {}

    def asked(self, pod: PigeonPod) -> None:
        """Count the pod, if the objective goes by what pods ask for."""
        if self._aim.objective == A_BINPACK:
            self._memory.count(pod.metadata.uid, resources.demand(pod, self._gpu))

    def recall(self, kept: bytes) -> None:
        self._memory.recall(kept)

    def keep(self, kept: bytes | None) -> bytes | None:
        return self._memory.keep(kept)

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Slot]:
        """Lay the nodes out; the same slot where none of them changed."""
        if self._holdings is not None:
            yield from self._holdings.follow(cluster_state.objects.get(PODS, {}))
        read: dict[str, _Read] = {}
        for number, name in enumerate(cluster_state.nodes.known):
            read[name] = self._of(name, cluster_state.node_objects.get(("", name), _NOBODY))
            if not number % _STRIDE:
                yield
        self._read, found = read, tuple(one.amounts for one in read.values())
        made = self._made
        if made is not None and made[0] is cluster_state.nodes and all(map(operator.is_, made[1], found)):
            return made[2]
        agent_state = yield from self._laid_out(found)
        self._made = cluster_state.nodes, found, agent_state
        return agent_state

    def _of(self, name: str, node: Any) -> _Read:
        """What a node says now. Most that change say the same as before of what is read here."""
        before = self._read.get(name, _NEVER)
        capacity, requested = before.amounts
        is_same = before.node is node
        if self._holdings is not None:
            requested = self._holdings.of(name)
        elif not is_same:
            requested = resources.requested(node.metadata.annotations)
        if is_same and requested == before.amounts.requested:
            return before
        if not is_same:
            capacity = resources.allocatable(node.status.allocatable, self._gpu)
        amounts = _Amounts(capacity, requested)
        return _Read(node, before.amounts if amounts == before.amounts else amounts)

    def _laid_out(self, found: Sequence[_Amounts]) -> Generator[None, None, Slot]:
        count = self._aim.resources
        capacity = _table(one.capacity for one in found)[:count]
        yield
        requested = _table(one.requested for one in found)[:count]
        yield
        missing = np.pad(np.isnan(requested) & (capacity > 0), ((0, 0), (0, 1)), constant_values=True)
        table = Table(capacity, np.nan_to_num(requested))
        room = np.pad(capacity - table.used, ((0, 0), (0, 1)), constant_values=-1.0)
        has_some = (capacity > 0).sum(axis=1)
        scale = capacity.sum(axis=1) / np.maximum(has_some, 1)
        yield
        layout = LAYOUTS[self._aim.objective](table, self._aim.prime)
        return Slot(room, layout, scale, bits(missing), self._memory)


def _table(rows: Iterable[Amounts]) -> Floats:
    """Amounts in our units, by resource and node."""
    given = np.fromiter(chain.from_iterable(rows), np.float64)
    return resources.counted(given.reshape(-1, len(resources.NAMES)).T)
