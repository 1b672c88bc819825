"""Answers requests of the safe agent, by the probability that a node is overloaded with the pod and by its load."""

from typing import ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import (
    MAX_SCORE,
    FilterPlugin,
    Names,
    Reason,
    ScorePlugin,
    Scores,
    Snapshot,
    Verdict,
    Victims,
)
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import PodRequest, RequestingPod
from nodewise_scorers.safe import state as shares
from nodewise_scorers.safe.options import SafeOptions
from nodewise_scorers.safe.risk_scores import RiskDetails, RiskScorer
from nodewise_scorers.safe.state import SafeState, Shares
from nodewise_scorers.statistics.missing_statistics import NoStatistics, StatisticsNotReady
from nodewise_scorers.statistics.node_usage_reader import RESOURCES

OWN_MISSING: Final = 0
"""The score of a node without statistics, as in the older system."""
_NO_REQUEST: Final = PodRequest()
_UNKNOWN_POINTS: Final = -1


class PodMetadata(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class PodFields(RequestingPod, frozen=True, gc=False):
    """The fields of a pod that are read."""

    metadata: PodMetadata = PodMetadata()


class TooRisky(msgspec.Struct, frozen=True):
    """The risk that too much of the resource is used with the pod is too high."""

    resource: str
    percentile: int
    utilization: int
    is_failure: ClassVar[bool] = False
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return f"safe: risk of {self.resource} above {self.percentile} %"

    def remedy(self) -> str:
        return (
            f"the risk is that more than {self.utilization} % of the node's {self.resource} are used; it falls when "
            "the node's load falls or varies less, or with a pod that requests less"
        )


class SafeAgent(FilterPlugin[PodFields, SafeState], ScorePlugin[PodFields, SafeState]):
    """The agent `safe`: predicate `safe-overload`, priorities `safe-overload` and `safe-balance`."""

    name = "safe"

    def __init__(self, options: SafeOptions) -> None:
        """`BadSettings` if scipy is not installed."""
        self._options = options
        self._scorer = RiskScorer(options.safe_utilization / 100, options.safe_percentile / 100)
        self._points_missing = options.score_without_statistics(OWN_MISSING)
        risks = (
            TooRisky(resource, options.safe_percentile, options.safe_utilization) for resource in RESOURCES
        )
        self._reasons: tuple[Reason, ...] = (*risks, NoStatistics(self.name))
        self.predicates = {"safe-overload": self.filter}
        self.priorities = {"safe-overload": self.score, "safe-balance": self.balance}

    def equivalence_key(self, pod: PodFields, snapshot: Snapshot) -> PodRequest:  # noqa: ARG002
        """What the pod requests; no other field matters."""
        return pod_requests.cpu_and_memory(pod.spec)

    def filter(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        """Rejects nodes where the risk of overload is above the percentile."""
        base = self.state(snapshot)
        if base is None:
            return _reject_not_ready(candidates)
        return self._risk_verdict(
            shares.usage_shares_with_pod(base, candidates.numbers, pod_requests.cpu_and_memory(pod.spec))
        )

    def preempt(
        self, pod: PodFields, candidates: Names, snapshot: Snapshot, victims: Victims
    ) -> Verdict | None:
        """As `filter`, because it is unknown which part of the measured load is a victim's.

        If the pod itself is a victim, its load is already measured and is not added again.
        """
        base = self.state(snapshot)
        if base is None:
            return _reject_not_ready(candidates)
        with_pod = shares.usage_shares_with_pod(
            base, candidates.numbers, pod_requests.cpu_and_memory(pod.spec)
        )
        is_running_there = [pod.metadata.uid in victims.get(name, ()) for name in candidates.tolist()]
        if any(is_running_there):
            measured = shares.usage_shares_with_pod(base, candidates.numbers, _NO_REQUEST)
            with_pod = with_pod._replace(mean=np.where(is_running_there, measured.mean, with_pod.mean))
        return self._risk_verdict(with_pod)

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """`safe-overload`: the lower the risk the higher the score."""
        base = self.state(snapshot)
        if base is None:
            return None
        with_pod = shares.usage_shares_with_pod(
            base, candidates.numbers, pod_requests.cpu_and_memory(pod.spec)
        )
        return self._lowest_resource_scores(self._scorer.scores(with_pod.mean, with_pod.deviation), with_pod)

    def balance(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """`safe-balance`: the lower the load, mean and variation together, the higher the score."""
        base = self.state(snapshot)
        if base is None:
            return None
        with_pod = shares.usage_shares_with_pod(
            base, candidates.numbers, pod_requests.cpu_and_memory(pod.spec)
        )
        return self._lowest_resource_scores(_balance_scores_by_resource(with_pod), with_pod)

    def _risk_verdict(self, with_pod: Shares) -> Verdict:
        cpu, memory = self._scorer.rejects(with_pod.mean, with_pod.deviation)
        codes = np.where(cpu, np.int16(1), np.where(memory, np.int16(2), np.int16(0)))
        if self._options.rejects_missing:
            codes[np.isnan(with_pod.mean).all(axis=0)] = 3
        return Verdict(codes, self._reasons, details=self._build_details(with_pod))

    def _lowest_resource_scores(self, points: NDArray[np.int64], with_pod: Shares) -> Scores:
        """A node's score is the lowest of its resources' points."""
        known = np.where(points == _UNKNOWN_POINTS, MAX_SCORE + 1, points).min(axis=0)
        scores = np.where(known > MAX_SCORE, self._points_missing, known)
        return Scores(scores, details=self._build_details(with_pod))

    def _build_details(self, with_pod: Shares) -> RiskDetails:
        scorer = self._scorer
        return RiskDetails(
            with_pod, scorer.threshold, scorer.percentile, prints_table=self._options.safe_print_table
        )


def _balance_scores_by_resource(with_pod: Shares) -> NDArray[np.int64]:
    """By resource and candidate: 10 for an unused node, 0 for a full one; `_UNKNOWN_POINTS` for NaN.

    The load is half of the mean and the root of the deviation together. Halves are rounded up.
    """
    load = (with_pod.mean + np.sqrt(with_pod.deviation)) / 2
    scores = np.floor(MAX_SCORE * (1 - load) + 0.5)
    return np.nan_to_num(scores, nan=_UNKNOWN_POINTS).astype(np.int64)


def _reject_not_ready(candidates: Names) -> Verdict:
    reason = StatisticsNotReady("safe", "the load of nodes is not known yet")
    return Verdict(np.ones(len(candidates), np.int16), (reason,))
