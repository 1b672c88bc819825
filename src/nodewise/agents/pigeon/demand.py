"""What pods ask for, all in all: mean and covariance of their demands, of late ones more than of early ones.

The first hundred pods count alike; from then on each new one counts for a hundredth and what was before for the rest.
"""

from typing import Final, NamedTuple

import numpy as np

from nodewise.agents.pigeon import moments
from nodewise.agents.pigeon.moments import Floats
from nodewise.agents.pigeon.resources import NAMES, Row

WINDOW: Final = 100


class Statistics(NamedTuple):
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


NONE: Final = Statistics(0, np.zeros(len(NAMES)), np.zeros((len(NAMES), len(NAMES))))


def seen(before: Statistics, demand: Row) -> Statistics:
    """The statistics with one more pod.

    Kept as a covariance, and not as second moments of which the squares of means are taken away: pods that are all the
    same have exactly none.
    """
    samples = min(before.samples + 1, WINDOW)
    weight = 1 / samples
    away = demand - before.mean
    covariance = (1 - weight) * (before.covariance + weight * np.outer(away, away))
    return Statistics(samples, before.mean + weight * away, covariance)


def variability(of: Statistics, scale: Row) -> float:
    """The variability of demands, counted in parts of `scale`; a resource whose scale is 0 does not count.

    `scale` may be of the first few resources only, which then are those that count.
    """
    per_unit = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    some = len(scale)
    mean = of.mean[:some] * per_unit
    along = mean * per_unit
    variance = np.maximum(along @ of.covariance[:some, :some] @ along, 0.0)
    return float(moments.variability(mean[:, None], np.array([variance]))[0])
