"""The scores of nodes from their annotation `congestion-factor`: 10 for no congestion, 0 from the maximum on.

The factor is a whole number in whatever unit its writer chooses: load, or network traffic of the node. Any other text
counts as missing; the older agent took it for no congestion. All pods get the same scores.
"""

import re
from collections.abc import Generator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import (
    MAX_SCORE,
    ClusterState,
    FilterPlugin,
    Inputs,
    Names,
    ScorePlugin,
    Scores,
    Snapshot,
    Verdict,
)
from nodewise_scorers.congestion import CongestionOptions
from nodewise_scorers.load import in_flight_accounting
from nodewise_scorers.load.bound_pods import OwnedPod
from nodewise_scorers.load.in_flight_accounting import CountingStateBuilder, InFlight, InFlightAccounting
from nodewise_scorers.scoring_agent import NoStatistics, StatisticsNotReady
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import CONGESTION_FACTOR, CongestionAnnotations, NodeStatus

PRIORITY: Final = "congestion"
"""Its name in kube-scheduler's configuration, as in the older system, which had no predicate."""
_NODES_PER_PART: Final = 512  # nodes that are read between two yields: half a millisecond
_MAX_TEXT_LENGTH: Final = 40  # characters of an invalid text that are shown
_TEXT_BYTES: Final = 200  # memory of a text that is kept, with its place in the mapping

Factors = NDArray[np.float64]
"""Whole numbers; NaN where there is none."""


PodFields = OwnedPod
"""Read only to count pods in flight."""


class NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: CongestionAnnotations | None = None


class NodeFields(msgspec.Struct, frozen=True, gc=False):
    metadata: NodeMetadata = NodeMetadata()
    status: NodeStatus = NodeStatus()


class CongestionState(NamedTuple):
    """All nodes by number; the unknown node has no factor."""

    points: NDArray[np.int64]
    factors: Factors
    invalid_texts: Mapping[int, str]
    """By node number: the beginning of an annotation that is not a whole number."""
    in_flight: InFlight | None = None
    """None if pods in flight are not counted."""


class CongestionStateBuilder(CountingStateBuilder[CongestionState]):
    """Reads every node at every change of one: 5,000 annotations take some milliseconds."""

    def __init__(self, options: CongestionOptions) -> None:
        super().__init__(InFlightAccounting() if options.in_flight else None)
        self.inputs = Inputs(self.counted_objects, node_objects=True, metrics=False)
        self._max = options.congestion_factor_max
        self._missing = options.score_without_statistics(MAX_SCORE)

    def build(self, cluster_state: ClusterState) -> Generator[None, None, CongestionState]:
        factors, times = np.full((2, len(cluster_state.nodes) + 1), np.nan)
        invalid_texts: dict[int, str] = {}
        nodes = iter(cluster_state.node_objects.items())
        while part := list(islice(nodes, _NODES_PER_PART)):
            numbers = cluster_state.nodes.numbers([name for (_, name), _ in part])
            texts = [annotation(node) for _, node in part]
            factors[numbers] = load_annotations.integers(texts)
            if self._accounting is not None:
                times[numbers] = [_annotated_at(node) for _, node in part]
            for at in np.flatnonzero(np.isnan(factors[numbers])).tolist():
                if text := texts[at]:
                    # one character more than is shown tells that there are more
                    invalid_texts[int(numbers[at])] = text[: _MAX_TEXT_LENGTH + 1]
            yield
        factors[-1] = np.nan  # a node that is not in the index has the number of the unknown node
        # a negative factor counts as 0
        share = np.clip(np.nan_to_num(factors), 0, self._max) / self._max
        points = np.trunc(MAX_SCORE * (1 - share) + 0.5).astype(np.int64)
        state = CongestionState(np.where(np.isnan(factors), self._missing, points), factors, invalid_texts)
        if self._accounting is None:
            return state
        in_flight = yield from self._accounting.count(cluster_state, times, in_flight_accounting.AT_ONCE_S)
        return state._replace(in_flight=in_flight)


create_state_builder = CongestionStateBuilder


def _annotated_at(node: Any) -> float:
    annotations: CongestionAnnotations | None = node.metadata.annotations
    return load_annotations.time(annotations.annotated_at) if annotations else np.nan


def annotation(node: Any) -> str | None:
    annotations: CongestionAnnotations | None = node.metadata.annotations
    return annotations.congestion_factor if annotations else None


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
        numbers = candidates.numbers
        points = in_flight_accounting.lower_scores(state.points[numbers], state.in_flight, numbers)
        return Scores(points, details=self._build_details(state, candidates))

    def _build_details(self, state: CongestionState, candidates: Names) -> "CongestionDetails":
        numbers = candidates.numbers
        return CongestionDetails(numbers, state.factors[numbers], state.invalid_texts, self._max)


create_agent = CongestionAgent


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
        numbers = self.numbers(candidate)
        missing: str | None = numbers.get("missing")
        return missing or f"{CONGESTION_FACTOR} {numbers['factor']} of {self.max_factor}"

    def distances(self) -> NDArray[np.float64]:
        """1 for a node without a factor."""
        return np.isnan(self.factors).astype(np.float64)

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """`factor`, and `max`, at which the score is 0. Without a factor it is null, and `missing` says why."""
        factor = self.factors[candidate]
        if not np.isnan(factor):
            return {"factor": int(factor), "max": self.max_factor}
        text = self.invalid_texts.get(int(self.candidates[candidate]))
        return {"factor": None, "max": self.max_factor, "missing": invalid_factor_reason(text)}


def invalid_factor_reason(text: str | None) -> str:
    """Why an annotation holds no factor."""
    if not text:
        return f"no {CONGESTION_FACTOR}"
    shown = text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]}…"
    problem = "more than 64 bits hold" if re.fullmatch("[+-]?[0-9]+", text) else "not a whole number"
    return f"{CONGESTION_FACTOR} {msgspec.json.encode(shown).decode()} is {problem}"
