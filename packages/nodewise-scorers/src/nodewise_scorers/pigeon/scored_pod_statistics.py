"""The distribution of the requests of scored pods: mean and covariance, and the pods that they include.

The first hundred pods have equal weights. After that, each new pod has a weight of one hundredth.

The statistics are stored as JSON, so that a restart or another replica continues with them. A pod counts once, however
often it is retried and by whichever replica, because the stored form lists its pods. So the pods of several replicas
add up.
"""

import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.base.errors import UNREADABLE, BadInput, Problem
from nodewise.base.quantity import MAX_AMOUNT
from nodewise_scorers.pigeon.options import NAMES
from nodewise_scorers.pigeon.placement_objectives import Floats, variability

WINDOW: Final = 100
Row = Floats
"""By resource, in the agent's units."""


class DemandStatistics(NamedTuple):
    """Mean and covariance of pod requests, of all five resources regardless of `num_resources`."""

    samples: int
    """At most `WINDOW`."""
    mean: Floats
    """(R)"""
    covariance: Floats
    """(R, R)"""


NO_DEMAND: Final = DemandStatistics(0, np.zeros(len(NAMES)), np.zeros((len(NAMES), len(NAMES))))


def add_pod(before: DemandStatistics, demand: Row) -> DemandStatistics:
    """The statistics with one more pod.

    The covariance is updated directly instead of subtracting squared means from second moments, so that it is exactly 0
    for equal pods.
    """
    samples = min(before.samples + 1, WINDOW)
    weight = 1 / samples
    away = demand - before.mean
    covariance = (1 - weight) * (before.covariance + weight * np.outer(away, away))
    return DemandStatistics(samples, before.mean + weight * away, covariance)


def add_pods(before: DemandStatistics, demands: Sequence[Row]) -> DemandStatistics:
    """The statistics with these pods, as if added one after another; a thousand take about 0.1 ms.

    The weight of each pod is its share when it was added, reduced by the shares of all later pods.
    """
    if before.samples == 0 and demands:
        return add_pods(add_pod(before, demands[0]), demands[1:])
    if not demands:
        return before
    samples = np.minimum(before.samples + 1 + np.arange(len(demands)), WINDOW)
    left = np.cumprod((1 - 1 / samples)[::-1])[::-1]
    weights = np.append(left[1:], 1.0) / samples
    away = np.array(demands) - before.mean
    shift = weights @ away
    spread = away - shift
    covariance = left[0] * (before.covariance + np.outer(shift, shift)) + (weights * spread.T) @ spread
    return DemandStatistics(int(samples[-1]), before.mean + shift, covariance)


def demand_variability(statistics: DemandStatistics, scale: Row) -> float:
    """The variability of pod requests in units of `scale`; a resource whose scale is 0 does not count.

    If `scale` has fewer resources, only these count.
    """
    per_unit = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    resources = len(scale)
    mean = statistics.mean[:resources] * per_unit
    direction = mean * per_unit
    variance = np.maximum(direction @ statistics.covariance[:resources, :resources] @ direction, 0.0)
    return float(variability(mean[:, None], np.array([variance]))[0])


MAX_PODS: Final = 4096
"""The newest counted pods that are remembered; a pod that is retried after so many others counts again."""
MAX_UNSTORED_PODS: Final = 1024
"""Pods that are not stored yet. Earlier pods have next to no weight in the statistics."""
MAX_BYTES: Final = 2**19
_MARK_BYTES: Final = 8

_SIZE: Final = msgspec.Meta(min_length=len(NAMES), max_length=len(NAMES))
_LARGEST: Final = float(MAX_AMOUNT)
_Mean = Annotated[list[Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)]], _SIZE]
_Products = Annotated[list[Annotated[float, msgspec.Meta(ge=-(_LARGEST**2), le=_LARGEST**2)]], _SIZE]
_Mark = Annotated[str, msgspec.Meta(max_length=2 * _MARK_BYTES)]


class _StoredDemand(msgspec.Struct, kw_only=True):
    samples: Annotated[int, msgspec.Meta(ge=0, le=WINDOW)]
    mean: _Mean
    covariance: Annotated[list[_Products], _SIZE]
    pods: Annotated[list[_Mark], msgspec.Meta(max_length=MAX_PODS)]
    """The counted pods, oldest first, as hashes of their uids."""


