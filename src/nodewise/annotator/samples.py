"""Samples of one resource of one node, made into statistics."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Summary(NamedTuple):
    """NaN for what so few samples do not tell."""

    mean: float
    deviation: float
    """Of a sample, with n - 1."""
    least: float


def summary(samples: NDArray[np.float64]) -> Summary:
    """Mean, standard deviation and least of samples; of one sample nobody knows the deviation, of none nothing."""
    if not samples.size:
        return Summary(np.nan, np.nan, np.nan)
    deviation = float(samples.std(ddof=1)) if samples.size > 1 else np.nan
    return Summary(float(samples.mean()), deviation, float(samples.min()))


def curated(free: NDArray[np.float64], allocatable: float, requested: float) -> NDArray[np.float64]:
    """Samples of what was free, raised to what requests leave: use beyond what was requested does not count."""
    return np.maximum(free, allocatable - requested)
