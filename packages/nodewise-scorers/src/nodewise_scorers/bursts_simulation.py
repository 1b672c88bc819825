"""Simulation of pods whose usage differs from their requests: how long nodes are overloaded with given agents.

    simulated scheduler -> extender and agents -> pods on nodes -> usage -> annotations -> snapshots

Time advances in minutes. In each minute, pods are submitted at their second and placed one after another, by the
scheduler's plugins and by the extender's responses from the newest snapshot. Then usage is summed by node, some pods of
overloaded nodes fail and restart, and the annotations of nodes are updated: those that `nodewise annotate` writes, from
a window with one sample per minute, and `congestion-factor`, the utilization of the busier resource in per cent.

The workload depends on the seed alone, not on placement, so runs with different agents have identical pods. Every pod
alternates between busy and calm phases. Most pods use much less than they request even in busy phases, hungry ones use
a multiple of it, and the memory of leaky ones grows until they end or restart.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ObjectKey
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import ManualClock, format_rfc3339
from nodewise.kube.struct_type_merge import merge
from nodewise.scheduling_model import simulated_cluster
from nodewise.scheduling_model.in_process_extender import AgentGroup, InProcessExtender
from nodewise.scheduling_model.simulated_cluster import Cluster
from nodewise_scorers.annotator import AnnotatorConfig, node_patches
from nodewise_scorers.annotator.node_patches import NodeMeasurements, allocation_by_node, plan_patches
from nodewise_scorers.annotator.node_usage import NodeUsage, ResourceUsage, summarize
from nodewise_scorers.statistics.load_annotations import CONGESTION_FACTOR
from nodewise_scorers.statistics.node_usage_reader import WindowOptions

CPU_MILLI: Final = 15_890
MEMORY_BYTES: Final = 44 * 2**30
"""Allocatable resources of a node with 16 cores and 48 GiB."""
FILL_MINUTES: Final = 30
"""Duration of the fill phase, in which the pods of an established cluster arrive; it is not measured."""
MINUTE_S: Final = 60.0
LIFE_MINUTES: Final = 120.0
"""Mean lifetime of a pod."""

NAMESPACE: Final = "bursts"
CONTAINER: Final = "main"

UsagePattern = Literal["modest", "hungry", "leaky"]

_GIB: Final = 2**30
_CPU_CHANCES: Final = (0.45, 0.4, 0.15)
_CPU_CHOICES: Final[Mapping[UsagePattern, Sequence[int]]] = {
    "hungry": (500, 1000, 2000),
    "leaky": (1000, 2000, 4000),
    "modest": (1000, 2000, 4000),
}
"""No single hungry pod overloads a node: then its placement would not matter."""
_GIB_PER_CORE: Final = (2.0, 4.0)
_LEAST_LIFE, _MOST_LIFE = 5, 720

Floats = NDArray[np.float64]
"""Usage has the shape (2, nodes): milli-CPU and bytes."""
Object = dict[str, Any]
_APPS: Final[Mapping[UsagePattern, int]] = {"hungry": 8, "leaky": 4, "modest": 28}
"""Number of apps by usage pattern; all apps have about the same number of pods."""
_APPS_SEED: Final = 7


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a simulation."""

    nodes: int = 200
    hours: float = 2.0
    """Measured hours."""
    requested_share: float = 0.7
    """Share of all CPU that pods request on average."""
    window_s: float = 900.0
    """Window of the statistics in node annotations."""

    @property
    def minutes(self) -> int:
        """Simulated minutes, including the fill phase."""
        return FILL_MINUTES + max(round(self.hours * 60), 1)


class App(NamedTuple):
    """Common properties of the replicas of one app."""

    name: str
    usage_pattern: UsagePattern
    cpu_milli: int
    memory_bytes: int
    """Requests."""
    busy: float
    calm: float
    """CPU usage in busy and calm phases, as multiples of the request."""
    busy_minutes: float
    calm_minutes: float
    """Mean duration of a busy and of a calm phase."""
    memory: float
    memory_end: float
    """Memory usage at the start and at the end of a mean lifetime, as multiples of the request."""


