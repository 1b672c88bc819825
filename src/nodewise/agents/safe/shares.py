"""What of each node would be used with a pod on it: the mean and the deviation, as shares of what pods can have."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.statistics.load import Load, Table
from nodewise.statistics.missing import Missing
from nodewise.statistics.requests import Request


class Base(NamedTuple):
    """The load of all nodes before any pod is added; by resource and node number, NaN where there are no statistics."""

    used: Table
    """The mean, with the forecast's part in it; never below 0."""
    capacity: Table
    deviation: Table
    """A share, from 0 to 1; 0 where nobody gave one."""
    missing: NDArray[np.uint8]
    """`Missing`."""


class Shares(NamedTuple):
    """By resource and candidate; from 0 to 1, NaN where there are no statistics."""

    mean: Table
    deviation: Table
    missing: NDArray[np.uint8]
    """`Missing`."""

    @property
    def nbytes(self) -> int:
        return self.mean.nbytes + self.deviation.nbytes + self.missing.nbytes


def base(load: Load, forecast_weight: float) -> Base:
    """The load as the agent has it; `forecast_weight` from 0 to 1.

    A pod adds its request to the mean and nothing to the deviation, so that can be divided here already.
    """
    absent = load.missing > 0
    capacity = np.where(absent, np.nan, load.capacity)
    with np.errstate(over="ignore"):
        expected = (1 - forecast_weight) * load.used + forecast_weight * load.forecast
        used = np.maximum(np.where(np.isnan(load.forecast), load.used, expected), 0.0)
        steady = np.isnan(load.deviation) & ~absent
        spread = np.clip(np.nan_to_num(load.deviation, nan=0.0) / capacity, 0.0, 1.0)
    missing = np.where(steady, np.uint8(Missing.NO_DEVIATION), load.missing)
    return Base(used, capacity, spread, missing)


def with_pod(before: Base, numbers: NDArray[np.intp], request: Request) -> Shares:
    """The shares of these nodes with the pod there; `numbers` are theirs."""
    demand = np.array(request, np.float64)[:, np.newaxis]
    mean = (before.used.take(numbers, axis=1) + demand) / before.capacity.take(numbers, axis=1)
    return Shares(
        np.clip(mean, 0.0, 1.0),
        before.deviation.take(numbers, axis=1),
        before.missing.take(numbers, axis=1),
    )
