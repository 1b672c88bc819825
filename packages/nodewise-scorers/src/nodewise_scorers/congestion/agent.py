"""Answers requests of the congestion agent by look-up. All pods get the same answers."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import FilterPlugin, Names, ScorePlugin, Scores, Snapshot, Verdict
from nodewise_scorers.congestion.options import CongestionOptions
from nodewise_scorers.congestion.state import CongestionState, Factors, invalid_factor_reason
from nodewise_scorers.statistics.load_annotations import CONGESTION_FACTOR
from nodewise_scorers.statistics.missing_statistics import NoStatistics, StatisticsNotReady

PRIORITY: Final = "congestion"
"""Its name in kube-scheduler's configuration, as in the older system, which had no predicate."""
_TEXT_BYTES: Final = 200
"""Memory of a text that is kept, with its place in the mapping."""


class PodFields(msgspec.Struct, frozen=True, gc=False):
    """No field of a pod is read."""


class CongestionAgent(FilterPlugin[PodFields, CongestionState], ScorePlugin[PodFields, CongestionState]):
    """The agent `congestion`. It rejects nodes only with `--when-missing reject`."""

    name = "congestion"

    def __init__(self, options: CongestionOptions) -> None:
        self._max = options.congestion_factor_max
        self.filter_enabled = options.rejects_missing
        self.predicates = {PRIORITY: self.filter} if options.rejects_missing else {}
        self.priorities = {PRIORITY: self.score}

    def equivalence_key(self, pod: PodFields, snapshot: Snapshot) -> tuple[()]:  # noqa: ARG002
        return ()

    def filter(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Verdict | None:  # noqa: ARG002
        """Rejects nodes without a factor. Victims make no difference: their part in the congestion is unknown."""
        state = self.state(snapshot)
        if state is None:
            reason = StatisticsNotReady("nodewise", "nodes are not read yet")
            return Verdict(np.ones(len(candidates), np.int16), (reason,))
        details = self._build_details(state, candidates)
        codes = np.isnan(details.factors).astype(np.int16)
        return Verdict(codes, (NoStatistics(self.name),), details=details)

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:  # noqa: ARG002
        state = self.state(snapshot)
        if state is None:
            return None
        return Scores(state.points[candidates.numbers], details=self._build_details(state, candidates))

    def _build_details(self, state: CongestionState, candidates: Names) -> "CongestionDetails":
        numbers = candidates.numbers
        return CongestionDetails(numbers, state.factors[numbers], state.invalid_texts, self._max)


class CongestionDetails(NamedTuple):
    """The congestion factor of each candidate, as text and as a number (`agent.Details`)."""

    candidates: NDArray[np.intp]
    """By candidate: the node's number."""
    factors: Factors
    """By candidate."""
    invalid_texts: Mapping[int, str]
    """By node number, shared with the state."""
    max_factor: int

    @property
    def nbytes(self) -> int:
        """Includes the texts, which are not shared where each request brings its own nodes."""
        return self.factors.nbytes + _TEXT_BYTES * len(self.invalid_texts)

    def text(self, candidate: int) -> str:
        """`congestion-factor 55 of 100`, or why there is none."""
        factor = self.factors[candidate]
        if np.isnan(factor):
            return self._missing_factor_reason(candidate)
        return f"{CONGESTION_FACTOR} {int(factor)} of {self.max_factor}"

    def distances(self) -> NDArray[np.float64]:
        """1 for a node without a factor."""
        return np.isnan(self.factors).astype(np.float64)

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """`factor`, and `max`, at which the score is 0. Without a factor it is null, and `missing` says why."""
        factor = self.factors[candidate]
        if np.isnan(factor):
            return {"factor": None, "max": self.max_factor, "missing": self._missing_factor_reason(candidate)}
        return {"factor": int(factor), "max": self.max_factor}

    def _missing_factor_reason(self, candidate: int) -> str:
        return invalid_factor_reason(self.invalid_texts.get(int(self.candidates[candidate])))
