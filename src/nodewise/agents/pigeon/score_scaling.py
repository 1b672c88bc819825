"""From values of an objective to scores."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise.agents.pigeon.mean_covariance import Floats

LEAST: Final = 1
"""Of the worst node that the pod fits."""
_NOISE: Final = 1e-10
"""Values that lie closer together, as a part of the largest, are the same: rounding is not to be stretched."""

Points = NDArray[np.int64]
Scaling = Literal["stretch", "absolute"]


def stretched(values: Floats) -> Points:
    """By candidate: the least value gets 10, the largest 1, those between in proportion; NaN gets 0.

    All get 10 where they are the same.
    """
    scores = np.zeros(len(values), np.int64)
    fits = ~np.isnan(values)
    if not fits.any():
        return scores
    measured = values[fits]
    least, most = float(measured.min()), float(measured.max())
    if most - least <= _NOISE * max(1.0, abs(most), abs(least)):
        scores[fits] = MAX_SCORE
        return scores
    scores[fits] = _whole(LEAST + (MAX_SCORE - LEAST) * (most - measured) / (most - least))
    return scores


def absolute(values: Floats) -> Points:
    """By candidate: 10 for 0 or less, 0 for 1 or more, those between in proportion; NaN gets 0."""
    return _whole(MAX_SCORE * (1 - np.nan_to_num(values, nan=1.0)))


RANKS: Final[Mapping[Scaling, Callable[[Floats], Points]]] = {"stretch": stretched, "absolute": absolute}


def _whole(points: Floats) -> Points:
    """Halves are rounded up, also those that rounding has made a little less."""
    scores: Points = np.clip(np.floor(points + 0.5 + _NOISE), 0, MAX_SCORE).astype(np.int64)
    return scores
