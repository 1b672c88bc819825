"""The scores of published load-aware schedulers, for all candidates of a pod at once.

Sources: sigs.k8s.io/scheduler-plugins v0.34.7 pkg/trimaran, github.com/koordinator-sh/koordinator v1.8.0
pkg/scheduler/plugins/loadaware, volcano.sh/volcano v1.15.1 pkg/scheduler/plugins/usage. Parameters have the published
defaults, and results are those of the Score functions, rounded as there: from 0 to 100, the usage plugin up to 500.
Usage is in per cent or a share of the node, as in the source; amounts of CPU are milli-cores.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise_scorers.safe.risk_scores import cdf

Floats = NDArray[np.float64]

MAX_NODE_SCORE: Final = 100
"""The highest score of a plugin of kube-scheduler; `nodewise.agent.MAX_SCORE` is that of an extender."""
_FULL_PCT: Final = 100
_SMOOTHING_WINDOW: Final = 5
"""smoothingWindowSize of LowRiskOverCommitment."""
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


def koordinator_pod_usage(request_milli: float, limit_milli: float, factor_pct: int = 85) -> float:
    """LoadAware's estimate of a pod's CPU (defaultEstimator): 85 % of the larger of request and limit, else 250m."""
    amount = max(request_milli, limit_milli)
    if not amount:
        return 250.0
    usage = float(np.floor(amount * factor_pct / 100 + 0.5))
    return min(usage, limit_milli) if limit_milli else usage


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


def volcano_usage(cpu_pct: Floats, memory_pct: Floats, weight: int = 5) -> Floats:
    """The usage plugin's score (nodeOrderFn): the mean of the unused shares of CPU and memory, times the weight."""
    return ((100 - cpu_pct) / 100 + (100 - memory_pct) / 100) / 2 * MAX_NODE_SCORE * weight
