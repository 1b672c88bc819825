"""Scores nodes by rank: dense ranks once per refresh, competition ranks among the candidates of a request.

Equal values get equal scores; nodes without a fresh value get 0. With n measured candidates and rank r from 0
(1, 1, 3 counted from 0: 0, 0, 2) the score is `10 - r` up to eleven candidates and `round(10 (n-1-r) / (n-1))`
beyond, so the whole scale is used and no score leaves 0..10.

Several preferences are combined to one by the weighted mean of their ranks among the candidates. Nodes that a policy
with `enforcement: Preferred` rejects come after all others.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise.metrics.series import ValueState
from nodewise.metrics.series_arrays import Column, States
from nodewise.policies import rule_operators

_STEPWISE: Final = MAX_SCORE + 1
"""With up to this many candidates, each rank costs one point."""

_DECIMALS: Final = 9
"""Decimal places of a mean of ranks that count. 100 preferences of 5,000 candidates have rounding errors of 1e-13."""

Ranks = NDArray[np.int64]


def rank_nodes_by_value(operator: str, column: Column, states: States) -> Ranks:
    """The rank of each node among all nodes, by node number: 0 is best, equal values share one, -1 unmeasured."""
    ranks = np.full(len(states), -1, np.int64)
    fresh = np.flatnonzero(states == ValueState.FRESH)
    if not len(fresh):
        return ranks
    direction = rule_operators.sort_direction(operator)
    _, place = np.unique(column.values[fresh], return_inverse=True)
    ranks[fresh] = 0 if direction == 0 else place if direction > 0 else place.max() - place
    return ranks


def combine_ranks(ranks: Sequence[Ranks], weights: Sequence[int]) -> Ranks:
    """The dense ranks of the candidates by the weighted mean of several preferences, given their ranks in each.

    In each preference the best candidate counts 0 and the last one 1, by its place among the measured ones. A candidate
    without a value counts 1, so that missing values never help a node; without any value it has no rank.
    """
    if len(ranks) == 1:
        return ranks[0]
    places = [np.where(each >= 0, _places(each) / max(int((each >= 0).sum()) - 1, 1), 1.0) for each in ranks]
    mean = np.average(places, axis=0, weights=weights)
    combined = np.full(len(mean), -1, np.int64)
    measured = np.flatnonzero(np.logical_or.reduce([each >= 0 for each in ranks]))
    # equal means can differ by rounding errors, and must not be different ranks
    _, combined[measured] = np.unique(mean[measured].round(_DECIMALS), return_inverse=True)
    return combined


def scores_of_avoided(ranks: Ranks | None, rejections: Sequence[NDArray[np.bool_]]) -> NDArray[np.int64]:
    """Scores 0..10 of the candidates if several policies only prefer the nodes that they do not reject.

    The candidates that the fewest of these policies reject are scored by their ranks in the preferences, at least 1;
    without ranks, all of them get 10. The others get 0. So policies that reject every candidate have no effect.
    """
    counts = np.sum(rejections, axis=0, dtype=np.int64)
    is_best = counts == counts.min(initial=len(rejections))
    best = np.where(is_best, 0 if ranks is None else ranks, -1)
    if not (best >= 0).any():
        best = np.where(is_best, 0, -1)
    return np.where(is_best, np.maximum(scores_from_ranks(best), 1), 0)


def _places(ranks: Ranks) -> NDArray[np.int64]:
    """How many measured candidates have a better value than each candidate, given their dense ranks."""
    measured = ranks >= 0
    shares = np.bincount(ranks[measured], minlength=1)
    better = np.cumsum(shares) - shares
    return np.where(measured, better[ranks], 0)


def scores_from_ranks(ranks: Ranks) -> NDArray[np.int64]:
    """Scores 0..10 of the candidates, given their dense ranks in the order of the request."""
    measured = ranks >= 0
    count = int(measured.sum())
    if not count:
        return np.zeros(len(ranks), np.int64)
    rank = _places(ranks)
    if count <= _STEPWISE:
        scores = MAX_SCORE - rank
    else:
        scores = np.rint(MAX_SCORE * (count - 1 - rank) / (count - 1)).astype(np.int64)
    return np.where(measured, scores, 0)
