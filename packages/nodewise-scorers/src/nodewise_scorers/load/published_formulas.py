"""The scores of published load-aware schedulers, for all candidates of a pod at once.

Sources: sigs.k8s.io/scheduler-plugins v0.34.7 pkg/trimaran, github.com/koordinator-sh/koordinator v1.8.0
pkg/scheduler/plugins/loadaware, volcano.sh/volcano v1.15.1 pkg/scheduler/plugins/usage. Parameters have the published
defaults, and results are those of the Score functions, rounded as there: from 0 to 100, the usage plugin up to 500.
Usage is in per cent or a share of the node, as in the source; amounts of CPU are milli-cores.

`FORMULAS` has each of them with the same inputs: the agent, the simulation and the comparison with the real schedulers
use these.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise_scorers.load import FormulaName
from nodewise_scorers.load.bound_pods import PodAmounts
from nodewise_scorers.safe.risk_scores import cdf

Floats = NDArray[np.float64]
CPU, MEMORY = range(2)

MAX_NODE_SCORE: Final = 100
"""The highest score of a plugin of kube-scheduler; `nodewise.agent.MAX_SCORE` is that of an extender."""
_FULL_PCT: Final = 100
_SMOOTHING_WINDOW: Final = 5
"""smoothingWindowSize of LowRiskOverCommitment."""
_KOORDINATOR_FACTORS_PCT: Final = (85, 70)
_KOORDINATOR_LEAST: Final = (250.0, 200.0 * 2**20)
_LIMIT_WEIGHT: Final = 0.5
"""riskLimitWeights of LowRiskOverCommitment, for CPU and for memory."""


def round_half_away(values: Floats) -> Floats:
    """As Go's math.Round: halves away from zero. numpy rounds them to even numbers."""
    rounded: Floats = np.copysign(np.floor(np.abs(values) + 0.5), values)
    return rounded


def trimaran_pod_usage(request_milli: float, limit_milli: float, multiplier: float = 1.5) -> float:
    """TargetLoadPacking's estimate for a container (PredictUtilisation): its limit, else 1.5 requests, else a core.

    0 stands for a missing request or limit.
    """
    if limit_milli:
        return limit_milli
    return float(np.floor(request_milli * multiplier + 0.5)) if request_milli else 1000.0


def koordinator_pod_usage(
    request: float, limit: float, factor_pct: int = 85, least: float = _KOORDINATOR_LEAST[CPU]
) -> float:
    """LoadAware's estimate of one resource of a pod (defaultEstimator): a part of the larger of request and limit.

    `least` is that of a pod with neither. The default is CPU: 85 %, or 250m; for memory it is 70 %, or 200 MiB.
    """
    amount = max(request, limit)
    if not amount:
        return least
    usage = float(np.floor(amount * factor_pct / 100 + 0.5))
    return min(usage, limit) if limit else usage


def target_load_packing(with_pod_pct: Floats, target_pct: float = 40.0) -> Floats:
    """Trimaran's TargetLoadPacking: rises to 100 at the target, falls to 0 at 100 %.

    `with_pod_pct` is the measured usage with the pod and the pods that were bound after the statistics.
    """
    below = round_half_away((MAX_NODE_SCORE - target_pct) * with_pod_pct / target_pct + target_pct)
    above = round_half_away(target_pct * (100 - with_pod_pct) / (100 - target_pct))
    return np.where(with_pod_pct > _FULL_PCT, 0.0, np.where(with_pod_pct > target_pct, above, below))


def load_variation_risk_balancing(
    mean_with_pod: Floats, deviation: Floats, margin: float = 1.0, sensitivity: float = 1.0
) -> Floats:
    """Trimaran's LoadVariationRiskBalancing, from shares: the mean with the pod's request, and the deviation."""
    mean, sigma = np.clip(mean_with_pod, 0, 1), np.clip(deviation, 0, 1)
    if sensitivity >= 0:
        power = 1 / sensitivity if sensitivity else np.inf
        sigma = sigma**power
    sigma = np.clip(sigma * margin, 0, 1)
    return round_half_away((1 - (mean + sigma) / 2) * MAX_NODE_SCORE)


class Commitment(NamedTuple):
    """The requests and limits of a node's pods, by candidate, in the unit of `capacity`.

    A pod without a limit counts with its request. The pod to be placed is not included.
    """

    requested: Floats
    limits: Floats
    capacity: Floats


