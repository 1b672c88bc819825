"""Random workload of pods whose usage differs from their requests: arrival times, requests and usage per minute.

The workload depends on the seed alone, not on placement, so runs with different agents have identical pods.

Every pod alternates between busy and calm phases. Most pods use much less than they request even in busy phases, hungry
ones use a multiple of it, and the memory of leaky ones grows until they end or restart.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

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
    arrivals = _arrival_times(scenario, float(np.mean([app.cpu_milli for app in workloads])), random)
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


def _arrival_times(scenario: Scenario, cpu_milli: float, random: np.random.Generator) -> Floats:
    """Sorted arrival times in seconds: the pods of the fill phase, then a Poisson process that replaces ended pods."""
    there = scenario.nodes * CPU_MILLI * scenario.requested_share / cpu_milli
    lost = FILL_MINUTES / LIFE_MINUTES
    first = random.uniform(0.0, FILL_MINUTES * MINUTE_S, round(there * lost / -np.expm1(-lost)))
    minutes = scenario.minutes - FILL_MINUTES
    others = random.uniform(0.0, minutes * MINUTE_S, random.poisson(there / LIFE_MINUTES * minutes))
    return np.sort(np.concatenate([first, FILL_MINUTES * MINUTE_S + others]))


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
