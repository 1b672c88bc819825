"""Replay of a published GPU trace with the gpu agent: its filter, scores, choice of GPUs and allocations.

    python -m bench.gpu_traces --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv \\
        --placement fragmentation --placement pack --seeds 10 --svg docs/pictures/placements.svg

Alibaba published the trace openb (1,213 nodes, 6,212 GPUs), and Weng et al. (USENIX ATC 2023) comparable results. As in
their paper, pods are drawn from the trace with replacement, arrive one after another and stay, until the requested GPUs
reach a given share of all GPUs. A pod that fits nowhere fails and is not retried.

The replay does kube-scheduler's part: it excludes nodes with too little free CPU or memory and selects the node with
the highest score, a random one among equals. It omits kube-scheduler's own scores, as if the extender had a very large
weight, and sampling.
"""

import argparse
import csv
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import msgspec
import numpy as np
from matplotlib.figure import Figure

from bench.progress_lines import report_progress_line
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
from nodewise.agents.gpu.options import PLACEMENTS, GpuOptions, Placement
from nodewise.agents.gpu.state import GpuState, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import GENERIC
from nodewise.base import clock, cooperative_scheduling
from nodewise.cli.policy_backtest.html_page import STYLE
from nodewise.metrics.metrics_snapshot import MetricsSnapshot

GPU_MILLI: Final = 1000
"""Thousandths of a whole GPU."""
COUNT: Final = "nvidia.com/gpu"
MILLI: Final = "nvidia.com/gpu-milli"
_FROM_PCT: Final = 80  # below this share every placement allocates all requested GPUs
Curve = Mapping[int, float]
"""Allocated per cent of all GPUs, by requested per cent."""


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


def nodes(path: str) -> list[TraceNode]:
    """Read a node list: CSV with sn, cpu_milli, memory_mib, gpu and model."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        return [
            TraceNode(
                row["sn"],
                int(row["cpu_milli"]),
                int(row["memory_mib"]),
                int(row["gpu"]),
                row["model"].strip(),
            )
            for row in csv.DictReader(file)
        ]


def pods(path: str) -> list[TracePod]:
    """Read a pod list: CSV with cpu_milli, memory_mib, num_gpu, gpu_milli and, in some lists, gpu_spec."""
    pods = []
    with Path(path).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            gpus = int(row["num_gpu"])
            models = tuple(filter(None, (row.get("gpu_spec") or "").strip().split("|")))
            pods.append(
                TracePod(
                    int(row["cpu_milli"]),
                    int(row["memory_mib"]),
                    gpus,
                    int(row["gpu_milli"]) if gpus else 0,
                    models if gpus else (),
                )
            )
    return pods


class TraceResult(NamedTuple):
    """Result of one run: per cent of all GPUs, by each whole per cent of them that was requested so far."""

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


def run(trace: Trace, placement: Placement, seed: int, arrivals: float) -> TraceResult:
    """Replay until `arrivals` of all GPUs were requested (1.3 is 130 %)."""
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
            fragmented[len(allocated)] = cluster.fragmented_pct()
            allocated[len(allocated)] = cluster.allocated_pct()
    took_s = round(clock.SystemClock().monotonic() - began, 3)
    return TraceResult(allocated, fragmented, count, failed, took_s)


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
        "metadata": {"name": "", "namespace": "trace", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
    }
    return msgspec.json.decode(msgspec.json.encode(manifest), type=AllocatedPod)


def plot(ours: Mapping[str, Curve], published: Mapping[str, Curve], path: Path) -> None:
    """Draw our curves, and published ones as dotted lines."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        axes.set(
            title="Allocated GPUs",
            xlabel="requested so far, % of all GPUs",
            ylabel="allocated, % of all GPUs",
        )
        for number, (name, curve) in enumerate(ours.items()):
            axes.plot(
                *zip(*sorted(curve.items()), strict=True), color=f"C{number % 10}", linewidth=2, label=name
            )
        for number, (name, curve) in enumerate(published.items()):
            pcts, shares = zip(*sorted(curve.items()), strict=True)
            style: dict[str, Any] = {"linewidth": 1, "marker": "o", "markersize": 3}
            axes.plot(pcts, shares, ":", color=f"C{number % 10}", label=f"published: {name}", **style)
        curves = [*ours.values(), *published.values()]
        visible = [share for curve in curves for pct, share in curve.items() if pct >= _FROM_PCT]
        if visible:  # the range where the curves differ
            axes.set_xlim(_FROM_PCT, max(pct for curve in curves for pct in curve))
            axes.set_ylim(min(visible) - 1, 100)
        axes.legend(frameon=False, loc="lower right")
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def read_published(path: str, pods: str) -> dict[str, dict[int, float]]:
    """Published means by policy and requested per cent, for this list of pods."""
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    return {
        policy: {int(pct): figures["mean"] for pct, figures in by_pct.items()}
        for policy, by_pct in document.get(pods, {}).items()
    }


def main() -> None:
    """Print the means of each placement as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_traces", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--pods", required=True)
    parser.add_argument("--placement", action="append", choices=PLACEMENTS)
    parser.add_argument("--arrivals", type=float, default=1.3, help="end at this share of all GPUs")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--seeds", type=int, default=1, help="runs, with consecutive seeds")
    parser.add_argument("--published", help='{"<pod list>": {"<policy>": {"<per cent>": {"mean": 95.2}}}}')
    parser.add_argument("--svg", help="plot the allocated share")
    options = parser.parse_args()
    trace = Trace(nodes(options.nodes), pods(options.pods))
    if not trace.gpus_milli or not any(pod.total_gpu_demand_milli for pod in trace.pods):
        parser.error("--nodes, --pods: found no GPUs, expected nodes with GPUs and pods that request some")
    means: dict[str, dict[str, Any]] = {}
    for placement in options.placement or ["first-fit"]:
        runs = []
        for seed in range(options.seed, options.seed + options.seeds):
            runs.append(run(trace, placement, seed, options.arrivals))
            report_progress_line(f"{placement}, seed {seed}: {runs[-1].seconds} s")
        means[placement] = mean(runs)
    print(json.dumps(means, indent=2))
    if options.svg:
        known = read_published(options.published, Path(options.pods).stem) if options.published else {}
        curves = {name: figures["allocated_gpu_pct"] for name, figures in means.items()}
        plot(curves, known, Path(options.svg))


if __name__ == "__main__":
    main()