def low_risk_over_commitment(
    nodes: Commitment, pod: tuple[float, float], mean: Floats, deviation: Floats
) -> Floats:
    """Trimaran's LowRiskOverCommitment, for one resource.

    `pod` are its request and limit, mean and deviation are shares of the capacity.
    """
    return round_half_away((1 - over_commitment_risk(nodes, pod, mean, deviation)) * MAX_NODE_SCORE)


def over_commitment_risk(
    nodes: Commitment, pod: tuple[float, float], mean: Floats, deviation: Floats
) -> Floats:
    """The risk of LowRiskOverCommitment (computeRisk), from 0 to 1: half of it from limits, half from the load.

    The load's part is the probability that more is used than requested, if usage has a beta distribution.
    """
    capacity = nodes.capacity
    requested = np.minimum(nodes.requested + pod[0], capacity)
    limits = nodes.limits + max(pod)
    before = np.minimum(nodes.requested, capacity)
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = (limits - capacity) / (limits - requested)
        risk_of_limits = np.where(limits > capacity, excess, 0.0)
        mean = np.clip(mean, 0, 1)
        most = np.where((mean > 0) & (mean < 1), mean * (1 - mean), 0.0)
        sigma = np.minimum(np.clip(deviation, 0, 1) * _SMOOTHING_WINDOW**0.5, np.sqrt(most * 0.99))
        weight = np.maximum(mean * (1 - mean) / sigma**2 - 1, np.finfo(float).tiny)
        shapes = mean * weight, (1 - mean) * weight
        threshold = np.clip(before / capacity, 0, 1)
        within = np.nan_to_num(cdf(threshold, *shapes))
        # a limit below the capacity bounds the usage: the probability on the condition that usage stays below it
        limited = np.nan_to_num(cdf(np.clip(nodes.limits / capacity, 0, 1), *shapes))
        conditional = np.clip(within / limited, 0, 1)
        steady = (mean == 0) | (sigma == 0)
        within = np.where(steady, np.where((mean == 0) | (mean <= threshold), 1.0, 0.0), within)
        is_limited = (nodes.limits < capacity) & (before <= nodes.limits)
        within = np.where(is_limited & ~steady & (limited > 0), conditional, within)
        within = np.where(is_limited & (nodes.limits == 0), 1.0, within)
    total = _LIMIT_WEIGHT * risk_of_limits + (1 - _LIMIT_WEIGHT) * (1 - within)
    return np.clip(total, 0, 1)


class PowerModel(NamedTuple):
    """Watts of a node by its usage in per cent: k0 + k1 * exp(k2 * usage).

    Peaks has no useful default (all 0, every node scores the same); these are the values of its tests.
    """

    k1: float = -91.50493019588365
    k2: float = -0.07186049052516228


_POWER_MODEL: Final = PowerModel()


def peaks(used_pct: Floats, with_pod_pct: Floats, model: PowerModel = _POWER_MODEL) -> Floats:
    """Trimaran's Peaks with NormalizeScore: 100 for the smallest increase of power, 0 for the largest."""
    jump = model.k1 * (np.exp(model.k2 * with_pod_pct) - np.exp(model.k2 * used_pct))
    cost = np.where(with_pod_pct > _FULL_PCT, 0.0, np.trunc(jump * 1e15))
    least, most = cost.min(), cost.max()
    if least == 0 and most == 0:
        return cost
    scores: Floats = MAX_NODE_SCORE - np.trunc(MAX_NODE_SCORE * (cost - least) / (most - least or 1.0))
    return scores


def koordinator_load_aware(used: Floats, capacity: Floats) -> Floats:
    """LoadAware's score of one resource (leastUsedScore): the unused share in per cent, truncated.

    `used` are the measured usage, and the estimates for the pod and for pods bound after the statistics. The plugin's
    score is the mean over its resources, by default CPU and memory.
    """
    return np.where(used > capacity, 0.0, np.floor((capacity - used) * MAX_NODE_SCORE / capacity))


def volcano_usage(used_pct: Floats, weight: int = 5) -> Floats:
    """The usage plugin's score (nodeOrderFn): the mean of the unused shares of the resources, times the weight."""
    scores: Floats = ((100 - used_pct) / 100).mean(axis=0) * MAX_NODE_SCORE * weight
    return scores


