"""Converts values of an objective into scores."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise_scorers.pigeon.mean_covariance import Floats

_MIN_SCORE: Final = 1
"""The score of the worst node that the pod fits."""
_NOISE: Final = 1e-10
"""Values that differ by less, relative to the largest, count as equal: rounding errors must not be stretched."""

Points = NDArray[np.int64]
Scaling = Literal["stretch", "absolute"]


def stretch(values: Floats) -> Points:
    """By candidate: 10 for the smallest value, 1 for the largest, in proportion between them; 0 for NaN.

    All scores are 10 if the values are equal.
    """
    scores = np.zeros(len(values), np.int64)
    fits = ~np.isnan(values)
    if not fits.any():
        return scores
    measured = values[fits]
    lowest, highest = float(measured.min()), float(measured.max())
    if highest - lowest <= _NOISE * max(1.0, abs(highest), abs(lowest)):
        scores[fits] = MAX_SCORE
        return scores
    scores[fits] = _round_half_up(
        _MIN_SCORE + (MAX_SCORE - _MIN_SCORE) * (highest - measured) / (highest - lowest)
    )
    return scores


def scale_absolute(values: Floats) -> Points:
    """By candidate: 10 for 0 or less, 0 for 1 or more, in proportion between them; 0 for NaN."""
    return _round_half_up(MAX_SCORE * (1 - np.nan_to_num(values, nan=1.0)))


SCALINGS: Final[Mapping[Scaling, Callable[[Floats], Points]]] = {
    "stretch": stretch,
    "absolute": scale_absolute,
}


def _round_half_up(points: Floats) -> Points:
    """Round halves up, including those that are slightly less because of rounding errors."""
    scores: Points = np.clip(np.floor(points + 0.5 + _NOISE), 0, MAX_SCORE).astype(np.int64)
    return scores
