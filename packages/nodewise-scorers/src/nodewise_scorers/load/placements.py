"""The placements of the agent load: each gives the candidates of a pod a value, the higher the better."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise_scorers.load import PlacementName, projected_load, published_formulas
from nodewise_scorers.load.bound_load import EstimateFunction
from nodewise_scorers.load.bound_pods import PodAmounts
from nodewise_scorers.load.in_flight import Amount
from nodewise_scorers.load.owner_usage import Owner
from nodewise_scorers.load.projected_load import OTHERS
from nodewise_scorers.load.published_formulas import Commitment
from nodewise_scorers.load.state import CPU, MEMORY, LoadState

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


class ScoredPod(NamedTuple):
    """A pod to place."""

    amounts: PodAmounts
    owner: Owner | None
    """None if no pod of its owner is known."""

    @property
    def raw(self) -> tuple[Amount, Amount]:
        """Requests and limits; 0 for a missing limit, as published formulas have it."""
        cpu, memory = (0.0 if limit == inf else limit for limit in self.amounts.limits)
        return self.amounts.requests, (cpu, memory)


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


class _Usage(NamedTuple):
    """By candidate, in milli-CPU and bytes."""

    used: Floats
    with_in_flight: Floats
    capacity: Floats
    deviation: Floats
    """A share of the capacity."""


def _usage(state: LoadState, nodes: Ints) -> _Usage:
    used = state.used.take(nodes, axis=1)
    places = state.numbers.take(nodes)
    prioritized = state.bound.prioritized.amounts.take(places, axis=1)
    in_flight = state.in_flight.take(nodes, axis=1) + prioritized
    capacity = state.capacity.take(nodes, axis=1)
    return _Usage(used, used + in_flight, np.maximum(capacity, 1e-9), state.deviation.take(nodes, axis=1))


def _target_load_packing(pod: ScoredPod, state: LoadState, nodes: Ints) -> Floats:
    usage, (requests, limits) = _usage(state, nodes), pod.raw
    estimate = published_formulas.trimaran_pod_usage(requests[CPU], limits[CPU])
    with_pod_pct = 100 * (usage.with_in_flight[CPU] + estimate) / usage.capacity[CPU]
    return published_formulas.target_load_packing(with_pod_pct) / 10


def _load_variation_risk_balancing(pod: ScoredPod, state: LoadState, nodes: Ints) -> Floats:
    usage = _usage(state, nodes)
    mean = (usage.used + np.array(pod.amounts.requests)[:, None]) / usage.capacity
    scores = published_formulas.load_variation_risk_balancing(mean, usage.deviation)
    lowest: Floats = scores.min(axis=0) / 10
    return lowest


def _low_risk_over_commitment(pod: ScoredPod, state: LoadState, nodes: Ints) -> Floats:
    usage, (requests, limits) = _usage(state, nodes), pod.raw
    scores = []
    for resource in (CPU, MEMORY):
        requested, limited = (of[resource].take(nodes) for of in (state.requested, state.limits))
        scores.append(
            published_formulas.low_risk_over_commitment(
                Commitment(requested, limited, usage.capacity[resource]),
                (requests[resource], limits[resource]),
                usage.used[resource] / usage.capacity[resource],
                usage.deviation[resource],
            )
        )
    lowest: Floats = np.minimum(*scores) / 10
    return lowest


def _peaks(pod: ScoredPod, state: LoadState, nodes: Ints) -> Floats:
    usage = _usage(state, nodes)
    used_pct = 100 * usage.used[CPU] / usage.capacity[CPU]
    return (
        published_formulas.peaks(used_pct, used_pct + 100 * pod.amounts.requests[CPU] / usage.capacity[CPU])
        / 10
    )


def _koordinator(pod: ScoredPod, state: LoadState, nodes: Ints) -> Floats:
    usage, (requests, limits) = _usage(state, nodes), pod.raw
    estimate = published_formulas.koordinator_pod_usage(requests[CPU], limits[CPU])
    pod_usage = np.array([estimate, pod.amounts.counted[MEMORY]])
    scores = published_formulas.koordinator_load_aware(
        usage.with_in_flight + pod_usage[:, None], usage.capacity
    )
    mean: Floats = np.floor(scores.mean(axis=0)) / 10
    return mean


def _volcano(_pod: ScoredPod, state: LoadState, nodes: Ints) -> Floats:
    usage = _usage(state, nodes)
    cpu_pct, memory_pct = 100 * usage.used / usage.capacity
    return published_formulas.volcano_usage(cpu_pct, memory_pct, weight=1) / 10


def _trimaran_estimate(_owner: Owner, amounts: PodAmounts, _age_s: float) -> Amount:
    requests, limits = ScoredPod(amounts, None).raw
    return published_formulas.trimaran_pod_usage(requests[CPU], limits[CPU]), 0.0


def _koordinator_estimate(_owner: Owner, amounts: PodAmounts, _age_s: float) -> Amount:
    requests, limits = ScoredPod(amounts, None).raw
    return published_formulas.koordinator_pod_usage(requests[CPU], limits[CPU]), amounts.counted[MEMORY]


def _no_estimate(_owner: Owner, _amounts: PodAmounts, _age_s: float) -> Amount:
    return 0.0, 0.0


PLACEMENTS: Final[Mapping[PlacementName, AgentPlacement]] = {
    "projected": AgentPlacement(_projected, None),
    "target-load-packing": AgentPlacement(_target_load_packing, _trimaran_estimate),
    "load-variation-risk-balancing": AgentPlacement(_load_variation_risk_balancing, _no_estimate),
    "low-risk-over-commitment": AgentPlacement(_low_risk_over_commitment, _no_estimate),
    "peaks": AgentPlacement(_peaks, _no_estimate),
    "koordinator": AgentPlacement(_koordinator, _koordinator_estimate),
    "volcano": AgentPlacement(_volcano, _no_estimate),
}


def points(scores: Floats) -> NDArray[np.int64]:
    """Whole scores; 0 for NaN."""
    whole: NDArray[np.int64] = np.clip(np.rint(np.nan_to_num(scores)), 0, MAX_SCORE).astype(np.int64)
    return whole
