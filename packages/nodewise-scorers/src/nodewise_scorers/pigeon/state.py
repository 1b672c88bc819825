"""Computes the state of the pigeon agent from nodes and pods, and counts the pods that were scored.

The sum of pod requests on each node, updated as soon as a pod is bound.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.agent import ClusterState, Inputs, NodeIndex, ObjectKey, StateBuilder
from nodewise.agent.state import NODES, Change
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import HoldingSpec, HoldingStatus, RequestingPod
from nodewise_scorers.pigeon import resource_units
from nodewise_scorers.pigeon.pigeon_cfg_file import DEFAULT, PigeonConfig
from nodewise_scorers.pigeon.placement_objectives import (
    A_BINPACK,
    LAYOUTS,
    Bits,
    Floats,
    NodeTable,
    ObjectiveLayout,
    pack_resource_bits,
)
from nodewise_scorers.pigeon.resource_units import Amounts, Row
from nodewise_scorers.pigeon.scored_pod_statistics import DemandMemory
from nodewise_scorers.statistics.load_annotations import AllocationAnnotations, NodeStatus

_PODS_STRIDE: Final = 64
"""Pods between two yields."""


class HoldingMetadata(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""


class HoldingPod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The fields of a pod that say what it requests of which node."""

    metadata: HoldingMetadata
    spec: HoldingSpec = HoldingSpec()
    status: HoldingStatus = HoldingStatus()


def make_pod_request_reducer(gpu: str) -> Callable[[HoldingPod], HoldingPod | None]:
    """Return a function that reduces a bound pod to its node and its requests, and drops any other pod."""
    return partial(_reduce_pod_to_requests, gpu)


def _reduce_pod_to_requests(gpu: str, pod: HoldingPod) -> HoldingPod | None:
    if not pod_requests.holds_requests(pod):
        return None
    reduced = pod_requests.reduce_to_requests(pod, resource_units.requested_resources(gpu))
    metadata = HoldingMetadata(name=pod.metadata.name, namespace=reduced.metadata.namespace)
    return HoldingPod(metadata=metadata, spec=reduced.spec)


class NodeRequests:
    """The sum of what the pods of each node request, kept up to date by changes."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._sums: dict[str, Amounts] = {}

    def reset(self) -> None:
        """Remove all sums."""
        self._sums = {}

    def apply(
        self, changes: Iterable[tuple[ObjectKey, Change[HoldingPod]]]
    ) -> Generator[None, None, set[str]]:
        """Apply changes of pods. Returns the nodes of these pods."""
        nodes: set[str] = set()
        for number, (_, change) in enumerate(changes):
            for pod, sign in ((change.old, -1), (change.new, 1)):
                if pod is not None:
                    self._add_pod_requests(pod, sign)
                    nodes.add(pod.spec.nodeName)
            if not number % _PODS_STRIDE:
                yield
        return nodes

    def __len__(self) -> int:
        """Nodes that have pods. A pod can name any node, also one that does not exist."""
        return len(self._sums)

    def of(self, node: str) -> Amounts:
        """What the pods of a node request together."""
        return self._sums.get(node, _NOTHING)

    def _add_pod_requests(self, pod: HoldingPod, sign: int) -> None:
        node, amounts = pod.spec.nodeName, resource_units.raw_pod_requests(pod.spec, self._gpu)
        # whole numbers of Python: what is subtracted is exactly what was added
        total = tuple(a + sign * b for a, b in zip(self.of(node), amounts, strict=True))
        if any(total):
            self._sums[node] = total
        else:
            self._sums.pop(node, None)


_NOTHING: Final[Amounts] = (0,) * len(resource_units.NAMES)


PODS: Final = "pigeon_pods"
"""The key of the pods in `ClusterState.objects`."""
_STRIDE: Final = 128
"""Nodes between two yields."""


class NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: AllocationAnnotations | None = None


class PigeonNode(msgspec.Struct, frozen=True, gc=False):
    """The fields of a node that are read."""

    metadata: NodeMetadata = NodeMetadata()
    status: NodeStatus = NodeStatus()


_NO_NODE: Final = PigeonNode()


class PodMetadata(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class PigeonPod(RequestingPod, frozen=True, gc=False):
    """The fields of a pod that are read."""

    metadata: PodMetadata = PodMetadata()


class PigeonState(NamedTuple):
    """All nodes in the form that the objective needs."""

    room: Floats
    """(R, N+1): what is left of a node's capacity, negative for the unknown node."""
    layout: ObjectiveLayout
    scale: Row
    """(R): the mean capacity of the nodes that have the resource."""
    missing: Bits
    """(N+1)"""
    memory: DemandMemory
    """Changes with each scored pod, also after the state was computed."""


