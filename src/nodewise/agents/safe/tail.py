"""Scores and verdicts from the risk of overload at one threshold, fast enough for all nodes at every request."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nodewise.agents.safe import beta

HIGHEST = 10


class Tail:
    """The risk of a utilisation above `threshold`, judged against the risk `percentile` that is accepted; both 0..1."""

    def __init__(self, threshold: float, percentile: float) -> None:
        self.threshold = threshold
        self.percentile = percentile

    def risk(self, mean: ArrayLike, deviation: ArrayLike) -> NDArray[np.float64]:
        """The risk itself: for few nodes at a time. NaN where the mean or the deviation is."""
        return beta.risk(mean, deviation, self.threshold)

    def scores(self, mean: ArrayLike, deviation: ArrayLike) -> NDArray[np.int64]:
        """10 for no risk down to 0 for what is not accepted; -1 where the mean or the deviation is NaN."""
        return self._graded(self.risk(mean, deviation))

    def rejects(self, mean: ArrayLike, deviation: ArrayLike) -> NDArray[np.bool_]:
        """Whether the risk is above the one that is accepted. NaN is not rejected here."""
        return self.risk(mean, deviation) > self.percentile

    def _graded(self, risk: NDArray[np.float64]) -> NDArray[np.int64]:
        with np.errstate(all="ignore"):
            share = np.where(risk == 0, 0.0, np.minimum(risk / self.percentile, 1))
        grades = np.floor(HIGHEST * (1 - np.sqrt(share)))
        return np.where(np.isnan(share), -1, grades).astype(np.int64)
