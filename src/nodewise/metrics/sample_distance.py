"""The distance of a metric's samples, and the maximum age of its values that follows from it. No I/O.

A value gets as old as the scrape interval before the next one arrives, and twice as old if a scrape fails. So the
maximum age of a rule without its own is 2.5 distances, but at least the default of the settings (60 s), and at most
`MAX_DERIVED_S`: a metric with one sample per hour must not count as fresh for hours unless its rule says so.

The distance is that of one metric, not of one node: in nine of ten nodes, samples are at most this far apart. A single
exporter that is scraped rarely, or fails often, does not make the values of all others count for longer; the states of
its node are held in its gaps (`nodewise.policies.rule_evaluation`).

Prometheus responds with several samples of a series, whose times give the distance in every response
(`Series.is_distance_measured`). While they do not, it is asked for `LOOKBACK_S`, and samples that are older than the
maximum age are left out. Of other sources the distance follows from the times of successive responses: the smaller one
of the last two, so that one gap does not count. A source without sample times has no distance.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

LOOKBACK_S: Final = 600.0
"""How far back a source looks for samples while the distance is not known. Samples that are further apart have none,
unless the maximum age of a rule is longer."""
MAX_DERIVED_S: Final = 600.0
"""The longest maximum age that follows from a distance."""
COUNTED: Final = 3
"""The samples of a series whose distances count."""
_DISTANCES: Final = 2.5
"""The maximum age, in distances."""
_NEAR: Final = 1.5
"""A maximum age of less than this many distances is too short: between two samples, or after one failed scrape, most
nodes have no value."""
_FINE_S: Final = 10.0
"""Below, distances are whole seconds."""
_SHARE: Final = 0.9
"""The share of nodes whose samples are at most the distance apart."""


def derived_max_age_s(default_s: float, distance_s: float | None) -> float:
    """The maximum age of values for a rule without its own; `default_s` is that of the settings."""
    derived_s = 0.0 if distance_s is None else min(sufficient_max_age_s(distance_s), MAX_DERIVED_S)
    return max(default_s, derived_s)


def sufficient_max_age_s(distance_s: float) -> float:
    """The maximum age with which a failed scrape leaves no node without a value."""
    return _DISTANCES * distance_s


def is_near(max_age_s: float, distance_s: float | None) -> bool:
    """Whether the distance of samples is near or above a maximum age, so that values are missing between samples."""
    return distance_s is not None and max_age_s < _NEAR * distance_s


def newest_distance_s(newest_times: Sequence[float]) -> float | None:
    """The distance of the newest samples of a series, given the times of its last samples (`COUNTED`), in any order.

    The smaller one of two distances counts: the other one may have a failed scrape in it.
    """
    times = sorted(newest_times)
    distances = [later - earlier for earlier, later in pairwise(times) if later > earlier]
    return min(distances, default=None)


def typical_distance_s(distances: Iterable[float]) -> float | None:
    """The distance of a metric in seconds, from those of its nodes; None for none.

    It is rounded to 5 s, or to 1 s below 10 s, so that the jitter of scrapes changes neither verdicts nor messages.
    """
    known = np.fromiter(distances, float)
    if not len(known):
        return None
    distance_s = float(np.quantile(known, _SHARE, method="higher"))
    step_s = 1.0 if distance_s < _FINE_S else 5.0
    return max(round(distance_s / step_s) * step_s, 1.0)


def is_measured(known_count: int, node_count: int) -> bool:
    """Whether a response shows the distance: those of at least half of its nodes are known."""
    return bool(known_count) and 2 * known_count >= node_count


def successive_distance_s(
    observed_s: float | None, last_observed_s: float | None, distance_s: float | None
) -> float | None:
    """The distance after one more response of a source with one sample per node.

    `observed_s` is the distance between the newest samples and those before, `last_observed_s` the one of the last
    response with new samples, and `distance_s` the known one.
    """
    if observed_s is None:
        return distance_s
    if last_observed_s is None:
        return observed_s if distance_s is None else distance_s
    return min(observed_s, last_observed_s)
