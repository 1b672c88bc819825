"""The score `safe-balance`: nodes are to be alike in what is used and how much that varies, taken together."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise.agents.safe.shares import Shares

UNKNOWN: Final = -1


def points(shares: Shares) -> NDArray[np.int64]:
    """By resource and candidate: 10 for a node where nothing is used, 0 for one that is full; `UNKNOWN` for NaN.

    The load is half of the mean and the root of the deviation together. Halves are rounded up.
    """
    load = (shares.mean + np.sqrt(shares.deviation)) / 2
    scores = np.floor(MAX_SCORE * (1 - load) + 0.5)
    return np.nan_to_num(scores, nan=UNKNOWN).astype(np.int64)


def least(points: NDArray[np.int64], unknown: int) -> NDArray[np.int64]:
    """By candidate, the least of its resources' points; `unknown` where there are none."""
    known = np.where(points == UNKNOWN, MAX_SCORE + 1, points).min(axis=0)
    found: NDArray[np.int64] = np.where(known > MAX_SCORE, unknown, known)
    return found