class CandidateUsage(NamedTuple):
    """What formulas know of the candidates: by resource (CPU, and memory if that counts) and candidate.

    In milli-CPU and bytes.
    """

    used: Floats
    in_flight: Floats
    """The formula's estimates of the pods that `used` does not include."""
    deviation: Floats
    """A share of the capacity."""
    requested: Floats
    limits: Floats
    """A pod without a limit counts with its request."""
    capacity: Floats


def _with_pod(nodes: CandidateUsage, estimate: tuple[float, float]) -> Floats:
    """The usage with the pods in flight and the pod."""
    more = np.array(estimate[: len(nodes.used)])[:, None]
    usage: Floats = nodes.used + nodes.in_flight + more
    return usage


def _requested_and_limited(pod: PodAmounts) -> list[tuple[float, float]]:
    """By resource; 0 for a missing limit, as the sources have it."""
    pairs = zip(pod.requests, pod.limits, strict=True)
    return [(request, 0.0 if limit == inf else limit) for request, limit in pairs]


def _no_estimate(_pod: PodAmounts) -> tuple[float, float]:
    return 0.0, 0.0


def _trimaran_estimate(pod: PodAmounts) -> tuple[float, float]:
    return trimaran_pod_usage(*_requested_and_limited(pod)[CPU]), 0.0


def _koordinator_estimate(pod: PodAmounts) -> tuple[float, float]:
    cpu, memory = (
        koordinator_pod_usage(*amounts, factor_pct, least)
        for amounts, factor_pct, least in zip(
            _requested_and_limited(pod), _KOORDINATOR_FACTORS_PCT, _KOORDINATOR_LEAST, strict=True
        )
    )
    return cpu, memory


def _score_target_load_packing(nodes: CandidateUsage, pod: PodAmounts) -> Floats:
    return target_load_packing(100 * _with_pod(nodes, _trimaran_estimate(pod))[CPU] / nodes.capacity[CPU])


def _score_load_variation(nodes: CandidateUsage, pod: PodAmounts) -> Floats:
    requests = np.array(pod.requests[: len(nodes.used)])[:, None]
    scores = load_variation_risk_balancing((nodes.used + requests) / nodes.capacity, nodes.deviation)
    lowest: Floats = scores.min(axis=0)
    return lowest


def _score_over_commitment(nodes: CandidateUsage, pod: PodAmounts) -> Floats:
    by_resource = [
        low_risk_over_commitment(Commitment(requested, limits, capacity), amounts, used / capacity, deviation)
        for used, deviation, requested, limits, capacity, amounts in zip(
            nodes.used,
            nodes.deviation,
            nodes.requested,
            nodes.limits,
            nodes.capacity,
            _requested_and_limited(pod)[: len(nodes.used)],
            strict=True,
        )
    ]
    lowest: Floats = np.min(by_resource, axis=0)
    return lowest


def _score_peaks(nodes: CandidateUsage, pod: PodAmounts) -> Floats:
    used_pct = 100 * nodes.used[CPU] / nodes.capacity[CPU]
    return peaks(used_pct, used_pct + 100 * pod.requests[CPU] / nodes.capacity[CPU])


def _score_koordinator(nodes: CandidateUsage, pod: PodAmounts) -> Floats:
    scores = koordinator_load_aware(_with_pod(nodes, _koordinator_estimate(pod)), nodes.capacity)
    mean: Floats = np.floor(scores.mean(axis=0))
    return mean


def _score_volcano(nodes: CandidateUsage, _pod: PodAmounts) -> Floats:
    return volcano_usage(100 * nodes.used / nodes.capacity, weight=1)


class PublishedFormula(NamedTuple):
    """The scores of the candidates of a pod, from 0 to 100."""

    scores: Callable[[CandidateUsage, PodAmounts], Floats]
    estimate: Callable[[PodAmounts], tuple[float, float]] = _no_estimate
    """The milli-CPU and bytes that a pod in flight counts with; 0 for a formula that does not consider them."""


FORMULAS: Final[Mapping[FormulaName, PublishedFormula]] = {
    "target-load-packing": PublishedFormula(_score_target_load_packing, _trimaran_estimate),
    "load-variation-risk-balancing": PublishedFormula(_score_load_variation),
    "low-risk-over-commitment": PublishedFormula(_score_over_commitment),
    "peaks": PublishedFormula(_score_peaks),
    "koordinator": PublishedFormula(_score_koordinator, _koordinator_estimate),
    "volcano": PublishedFormula(_score_volcano),
}
