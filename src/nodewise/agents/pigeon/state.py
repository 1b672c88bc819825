"""Nodes in, the pigeon slot of the snapshot out; and the memory of the pods that were asked about."""

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
from nodewise.state import NODES
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


_NO_NODE: Final = PigeonNode()


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


class _Amounts(msgspec.Struct, frozen=True, gc=False):
    """What a node has, and what is requested of it. There are thousands: the garbage collector does not track them."""

    capacity: Amounts
    requested: Amounts


class PigeonState(StateBuilder[Slot]):
    """Remembers what was read of nodes, and of the pods that came."""

    memory_scope = "replica"

    def __init__(self, aim: Aim, gpu: str = resources.GPU, *, from_pods: bool = False) -> None:
        self._aim = aim
        self._gpu = gpu
        self._memory = Memory()
        self._amounts: dict[str, _Amounts] = {}
        """By node."""
        self._holdings = Holdings(gpu) if from_pods else None
        self.inputs = Inputs(frozenset({PODS} if from_pods else ()), node_objects=True, metrics=False)
        self._made: tuple[NodeIndex, Slot] | None = None
        """The newest state, until an amount changes."""

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
        """Lay the nodes out; the same state as before where no amount changed."""
        if cluster_state.changes is None:
            self._reset()
        nodes = {name for (_, name), _ in cluster_state.changes_of(NODES)}
        if self._holdings is not None:
            nodes |= yield from self._holdings.apply(cluster_state.changes_of(PODS))
        for number, name in enumerate(nodes):
            self._read(name, cluster_state.node_objects.get(("", name)))
            if not number % _STRIDE:
                yield
        made = self._made
        if made is not None and made[0] is cluster_state.nodes:
            return made[1]
        agent_state = yield from self._laid_out(
            [
                self._amounts.get(name) or self._amounts_of(name, _NO_NODE)
                for name in cluster_state.nodes.known
            ]
        )
        self._made = cluster_state.nodes, agent_state
        return agent_state

    def _reset(self) -> None:
        """Begin from nothing."""
        self._amounts.clear()
        self._made = None
        if self._holdings is not None:
            self._holdings.reset()

    def _read(self, name: str, node: Any | None) -> None:
        """Read a node again. The fields that are read here are the same in most nodes that changed."""
        before = self._amounts.pop(name, None)
        if node is not None:
            self._amounts[name] = self._amounts_of(name, node)
        if self._amounts.get(name) != before:
            self._made = None

    def _amounts_of(self, name: str, node: Any) -> _Amounts:
        capacity = resources.allocatable(node.status.allocatable, self._gpu)
        if self._holdings is not None:
            return _Amounts(capacity, self._holdings.of(name))
        return _Amounts(capacity, resources.requested(node.metadata.annotations))

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
