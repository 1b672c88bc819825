"""What is free of each node by what it really uses, as annotations."""

from collections.abc import Mapping
from math import isfinite, nan
from typing import Final, NamedTuple

from nodewise.annotator.fields import ALLOCATABLE_MEMORY
from nodewise.statistics import annotations
from nodewise.statistics.capacity import Capacity


class Used(NamedTuple):
    """How much of one resource a node uses, in milli-CPU or bytes; NaN for what is not known."""

    mean: float = nan
    deviation: float = nan
    forecast: float = nan


class Usage(NamedTuple):
    """What is known of one node."""

    cpu: Used = Used()
    memory: Used = Used()
    is_brief: bool = False
    """Whether the samples span less than half of the window."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lacking but perhaps a forecast, and the samples span enough of the window."""
        known = (self.cpu.mean, self.cpu.deviation, self.memory.mean, self.memory.deviation)
        return not self.is_brief and all(map(isfinite, known))

    @property
    def is_known(self) -> bool:
        """Whether anything is."""
        return isfinite(self.cpu.mean) or isfinite(self.memory.mean)


_CPU: Final = (annotations.MEAN_FREE_CPU, annotations.STD_FREE_CPU, annotations.FORECAST_FREE_CPU)
_MEMORY: Final = (annotations.MEAN_FREE_MEMORY, annotations.STD_FREE_MEMORY, annotations.FORECAST_FREE_MEMORY)
KEYS: Final = (*_CPU, *_MEMORY)
WHOLE: Final = (*_CPU[:2], *_MEMORY[:2])
"""What the statistics of a node come to, forecasts apart."""


def texts(usage: Usage, capacity: Capacity) -> Mapping[str, str | None]:
    """The annotations of one node; None for one that must not stand, as nobody knows its value.

    What is free is what pods can have less what is used, whoever uses it: so an agent that takes it from what pods can
    have again has the real use. It is between 0 and what pods can have.
    """
    return {
        **_free(_CPU, usage.cpu, capacity.cpu_milli, digits=3),
        **_free(_MEMORY, usage.memory, capacity.memory_bytes, digits=0),
    }


def riding(capacity: Capacity) -> Mapping[str, str]:
    """What is there for people, and is written only beside something else."""
    return {ALLOCATABLE_MEMORY: str(capacity.memory_bytes)}


def _free(keys: tuple[str, str, str], used: Used, whole: int, digits: int) -> Mapping[str, str | None]:
    mean, deviation, forecast = keys
    if not isfinite(used.mean) or not whole:
        return dict.fromkeys(keys)
    found = {
        mean: whole - used.mean,
        # nothing that stays between nothing and all deviates by more than all
        deviation: used.deviation,
        forecast: whole - used.forecast,
    }
    return {
        key: text(min(max(value, 0.0), whole), digits) if isfinite(value) else None
        for key, value in found.items()
    }


def text(value: float, digits: int) -> str:
    """A number without an exponent, with at most so many digits after the point."""
    written = f"{value:.{digits}f}"
    return written.rstrip("0").rstrip(".") if digits else written
