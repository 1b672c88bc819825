"""A cluster whose pods lie about what they need, placed with the help of agents: how long nodes are overloaded.

    stand-in scheduler -> the extender's chain and agents -> pods on nodes -> what these use -> annotations -> snapshots

Time goes by in minutes. In each one pods come at their second and are placed one after another, by the scheduler's own
rules and by what the extender answers from the newest snapshot; then their use is added up by node, pods of overloaded
nodes fail now and then and are started again, and the nodes are annotated anew.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ObjectKey
from nodewise.clock import ManualClock
from nodewise.simulate import bursts_workload, simulated_cluster
from nodewise.simulate.bursts_extender import Asked, InProcess
from nodewise.simulate.bursts_node_annotations import CAPACITY, Annotated, Object, Use
from nodewise.simulate.bursts_placed_pod import Placed
from nodewise.simulate.bursts_workload import FILL_MINUTES, MINUTE_S, NAMESPACE, BurstyPod, Scenario
from nodewise.simulate.simulated_cluster import Cluster

BEGAN_S: Final = 1_763_683_200.0
"""When it begins, seconds since 1970: some midnight."""
HIGH: Final = 0.9
"""The share of what pods can have from which on a node counts as too full."""
FAILS: Final = 0.05
"""How probable it is that a pod of an overloaded node fails in one minute."""


class Outcome(msgspec.Struct, frozen=True):
    """What one run came to. Node-minutes are nodes above 90 % of what pods can have, minute by minute added up."""

    agents: str
    seed: int
    node_minutes: int
    """Above it with CPU, memory or both; of `all_node_minutes`."""
    cpu_node_minutes: int
    memory_node_minutes: int
    all_node_minutes: int
    pods: int
    unplaced_pods: int
    """That are on no node in the end."""
    waited_minutes: int
    """All pods together, on no node."""
    restarts: int
    """Of pods that failed on overloaded nodes, also while the cluster was filled."""
    requested_pct: float
    """Of all CPU, on average."""
    used_pct: float
    nodes_by_minute: list[int]
    """Above 90 %, of what is measured."""


def run(
    scenario: Scenario, agents: Asked, seed: int, report_progress: Callable[[], None] = lambda: None
) -> Outcome:
    """One run; `told` hears of each minute."""
    going = _Run(scenario, agents, seed)
    with going.cluster:
        for _ in range(scenario.minutes):
            going.step()
            report_progress()
    measured = going.measured
    cpu, memory, either = np.sum(measured.high, axis=0).tolist()
    requested, used = np.mean(measured.shares, axis=0).tolist()
    return Outcome(
        agents=agents.name,
        seed=seed,
        node_minutes=either,
        cpu_node_minutes=cpu,
        memory_node_minutes=memory,
        all_node_minutes=len(measured.high) * scenario.nodes,
        pods=going.pods,
        unplaced_pods=going.waiting,
        waited_minutes=measured.waited,
        restarts=going.restarts,
        requested_pct=round(100 * requested, 2),
        used_pct=round(100 * used, 2),
        nodes_by_minute=[int(counts[2]) for counts in measured.high],
    )


def mean(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Of runs that were equally long: what they have in numbers, on average."""
    numbers = [
        field for field in Outcome.__struct_fields__ if field not in {"agents", "seed", "nodes_by_minute"}
    ]
    means: dict[str, Any] = {
        field: round(sum(getattr(outcome, field) for outcome in outcomes) / len(outcomes), 2)
        for field in numbers
    }
    by_minute = np.mean([outcome.nodes_by_minute for outcome in outcomes], axis=0)
    return {**means, "nodes_by_minute": np.round(by_minute, 2).tolist()}


class _Measured:
    """What is added up of the minutes after the first ones."""

    def __init__(self) -> None:
        self.high: list[NDArray[np.int64]] = []
        """By minute: nodes above it with CPU, with memory, with either."""
        self.shares: list[tuple[float, float]] = []
        """By minute: of all CPU, requested and used."""
        self.waited = 0

    def add(self, use: Use, requested_milli: float, waiting: int) -> None:
        shares = np.minimum(use / CAPACITY, 1.0)
        above = shares > HIGH
        self.high.append(np.array([*above.sum(axis=1), above.any(axis=0).sum()]))
        all_milli = CAPACITY[0, 0] * use.shape[1]
        self.shares.append((requested_milli / all_milli, float(shares[0].mean())))
        self.waited += waiting