class BurstyPod(NamedTuple):
    """A pod with its complete future. The arrays have one column per minute of its life."""

    name: str
    app: App
    at_s: float
    """Arrival time, seconds from the start of the simulation."""
    use: Floats
    """Shape (2, minutes): milli-CPU and bytes, counted from the last start or restart."""
    failure_draws: Floats
    """Random numbers from 0 to 1, one per minute; they decide about failures on overloaded nodes."""

    @property
    def minutes(self) -> int:
        return len(self.failure_draws)


def pods(scenario: Scenario, seed: int) -> list[BurstyPod]:
    """All pods of a run, ordered by arrival."""
    random = np.random.default_rng(seed)
    workloads = apps()
    # sorted arrival times in seconds: the pods of the fill phase, then a Poisson process that
    # replaces ended pods
    cpu_milli = float(np.mean([app.cpu_milli for app in workloads]))
    there = scenario.nodes * CPU_MILLI * scenario.requested_share / cpu_milli
    lost = FILL_MINUTES / LIFE_MINUTES
    first = random.uniform(0.0, FILL_MINUTES * MINUTE_S, round(there * lost / -np.expm1(-lost)))
    minutes = scenario.minutes - FILL_MINUTES
    others = random.uniform(0.0, minutes * MINUTE_S, random.poisson(there / LIFE_MINUTES * minutes))
    arrivals = np.sort(np.concatenate([first, FILL_MINUTES * MINUTE_S + others]))
    return [
        _generate_pod(f"pod-{number}", workloads[random.integers(len(workloads))], at_s, random)
        for number, at_s in enumerate(arrivals)
    ]


def apps() -> list[App]:
    """The apps of the cluster, the same in all runs; runs differ in the arrivals and phases of pods."""
    random = np.random.default_rng(_APPS_SEED)
    return [
        _generate_app(f"{pattern}-{number}", pattern, random)
        for pattern, count in _APPS.items()
        for number in range(count)
    ]


def _generate_app(name: str, usage_pattern: UsagePattern, random: np.random.Generator) -> App:
    cpu = int(random.choice(_CPU_CHOICES[usage_pattern], p=_CPU_CHANCES))
    memory = round(cpu / 1000 * random.uniform(*_GIB_PER_CORE) * 8) * _GIB // 8
    hungry, leaky = usage_pattern == "hungry", usage_pattern == "leaky"
    memory_start = random.uniform(0.3, 0.8)
    return App(
        name,
        usage_pattern,
        cpu,
        memory,
        busy=random.uniform(2.0, 5.0) if hungry else random.uniform(0.4, 0.9),
        calm=random.uniform(0.05, 0.25),
        busy_minutes=random.uniform(10.0, 30.0) if hungry else random.uniform(5.0, 30.0),
        calm_minutes=random.uniform(5.0, 15.0) if hungry else random.uniform(10.0, 60.0),
        memory=memory_start,
        memory_end=random.uniform(1.5, 3.0) if leaky else memory_start,
    )


def _generate_pod(name: str, app: App, at_s: float, random: np.random.Generator) -> BurstyPod:
    minutes = int(np.clip(np.ceil(random.exponential(LIFE_MINUTES)), _LEAST_LIFE, _MOST_LIFE))
    is_busy = np.fromiter(_busy_by_minute(app, minutes, random), bool, minutes)
    unrest = random.uniform(0.9, 1.1, minutes)
    cpu = np.where(is_busy, app.busy, app.calm) * app.cpu_milli * unrest
    grown = (app.memory_end - app.memory) * np.arange(minutes) / LIFE_MINUTES
    memory = (app.memory + grown + 0.1 * is_busy) * app.memory_bytes
    return BurstyPod(name, app, float(at_s), np.stack([cpu, memory]), random.uniform(size=minutes))


