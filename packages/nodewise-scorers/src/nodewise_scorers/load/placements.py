"""The placements of the agent load: each gives the candidates of a pod a value, the higher the better."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise_scorers.load import PlacementName, projected_load
from nodewise_scorers.load.bound_load import EstimateFunction
from nodewise_scorers.load.bound_pods import PodAmounts
from nodewise_scorers.load.owner_usage import Owner
from nodewise_scorers.load.projected_load import OTHERS
from nodewise_scorers.load.published_formulas import (
    FORMULAS,
    MAX_NODE_SCORE,
    CandidateUsage,
    PublishedFormula,
)
from nodewise_scorers.load.state import CPU, MEMORY, LoadState

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


class ScoredPod(NamedTuple):
    """A pod to place."""

    amounts: PodAmounts
    owner: Owner | None
    """None if no pod of its owner is known."""


ValueFunction = Callable[[ScoredPod, LoadState, Ints], Floats]
"""Scores from 0 to `MAX_SCORE` of the nodes with these numbers in the index, not rounded."""


class AgentPlacement(NamedTuple):
    """A placement."""

    scores: ValueFunction
    estimate: EstimateFunction | None
    """The usage of pods in flight; None for that of their owners."""


def _projected(pod: ScoredPod, state: LoadState, nodes: Ints) -> Floats:
    """By how much the pod raises the cost of each node: the projected load of CPU, and the predicted memory."""
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
    costs += np.nan_to_num(more * state.capacity[CPU].take(nodes) / 1000)
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


def points(scores: Floats) -> NDArray[np.int64]:
    """Whole scores; 0 for NaN."""
    whole: NDArray[np.int64] = np.clip(np.rint(np.nan_to_num(scores)), 0, MAX_SCORE).astype(np.int64)
    return whole
