"""The load simulation: placements score the nodes that fit a pod, and a run measures where its pods are placed.

`default`, `random` and `oracle` are bounds. `safe` calls the code of the agent; `load` is the formula of the agent. The
scores of both are those of an extender with the weight that `configure` gives it, so the default plugins decide among
equals.
The published formulas decide alone, as their documentation recommends; among equals a random node is chosen.

Statistics are one step old: each step begins with the usage of the step before.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final

import msgspec
import numpy as np

from nodewise.agent import Names, NodeIndex, Snapshot
from nodewise.install.scheduler_configuration import DEFAULT_WEIGHT
from nodewise_scorers.load import FormulaName, projected_load
from nodewise_scorers.load.bound_pods import PodAmounts
from nodewise_scorers.load.projected_load import ProjectedLoad
from nodewise_scorers.load.published_formulas import FORMULAS, CandidateUsage
from nodewise_scorers.load.usage_profiles import UsageProfiles
from nodewise_scorers.load_simulation.workload import CORES, Floats, Ints, SimulatedPods
from nodewise_scorers.safe import SafeOptions
from nodewise_scorers.safe import agent as safe_agent
from nodewise_scorers.safe.agent import PodFields, SafeAgent
from nodewise_scorers.scoring_agent import StatisticStatus
from nodewise_scorers.statistics.node_usage_reader import NodeLoads

OVERLOADED_SHARE: Final = 0.9
"""A node above this share of its cores counts as overloaded."""
_BOOTSTRAP_SAMPLES: Final = 10_000
_EXTENDER_SCALE: Final = 10 * DEFAULT_WEIGHT
"""What a point of an extender counts beside the plugins' scores of up to 100."""
_DEVIATION_WINDOW_S: Final = 900.0  # the window of load-watcher (Trimaran) and of `nodewise annotate`
_VOLCANO_WINDOW_S: Final = 600.0  # NODE_METRICS_PERIOD of Volcano's metric source


class Nodes:
    """The nodes of a run, by number: what is bound to them, and their usage in the steps so far."""

    def __init__(self, workload: SimulatedPods) -> None:
        self.workload = workload
        self.capacity_milli = np.full(workload.nodes, CORES * 1000, np.int64)
        self.capacity = self.capacity_milli / 1000
        self.requested_milli = np.zeros(workload.nodes, np.int64)
        self.limits_milli = np.zeros(workload.nodes, np.int64)
        self.step = 0
        self.usage: list[Floats] = []
        """Cores by step; the newest are the statistics."""

    def samples(self, window_s: float) -> Floats:
        """The usage in a window of time, newest last; at least one sample, of unused nodes before the first."""
        count = max(round(window_s / self.workload.step_s), 1)
        return np.array(self.usage[-count:]) if self.usage else np.zeros((1, self.workload.nodes))

    def default_scores(self, pod: int, candidates: Ints) -> Floats:
        """The sum of the default plugins' scores but for constants: NodeResourcesFit with LeastAllocated.

        CPU and memory are requested in the same proportion, so NodeResourcesBalancedAllocation has no preference.
        """
        free = self.capacity_milli - self.requested_milli - self.workload.request_milli[pod]
        scores: Floats = (100 * free[candidates] // self.capacity_milli[candidates]).astype(np.float64)
        return scores


class Placement(ABC):
    """Scores nodes; the methods before `scores` tell it what happens."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.workload = nodes.workload

    def take_statistics(self, running: Ints) -> None:  # noqa: B027 - optional
        """A step begins; `running` are the pods that ran in the step before, on `Nodes.usage[-1]`."""

    def add(self, pod: int, node: int) -> None:  # noqa: B027 - optional
        """A pod was bound."""

    def remove(self, pod: int, node: int) -> None:  # noqa: B027 - optional
        """A pod ended."""

    @abstractmethod
    def scores(self, pod: int, candidates: Ints) -> Floats:
        """By candidate; the highest score wins, a random one among equals."""


class Default(Placement):
    """kube-scheduler's default plugins."""

    def scores(self, pod: int, candidates: Ints) -> Floats:
        return self.nodes.default_scores(pod, candidates)


class Random(Placement):
    """Any node that fits."""

    def scores(self, pod: int, candidates: Ints) -> Floats:  # noqa: ARG002
        return np.zeros(len(candidates))


class Oracle(Placement):
    """Knows the future usage of the pods it places. A bound, although a greedy one.

    The projected load of `load` in each future step, with true usage in place of estimates.
    """

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes)
        size = (self.workload.nodes, self.workload.steps)
        self._usage, self._requested = np.zeros(size), np.zeros(size)
        used = float(self.workload.usage.sum())
        alive = np.minimum(self.workload.end, self.workload.steps) - self.workload.arrival
        self._average = used / max(float((alive * self.workload.request_milli).sum()) / 1000, 1e-9)

    def add(self, pod: int, node: int) -> None:
        end = self.workload.end[pod]
        self._usage[node] += self.workload.usage[pod]
        self._requested[node, self.nodes.step : end] += self.workload.request_milli[pod] / 1000

    def scores(self, pod: int, candidates: Ints) -> Floats:
        life = slice(self.nodes.step, self.workload.end[pod])
        request = self.workload.request_milli[pod] / 1000
        share = projected_load.filled_share(
            self.nodes.requested_milli.sum() / self.nodes.capacity_milli.sum()
        )
        average = self._average * share
        capacity = self.nodes.capacity[candidates, None]
        before = self._usage[candidates, life] + average * (capacity - self._requested[candidates, life])
        more = self.workload.usage[pod, life] - average * request
        load_cost = projected_load.load_cost
        costs = load_cost((before + more) / capacity) - load_cost(before / capacity)
        scores: Floats = -costs.sum(axis=1)
        return scores


