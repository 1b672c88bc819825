"""The statistics of the pods that were scored, and the pods that they include.

They are stored as JSON, so that a restart or another replica continues with them. A pod counts once, however often it
is retried and by whichever replica, because the stored form lists its pods. So no pod is counted twice, and the pods
of several replicas add up.
"""

import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Annotated, Final

import msgspec
import numpy as np

from nodewise.base.errors import UNREADABLE, BadInput, Problem
from nodewise.base.quantity import MAX_AMOUNT
from nodewise_scorers.pigeon import pod_request_statistics
from nodewise_scorers.pigeon.pod_request_statistics import DemandStatistics
from nodewise_scorers.pigeon.resource_units import NAMES, Row

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
    samples: Annotated[int, msgspec.Meta(ge=0, le=pod_request_statistics.WINDOW)]
    mean: _Mean
    covariance: Annotated[list[_Products], _SIZE]
    pods: Annotated[list[_Mark], msgspec.Meta(max_length=MAX_PODS)]
    """The counted pods, oldest first, as hashes of their uids."""


class _CountedPods:
    """The counted pods and their statistics."""

    def __init__(
        self, statistics: DemandStatistics = pod_request_statistics.NO_DEMAND, pods: Iterable[str] = ()
    ) -> None:
        self.statistics = statistics
        self.pods = OrderedDict[str, None].fromkeys(pods)

    def add(self, news: Sequence[tuple[str, Row]]) -> None:
        self.statistics = pod_request_statistics.add_pods(
            self.statistics, [pod_demand for _, pod_demand in news]
        )
        self.pods.update((mark, None) for mark, _ in news)
        while len(self.pods) > MAX_PODS:
            self.pods.popitem(last=False)

    def encode_counted_pods(self) -> bytes:
        samples, mean, covariance = self.statistics
        pods = list(self.pods)
        return _encode(
            _StoredDemand(samples=samples, mean=mean.tolist(), covariance=covariance.tolist(), pods=pods)
        )


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
        has_counted = uid and _hash_pod_uid(uid) in self._counted.pods
        return self.statistics if has_counted else pod_request_statistics.add_pod(self.statistics, pod_demand)

    def count(self, uid: str, pod_demand: Row) -> None:
        """Count a pod unless it is counted already."""
        mark = _hash_pod_uid(uid) if uid else self._unique_id_without_uid()
        if mark in self._counted.pods:
            self._counted.pods.move_to_end(mark)
            return
        self._counted.add([(mark, pod_demand)])
        self._unstored.append((mark, pod_demand))

    def _unique_id_without_uid(self) -> str:
        """A mark of no other pod."""
        while f"#{self._unnamed}" in self._counted.pods:
            self._unnamed += 1
        return f"#{self._unnamed}"

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
                return counted.encode_counted_pods() if news else None
        return self._counted.encode_counted_pods() if self._counted.pods else None

    def _merge_stored_pods(self, kept: bytes) -> tuple[_CountedPods, list[tuple[str, Row]]]:
        """The stored pods with the new ones, and the new ones."""
        counted = _decode_stored_statistics(kept)
        news = [(mark, pod_demand) for mark, pod_demand in self._unstored if mark not in counted.pods]
        counted.add(news)
        return counted, news


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_StoredDemand).decode


def _decode_stored_statistics(kept: bytes) -> _CountedPods:
    if len(kept) > MAX_BYTES:
        raise _unreadable_statistics_error(f"{len(kept)} bytes", f"at most {MAX_BYTES}")
    try:
        stored = _decode(kept)
    except UNREADABLE as error:
        raise _unreadable_statistics_error(str(error), "JSON in the form that the agent stores") from error
    statistics = DemandStatistics(stored.samples, np.array(stored.mean), np.array(stored.covariance))
    return _CountedPods(statistics, stored.pods)


def _unreadable_statistics_error(value: str, expected: str) -> BadInput:
    return BadInput("stored statistics of the agent pigeon", [Problem("pigeon.json", value, expected)])


def _hash_pod_uid(uid: str) -> str:
    return blake2b(uid.encode("utf-8", "replace"), digest_size=_MARK_BYTES).hexdigest()
