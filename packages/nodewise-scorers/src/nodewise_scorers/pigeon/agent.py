"""The pigeon agent: its state from nodes and pods, and answers to requests, the objective for the cluster with the pod
on each candidate.

The units are milli-CPU, MiB, pods, devices and GiB. Amounts are whole numbers, rounded down. The sum of pod requests on
each node is updated as soon as a pod is bound.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.agent import (
    ClusterState,
    FilterPlugin,
    Inputs,
    Names,
    NodeIndex,
    ObjectKey,
    ScorePlugin,
    Scores,
    Snapshot,
    StateExporter,
    Verdict,
)
from nodewise.agent.state import NODES, Change
from nodewise.base.quantity import MAX_AMOUNT
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import HoldingSpec, HoldingStatus, RequestingPod, RequestingSpec
from nodewise_scorers.load.bound_pods import OwnedPod
from nodewise_scorers.load.in_flight_accounting import (
    AT_ONCE_S,
    CountingStateBuilder,
    InFlightAccounting,
    estimate_requests,
)
from nodewise_scorers.pigeon.options import (
    A_BINPACK,
    DEFAULT,
    GPU,
    NAMES,
    PigeonConfig,
    PigeonOptions,
    load_config,
)
from nodewise_scorers.pigeon.placement_objectives import (
    LAYOUTS,
    SCALINGS,
    Bits,
    Floats,
    NodeTable,
    ObjectiveLayout,
    PigeonDetails,
    pack_resource_bits,
)
from nodewise_scorers.pigeon.scored_pod_statistics import DemandMemory, Row, demand_variability
from nodewise_scorers.scoring_agent import NoStatistics, StatisticsNotReady
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import AllocationAnnotations, NodeStatus

PRIORITY: Final = "pigeon-holing"
"""The older system's name of the agent's scores."""
UNITS: Final = (1, 2**20, 1, 1, 2**30)
"""The size of the agent's units, in the units of annotations and quantities."""
UNIT_NAMES: Final = ("milli", "MiB", "pods", "cards", "GiB")
DEFAULT_CPU: Final = 10
DEFAULT_MEMORY: Final = 16
"""The demand of a pod without a request."""
PODS: Final = "pigeon_pods"
"""The key of the pods in `ClusterState.objects`."""
_PODS_STRIDE: Final = 64  # pods between two yields
_STRIDE: Final = 128  # nodes between two yields

Amounts = tuple[float, ...]
"""By resource, in the units of quantities."""
_NOTHING: Final[Amounts] = (0,) * len(NAMES)
_REQUESTED_FIELDS: Final = tuple(f"requested_{name.replace('-', '_')}" for name in NAMES)


