"""The CPU usage of applications per requested core, learned from the statistics of their pods.

Pods of one application (the same owner, or the same image) behave alike: what its pods use now is the best estimate
for another one. An application that never ran is estimated as the mean of all, with a deviation that includes how much
applications differ. The estimates are multiplied by the request of a pod.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HALF_LIFE: Final = 6.0
"""Samples after which a sample weighs half: half an hour with a sample per five minutes. Shorter ones follow noise,
longer ones miss phases; from 2 to 24 samples the results hardly differ."""
_OWN_WEIGHT: Final = 1.0
"""Weight of the mean variance of all applications, in samples, so that one sample does not count as no variance."""
_UNKNOWN: Final = (0.5, 0.25)
"""Mean and variance of the usage per requested core before any statistics: anything up to the request."""


class Forecast(NamedTuple):
    """Estimates of the usage per requested core."""

    mean: Floats
    """By application."""
    variance: Floats
    """By application. It is that of one pod; pods of one application vary together."""
    general_mean: float
    """Of any pod, weighted by requests."""
    general_variance: float
    """Of a pod of an unknown application."""


class UsageProfiles:
    """Exponentially weighted mean and variance of each application, by number."""

    def __init__(self, applications: int, half_life: float = HALF_LIFE) -> None:
        self._decay = 0.5 ** (1 / half_life)
        self._weight = np.zeros(applications)
        self._sum = np.zeros(applications)
        self._squares = np.zeros(applications)

    def observe(self, applications: Ints, usage: Floats) -> None:
        """Take one sample of all running pods: their applications, and their usage per requested core.

        What was learned of an application that does not run stays as it is.
        """
        size = len(self._weight)
        counts = np.bincount(applications, minlength=size)
        seen = counts > 0
        for total, sample in (
            (self._weight, counts),
            (self._sum, np.bincount(applications, usage, size)),
            (self._squares, np.bincount(applications, usage * usage, size)),
        ):
            total[seen] = total[seen] * self._decay + sample[seen] / counts[seen]

    def forecast(self, requested: Floats) -> Forecast:
        """Estimates for all applications; `requested` are the cores that their running pods request."""
        size = len(self._weight)
        known = self._weight > 0
        mean = np.divide(self._sum, self._weight, out=np.zeros(size), where=known)
        squares = np.divide(self._squares, self._weight, out=np.zeros(size), where=known)
        within = np.maximum(squares - mean * mean, 0.0)
        share = np.where(known, requested, 0.0)
        total = share.sum()
        if not total:
            mean_of_all, variance_of_all, within_all = *_UNKNOWN, _UNKNOWN[1]
        else:
            mean_of_all = float(mean @ share / total)
            within_all = float(within @ share / total)
            variance_of_all = within_all + float((mean - mean_of_all) ** 2 @ share / total)
        shrunk = (self._weight * within + _OWN_WEIGHT * within_all) / (self._weight + _OWN_WEIGHT)
        return Forecast(
            np.where(known, mean, mean_of_all),
            np.where(known, shrunk, variance_of_all),
            mean_of_all,
            variance_of_all,
        )