class _Run:
    """One run, minute by minute."""

    def __init__(self, scenario: Scenario, agents: Asked, seed: int) -> None:
        nodes = bursts_workload.node_objects(scenario)
        names = [node["metadata"]["name"] for node in nodes]
        self._coming = deque(bursts_workload.pods(scenario, seed))
        self._numbers = {name: number for number, name in enumerate(names)}
        self._annotated = Annotated(nodes, scenario.window_s)
        self._clock = ManualClock(BEGAN_S)
        self._extender = InProcess(agents, names, self._clock, MINUTE_S)
        self._extender.publish(self._annotated.objects, {})
        options = simulated_cluster.Options(seed=seed, transport=self._extender)
        self.cluster = Cluster(nodes, agents.entries, clock=self._clock, options=options)
        self._waiting: dict[str, BurstyPod] = {}
        self._placed: dict[str, Placed] = {}
        self._news: dict[ObjectKey, Object | None] = {}
        """Of pods, since the newest snapshot."""
        self._minute = 0
        self.pods = self.restarts = 0
        self.measured = _Measured()

    @property
    def waiting(self) -> int:
        """Pods that are on no node."""
        return len(self._waiting)

    def step(self) -> None:
        """The next minute."""
        self._end_pods()
        self._come()
        self._place()
        use = self._use()
        self._fail(use)
        if self._minute >= FILL_MINUTES:
            requested = sum(placed.pod.app.cpu_milli for placed in self._placed.values())
            self.measured.add(use, requested, self.waiting)
        changed = self._annotated.write(use, self._clock.now())
        self._extender.publish(changed, self._news)
        self._news = {}
        self._minute += 1
        if self._waiting and changed:
            self.cluster.touch(next(iter(changed)))  # the whole burst is one event here

    def _end_pods(self) -> None:
        for name in [name for name, placed in self._placed.items() if placed.ends <= self._minute]:
            self.cluster.delete(f"{NAMESPACE}/{name}")
            self._annotated.remove_pod(name)
            self._news[NAMESPACE, name] = None
            del self._placed[name]

    def _come(self) -> None:
        """The pods of this minute, each at its time; those that wait are tried again when their time has come."""
        end_s = (self._minute + 1) * MINUTE_S
        while self._coming and self._coming[0].at_s < end_s:
            pod = self._coming.popleft()
            self._pass_time(pod.at_s)
            self._waiting[pod.name] = pod
            self.pods += 1
            self.cluster.submit(bursts_workload.pod_object(pod))
        self._pass_time(end_s)

    def _pass_time(self, until_s: float) -> None:
        simulated_cluster.pass_time(self.cluster, self._clock, BEGAN_S + until_s - self._clock.now())

    def _place(self) -> None:
        """Note which pods have found a node by now."""
        for name, pod in list(self._waiting.items()):
            node = self.cluster.outcome(f"{NAMESPACE}/{name}").node
            if node is not None:
                del self._waiting[name]
                placed = self._placed[name] = Placed(pod, node, self._minute, self._clock.now())
                self._annotated.put_pod(placed.obj)
                self._news[NAMESPACE, name] = placed.obj

    def _use(self) -> Use:
        use = np.zeros((2, len(self._numbers)))
        for placed in self._placed.values():
            use[:, self._numbers[placed.node]] += placed.use(self._minute)
        return use

    def _fail(self, use: Use) -> None:
        """Pods of nodes that are to give more than they have."""
        overloaded: NDArray[np.bool_] = np.any(use > CAPACITY, axis=0)
        for name, placed in self._placed.items():
            if overloaded[self._numbers[placed.node]] and placed.luck(self._minute) < FAILS:
                placed.restart(self._minute, self._clock.now())
                self._news[NAMESPACE, name] = placed.obj
                self.restarts += 1