class HoldingMetadata(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""


class HoldingPod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The fields of a pod that say what it requests of which node."""

    metadata: HoldingMetadata
    spec: HoldingSpec = HoldingSpec()
    status: HoldingStatus = HoldingStatus()


class NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: AllocationAnnotations | None = None


class NodeFields(msgspec.Struct, frozen=True, gc=False):
    metadata: NodeMetadata = NodeMetadata()
    status: NodeStatus = NodeStatus()


PodFields = OwnedPod


def make_pod_request_reducer(gpu: str) -> Callable[[HoldingPod], HoldingPod | None]:
    """Return a function that reduces a bound pod to its node and its requests, and drops any other pod."""

    def reduce(pod: HoldingPod) -> HoldingPod | None:
        if not pod_requests.holds_requests(pod):
            return None
        reduced = pod_requests.reduce_to_requests(pod, _requested_resources(gpu))
        metadata = HoldingMetadata(name=pod.metadata.name, namespace=reduced.metadata.namespace)
        return HoldingPod(metadata=metadata, spec=reduced.spec)

    return reduce


def _requested_resources(gpu: str) -> tuple[str, ...]:
    """The resources that pods request, without the number of pods."""
    return ("cpu", "memory", gpu, NAMES[-1])


def _pod_requests(spec: RequestingSpec, gpu: str) -> Amounts:
    """The requests of a pod that is to be placed, or of a pod on a node as it is stored."""
    cpu, memory, devices, storage = pod_requests.whole_requests(spec, _requested_resources(gpu))
    return (cpu, memory, 1, devices, storage)


def pod_demand(pod: RequestingPod, gpu: str) -> Row:
    """The requests of a pod in the agent's units, with defaults for CPU and memory."""
    cpu, memory, *others = (
        amount // unit for amount, unit in zip(_pod_requests(pod.spec, gpu), UNITS, strict=True)
    )
    return np.array([cpu or DEFAULT_CPU, memory or DEFAULT_MEMORY, *others], np.float64)


def requests_from_annotations(written: AllocationAnnotations | None) -> Amounts:
    """The sum of the requests of a node's pods, by its annotations; NaN for absent ones.

    Decimal numbers are accepted too, because older annotators wrote `1610612736.0`.
    """
    return tuple(load_annotations.number(getattr(written, field, None)) for field in _REQUESTED_FIELDS)


def to_agent_units(amounts: Floats) -> Floats:
    """Convert amounts (5, n) to the agent's units, clipped to 0 and the largest quantity."""
    units: Floats = np.floor(np.clip(amounts, 0, MAX_AMOUNT) / np.array(UNITS)[:, None])
    return units


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
                if pod is None:
                    continue
                node, amounts = pod.spec.nodeName, _pod_requests(pod.spec, self._gpu)
                nodes.add(node)
                # whole numbers of Python: what is subtracted is exactly what was added
                self._sums[node] = tuple(
                    total + sign * amount for total, amount in zip(self.of(node), amounts, strict=True)
                )
                if not any(self._sums[node]):
                    del self._sums[node]
            if not number % _PODS_STRIDE:
                yield
        return nodes

    def __len__(self) -> int:
        """Nodes that have pods. A pod can name any node, also one that does not exist."""
        return len(self._sums)

    def of(self, node: str) -> Amounts:
        """What the pods of a node request together."""
        return self._sums.get(node, _NOTHING)


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


class PigeonStateBuilder(CountingStateBuilder[PigeonState]):
    """Caches the capacity and the requests of nodes, and counts scored pods."""

    memory_scope = "replica"

    def __init__(
        self, config: PigeonConfig, gpu: str = GPU, *, from_pods: bool = False, in_flight: bool = False
    ) -> None:
        # annotations include the requests of pods that were bound before they were written
        super().__init__(InFlightAccounting(estimate_requests, from_binding=True) if in_flight else None)
        self._config = config
        self._gpu = gpu
        self._memory = DemandMemory()
        self._amounts: dict[str, _Amounts] = {}
        """By node."""
        self._node_requests = NodeRequests(gpu) if from_pods else None
        self._in_flight = np.zeros((2, 0))
        """Milli-CPU and bytes that pods in flight request, of the newest state."""
        objects = frozenset({PODS} if from_pods else ()) | self.counted_objects
        self.inputs = Inputs(objects, node_objects=True, metrics=False)
        self._newest: tuple[NodeIndex, PigeonState] | None = None
        """The newest state, until an amount changes."""

    def problems(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> Mapping[str, tuple[str, ...]]:  # noqa: ARG002
        """Harmless problems of the file."""
        return {DEFAULT: self._config.problems} if self._config.problems else {}

    def count_request(self, pod: PodFields) -> None:
        """Count the pod if the objective uses the requests of pods."""
        if self._config.objective == A_BINPACK:
            self._memory.count(pod.metadata.uid, pod_demand(pod, self._gpu))

    def recall(self, kept: bytes) -> None:
        self._memory.recall(kept)

    def keep(self, kept: bytes | None) -> bytes | None:
        return self._memory.keep(kept)

    def build(
        self, cluster_state: ClusterState
    ) -> Generator[None, None, PigeonState]:  # complexity: steps in order
        """Lay the nodes out; the same state as before where no amount changed."""
        if cluster_state.changes is None:
            self._amounts.clear()
            self._newest = None
            if self._node_requests is not None:
                self._node_requests.reset()
        nodes = {name for (_, name), _ in cluster_state.changes_of(NODES)}
        if self._node_requests is not None:
            nodes |= yield from self._node_requests.apply(cluster_state.changes_of(PODS))
        for number, name in enumerate(nodes):
            node = cluster_state.node_objects.get(("", name))
            before = self._amounts.pop(name, None)
            if node is not None:
                self._amounts[name] = self._amounts_of(name, node)
            # the fields that are read are the same in most nodes that changed
            if self._amounts.get(name) != before:
                self._newest = None
            if not number % _STRIDE:
                yield
        if self._accounting is not None:
            yield from self._count_in_flight(cluster_state, self._accounting)
        if self._newest is not None and self._newest[0] is cluster_state.nodes:
            return self._newest[1]
        no_node = NodeFields()
        state = yield from self._lay_out_nodes(
            [self._amounts.get(name) or self._amounts_of(name, no_node) for name in cluster_state.nodes.known]
        )
        self._newest = cluster_state.nodes, state
        return state

    def _count_in_flight(
        self, cluster_state: ClusterState, accounting: InFlightAccounting
    ) -> Generator[None, None, None]:
        times = np.full(len(cluster_state.nodes) + 1, np.nan)
        for number, name in enumerate(cluster_state.nodes.known):
            node = cluster_state.node_objects.get(("", name))
            if self._node_requests is None and node is not None and node.metadata.annotations is not None:
                times[number] = load_annotations.time(node.metadata.annotations.annotated_at)
            if not number % _STRIDE:
                yield
        in_flight = yield from accounting.count(cluster_state, times, AT_ONCE_S)
        amounts = in_flight.of(np.arange(len(cluster_state.nodes)))
        if not np.array_equal(amounts, self._in_flight):
            self._newest, self._in_flight = None, amounts

    def _amounts_of(self, name: str, node: Any) -> _Amounts:
        capacity = tuple(load_annotations.parse_capacity(node.status.allocatable, self._gpu))
        if self._node_requests is not None:
            return _Amounts(capacity, self._node_requests.of(name))
        return _Amounts(capacity, requests_from_annotations(node.metadata.annotations))

    def _lay_out_nodes(self, nodes: Sequence[_Amounts]) -> Generator[None, None, PigeonState]:
        count = self._config.resources
        capacity = _amount_table(amounts.capacity for amounts in nodes)[:count]
        yield
        requested = _amount_table(amounts.requested for amounts in nodes)[:count]
        yield
        missing = np.pad(np.isnan(requested) & (capacity > 0), ((0, 0), (0, 1)), constant_values=True)
        used = np.nan_to_num(requested)
        if self._accounting is not None:
            used[:2] += (self._in_flight / np.array(UNITS[:2])[:, None])[:count]
        table = NodeTable(capacity, used)
        room = np.pad(capacity - table.used, ((0, 0), (0, 1)), constant_values=-1.0)
        has_some = (capacity > 0).sum(axis=1)
        scale = capacity.sum(axis=1) / np.maximum(has_some, 1)
        yield
        layout = LAYOUTS[self._config.objective](table, self._config.prime)
        return PigeonState(room, layout, scale, pack_resource_bits(missing), self._memory)


def _amount_table(rows: Iterable[Amounts]) -> Floats:
    """Amounts in the agent's units, by resource and node."""
    amounts = np.fromiter(chain.from_iterable(rows), np.float64)
    return to_agent_units(amounts.reshape(-1, len(NAMES)).T)


class PigeonAgent(
    FilterPlugin[PodFields, PigeonState],
    ScorePlugin[PodFields, PigeonState],
    StateExporter[PodFields, PigeonState],
):
    name = "pigeon"

    def __init__(self, options: PigeonOptions, config: PigeonConfig) -> None:
        self._options = options
        self._config = config
        self._to_scores = SCALINGS[options.pigeon_scaling]
        self.filter_enabled = options.rejects_missing
        self.predicates = {PRIORITY: self.filter} if options.rejects_missing else {}
        self.priorities = {PRIORITY: self.score}

    def equivalence_key(self, pod: PodFields, snapshot: Snapshot) -> tuple[()]:  # noqa: ARG002
        """The same nodes are rejected for all pods."""
        return ()

    def filter(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Verdict | None:  # noqa: ARG002
        """With `--when-missing reject`: rejects nodes whose requested resources are unknown."""
        state = self.state(snapshot)
        if state is None:
            reason = StatisticsNotReady(self.name, "the nodes are not read yet")
            return Verdict(np.ones(len(candidates), np.int16), (reason,))
        missing = state.missing[candidates.numbers] > 0
        return Verdict(missing.astype(np.int16), (NoStatistics(self.name),))

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """Nodes that the pod does not fit get 0."""
        state = self.state(snapshot)
        if state is None:
            return None
        numbers = candidates.numbers
        requests = pod_demand(pod, self._options.pigeon_gpu_resource)
        demand = requests[: self._config.resources]
        lacking = state.room[:, numbers] < demand[:, None]
        fits = ~lacking.any(axis=0)
        measured = np.full(len(numbers), np.nan)
        if fits.any():
            measured[fits] = state.layout.evaluate(numbers[fits], demand)
        variability = None
        if state.layout.follows_demand:
            statistics = state.memory.with_pod(pod.metadata.uid, requests)
            variability = demand_variability(statistics, state.scale)
        missing = state.missing[numbers] if state.missing[numbers].any() else None
        objective, bits = self._config.objective, pack_resource_bits(lacking)
        details = PigeonDetails(objective, measured, variability, bits, missing)
        values, default = details.values(), self._options.score_missing
        if default is None or missing is None:
            return Scores(self._to_scores(values), details=details)
        unknown = (missing > 0) & ~np.isnan(values)
        scores = self._to_scores(np.where(unknown, np.nan, values))
        return Scores(np.where(unknown, default, scores), details=details)

    def export(self, state: PigeonState, query: Mapping[str, str]) -> Generator[None, None, bytes]:  # noqa: ARG002
        """The requests of pods and the capacity of nodes for each resource that counts, in the agent's units."""
        statistics = state.memory.statistics
        deviations = statistics.covariance.diagonal() ** 0.5
        columns = (state.scale.tolist(), statistics.mean.tolist(), deviations.tolist())
        rows = zip(NAMES, UNIT_NAMES, *columns, strict=False)  # the scale has `num_resources` rows
        document = {
            "objective": self._config.objective,
            "demand_variability": demand_variability(statistics, state.scale),
            "pods": statistics.samples,
            "resources": {
                name: {"unit": unit, "node_mean": node, "pod_mean": mean, "pod_deviation": deviation}
                for name, unit, node, mean, deviation in rows
            },
        }
        yield
        return msgspec.json.encode(document) + b"\n"


def create_state_builder(options: PigeonOptions) -> PigeonStateBuilder:
    """`BadSettings` for an invalid file, or one that differs from the settings."""
    from_pods = options.pigeon_usage == "pods"
    return PigeonStateBuilder(
        load_config(options),
        options.pigeon_gpu_resource,
        from_pods=from_pods,
        in_flight=options.in_flight,
    )


def create_agent(options: PigeonOptions) -> PigeonAgent:
    """`BadSettings` as `create_state_builder`."""
    return PigeonAgent(options, load_config(options))