def _busy_by_minute(app: App, minutes: int, random: np.random.Generator) -> Iterator[bool]:
    """Whether the pod is busy, minute by minute; the first phase has already begun."""
    busy = bool(random.uniform() < app.busy_minutes / (app.busy_minutes + app.calm_minutes))
    done = 0
    while done < minutes:
        mean = app.busy_minutes if busy else app.calm_minutes
        lasts = min(int(random.geometric(min(1.0 / mean, 1.0))), minutes - done)
        yield from [busy] * lasts
        done, busy = done + lasts, not busy


def build_pod_object(pod: BurstyPod) -> dict[str, Any]:
    """The Pod object as a client creates it."""
    requests = {"cpu": f"{pod.app.cpu_milli}m", "memory": str(pod.app.memory_bytes)}
    return {
        "metadata": {
            "name": pod.name,
            "namespace": NAMESPACE,
            "uid": pod.name,
            "labels": {"app": pod.app.name},
        },
        "spec": {"containers": [{"name": CONTAINER, "resources": {"requests": requests}}]},
    }


def build_node_objects(scenario: Scenario) -> list[dict[str, Any]]:
    """Node objects, identical except for their names."""
    allocatable = {"cpu": f"{CPU_MILLI}m", "memory": str(MEMORY_BYTES), "pods": "110"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    return [{"metadata": {"name": f"node-{n:03d}"}, "status": status} for n in range(scenario.nodes)]


class PlacedPod:
    """A pod from the minute in which it was bound."""

    def __init__(self, pod: BurstyPod, node: str, minute: int, now: float) -> None:
        self.pod = pod
        self.node = node
        self.restarts = 0
        self._placed = self._started = minute
        self._started_s = now
        made = build_pod_object(pod)
        self._pod_object = {**made, "spec": {**made["spec"], "nodeName": node}}
        self.obj = self._pod_with_last_state({})
        """The Pod object with its current status."""

    @property
    def end_minute(self) -> int:
        """The first minute in which the pod no longer exists."""
        return self._placed + self.pod.minutes

    def use(self, minute: int) -> NDArray[np.float64]:
        """Usage in a minute: milli-CPU and bytes."""
        return self.pod.use[:, minute - self._started]

    def failure_draws(self, minute: int) -> float:
        """A random number from 0 to 1; the pod fails on an overloaded node if it is below the failure probability."""
        return float(self.pod.failure_draws[minute - self._placed])

    def restart(self, minute: int, now: float) -> None:
        """Record a failure in this minute; the container runs again from the next one."""
        began = format_rfc3339(self._started_s)
        ended = {"exitCode": 137, "reason": "Error", "startedAt": began, "finishedAt": format_rfc3339(now)}
        self.restarts += 1
        self._started, self._started_s = minute + 1, now
        self.obj = self._pod_with_last_state({"terminated": ended})

    def _pod_with_last_state(self, last_state: Object) -> Object:
        container = {
            "name": CONTAINER,
            "restartCount": self.restarts,
            "state": {"running": {"startedAt": format_rfc3339(self._started_s)}},
            "lastState": last_state,
        }
        return {**self._pod_object, "status": {"phase": "Running", "containerStatuses": [container]}}


CAPACITY: Final = np.array([[CPU_MILLI], [MEMORY_BYTES]], np.float64)
_OPTIONS: Final = WindowOptions()
_CONFIG: Final = AnnotatorConfig("all")

_NODE: Final = merge("Node", node_patches.AnnotatedNode)
_POD: Final = merge("Pod", node_patches.BoundPod)


class AnnotatedNodes:
    """Nodes with their current annotations, and the window of samples that the statistics summarize."""

    def __init__(self, nodes: Sequence[Object], window_s: float = 900.0) -> None:
        self.objects = {node["metadata"]["name"]: node for node in nodes}
        self._read = {name: _read_node_object(node) for name, node in self.objects.items()}
        self._window: deque[Floats] = deque(maxlen=max(round(window_s / MINUTE_S), 1))
        self._pods: dict[str, Any] = {}

    def put_pod(self, pod: Object) -> None:
        """Add a pod that was bound to a node."""
        self._pods[pod["metadata"]["name"]] = msgspec.json.decode(msgspec.json.encode(pod), type=_POD)

    def remove_pod(self, name: str) -> None:
        del self._pods[name]

    def write(self, use: Floats, now: float) -> Mapping[str, Object]:
        """Add the usage of one minute and update the annotations. Return the changed nodes by name."""
        self._window.append(use)
        allocations = cooperative_scheduling.run_without_pauses(allocation_by_node(self._pods.values()))
        window = np.array(self._window)
        brief = len(window) < (self._window.maxlen or 0) / 2
        measured = {}
        for at, name in enumerate(self._read):
            cpu, memory = (ResourceUsage(*summarize(window[:, row, at])[:2]) for row in range(2))
            measured[name] = NodeUsage(cpu, memory, is_brief=brief)
        measurements = NodeMeasurements(measured, allocations, now)
        plans = cooperative_scheduling.run_without_pauses(
            plan_patches(self._read.values(), measurements, _CONFIG, _OPTIONS.max_age_s)
        )
        factors = np.minimum(np.rint(100 * use / CAPACITY).max(axis=0), 100).astype(int).tolist()
        changed: dict[str, Object] = {}
        for plan, factor in zip(plans.nodes, factors, strict=True):
            node, patch = self.objects[plan.name], {**plan.patch, CONGESTION_FACTOR: str(factor)}
            before = node["metadata"].get("annotations") or {}
            after = {key: text for key, text in {**before, **patch}.items() if text is not None}
            if after != before:
                changed[plan.name] = {**node, "metadata": {**node["metadata"], "annotations": after}}
                self._read[plan.name] = _read_node_object(changed[plan.name])
        self.objects |= changed
        return changed


def _read_node_object(obj: Object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(obj), type=_NODE)


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
    cpu, memory, either = np.sum(simulation.high, axis=0).tolist()
    requested, used = np.mean(simulation.shares, axis=0).tolist()
    return BurstsResult(
        agents=agents.name,
        seed=seed,
        node_minutes=either,
        cpu_node_minutes=cpu,
        memory_node_minutes=memory,
        all_node_minutes=len(simulation.high) * scenario.nodes,
        pods=simulation.pods,
        unplaced_pods=len(simulation.waiting),
        waited_minutes=simulation.waited,
        restarts=simulation.restarts,
        requested_pct=round(100 * requested, 2),
        used_pct=round(100 * used, 2),
        nodes_by_minute=[counts[2] for counts in simulation.high],
    )


def mean(outcomes: Sequence[BurstsResult]) -> dict[str, Any]:
    """Means of the numeric fields of runs of equal length."""
    fields = [field for field in BurstsResult.__struct_fields__ if field not in {"agents", "seed"}]
    means: dict[str, Any] = {
        field: round(sum(getattr(outcome, field) for outcome in outcomes) / len(outcomes), 2)
        for field in fields[:-1]
    }
    by_minute = np.mean([outcome.nodes_by_minute for outcome in outcomes], axis=0)
    return {**means, "nodes_by_minute": np.round(by_minute, 2).tolist()}


class _Simulation:
    """State of one run, advanced minute by minute. The figures are of the minutes after the fill phase."""

    def __init__(self, scenario: Scenario, agents: AgentGroup, seed: int) -> None:
        nodes = build_node_objects(scenario)
        names = [node["metadata"]["name"] for node in nodes]
        self._arrivals = deque(pods(scenario, seed))
        self._numbers = {name: number for number, name in enumerate(names)}
        self._annotated = AnnotatedNodes(nodes, scenario.window_s)
        self._clock = ManualClock(START_S)
        self._extender = InProcessExtender(agents, names, self._clock, MINUTE_S)
        self._extender.publish(self._annotated.objects, {})
        options = simulated_cluster.SimulatedSchedulerOptions(seed=seed, transport=self._extender)
        self.cluster = Cluster(nodes, agents.entries, clock=self._clock, options=options)
        self.waiting: dict[str, BurstyPod] = {}
        """Pods without a node."""
        self._placed: dict[str, PlacedPod] = {}
        self._minute = 0
        self.pods = self.restarts = self.waited = 0
        self.high: list[tuple[int, int, int]] = []
        """By minute: nodes above 90 % of CPU, of memory, of either."""
        self.shares: list[tuple[float, float]] = []
        """By minute: the requested and the used share of all CPU."""

    def step(self) -> None:  # complexity: the events of a minute in their order
        """Simulate the next minute."""
        pod_changes: dict[ObjectKey, Object | None] = {}
        """Changed pods since the newest snapshot; None marks a deleted pod."""
        for name in [name for name, placed in self._placed.items() if placed.end_minute <= self._minute]:
            self.cluster.delete(f"{NAMESPACE}/{name}")
            self._annotated.remove_pod(name)
            pod_changes[NAMESPACE, name] = None
            del self._placed[name]
        self._submit_arrivals()
        for name, pod in list(self.waiting.items()):
            node = self.cluster.outcome(f"{NAMESPACE}/{name}").node
            if node is not None:
                del self.waiting[name]
                placed = self._placed[name] = PlacedPod(pod, node, self._minute, self._clock.now())
                self._annotated.put_pod(placed.obj)
                pod_changes[NAMESPACE, name] = placed.obj
        use = np.zeros((2, len(self._numbers)))
        for placed in self._placed.values():
            use[:, self._numbers[placed.node]] += placed.use(self._minute)
        overloaded: NDArray[np.bool_] = np.any(use > CAPACITY, axis=0)
        for name, placed in self._placed.items():
            is_on_overloaded = overloaded[self._numbers[placed.node]]
            if is_on_overloaded and placed.failure_draws(self._minute) < FAILURE_PROBABILITY:
                placed.restart(self._minute, self._clock.now())
                pod_changes[NAMESPACE, name] = placed.obj
                self.restarts += 1
        if self._minute >= FILL_MINUTES:
            self._measure(use)
        changed = self._annotated.write(use, self._clock.now())
        self._extender.publish(changed, pod_changes)
        self._minute += 1
        if self.waiting and changed:
            self.cluster.touch()  # one event stands for the updates of all nodes

    def _submit_arrivals(self) -> None:
        """Submit the pods of this minute, each at its time; the queue retries waiting pods when they are due."""
        end_s = (self._minute + 1) * MINUTE_S
        while self._arrivals and self._arrivals[0].at_s < end_s:
            pod = self._arrivals.popleft()
            self._advance_clock(pod.at_s)
            self.waiting[pod.name] = pod
            self.pods += 1
            self.cluster.submit(build_pod_object(pod))
        self._advance_clock(end_s)

    def _advance_clock(self, until_s: float) -> None:
        simulated_cluster.pass_time(self.cluster, self._clock, START_S + until_s - self._clock.now())

    def _measure(self, use: Floats) -> None:
        shares = np.minimum(use / CAPACITY, 1.0)
        above = shares > OVERLOADED_SHARE
        cpu, memory = above.sum(axis=1).tolist()
        self.high.append((cpu, memory, int(above.any(axis=0).sum())))
        requested_milli = sum(placed.pod.app.cpu_milli for placed in self._placed.values())
        all_milli = CAPACITY[0, 0] * use.shape[1]
        self.shares.append((requested_milli / all_milli, float(shares[0].mean())))
        self.waited += len(self.waiting)
