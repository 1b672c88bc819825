"""Answers requests of the agent load: scores by the chosen placement. It rejects no node."""

from collections.abc import Callable, Generator, Mapping
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE, Names, ScorePlugin, Scores, Snapshot, StateExporter
from nodewise_scorers.load import LoadAgentOptions, PlacementName, bound_pods, projected_load
from nodewise_scorers.load.bound_load import EstimateFunction
from nodewise_scorers.load.bound_pods import RESOURCES, OwnedPod, PodAmounts
from nodewise_scorers.load.node_forecasts import METHODS
from nodewise_scorers.load.owner_usage import Owner
from nodewise_scorers.load.projected_load import OTHERS
from nodewise_scorers.load.published_formulas import (
    FORMULAS,
    MAX_NODE_SCORE,
    CandidateUsage,
    PublishedFormula,
)
from nodewise_scorers.load.state import CPU, MEMORY, LoadState, LoadStateBuilder, NodeFields

__all__ = ["LoadAgent", "NodeFields", "PodFields", "create_agent", "create_state_builder"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
PodFields = OwnedPod
PRIORITY: Final = "load"
_NODES_PER_PART: Final = 64
"""Nodes that are exported between two yields."""


class ScoredPod(NamedTuple):
    """A pod to place."""

    amounts: PodAmounts
    owner: Owner | None
    """None if no pod of its owner is known."""


ValueFunction = Callable[[ScoredPod, LoadState, Ints], Floats]
"""Scores from 0 to `MAX_SCORE` of the nodes with these numbers in the index, not rounded."""


class AgentPlacement(NamedTuple):
    scores: ValueFunction
    estimate: EstimateFunction | None
    """The usage of pods in flight; None for that of their owners."""


def _projected(pod: ScoredPod, state: LoadState, nodes: Ints) -> Floats:
    """By how much the pod raises the cost of each node: the projected load of CPU, and the predicted memory.

    A node whose memory is unknown counts as the one where the pod adds most.
    """
    places = state.numbers.take(nodes)
    memory = state.bound.prioritized.amounts[MEMORY].take(places)
    number = OTHERS if pod.owner is None else pod.owner.number
    request = pod.amounts.counted[CPU] / 1000
    costs = state.projected.costs(places, number, request)
    capacity = state.capacity[MEMORY].take(nodes)
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = state.bound.owners.estimate(pod.owner, pod.amounts, inf)[MEMORY] / capacity
        before = state.predicted[MEMORY].take(nodes) + memory / capacity
        more = projected_load.load_cost(before + estimate) - projected_load.load_cost(before)
    # an equal share of CPU and of memory counts the same
    more *= state.capacity[CPU].take(nodes) / 1000
    is_known = ~np.isnan(more)
    if is_known.any():
        costs += np.where(is_known, more, more[is_known].max())
    scores: Floats = projected_load.points(costs).astype(np.float64)
    return scores


def _published(formula: PublishedFormula) -> AgentPlacement:
    def scores(pod: ScoredPod, state: LoadState, nodes: Ints) -> Floats:
        places = state.numbers.take(nodes)
        used, in_flight, deviation, requested, limits, capacity = (
            values.take(nodes, axis=1)
            for values in (
                state.used, state.in_flight, state.deviation, state.requested, state.limits, state.capacity
            )
        )  # fmt: skip
        in_flight += state.bound.prioritized.amounts.take(places, axis=1)
        usage = CandidateUsage(used, in_flight, deviation, requested, limits, np.maximum(capacity, 1e-9))
        return formula.scores(usage, pod.amounts) * (MAX_SCORE / MAX_NODE_SCORE)

    return AgentPlacement(scores, lambda _owner, amounts, _age_s: formula.estimate(amounts))


PLACEMENTS: Final[Mapping[PlacementName, AgentPlacement]] = {
    "projected": AgentPlacement(_projected, None),
    **{name: _published(formula) for name, formula in FORMULAS.items()},
}


class LoadAgent(ScorePlugin[PodFields, LoadState], StateExporter[PodFields, LoadState]):
    name = "load"

    def __init__(self, options: LoadAgentOptions) -> None:
        self._scores = PLACEMENTS[options.load_placement].scores
        self._missing = options.score_missing or 0
        self.priorities = {PRIORITY: self.score}

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """Scores by the placement; nodes without statistics of CPU get the score of the options."""
        state = self.state(snapshot)
        if state is None or not len(candidates):
            return None
        numbers = candidates.numbers
        owner = state.bound.owners.find(bound_pods.owner_key(pod))
        scored = ScoredPod(bound_pods.pod_amounts(pod.spec), owner)
        # also where the capacity is unknown
        is_missing = np.isnan(state.predicted[CPU].take(numbers))
        details = LoadDetails(state.shares, state.methods, numbers)
        if not is_missing.any():
            return Scores(_round_scores(self._scores(scored, state, numbers)), details=details)
        points = np.full(len(numbers), self._missing)
        known = np.flatnonzero(~is_missing)
        if len(known):
            points[known] = _round_scores(self._scores(scored, state, numbers[known]))
        return Scores(points, details=details)

    def export(self, state: LoadState, query: Mapping[str, str]) -> Generator[None, None, bytes]:
        """`{"nodes": {node: …}}` in parts, as in the details; `?node=NAME` for one node."""
        names = state.nodes.known
        selected = query.get("node")
        rows = ((number, name) for number, name in enumerate(names) if selected in (None, name))
        details = LoadDetails(state.shares, state.methods, np.arange(len(names)))
        parts = []
        while part := list(islice(rows, _NODES_PER_PART)):
            parts += [
                msgspec.json.encode(name) + b": " + msgspec.json.encode(details.numbers(number))
                for number, name in part
            ]
            yield
        return b'{"nodes": {' + b",\n".join(parts) + b"}}\n"


class LoadDetails(NamedTuple):
    """What is known of each candidate (`agent.Details`)."""

    shares: NDArray[np.float32]
    """`LoadState.shares`."""
    methods: NDArray[np.int8]
    """`LoadState.methods`."""
    candidates: NDArray[np.intp]
    """By candidate: the node's number."""

    @property
    def nbytes(self) -> int:
        """The shares are those of all decisions with the same state."""
        return self.candidates.nbytes + self.shares.nbytes + self.methods.nbytes

    def text(self, candidate: int) -> str:
        """`cpu 62 % expected, of it 10 % in flight; memory 40 % expected`."""
        texts = []
        for resource, numbers in self.numbers(candidate).items():
            if numbers["predicted_share"] is None:
                texts.append(f"{resource}: no statistics")
                continue
            in_flight = (
                f", of it {numbers['in_flight_share']:.1%} in flight" if numbers["in_flight_share"] else ""
            )
            texts.append(f"{resource} {numbers['predicted_share']:.0%} expected{in_flight}")
        return "; ".join(texts).replace("%", " %")

    def distances(self) -> NDArray[np.float64]:
        """0: no candidate is rejected."""
        return np.zeros(len(self.candidates))

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """By resource: `predicted_share`, the expected peak with pods in flight; `used_share`; `in_flight_share`.

        For CPU also the `forecast` method. Null without statistics.
        """
        node = self.candidates[candidate]
        result: dict[str, Any] = {}
        for number, resource in enumerate(RESOURCES):
            shares = zip(
                ("predicted_share", "used_share", "in_flight_share"),
                self.shares[:, number, node],
                strict=True,
            )
            result[resource] = {
                name: None if np.isnan(share) else round(float(share), 6) for name, share in shares
            }
        if result["cpu"]["predicted_share"] is not None:
            result["cpu"]["forecast"] = METHODS[self.methods[node]]
        return result


def _round_scores(scores: Floats) -> NDArray[np.int64]:
    """Whole scores; 0 for NaN."""
    whole: NDArray[np.int64] = np.clip(np.rint(np.nan_to_num(scores)), 0, MAX_SCORE).astype(np.int64)
    return whole


def create_state_builder(options: LoadAgentOptions) -> LoadStateBuilder:
    return LoadStateBuilder(PLACEMENTS[options.load_placement].estimate)


create_agent = LoadAgent
