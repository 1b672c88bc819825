"""Simulation of pods whose usage differs from their requests: how long nodes are overloaded with given agents.

    simulated scheduler -> extender and agents -> pods on nodes -> usage -> annotations -> snapshots

Time advances in minutes. In each minute, pods are submitted at their second and placed one after another, by the
scheduler's plugins and by the extender's responses from the newest snapshot. Then usage is summed by node, some pods of
overloaded nodes fail and restart, and the annotations of nodes are updated.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ObjectKey
from nodewise.base.clock import ManualClock
from nodewise.scheduling_model import simulated_cluster
from nodewise.scheduling_model.in_process_extender import AgentGroup, InProcessExtender
from nodewise.scheduling_model.simulated_cluster import Cluster
from nodewise_scorers.bursts import bursts_workload
from nodewise_scorers.bursts.bursts_node_annotations import CAPACITY, AnnotatedNodes, Object, UsageArray
from nodewise_scorers.bursts.bursts_placed_pod import PlacedPod
from nodewise_scorers.bursts.bursts_workload import FILL_MINUTES, MINUTE_S, NAMESPACE, BurstyPod, Scenario

START_S: Final = 1_763_683_200.0
"""Start of the simulated time, seconds since 1970: an arbitrary midnight."""
OVERLOADED_SHARE: Final = 0.9
"""A node above this share of its allocatable resources counts as overloaded."""
FAILURE_PROBABILITY: Final = 0.05
"""Probability that a pod on a node whose demand exceeds its capacity fails in one minute."""


class BurstsResult(msgspec.Struct, frozen=True):
    """Result of one run. Node-minutes are the nodes above 90 % of allocatable resources, summed over minutes."""

    agents: str
    seed: int
    node_minutes: int
    """Above 90 % of CPU, memory or both; at most `all_node_minutes`."""
    cpu_node_minutes: int
    memory_node_minutes: int
    all_node_minutes: int
    pods: int
    unplaced_pods: int
    """Pods that are on no node at the end."""
    waited_minutes: int
    """Minutes without a node, summed over all pods."""
    restarts: int
    """Restarts of pods on overloaded nodes, including the fill phase."""
    requested_pct: float
    """Requested CPU as a share of all CPU, on average."""
    used_pct: float
    nodes_by_minute: list[int]
    """Nodes above 90 % in each measured minute."""


def run(
    scenario: Scenario, agents: AgentGroup, seed: int, report_progress: Callable[[], None] = lambda: None
) -> BurstsResult:
    """Run the simulation once; `report_progress` is called after each minute."""
    simulation = _Simulation(scenario, agents, seed)
    with simulation.cluster:
        for _ in range(scenario.minutes):
            simulation.step()
            report_progress()
    measured = simulation.measured
    cpu, memory, either = np.sum(measured.high, axis=0).tolist()
    requested, used = np.mean(measured.shares, axis=0).tolist()
    return BurstsResult(
        agents=agents.name,
        seed=seed,
        node_minutes=either,
        cpu_node_minutes=cpu,
        memory_node_minutes=memory,
        all_node_minutes=len(measured.high) * scenario.nodes,
        pods=simulation.pods,
        unplaced_pods=simulation.waiting,
        waited_minutes=measured.waited,
        restarts=simulation.restarts,
        requested_pct=round(100 * requested, 2),
        used_pct=round(100 * used, 2),
        nodes_by_minute=[int(counts[2]) for counts in measured.high],
    )


def mean(outcomes: Sequence[BurstsResult]) -> dict[str, Any]:
    """Means of the numeric fields of runs of equal length."""
    numbers = [
        field
        for field in BurstsResult.__struct_fields__
        if field not in {"agents", "seed", "nodes_by_minute"}
    ]
    means: dict[str, Any] = {
        field: round(sum(getattr(outcome, field) for outcome in outcomes) / len(outcomes), 2)
        for field in numbers
    }
    by_minute = np.mean([outcome.nodes_by_minute for outcome in outcomes], axis=0)
    return {**means, "nodes_by_minute": np.round(by_minute, 2).tolist()}


class _Measurements:
    """Sums over the minutes after the fill phase."""

    def __init__(self) -> None:
        self.high: list[NDArray[np.int64]] = []
        """By minute: nodes above 90 % of CPU, of memory, of either."""
        self.shares: list[tuple[float, float]] = []
        """By minute: the requested and the used share of all CPU."""
        self.waited = 0

    def add(self, use: UsageArray, requested_milli: float, waiting: int) -> None:
        shares = np.minimum(use / CAPACITY, 1.0)
        above = shares > OVERLOADED_SHARE
        self.high.append(np.array([*above.sum(axis=1), above.any(axis=0).sum()]))
        all_milli = CAPACITY[0, 0] * use.shape[1]
        self.shares.append((requested_milli / all_milli, float(shares[0].mean())))
        self.waited += waiting


class _Simulation:
    """State of one run, advanced minute by minute."""

    def __init__(self, scenario: Scenario, agents: AgentGroup, seed: int) -> None:
        nodes = bursts_workload.build_node_objects(scenario)
        names = [node["metadata"]["name"] for node in nodes]
        self._arrivals = deque(bursts_workload.pods(scenario, seed))
        self._numbers = {name: number for number, name in enumerate(names)}
        self._annotated = AnnotatedNodes(nodes, scenario.window_s)
        self._clock = ManualClock(START_S)
        self._extender = InProcessExtender(agents, names, self._clock, MINUTE_S)
        self._extender.publish(self._annotated.objects, {})
        options = simulated_cluster.SimulatedSchedulerOptions(seed=seed, transport=self._extender)
        self.cluster = Cluster(nodes, agents.entries, clock=self._clock, options=options)
        self._waiting: dict[str, BurstyPod] = {}
        self._placed: dict[str, PlacedPod] = {}
        self._pod_changes: dict[ObjectKey, Object | None] = {}
        """Changed pods since the newest snapshot; None marks a deleted pod."""
        self._minute = 0
        self.pods = self.restarts = 0
        self.measured = _Measurements()

    @property
    def waiting(self) -> int:
        """Number of pods without a node."""
        return len(self._waiting)

    def step(self) -> None:
        """Simulate the next minute."""
        self._delete_ended_pods()
        self._submit_arrivals()
        self._record_placements()
        use = self._usage_by_node()
        self._restart_failing_pods(use)
        if self._minute >= FILL_MINUTES:
            requested = sum(placed.pod.app.cpu_milli for placed in self._placed.values())
            self.measured.add(use, requested, self.waiting)
        changed = self._annotated.write(use, self._clock.now())
        self._extender.publish(changed, self._pod_changes)
        self._pod_changes = {}
        self._minute += 1
        if self._waiting and changed:
            self.cluster.touch(next(iter(changed)))  # one event stands for the updates of all nodes

    def _delete_ended_pods(self) -> None:
        for name in [name for name, placed in self._placed.items() if placed.end_minute <= self._minute]:
            self.cluster.delete(f"{NAMESPACE}/{name}")
            self._annotated.remove_pod(name)
            self._pod_changes[NAMESPACE, name] = None
            del self._placed[name]

    def _submit_arrivals(self) -> None:
        """Submit the pods of this minute, each at its time; the queue retries waiting pods when they are due."""
        end_s = (self._minute + 1) * MINUTE_S
        while self._arrivals and self._arrivals[0].at_s < end_s:
            pod = self._arrivals.popleft()
            self._advance_clock(pod.at_s)
            self._waiting[pod.name] = pod
            self.pods += 1
            self.cluster.submit(bursts_workload.build_pod_object(pod))
        self._advance_clock(end_s)

    def _advance_clock(self, until_s: float) -> None:
        simulated_cluster.pass_time(self.cluster, self._clock, START_S + until_s - self._clock.now())

    def _record_placements(self) -> None:
        """Move pods that were bound in this minute from waiting to placed."""
        for name, pod in list(self._waiting.items()):
            node = self.cluster.outcome(f"{NAMESPACE}/{name}").node
            if node is not None:
                del self._waiting[name]
                placed = self._placed[name] = PlacedPod(pod, node, self._minute, self._clock.now())
                self._annotated.put_pod(placed.obj)
                self._pod_changes[NAMESPACE, name] = placed.obj

    def _usage_by_node(self) -> UsageArray:
        use = np.zeros((2, len(self._numbers)))
        for placed in self._placed.values():
            use[:, self._numbers[placed.node]] += placed.use(self._minute)
        return use

    def _restart_failing_pods(self, use: UsageArray) -> None:
        """Restart some pods of nodes whose demand exceeds their capacity."""
        overloaded: NDArray[np.bool_] = np.any(use > CAPACITY, axis=0)
        for name, placed in self._placed.items():
            if (
                overloaded[self._numbers[placed.node]]
                and placed.failure_draws(self._minute) < FAILURE_PROBABILITY
            ):
                placed.restart(self._minute, self._clock.now())
                self._pod_changes[NAMESPACE, name] = placed.obj
                self.restarts += 1
