"""From values of an objective to scores."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise.agents.pigeon.moments import Floats

LEAST: Final = 1
"""Of the worst node that the pod fits."""
_NOISE: Final = 1e-10
"""Values that lie closer together, as a part of the largest, are the same: rounding is not to be stretched."""


Points = NDArray[np.int64]


def points(values: Floats) -> Points:
    """By candidate: the least value gets 10, the largest 1, those between in proportion; NaN gets 0.

    All get 10 where they are the same. Halves are rounded up.
    """
    found = np.zeros(len(values), np.int64)
    fits = ~np.isnan(values)
    if not fits.any():
        return found
    given = values[fits]
    least, most = float(given.min()), float(given.max())
    if most - least <= _NOISE * max(1.0, abs(most), abs(least)):
        found[fits] = MAX_SCORE
        return found
    stretched = LEAST + (MAX_SCORE - LEAST) * (most - given) / (most - least)
    found[fits] = np.clip(np.floor(stretched + 0.5 + _NOISE), 0, MAX_SCORE).astype(np.int64)
    return found
