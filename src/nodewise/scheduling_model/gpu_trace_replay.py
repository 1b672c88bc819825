"""Replay of a published GPU trace with the gpu agent: its filter, scores, choice of GPUs and allocations.

The trace consists of CSV files of nodes and pods. As in Weng et al. (USENIX ATC 2023): pods are drawn from the trace
with replacement, arrive one after another and stay, until the requested GPUs reach a given share of all GPUs. A pod
that fits nowhere fails and is not retried.

The replay does kube-scheduler's part: it excludes nodes with too little free CPU or memory and selects the node with
the highest score, a random one among equals. It omits kube-scheduler's own scores, as if the extender had a very large
weight, and sampling.
"""

import csv
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from nodewise.agent import ClusterState, Names, NodeIndex, Snapshot
from nodewise.agent.bind_plugin_interface import (
    RESERVATIONS_ANNOTATION,
    AllocationRecordLease,
    AllocationRecordMetadata,
    BindPlan,
)
from nodewise.agents.gpu import fragmentation, typical_pods
from nodewise.agents.gpu.agent import GpuAgent
from nodewise.agents.gpu.fragmentation import WorkloadTables
from nodewise.agents.gpu.gpu_arrays import CandidateGpus
from nodewise.agents.gpu.gpu_pod_fields import MODELS, AllocatedPod
from nodewise.agents.gpu.node_gpus import GPUS, GpuNode
from nodewise.agents.gpu.options import GpuOptions, Placement
from nodewise.agents.gpu.state import GpuState, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import GENERIC
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.errors import BadInput, Problem, shown
from nodewise.metrics.metrics_snapshot import MetricsSnapshot

T = TypeVar("T")

GPU_MILLI: Final = 1000
"""Thousandths of a whole GPU."""
_MAX_VALUE: Final = 2**53
_MAX_GPUS: Final = 64
_MAX_PROBLEMS: Final = 20