class Load(Placement):
    """Projected load with usage profiles of applications."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes)
        self._profiles = UsageProfiles(self.workload.applications)
        self._load = ProjectedLoad(nodes.capacity)
        self._load.update(
            self._profiles.forecast(self._load.requested_by_application(self.workload.applications))
        )

    def take_statistics(self, running: Ints) -> None:
        requests = self.workload.request_milli[running] / 1000
        usage = self.workload.usage[running, self.nodes.step - 1]
        self._profiles.observe(self.workload.application[running], usage / requests)
        self._load.update(
            self._profiles.forecast(self._load.requested_by_application(self.workload.applications))
        )

    def add(self, pod: int, node: int) -> None:
        self._load.add(node, int(self.workload.application[pod]), self.workload.request_milli[pod] / 1000)

    def remove(self, pod: int, node: int) -> None:
        self._load.remove(node, int(self.workload.application[pod]), self.workload.request_milli[pod] / 1000)

    def scores(self, pod: int, candidates: Ints) -> Floats:
        request = self.workload.request_milli[pod] / 1000
        costs = self._load.costs(candidates, int(self.workload.application[pod]), request)
        return _EXTENDER_SCALE * projected_load.points(costs) + self.nodes.default_scores(pod, candidates)


class Safe(Placement):
    """The agent `safe`, with statistics of 15 minutes, as an entry that only scores."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes)
        self._agent = SafeAgent(SafeOptions())
        self._index = NodeIndex([f"node-{number:03d}" for number in range(self.workload.nodes)])
        self._pods: dict[int, PodFields] = {}
        """By requested milli-cores."""
        self._snapshot = Snapshot(self._index, {}, 0.0)
        self.take_statistics(np.zeros(0, np.int64))

    def take_statistics(self, running: Ints) -> None:  # noqa: ARG002
        samples = 1000 * self.nodes.samples(_DEVIATION_WINDOW_S)
        deviation = samples.std(axis=0, ddof=1) if len(samples) > 1 else np.zeros(self.workload.nodes)
        unknown = np.full((2, self.workload.nodes + 1), np.nan)
        used, deviations, capacity = unknown.copy(), unknown.copy(), np.zeros_like(unknown)
        used[0, :-1], deviations[0, :-1], capacity[0, :-1] = samples.mean(axis=0), deviation, 1000 * CORES
        missing = np.where(
            np.isnan(used), np.uint8(StatisticStatus.ABSENT), np.uint8(StatisticStatus.PRESENT)
        )
        loads = NodeLoads(used, deviations, unknown, capacity, missing, np.zeros(self.workload.nodes + 1))
        state = safe_agent.combine_load_and_forecast(loads, 0.0)
        self._snapshot = Snapshot(self._index, {self._agent.name: state}, 0.0)

    def scores(self, pod: int, candidates: Ints) -> Floats:
        milli = int(self.workload.request_milli[pod])
        if milli not in self._pods:
            spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": f"{milli}m"}}}]}
            self._pods[milli] = msgspec.json.decode(msgspec.json.encode({"spec": spec}), type=PodFields)
        names = Names(self._index, candidates)
        by_priority = [
            score(self._pods[milli], names, self._snapshot) for score in self._agent.priorities.values()
        ]
        points = np.rint(np.mean([scores.points for scores in by_priority if scores is not None], axis=0))
        total: Floats = _EXTENDER_SCALE * points + self.nodes.default_scores(pod, candidates)
        return total


class Published(Placement):
    """A published formula, of the measured usage of CPU: memory is never short here. Filters are those of the default.

    The usage is the last sample, for Volcano the mean of ten minutes. The deviation is that of 15 minutes.
    """

    def __init__(self, nodes: Nodes, name: FormulaName) -> None:
        super().__init__(nodes)
        self._formula = FORMULAS[name]
        self._window_s = _VOLCANO_WINDOW_S if name == "volcano" else 0.0
        self._in_flight_milli = np.zeros(self.workload.nodes)
        """Of the pods that were bound in this step, which the statistics do not include yet."""
        self._used_milli = np.zeros(self.workload.nodes)
        self._deviation = np.zeros(self.workload.nodes)

    def take_statistics(self, running: Ints) -> None:  # noqa: ARG002
        self._used_milli = 1000 * self.nodes.samples(self._window_s).mean(axis=0)
        self._deviation = self.nodes.samples(_DEVIATION_WINDOW_S).std(axis=0) / self.nodes.capacity
        self._in_flight_milli[:] = 0.0

    def _amounts(self, pod: int) -> PodAmounts:
        request, limit = self.workload.request_milli[pod], self.workload.limit_milli[pod]
        return PodAmounts((float(request), 0.0), (float(limit), inf))

    def add(self, pod: int, node: int) -> None:
        self._in_flight_milli[node] += self._formula.estimate(self._amounts(pod))[0]

    def scores(self, pod: int, candidates: Ints) -> Floats:
        nodes = self.nodes
        columns = (
            self._used_milli,
            self._in_flight_milli,
            self._deviation,
            nodes.requested_milli.astype(np.float64),
            nodes.limits_milli.astype(np.float64),
            nodes.capacity_milli.astype(np.float64),
        )
        usage = CandidateUsage(*(column[None, candidates] for column in columns))
        return self._formula.scores(usage, self._amounts(pod))


PLACEMENTS: Final[Mapping[str, Callable[[Nodes], Placement]]] = {
    "default": Default,
    "random": Random,
    **{name: partial(Published, name=name) for name in FORMULAS},
    "safe": Safe,
    "load": Load,
    "oracle": Oracle,
}


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