class _Amounts(msgspec.Struct, frozen=True, gc=False):
    """The capacity of a node and the requests of its pods; there are too many of them to be tracked for collection."""

    capacity: Amounts
    requested: Amounts


class PigeonStateBuilder(StateBuilder[PigeonState]):
    """Caches the capacity and the requests of nodes, and counts scored pods."""

    memory_scope = "replica"

    def __init__(
        self, config: PigeonConfig, gpu: str = resource_units.GPU, *, from_pods: bool = False
    ) -> None:
        self._config = config
        self._gpu = gpu
        self._memory = DemandMemory()
        self._amounts: dict[str, _Amounts] = {}
        """By node."""
        self._node_requests = NodeRequests(gpu) if from_pods else None
        self.inputs = Inputs(frozenset({PODS} if from_pods else ()), node_objects=True, metrics=False)
        self._newest: tuple[NodeIndex, PigeonState] | None = None
        """The newest state, until an amount changes."""

    def problems(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> Mapping[str, tuple[str, ...]]:  # noqa: ARG002
        """Harmless problems of the file."""
        return {DEFAULT: self._config.problems} if self._config.problems else {}

    def count_request(self, pod: PigeonPod) -> None:
        """Count the pod if the objective uses the requests of pods."""
        if self._config.objective == A_BINPACK:
            self._memory.count(pod.metadata.uid, resource_units.pod_demand(pod, self._gpu))

    def recall(self, kept: bytes) -> None:
        self._memory.recall(kept)

    def keep(self, kept: bytes | None) -> bytes | None:
        return self._memory.keep(kept)

    def build(self, cluster_state: ClusterState) -> Generator[None, None, PigeonState]:
        """Lay the nodes out; the same state as before where no amount changed."""
        if cluster_state.changes is None:
            self._clear_cache()
        nodes = {name for (_, name), _ in cluster_state.changes_of(NODES)}
        if self._node_requests is not None:
            nodes |= yield from self._node_requests.apply(cluster_state.changes_of(PODS))
        for number, name in enumerate(nodes):
            self._read_node(name, cluster_state.node_objects.get(("", name)))
            if not number % _STRIDE:
                yield
        newest = self._newest
        if newest is not None and newest[0] is cluster_state.nodes:
            return newest[1]
        agent_state = yield from self._lay_out_nodes(
            [
                self._amounts.get(name) or self._amounts_of(name, _NO_NODE)
                for name in cluster_state.nodes.known
            ]
        )
        self._newest = cluster_state.nodes, agent_state
        return agent_state

    def _clear_cache(self) -> None:
        """Clear the cache."""
        self._amounts.clear()
        self._newest = None
        if self._node_requests is not None:
            self._node_requests.reset()

    def _read_node(self, name: str, node: Any | None) -> None:
        """Read a node again. The fields that are read here are the same in most nodes that changed."""
        before = self._amounts.pop(name, None)
        if node is not None:
            self._amounts[name] = self._amounts_of(name, node)
        if self._amounts.get(name) != before:
            self._newest = None

    def _amounts_of(self, name: str, node: Any) -> _Amounts:
        capacity = resource_units.allocatable_amounts(node.status.allocatable, self._gpu)
        if self._node_requests is not None:
            return _Amounts(capacity, self._node_requests.of(name))
        return _Amounts(capacity, resource_units.requests_from_annotations(node.metadata.annotations))

    def _lay_out_nodes(self, nodes: Sequence[_Amounts]) -> Generator[None, None, PigeonState]:
        count = self._config.resources
        capacity = _amount_table(amounts.capacity for amounts in nodes)[:count]
        yield
        requested = _amount_table(amounts.requested for amounts in nodes)[:count]
        yield
        missing = np.pad(np.isnan(requested) & (capacity > 0), ((0, 0), (0, 1)), constant_values=True)
        table = NodeTable(capacity, np.nan_to_num(requested))
        room = np.pad(capacity - table.used, ((0, 0), (0, 1)), constant_values=-1.0)
        has_some = (capacity > 0).sum(axis=1)
        scale = capacity.sum(axis=1) / np.maximum(has_some, 1)
        yield
        layout = LAYOUTS[self._config.objective](table, self._config.prime)
        return PigeonState(room, layout, scale, pack_resource_bits(missing), self._memory)


def _amount_table(rows: Iterable[Amounts]) -> Floats:
    """Amounts in the agent's units, by resource and node."""
    amounts = np.fromiter(chain.from_iterable(rows), np.float64)
    return resource_units.to_agent_units(amounts.reshape(-1, len(resource_units.NAMES)).T)