class TraceNode(NamedTuple):
    """A row of a node list."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class TracePod(NamedTuple):
    """A row of a pod list; rows with equal requests are equal."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    """Thousandths of each GPU; 0 without GPUs."""
    models: tuple[str, ...]
    """Accepted GPU models; empty accepts any."""

    @property
    def total_gpu_demand_milli(self) -> int:
        """Thousandths of all GPUs together."""
        return self.gpus * self.gpu_milli


class _CsvRow:
    """A row that collects the problems of its cells."""

    def __init__(self, where: str, cells: Mapping[str, str], problems: list[Problem]) -> None:
        self._where = where
        self._cells = cells
        self._problems = problems

    def number(self, column: str, most: int = _MAX_VALUE) -> int:
        text = self._cells[column].strip()
        if text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_VALUE)) and int(text) <= most:
            return int(text)
        self.report_problem(column, f"a whole number from 0 to {most}")
        return 0

    def text(self, column: str) -> str:
        return self._cells.get(column, "").strip()

    def report_problem(self, column: str, wanted: str) -> None:
        self._problems.append(Problem(f"{self._where}: {column}", shown(self._cells[column]), wanted))


def nodes(path: str) -> list[TraceNode]:
    """Read a node list. BadInput names each invalid line and column."""

    def parse(row: _CsvRow) -> TraceNode:
        name = row.text("sn")
        if not name:
            row.report_problem("sn", "a name")
        gpus = row.number("gpu", _MAX_GPUS)
        return TraceNode(name, row.number("cpu_milli"), row.number("memory_mib"), gpus, row.text("model"))

    nodes = _read_trace_file(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model"), parse)
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise _invalid_trace_error(Problem(f"{path}: sn", shown(duplicate), "each name once"))
    if not any(node.gpus for node in nodes):
        raise _invalid_trace_error(Problem(f"{path}: gpu", "no GPUs", "nodes with GPUs"))
    return nodes


def pods(path: str) -> list[TracePod]:
    """Read a pod list. Without the column gpu_spec, as in some published lists, pods accept any GPU model. BadInput
    names each invalid line and column.
    """

    def parse(row: _CsvRow) -> TracePod:
        gpus, milli = row.number("num_gpu", _MAX_GPUS), row.number("gpu_milli", GPU_MILLI)
        if gpus and not milli:
            row.report_problem("gpu_milli", f"1 to {GPU_MILLI} of each GPU")
        cpu_milli, memory_mib = row.number("cpu_milli"), row.number("memory_mib")
        models = tuple(filter(None, row.text("gpu_spec").split("|")))
        return TracePod(cpu_milli, memory_mib, gpus, milli if gpus else 0, models if gpus else ())

    pods = _read_trace_file(path, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"), parse)
    if not any(pod.total_gpu_demand_milli for pod in pods):
        raise _invalid_trace_error(Problem(f"{path}: num_gpu", "no GPUs", "pods that request GPUs"))
    return pods


def _read_trace_file(path: str, columns: tuple[str, ...], parse: Callable[[_CsvRow], T]) -> list[T]:
    problems: list[Problem] = []
    rows: list[T] = []
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            lines = csv.DictReader(file, strict=True, restval="")
            if any(name not in (lines.fieldnames or ()) for name in columns):
                expected = f"columns {', '.join(columns)}"
                raise _invalid_trace_error(Problem(f"{path}: line 1", shown(lines.fieldnames), expected))
            for cells in lines:
                rows.append(parse(_CsvRow(f"{path}: line {lines.line_num}", cells, problems)))
                if len(problems) >= _MAX_PROBLEMS:
                    break
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _invalid_trace_error(Problem(path, str(error), "a readable CSV file")) from error
    if problems:
        raise _invalid_trace_error(*problems)
    return rows


def _invalid_trace_error(*problems: Problem) -> BadInput:
    return BadInput("trace", problems)


COUNT: Final = "nvidia.com/gpu"
MILLI: Final = "nvidia.com/gpu-milli"
_NAMESPACE: Final = "trace"


class TraceResult(msgspec.Struct, frozen=True):
    """Result of one run: per cent of all GPUs, by each whole per cent of them that was requested so far."""

    placement: str
    seed: int
    allocated_gpu_pct: dict[int, float]
    fragmented_gpu_pct: dict[int, float]
    """Free GPUs that no pod of the trace can use."""
    arrived_pods: int
    failed_pods: int
    seconds: float


class Trace(NamedTuple):
    """A cluster and its workload."""

    nodes: Sequence[TraceNode]
    pods: Sequence[TracePod]

    @property
    def gpus_milli(self) -> int:
        return GPU_MILLI * sum(node.gpus for node in self.nodes)


def run(
    trace: Trace,
    placement: Placement,
    seed: int,
    arrivals: float,
    report_progress: Callable[[int], None] = lambda _: None,
) -> TraceResult:
    """Replay until `arrivals` of all GPUs were requested (1.3 is 130 %); `report_progress` gets each per cent."""
    began = clock.SystemClock().monotonic()
    random = np.random.default_rng(seed)
    cluster = _TraceCluster(trace, placement, random)
    end, gpus_milli = round(arrivals * 100), trace.gpus_milli
    allocated, fragmented = {0: 0.0}, {0: cluster.fragmented_pct()}
    arrived = count = failed = 0
    while len(allocated) <= end:
        pod = trace.pods[int(random.integers(len(trace.pods)))]
        count += 1
        arrived += pod.total_gpu_demand_milli
        failed += not cluster.place(pod, f"pod-{count}")
        while len(allocated) <= end and arrived * 100 >= len(allocated) * gpus_milli:
            report_progress(len(allocated))
            fragmented[len(allocated)] = cluster.fragmented_pct()
            allocated[len(allocated)] = cluster.allocated_pct()
    took_s = round(clock.SystemClock().monotonic() - began, 3)
    return TraceResult(placement, seed, allocated, fragmented, count, failed, took_s)


def mean(outcomes: Sequence[TraceResult]) -> dict[str, Any]:
    """Means over runs of equal length, by per cent and of the numeric fields."""

    def mean_of(values: Iterable[float]) -> float:
        return round(statistics.fmean(values), 4)

    by_pct = {
        field: {
            pct: mean_of(getattr(outcome, field)[pct] for outcome in outcomes)
            for pct in getattr(outcomes[0], field)
        }
        for field in ("allocated_gpu_pct", "fragmented_gpu_pct")
    }
    numbers = {
        field: mean_of(getattr(outcome, field) for outcome in outcomes)
        for field in ("arrived_pods", "failed_pods", "seconds")
    }
    return {**by_pct, **numbers}


class _TraceCluster:
    """Nodes, their free resources, and the agent's state."""

    def __init__(self, trace: Trace, placement: Placement, random: np.random.Generator) -> None:
        options = GpuOptions(gpu_placement=placement, gpu_profile="generic")
        self._agent = GpuAgent(options, GENERIC)
        self._builder = GpuStateBuilder(GENERIC)
        self._random = random
        self._index = NodeIndex(node.name for node in trace.nodes)
        self._cpu = np.array([node.cpu_milli for node in trace.nodes], np.int64)
        self._memory = np.array([node.memory_mib for node in trace.nodes], np.int64)
        self._templates = {pod: _build_pod_object(pod) for pod in set(trace.pods)}
        self._records: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._gpus_milli, self._allocated_milli = trace.gpus_milli, 0
        objects = {("", node.name): _build_node_object(node) for node in trace.nodes}
        cluster_state = ClusterState(self._index, {}, MetricsSnapshot(), 0.0, objects)
        agent_state: GpuState = cooperative_scheduling.run_without_pauses(self._builder.build(cluster_state))
        nothing = np.zeros(agent_state.layout.size + 1, np.int64)
        self._state = agent_state._replace(workload=self._typical_workload(trace), cpu_free=nothing)
        self._update_free_cpu(slice(None))

    def place(self, pod: TracePod, name: str) -> bool:
        """Place a pod for the rest of the run. Return whether it fits."""
        candidates = np.flatnonzero((self._cpu >= pod.cpu_milli) & (self._memory >= pod.memory_mib))
        replace, template = msgspec.structs.replace, self._templates[pod]
        metadata = replace(template.metadata, name=name, uid=name, resourceVersion="1")
        pod_to_place = replace(template, metadata=metadata)
        snapshot = Snapshot(self._index, {GpuAgent.name: self._state}, 0.0)
        node = self._best_node(pod_to_place, candidates, snapshot)
        if node is None:
            return False
        on = str(self._index.names[node])
        plan = self._agent.bind(pod_to_place, on, snapshot, now=0.0)
        if plan is not None:
            if not isinstance(plan, BindPlan):
                raise AssertionError(f"{on} passed the filter and is refused: {plan.error}")
            self._allocate(on, pod_to_place, plan)
        self._cpu[node] -= pod.cpu_milli
        self._memory[node] -= pod.memory_mib
        self._allocated_milli += pod.total_gpu_demand_milli
        self._update_free_cpu(node)
        return True

    def allocated_pct(self) -> float:
        return round(100 * self._allocated_milli / self._gpus_milli, 4)

    def fragmented_pct(self) -> float:
        known, layout = self._state.workload, self._state.layout
        candidate_gpus = CandidateGpus(layout)
        hosts = fragmentation.node_cells(known, self._state.cpu_free, len(candidate_gpus))
        gpus = fragmentation.fragmentation_of(
            known, fragmentation.gpu_cells(known, candidate_gpus), hosts
        ).sum()
        return round(100 * float(gpus) * GPU_MILLI / self._gpus_milli, 4)

    def _best_node(self, pod: AllocatedPod, candidates: Any, snapshot: Snapshot) -> int | None:
        """Index of the node with the highest score; None if the pod fits nowhere."""
        verdict = self._agent.filter(pod, Names(self._index, candidates), snapshot)
        if verdict is not None:
            candidates = candidates[verdict.codes == 0]
        if not len(candidates):
            return None
        scores = self._agent.score(pod, Names(self._index, candidates), snapshot)
        if scores is not None:
            candidates = candidates[scores.points == scores.points.max()]
        return int(candidates[self._random.integers(len(candidates))])

    def _allocate(self, node: str, pod: AllocatedPod, plan: BindPlan) -> None:
        held = self._records.setdefault(node, {})
        held[pod.metadata.uid] = plan.reservation
        metadata = AllocationRecordMetadata(
            name=f"gpu-{node}", annotations={RESERVATIONS_ANNOTATION: msgspec.json.encode(held).decode()}
        )
        self._state = self._builder.apply_allocation_record(
            self._state, node, AllocationRecordLease(metadata)
        )

    def _update_free_cpu(self, nodes: int | slice) -> None:
        """Update the free CPU in the agent's state; nodes without GPUs share an unused entry."""
        assert self._state.cpu_free is not None
        free = self._state.cpu_free.copy()
        free[self._state.layout.rows[:-1][nodes]] = self._cpu[nodes]
        self._state = self._state._replace(cpu_free=free)

    def _typical_workload(self, trace: Trace) -> WorkloadTables:
        """Build the typical workload from the whole trace, as in the paper."""
        pod_counts = Counter(trace.pods)
        class_counts: Counter[typical_pods.PodClass] = Counter()
        for pod, times in pod_counts.items():
            for pod_class in typical_pods.pod_classes(self._agent.demand_of(self._templates[pod])):
                class_counts[pod_class] += times
        return fragmentation.build_fragmentation_tables(class_counts, GENERIC.counts)


def _build_node_object(node: TraceNode) -> GpuNode:
    """Build the Node object; the number of pods that may share a GPU is its number of thousandths."""
    gpus = [
        {"name": f"card{at}", "model": node.model, "capacity": {COUNT: GPU_MILLI, MILLI: GPU_MILLI}}
        for at in range(node.gpus)
    ]
    annotations = {GPUS: msgspec.json.encode(gpus).decode()} if gpus else {}
    allocatable = {"cpu": f"{node.cpu_milli}m", "memory": f"{node.memory_mib}Mi"}
    manifest = {"metadata": {"annotations": annotations}, "status": {"allocatable": allocatable}}
    return msgspec.json.decode(msgspec.json.encode(manifest), type=GpuNode)


def _build_pod_object(pod: TracePod) -> AllocatedPod:
    """Build the Pod object, without a name."""
    requests = {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"}
    if pod.gpus:
        requests |= {COUNT: str(pod.gpus), MILLI: str(pod.total_gpu_demand_milli)}
    annotations = {MODELS: ",".join(pod.models)} if pod.models else {}
    manifest = {
        "metadata": {"name": "", "namespace": _NAMESPACE, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
    }
    return msgspec.json.decode(msgspec.json.encode(manifest), type=AllocatedPod)
