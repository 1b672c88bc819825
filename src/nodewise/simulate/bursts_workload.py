"""Pods whose requests lie, drawn from a seed: when they come, what they request, and what they use in each minute.

Who places them makes no difference to any of it, so that runs with other agents have the very same pods.

Every pod is busy and calm in turns. Most use much less than they request even while they are busy, hungry ones a
multiple of it, and leaky ones take more and more memory until they end or are started again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

CPU_MILLI: Final = 15_890
MEMORY_BYTES: Final = 44 * 2**30
"""What pods can have of a node of 16 cores and 48 GiB."""
FILL_MINUTES: Final = 30
"""In the beginning the pods come that a cluster has that is not new; this is not measured."""
MINUTE_S: Final = 60.0
LIFE_MINUTES: Final = 120.0
"""On average."""

NAMESPACE: Final = "bursts"
CONTAINER: Final = "main"

Habit = Literal["modest", "hungry", "leaky"]

_GIB: Final = 2**30
_CPU_CHANCES: Final = (0.45, 0.4, 0.15)
_CPU_CHOICES: Final[Mapping[Habit, Sequence[int]]] = {
    "hungry": (500, 1000, 2000),
    "leaky": (1000, 2000, 4000),
    "modest": (1000, 2000, 4000),
}
"""A hungry pod by itself is never too much for a node: then it would not matter where it is."""
_GIB_PER_CORE: Final = (2.0, 4.0)
_LEAST_LIFE, _MOST_LIFE = 5, 720

Floats = NDArray[np.float64]
_APPS: Final[Mapping[Habit, int]] = {"hungry": 8, "leaky": 4, "modest": 28}
"""How many apps there are of each; all apps have about equally many pods."""
_APPS_SEED: Final = 7


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated."""

    nodes: int = 200
    hours: float = 2.0
    """That are measured."""
    requested_share: float = 0.7
    """Of all CPU, that pods request on average."""
    window_s: float = 900.0
    """Of the statistics that stand on nodes."""

    @property
    def minutes(self) -> int:
        """With those in which the cluster is filled."""
        return FILL_MINUTES + max(round(self.hours * 60), 1)


class App(NamedTuple):
    """What pods have in common that are replicas of one thing."""

    name: str
    habit: Habit
    cpu_milli: int
    memory_bytes: int
    """Requests."""
    busy: float
    calm: float
    """CPU in use, as a multiple of the request."""
    busy_minutes: float
    calm_minutes: float
    """How long that lasts, on average."""
    memory: float
    memory_end: float
    """Memory in use in the beginning, and at the end of an average life; likewise."""


class BurstyPod(NamedTuple):
    """A pod, with all that will happen in it. The arrays are by minute of its life."""

    name: str
    app: App
    at_s: float
    """When it comes; from the beginning, as all times."""
    use: Floats
    """Shape (2, minutes): milli-CPU and bytes, from when it was started, or started again."""
    luck: Floats
    """From 0 to 1, drawn once a minute; what happens to it where it is in trouble."""

    @property
    def minutes(self) -> int:
        return len(self.luck)


def pods(scenario: Scenario, seed: int) -> list[BurstyPod]:
    """All pods of a run, in the order in which they come."""
    random = np.random.default_rng(seed)
    workloads = apps()
    arrivals = _arrivals(scenario, float(np.mean([app.cpu_milli for app in workloads])), random)
    return [
        _pod(f"pod-{number}", workloads[random.integers(len(workloads))], at_s, random)
        for number, at_s in enumerate(arrivals)
    ]


def apps() -> list[App]:
    """What runs in the cluster, the same in all runs: runs differ in when which pods come, and when they are busy."""
    random = np.random.default_rng(_APPS_SEED)
    return [
        _app(f"{habit}-{number}", habit, random) for habit, count in _APPS.items() for number in range(count)
    ]


def _app(name: str, habit: Habit, random: np.random.Generator) -> App:
    cpu = int(random.choice(_CPU_CHOICES[habit], p=_CPU_CHANCES))
    memory = round(cpu / 1000 * random.uniform(*_GIB_PER_CORE) * 8) * _GIB // 8
    hungry, leaky = habit == "hungry", habit == "leaky"
    memory_start = random.uniform(0.3, 0.8)
    return App(
        name,
        habit,
        cpu,
        memory,
        busy=random.uniform(2.0, 5.0) if hungry else random.uniform(0.4, 0.9),
        calm=random.uniform(0.05, 0.25),
        busy_minutes=random.uniform(10.0, 30.0) if hungry else random.uniform(5.0, 30.0),
        calm_minutes=random.uniform(5.0, 15.0) if hungry else random.uniform(10.0, 60.0),
        memory=memory_start,
        memory_end=random.uniform(1.5, 3.0) if leaky else memory_start,
    )


def _arrivals(scenario: Scenario, cpu_milli: float, random: np.random.Generator) -> Floats:
    """Seconds, in order: those that fill the cluster, and then a Poisson process that replaces who ends."""
    there = scenario.nodes * CPU_MILLI * scenario.requested_share / cpu_milli
    lost = FILL_MINUTES / LIFE_MINUTES
    first = random.uniform(0.0, FILL_MINUTES * MINUTE_S, round(there * lost / -np.expm1(-lost)))
    minutes = scenario.minutes - FILL_MINUTES
    others = random.uniform(0.0, minutes * MINUTE_S, random.poisson(there / LIFE_MINUTES * minutes))
    return np.sort(np.concatenate([first, FILL_MINUTES * MINUTE_S + others]))


def _pod(name: str, app: App, at_s: float, random: np.random.Generator) -> BurstyPod:
    minutes = int(np.clip(np.ceil(random.exponential(LIFE_MINUTES)), _LEAST_LIFE, _MOST_LIFE))
    is_busy = np.fromiter(_phases(app, minutes, random), bool, minutes)
    unrest = random.uniform(0.9, 1.1, minutes)
    cpu = np.where(is_busy, app.busy, app.calm) * app.cpu_milli * unrest
    grown = (app.memory_end - app.memory) * np.arange(minutes) / LIFE_MINUTES
    memory = (app.memory + grown + 0.1 * is_busy) * app.memory_bytes
    return BurstyPod(name, app, float(at_s), np.stack([cpu, memory]), random.uniform(size=minutes))


def _phases(app: App, minutes: int, random: np.random.Generator) -> Iterator[bool]:
    """Whether it is busy, minute by minute; the first phase is under way already."""
    busy = bool(random.uniform() < app.busy_minutes / (app.busy_minutes + app.calm_minutes))
    done = 0
    while done < minutes:
        mean = app.busy_minutes if busy else app.calm_minutes
        lasts = min(int(random.geometric(min(1.0 / mean, 1.0))), minutes - done)
        yield from [busy] * lasts
        done, busy = done + lasts, not busy


def pod_object(pod: BurstyPod) -> dict[str, Any]:
    """The pod as it is created."""
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


def node_objects(scenario: Scenario) -> list[dict[str, Any]]:
    """The nodes, all alike."""
    allocatable = {"cpu": f"{CPU_MILLI}m", "memory": str(MEMORY_BYTES), "pods": "110"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    return [{"metadata": {"name": f"node-{n:03d}"}, "status": status} for n in range(scenario.nodes)]
