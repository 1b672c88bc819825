"""What pods ask for, all in all: mean and covariance of their demands, of late ones more than of early ones.

The first hundred pods count alike; from then on each new one counts for a hundredth and what was before for the rest.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from nodewise.agents.pigeon import mean_covariance
from nodewise.agents.pigeon.mean_covariance import Floats
from nodewise.agents.pigeon.resources import NAMES, Row

WINDOW: Final = 100


class DemandStatistics(NamedTuple):
    """Of the pods that came; all five resources, however many of them are used."""

    samples: int
    """At most `WINDOW`."""
    mean: Floats
    """(R)"""
    covariance: Floats
    """(R, R)"""

    @property
    def second_moments(self) -> Floats:
        """(R, R): the means of the products, such as the older system kept them."""
        return self.covariance + np.outer(self.mean, self.mean)


NONE: Final = DemandStatistics(0, np.zeros(len(NAMES)), np.zeros((len(NAMES), len(NAMES))))


def add_pod(before: DemandStatistics, demand: Row) -> DemandStatistics:
    """The statistics with one more pod.

    Kept as a covariance, and not as second moments of which the squares of means are taken away: pods that are all the
    same have exactly none.
    """
    samples = min(before.samples + 1, WINDOW)
    weight = 1 / samples
    away = demand - before.mean
    covariance = (1 - weight) * (before.covariance + weight * np.outer(away, away))
    return DemandStatistics(samples, before.mean + weight * away, covariance)


def add_pods(before: DemandStatistics, demands: Sequence[Row]) -> DemandStatistics:
    """The statistics with these pods too, one after another, at once: a thousand are some 0.1 ms.

    What is known is a mean and a covariance of weighted pods: each weighs what was its share when it came, less what
    all later ones took of it.
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


def variability(of: DemandStatistics, scale: Row) -> float:
    """The variability of demands, counted in parts of `scale`; a resource whose scale is 0 does not count.

    `scale` may be of the first few resources only, which then are those that count.
    """
    per_unit = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    some = len(scale)
    mean = of.mean[:some] * per_unit
    along = mean * per_unit
    variance = np.maximum(along @ of.covariance[:some, :some] @ along, 0.0)
    return float(mean_covariance.variability(mean[:, None], np.array([variance]))[0])
