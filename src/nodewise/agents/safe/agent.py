"""Answers requests: how probable it is that a node is overloaded with the pod on it, and how loaded it would be."""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import (
    FilterPlugin,
    Names,
    Reason,
    ScorePlugin,
    Scores,
    Snapshot,
    Verdict,
    Victims,
)
from nodewise.agents.safe import balance, reasons, shares
from nodewise.agents.safe.details import RiskDetails
from nodewise.agents.safe.options import SafeOptions
from nodewise.agents.safe.shares import Base, Shares
from nodewise.agents.safe.tail import Tail
from nodewise.statistics import requests
from nodewise.statistics.load import RESOURCES
from nodewise.statistics.missing import NoStatistics, NotReady
from nodewise.statistics.requests import Request, RequestingPod

OWN_MISSING: Final = 0
"""The score of a node without statistics, as in the older system."""
_NOTHING: Final = Request()


class PodMetadata(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class PodFields(RequestingPod, frozen=True, gc=False):
    """What the agent reads of a pod."""

    metadata: PodMetadata = PodMetadata()


class SafeAgent(FilterPlugin[PodFields, Base], ScorePlugin[PodFields, Base]):
    """The agent `safe`: predicate `safe-overload`, priorities `safe-overload` and `safe-balance`."""

    name = "safe"

    def __init__(self, options: SafeOptions) -> None:
        """`BadSettings` if what it computes with is not installed."""
        self._options = options
        self._tail = Tail(options.safe_utilization / 100, options.safe_percentile / 100)
        self._points_missing = options.points_missing(OWN_MISSING)
        risky = (
            reasons.TooRisky(resource, options.safe_percentile, options.safe_utilization)
            for resource in RESOURCES
        )
        self._reasons: tuple[Reason, ...] = (*risky, NoStatistics(self.name))
        self.predicates = {"safe-overload": self.filter}
        self.priorities = {
            "safe-overload": self.score,
            "safe-balance": self.balance,
        }

    def equivalence_key(self, pod: PodFields) -> Request:
        """What the pod asks for; nothing else of it counts."""
        return requests.effective(pod)

    def filter(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        """Rejects where the risk of overload is above the percentile."""
        before = self.state(snapshot)
        if before is None:
            return _unready(candidates)
        return self._judged(shares.with_pod(before, candidates.numbers, self.equivalence_key(pod)))

    def preempt(
        self, pod: PodFields, candidates: Names, snapshot: Snapshot, victims: Victims
    ) -> Verdict | None:
        """As `filter`: nobody knows what of the measured load goes with a victim.

        But where the pod itself is the victim its load is measured already, and is not added once more.
        """
        before = self.state(snapshot)
        if before is None:
            return _unready(candidates)
        with_pod = shares.with_pod(before, candidates.numbers, self.equivalence_key(pod))
        there = [pod.metadata.uid in victims.get(name, ()) for name in candidates.tolist()]
        if any(there):
            alone = shares.with_pod(before, candidates.numbers, _NOTHING)
            with_pod = with_pod._replace(mean=np.where(there, alone.mean, with_pod.mean))
        return self._judged(with_pod)

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """`safe-overload`: the less risk the better."""
        before = self.state(snapshot)
        if before is None:
            return None
        found = shares.with_pod(before, candidates.numbers, self.equivalence_key(pod))
        return self._scores(self._tail.scores(found.mean, found.deviation), found)

    def balance(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """`safe-balance`: the less load the better, the mean and how much it varies taken together."""
        before = self.state(snapshot)
        if before is None:
            return None
        found = shares.with_pod(before, candidates.numbers, self.equivalence_key(pod))
        return self._scores(balance.points(found), found)

    def _judged(self, found: Shares) -> Verdict:
        cpu, memory = self._tail.rejects(found.mean, found.deviation)
        codes = np.where(cpu, np.int16(1), np.where(memory, np.int16(2), np.int16(0)))
        if self._options.rejects_missing:
            codes[np.isnan(found.mean).all(axis=0)] = 3
        return Verdict(codes, self._reasons, details=self._details(found))

    def _scores(self, points: NDArray[np.int64], found: Shares) -> Scores:
        return Scores(balance.least(points, self._points_missing), details=self._details(found))

    def _details(self, found: Shares) -> RiskDetails:
        tail = self._tail
        return RiskDetails(
            found, tail.threshold, tail.percentile, prints_table=self._options.safe_print_table
        )


def _unready(candidates: Names) -> Verdict:
    return Verdict(
        np.ones(len(candidates), np.int16), (NotReady("safe", "the load of nodes is not known yet"),)
    )
