"""The distribution of pod requests: mean and covariance, in which recent pods have more weight.

The first hundred pods have equal weights. After that, each new pod has a weight of one hundredth.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from nodewise_scorers.pigeon import mean_covariance
from nodewise_scorers.pigeon.mean_covariance import Floats
from nodewise_scorers.pigeon.resource_units import NAMES, Row

WINDOW: Final = 100


class DemandStatistics(NamedTuple):
    """Mean and covariance of pod requests, of all five resources regardless of `num_resources`."""

    samples: int
    """At most `WINDOW`."""
    mean: Floats
    """(R)"""
    covariance: Floats
    """(R, R)"""

    @property
    def second_moments(self) -> Floats:
        """(R, R): the means of the products, as the older system stores them."""
        return self.covariance + np.outer(self.mean, self.mean)


NO_DEMAND: Final = DemandStatistics(0, np.zeros(len(NAMES)), np.zeros((len(NAMES), len(NAMES))))


def add_pod(before: DemandStatistics, demand: Row) -> DemandStatistics:
    """The statistics with one more pod.

    The covariance is updated directly instead of subtracting squared means from second moments, so that it is exactly 0
    for equal pods.
    """
    samples = min(before.samples + 1, WINDOW)
    weight = 1 / samples
    away = demand - before.mean
    covariance = (1 - weight) * (before.covariance + weight * np.outer(away, away))
    return DemandStatistics(samples, before.mean + weight * away, covariance)


def add_pods(before: DemandStatistics, demands: Sequence[Row]) -> DemandStatistics:
    """The statistics with these pods, as if added one after another; a thousand take about 0.1 ms.

    The weight of each pod is its share when it was added, reduced by the shares of all later pods.
    """
    if before.samples == 0 and demands:
        return add_pods(add_pod(before, demands[0]), demands[1:])
    if not demands:
        return before
    samples = np.minimum(before.samples + 1 + np.arange(len(demands)), WINDOW)
    left = np.cumprod((1 - 1 / samples)[::-1])[::-1]
    weights = np.append(left[1:], 1.0) / samples
    away = np.array(demands) - before.mean
    shift = weights @ away
    spread = away - shift
    covariance = left[0] * (before.covariance + np.outer(shift, shift)) + (weights * spread.T) @ spread
    return DemandStatistics(int(samples[-1]), before.mean + shift, covariance)


def demand_variability(statistics: DemandStatistics, scale: Row) -> float:
    """The variability of pod requests in units of `scale`; a resource whose scale is 0 does not count.

    If `scale` has fewer resources, only these count.
    """
    per_unit = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    resources = len(scale)
    mean = statistics.mean[:resources] * per_unit
    direction = mean * per_unit
    variance = np.maximum(direction @ statistics.covariance[:resources, :resources] @ direction, 0.0)
    return float(mean_covariance.variability(mean[:, None], np.array([variance]))[0])
