"""The usage of nodes: its statistics, the interface of its sources, and its annotations."""

from collections.abc import Mapping
from math import isfinite, nan
from typing import Final, NamedTuple, Protocol

from nodewise_scorers.annotator.node_pod_fields import ALLOCATABLE_MEMORY
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.node_capacity import Capacity

MILLI: Final = 1000.0
"""Milli-CPU per core."""


class ResourceUsage(NamedTuple):
    """Usage of one resource of a node in milli-CPU or bytes; NaN where unknown."""

    mean: float = nan
    deviation: float = nan
    forecast: float = nan


class NodeUsage(NamedTuple):
    """Usage of one node."""

    cpu: ResourceUsage = ResourceUsage()
    memory: ResourceUsage = ResourceUsage()
    is_brief: bool = False
    """Whether the samples span less than half of the window."""

    @property
    def is_complete(self) -> bool:
        """Whether all statistics except the forecasts are known, and the samples span enough of the window."""
        statistics = (self.cpu.mean, self.cpu.deviation, self.memory.mean, self.memory.deviation)
        return not self.is_brief and all(map(isfinite, statistics))

    @property
    def is_known(self) -> bool:
        """Whether the mean of any resource is known."""
        return isfinite(self.cpu.mean) or isfinite(self.memory.mean)


class MemoryRequests(NamedTuple):
    """Memory of a node that its pods request, for `--annotate-use-requests`."""

    allocatable_bytes: float
    requested_bytes: float


class UsageMeasurement(NamedTuple):
    """The usage of all nodes at one time."""

    usage: Mapping[str, NodeUsage]
    """By node name, without the nodes that were not measured."""
    failures: tuple[str, ...] = ()
    """Messages that name a metric and why it could not be measured."""


class UsageSource(Protocol):
    """Measures the usage of nodes."""

    async def take_sample(self) -> None:
        """Take a sample if the sampling interval is over."""
        ...

    async def measure(self, requests: Mapping[str, MemoryRequests]) -> UsageMeasurement:
        """Return the statistics as of now; `requests` is by node name and empty unless usage is limited to them."""
        ...


_CPU_KEYS: Final = (
    load_annotations.MEAN_FREE_CPU,
    load_annotations.STD_FREE_CPU,
    load_annotations.FORECAST_FREE_CPU,
)
_MEMORY_KEYS: Final = (
    load_annotations.MEAN_FREE_MEMORY,
    load_annotations.STD_FREE_MEMORY,
    load_annotations.FORECAST_FREE_MEMORY,
)
USAGE_KEYS: Final = (*_CPU_KEYS, *_MEMORY_KEYS)
REQUIRED_KEYS: Final = (*_CPU_KEYS[:2], *_MEMORY_KEYS[:2])
"""All keys except those of forecasts."""


def usage_annotations(usage: NodeUsage, capacity: Capacity) -> Mapping[str, str | None]:
    """The annotations of a node; None for an annotation to delete because its value is unknown.

    Free is allocatable less the usage of all processes, so that an agent can compute the usage from allocatable again.
    It is between 0 and allocatable.
    """
    return {
        **_free_annotations(_CPU_KEYS, usage.cpu, capacity.cpu_milli, digits=3),
        **_free_annotations(_MEMORY_KEYS, usage.memory, capacity.memory_bytes, digits=0),
    }


def informational_annotations(capacity: Capacity) -> Mapping[str, str]:
    """Annotations that only people read; they are written together with other annotations."""
    return {ALLOCATABLE_MEMORY: str(capacity.memory_bytes)}


def _free_annotations(
    keys: tuple[str, str, str], usage: ResourceUsage, allocatable: int, digits: int
) -> Mapping[str, str | None]:
    mean, deviation, forecast = keys
    if not isfinite(usage.mean) or not allocatable:
        return dict.fromkeys(keys)
    values = {
        mean: allocatable - usage.mean,
        # a value between 0 and allocatable cannot deviate by more than allocatable, so the same bounds hold
        deviation: usage.deviation,
        forecast: allocatable - usage.forecast,
    }
    return {
        key: format_number(min(max(value, 0.0), allocatable), digits) if isfinite(value) else None
        for key, value in values.items()
    }


def format_number(value: float, digits: int) -> str:
    """Format without an exponent and with at most `digits` digits after the point."""
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text
