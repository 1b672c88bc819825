"""The congestion factor of each candidate, in words and as a number."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Names
from nodewise.agents.congestion import factors as reading
from nodewise.agents.congestion.factors import Factors
from nodewise.agents.congestion.state import Slot
from nodewise.statistics.annotations import CONGESTION_FACTOR

_TEXT_BYTES: Final = 200
"""Of a text that is kept, with its place in the mapping."""


class CongestionDetails(NamedTuple):
    """Of one answer (`agent.Details`)."""

    candidates: NDArray[np.intp]
    """By candidate: the node's number."""
    factors: Factors
    """By candidate."""
    unread: Mapping[int, str]
    """By node number, shared with the slot."""
    most: int

    @property
    def nbytes(self) -> int:
        """With the texts, which nobody shares where each request brings its own nodes."""
        return self.factors.nbytes + _TEXT_BYTES * len(self.unread)

    def text(self, candidate: int) -> str:
        """`congestion-factor 55 of 100`, or why there is none."""
        factor = self.factors[candidate]
        if np.isnan(factor):
            return self._why_missing(candidate)
        return f"{CONGESTION_FACTOR} {int(factor)} of {self.most}"

    def distances(self) -> NDArray[np.float64]:
        """A node without a factor is as far from passing as any."""
        return np.isnan(self.factors).astype(np.float64)

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """`factor`, null where there is none and `missing` says why; and the `max` at which the score is 0."""
        factor = self.factors[candidate]
        if np.isnan(factor):
            return {"factor": None, "max": self.most, "missing": self._why_missing(candidate)}
        return {"factor": int(factor), "max": self.most}

    def _why_missing(self, candidate: int) -> str:
        return reading.why_missing(self.unread.get(int(self.candidates[candidate])))


def of(agent_state: Slot, candidates: Names, most: int) -> CongestionDetails:
    numbers = candidates.numbers
    return CongestionDetails(numbers, agent_state.factors[numbers], agent_state.unread, most)