class _CountedPods:
    def __init__(self, statistics: DemandStatistics = NO_DEMAND, pods: Iterable[str] = ()) -> None:
        self.statistics = statistics
        self.pods = OrderedDict[str, None].fromkeys(pods)

    def add(self, news: Sequence[tuple[str, Row]]) -> None:
        self.statistics = add_pods(self.statistics, [pod_demand for _, pod_demand in news])
        self.pods.update((mark, None) for mark, _ in news)
        while len(self.pods) > MAX_PODS:
            self.pods.popitem(last=False)

    def encode(self) -> bytes:
        samples, mean, covariance = self.statistics
        stored = _StoredDemand(
            samples=samples, mean=mean.tolist(), covariance=covariance.tolist(), pods=list(self.pods)
        )
        return msgspec.json.encode(stored)

    @staticmethod
    def decode(kept: bytes) -> "_CountedPods":
        value, expected = f"{len(kept)} bytes", f"at most {MAX_BYTES}"
        if len(kept) <= MAX_BYTES:
            try:
                stored = msgspec.json.decode(kept, type=_StoredDemand)
            except UNREADABLE as error:
                value, expected = str(error), "JSON in the form that the agent stores"
            else:
                mean, covariance = np.array(stored.mean), np.array(stored.covariance)
                return _CountedPods(DemandStatistics(stored.samples, mean, covariance), stored.pods)
        raise BadInput("stored statistics of the agent pigeon", [Problem("pigeon.json", value, expected)])


class DemandMemory:
    """The memory of scored pods. It changes after a pod was scored or a stored form was recalled, never during a
    request.
    """

    def __init__(self) -> None:
        self._counted = _CountedPods()
        self._unstored: deque[tuple[str, Row]] = deque(maxlen=MAX_UNSTORED_PODS)
        """Pods that are not known to be stored."""
        self._unnamed = 0

    @property
    def statistics(self) -> DemandStatistics:
        """Of all counted pods."""
        return self._counted.statistics

    def with_pod(self, uid: str, pod_demand: Row) -> DemandStatistics:
        """The statistics including this pod. A pod without a uid is always new."""
        has_counted = uid and _hash_uid(uid) in self._counted.pods
        return self.statistics if has_counted else add_pod(self.statistics, pod_demand)

    def count(self, uid: str, pod_demand: Row) -> None:
        """Count a pod unless it is counted already."""
        while not uid and f"#{self._unnamed}" in self._counted.pods:
            self._unnamed += 1
        mark = _hash_uid(uid) if uid else f"#{self._unnamed}"
        if mark in self._counted.pods:
            self._counted.pods.move_to_end(mark)
            return
        self._counted.add([(mark, pod_demand)])
        self._unstored.append((mark, pod_demand))

    def recall(self, kept: bytes) -> None:
        """Continue from a stored form and the pods that it lacks. `BadInput` lists its problems."""
        self._counted, news = self._merge_stored_pods(kept)
        self._unstored = deque(news, MAX_UNSTORED_PODS)

    def keep(self, kept: bytes | None) -> bytes | None:
        """The form to store; None if nothing changed. A stored form that cannot be read is overwritten.

        The memory changes only with `recall`: only then the form is known to be stored.
        """
        if kept is not None:
            with contextlib.suppress(BadInput):
                counted, news = self._merge_stored_pods(kept)
                return counted.encode() if news else None
        return self._counted.encode() if self._counted.pods else None

    def _merge_stored_pods(self, kept: bytes) -> tuple[_CountedPods, list[tuple[str, Row]]]:
        """The stored pods with the new ones, and the new ones."""
        counted = _CountedPods.decode(kept)
        news = [(mark, pod_demand) for mark, pod_demand in self._unstored if mark not in counted.pods]
        counted.add(news)
        return counted, news


def _hash_uid(uid: str) -> str:
    return blake2b(uid.encode("utf-8", "replace"), digest_size=_MARK_BYTES).hexdigest()
