"""One run of the load simulation: steps of arrivals, placement and usage, and what is measured."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from nodewise_scorers.load_simulation.placements import PLACEMENTS, Nodes
from nodewise_scorers.load_simulation.workload import CORES, Floats, Ints, SimulatedPods

OVERLOADED_SHARE: Final = 0.9
"""A node above this share of its cores counts as overloaded."""
_BOOTSTRAP_SAMPLES: Final = 10_000


class LoadResult(msgspec.Struct, frozen=True):
    """Result of one run, over the steps that count."""

    placement: str
    day: str
    """Empty for a workload without days."""
    seed: int
    overloaded_pct: float
    """Share of node-steps in which a node's demand is above 90 % of its cores."""
    unmet_pct: float
    """Share of the demand that exceeds the cores of its node."""
    used_pct: float
    """Mean utilization; demand above the cores does not count."""
    pods: int
    waited_steps: int
    """Steps without a node, summed over all pods."""


def run(workload: SimulatedPods, placement_name: str, seed: int, day: str = "") -> LoadResult:
    """Place all pods of a workload; the seed decides among equal nodes."""
    nodes = Nodes(workload)
    placement = PLACEMENTS[placement_name](nodes)
    random = np.random.default_rng((seed, 1))
    node_of = np.full(len(workload.arrival), -1, np.int64)
    ending: list[list[int]] = [[] for _ in range(workload.steps)]
    waiting: list[int] = []
    running: Ints = np.zeros(0, np.int64)
    waited = 0

    def bind(pod: int, node: int) -> None:
        node_of[pod] = node
        nodes.requested_milli[node] += workload.request_milli[pod]
        nodes.limits_milli[node] += workload.limit_milli[pod]
        if workload.end[pod] < workload.steps:
            ending[workload.end[pod]].append(pod)
        placement.add(pod, node)

    arrivals = np.argsort(workload.arrival, kind="stable").tolist()
    first = np.searchsorted(workload.arrival[arrivals], np.arange(workload.steps + 1))
    for step in range(workload.steps):
        nodes.step = step
        if step:
            placement.take_statistics(running)
        for pod in ending[step]:
            node = node_of[pod]
            nodes.requested_milli[node] -= workload.request_milli[pod]
            nodes.limits_milli[node] -= workload.limit_milli[pod]
            placement.remove(pod, int(node))
            node_of[pod] = -1
        queue = [pod for pod in waiting if workload.end[pod] > step] + arrivals[first[step] : first[step + 1]]
        waiting = []
        for pod in queue:
            if workload.node[pod] >= 0:
                bind(pod, int(workload.node[pod]))
                continue
            free = nodes.capacity_milli - nodes.requested_milli
            candidates = np.flatnonzero(free >= workload.request_milli[pod])
            if not len(candidates):
                waiting.append(pod)
                continue
            scores = placement.scores(pod, candidates)
            best = candidates[scores == scores.max()]
            bind(pod, int(best[random.integers(len(best))] if len(best) > 1 else best[0]))
        running = np.flatnonzero(node_of >= 0)
        used: Floats = np.bincount(node_of[running], workload.usage[running, step], workload.nodes).astype(
            float
        )
        nodes.usage.append(used)
        waited += len(waiting) if step >= workload.first_counted_step else 0
    demand = np.array(nodes.usage[workload.first_counted_step :]) / CORES
    return LoadResult(
        placement_name,
        day,
        seed,
        float(100 * (demand > OVERLOADED_SHARE).mean()),
        float(100 * np.maximum(demand - 1, 0).sum() / max(demand.sum(), 1e-9)),
        float(100 * np.minimum(demand, 1).mean()),
        len(workload.arrival),
        waited,
    )


def mean(results: Sequence[LoadResult]) -> dict[str, Any]:
    """Means of the figures of several runs."""
    fields = ("overloaded_pct", "unmet_pct", "used_pct", "waited_steps")
    return {field: round(float(np.mean([getattr(r, field) for r in results])), 4) for field in fields}


def paired_ratio_bound(ours: Sequence[LoadResult], theirs: Sequence[LoadResult]) -> float:
    """The upper 95 % bound of the ratio of mean overloaded shares, by a bootstrap over pairs of runs.

    The runs of both are of the same workloads, in the same order. Infinite if the other one has no overload.
    """
    pairs = np.array([[r.overloaded_pct for r in ours], [r.overloaded_pct for r in theirs]])
    draws = np.random.default_rng(0).integers(pairs.shape[1], size=(_BOOTSTRAP_SAMPLES, pairs.shape[1]))
    sums = pairs[:, draws].sum(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(sums[1] > 0, sums[0] / sums[1], np.inf)
    return float(np.sort(ratios)[int(0.95 * _BOOTSTRAP_SAMPLES)])
