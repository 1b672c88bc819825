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

HALF_LIFE: Final = 12.0
"""Samples after which a sample weighs half: an hour with a sample per five minutes. Shorter ones follow noise, longer
ones miss phases; from 3 to 24 samples the results hardly differ."""
_OWN_WEIGHT: Final = 1.0
"""Weight of the mean variances of all applications in that of one, in samples."""


class _General(NamedTuple):
    mean: float
    variance: float


_UNKNOWN: Final = _General(0.5, 0.25)
"""Usage per requested core before any statistics: anything up to the request."""


class Forecast(NamedTuple):
    """Estimates of the usage per requested core, by application; variances are those of one pod.

    The last entry of each array is for pods whose application has no number: the mean of all, nothing in common.
    """

    mean: Floats
    common: Floats
    """Variance that all pods of the application share, such as phases of more traffic."""
    independent: Floats
    """Variance of each pod by itself."""
    general_mean: float
    """Of any pod, weighted by requests."""
    general_variance: float
    """Of a pod of an unknown application, both kinds together."""


class UsageProfiles:
    """Exponentially weighted means and variances of each application, by number."""

    def __init__(self, applications: int, half_life: float = HALF_LIFE) -> None:
        self._decay = 0.5 ** (1 / half_life)
        self._weight = np.zeros(applications)
        self._mean = np.zeros(applications)
        self._squared_mean = np.zeros(applications)
        """The square of the mean of all pods in a sample."""
        self._square = np.zeros(applications)
        """The mean square of the pods in a sample."""

    def observe(self, applications: Ints, usage: Floats, steps: float = 1.0) -> None:
        """Take one sample of all running pods: their applications, and their usage per requested core.

        `steps` is the time since the sample before, in the distance of samples that the half-life is given in.
        What was learned of an application that does not run stays as it is.
        """
        size, decay = len(self._weight), self._decay**steps
        counts = np.bincount(applications, minlength=size)
        seen = counts > 0
        pods = counts[seen]
        mean = np.bincount(applications, usage, size)[seen] / pods
        square = np.bincount(applications, usage * usage, size)[seen] / pods
        for total, sample in (
            (self._weight, 1.0),
            (self._mean, mean),
            (self._squared_mean, mean * mean),
            (self._square, square),
        ):
            total[seen] = total[seen] * decay + sample

    def forget(self, application: int) -> None:
        """The number is for another application from now on."""
        for total in (self._weight, self._mean, self._squared_mean, self._square):
            total[application] = 0.0

    def forecast(self, requested: Floats, unknown_mean: float = _UNKNOWN.mean) -> Forecast:
        """Estimates for all applications; `requested` are the cores that their running pods request.

        `unknown_mean` is the usage per requested core while nothing is known of any running application.
        """
        known = self._weight > 0
        weight = np.where(known, self._weight, 1.0)
        mean = self._mean / weight
        common = np.maximum(self._squared_mean / weight - mean * mean, 0.0)
        independent = np.maximum((self._square - self._squared_mean) / weight, 0.0)
        share = np.where(known, requested, 0.0)
        total = share.sum()
        if not total:
            everywhere = np.ones(len(mean))
            variance = _UNKNOWN.variance * everywhere
            unknown = _General(unknown_mean, _UNKNOWN.variance)
            return _with_others(unknown_mean * everywhere, variance, 0 * everywhere, unknown)
        share = share / total
        # sums instead of dot products, which BLAS rounds differently on another CPU
        mean_of_all, common_of_all, independent_of_all = (
            (values * share).sum() for values in (mean, common, independent)
        )
        between = ((mean - mean_of_all) ** 2 * share).sum()
        # one sample alone has no variance over time, so that of all applications counts as another sample
        own = self._weight / (self._weight + _OWN_WEIGHT)
        return _with_others(
            np.where(known, mean, mean_of_all),
            np.where(known, own * common + (1 - own) * common_of_all, common_of_all + between),
            np.where(known, own * independent + (1 - own) * independent_of_all, independent_of_all),
            _General(float(mean_of_all), float(common_of_all + independent_of_all + between)),
        )


def _with_others(mean: Floats, common: Floats, independent: Floats, general: _General) -> Forecast:
    return Forecast(
        np.append(mean, general.mean),
        np.append(common, 0.0),
        np.append(independent, general.variance),
        *general,
    )
