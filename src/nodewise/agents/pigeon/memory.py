"""What the agent remembers of the pods that it was asked about: their statistics, and which of them have counted.

It is kept as JSON, so that a restart or another replica goes on with it. A pod counts once, however often it is tried
again, by whichever replica: what is kept says which pods it has. So news are never counted twice, and those of several
replicas add up.
"""

import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Annotated, Final

import msgspec
import numpy as np

from nodewise.agents.pigeon import demand
from nodewise.agents.pigeon.demand import Statistics
from nodewise.agents.pigeon.resources import NAMES, Row
from nodewise.errors import UNREADABLE, BadInput, Problem
from nodewise.statistics.amounts import MAX_AMOUNT

MOST_PODS: Final = 4096
"""Pods that are known to have counted, the newest ones; one that comes again after so many others counts again."""
MOST_NEWS: Final = 1024
"""Pods that are not kept yet. Of what came before so many the statistics hold next to nothing."""
MOST_BYTES: Final = 2**19
_MARK_BYTES: Final = 8

_SIZE: Final = msgspec.Meta(min_length=len(NAMES), max_length=len(NAMES))
_LARGEST: Final = float(MAX_AMOUNT)
_Mean = Annotated[list[Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)]], _SIZE]
_Products = Annotated[list[Annotated[float, msgspec.Meta(ge=-(_LARGEST**2), le=_LARGEST**2)]], _SIZE]
_Mark = Annotated[str, msgspec.Meta(max_length=2 * _MARK_BYTES)]


class _Kept(msgspec.Struct, kw_only=True):
    samples: Annotated[int, msgspec.Meta(ge=0, le=demand.WINDOW)]
    mean: _Mean
    covariance: Annotated[list[_Products], _SIZE]
    pods: Annotated[list[_Mark], msgspec.Meta(max_length=MOST_PODS)]
    """Those that have counted, the oldest first, as hashes of their uids."""


class _Counted:
    """The pods that have counted, and what they come to."""

    def __init__(self, statistics: Statistics = demand.NONE, pods: Iterable[str] = ()) -> None:
        self.statistics = statistics
        self.pods = OrderedDict[str, None].fromkeys(pods)

    def add(self, news: Sequence[tuple[str, Row]]) -> None:
        self.statistics = demand.all_seen(self.statistics, [wanted for _, wanted in news])
        self.pods.update((mark, None) for mark, _ in news)
        while len(self.pods) > MOST_PODS:
            self.pods.popitem(last=False)

    def encoded(self) -> bytes:
        samples, mean, covariance = self.statistics
        pods = list(self.pods)
        return _encode(_Kept(samples=samples, mean=mean.tolist(), covariance=covariance.tolist(), pods=pods))


class Memory:
    """Changes when a pod was asked about, and when something is recalled; never while an answer is made."""

    def __init__(self) -> None:
        self._counted = _Counted()
        self._news: deque[tuple[str, Row]] = deque(maxlen=MOST_NEWS)
        """What is not known to be kept."""
        self._nameless = 0

    @property
    def statistics(self) -> Statistics:
        """Of all pods that have counted."""
        return self._counted.statistics

    def with_pod(self, uid: str, wanted: Row) -> Statistics:
        """The statistics with this pod, counted if it has not been yet. A pod without a uid is always a new one."""
        has_counted = uid and _mark(uid) in self._counted.pods
        return self.statistics if has_counted else demand.seen(self.statistics, wanted)

    def count(self, uid: str, wanted: Row) -> None:
        """Count a pod, unless it has been."""
        mark = _mark(uid) if uid else self._number()
        if mark in self._counted.pods:
            self._counted.pods.move_to_end(mark)
            return
        self._counted.add([(mark, wanted)])
        self._news.append((mark, wanted))

    def _number(self) -> str:
        """A mark that no pod has."""
        while f"#{self._nameless}" in self._counted.pods:
            self._nameless += 1
        return f"#{self._nameless}"

    def recall(self, kept: bytes) -> None:
        """Go on from what was kept, with the news that it does not have. `BadInput` names what is wrong with it."""
        self._counted, news = self._following(kept)
        self._news = deque(news, MOST_NEWS)

    def keep(self, kept: bytes | None) -> bytes | None:
        """What is to be kept; None where all is. What cannot be read is written over.

        Nothing changes until it is recalled: only then it is known to be kept.
        """
        if kept is not None:
            with contextlib.suppress(BadInput):
                counted, news = self._following(kept)
                return counted.encoded() if news else None
        return self._counted.encoded() if self._counted.pods else None

    def _following(self, kept: bytes) -> tuple[_Counted, list[tuple[str, Row]]]:
        """What was kept and the news together, and the news."""
        counted = _decoded(kept)
        news = [(mark, wanted) for mark, wanted in self._news if mark not in counted.pods]
        counted.add(news)
        return counted, news


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Kept).decode


def _decoded(kept: bytes) -> _Counted:
    if len(kept) > MOST_BYTES:
        raise _unreadable(f"{len(kept)} bytes", f"at most {MOST_BYTES}")
    try:
        found = _decode(kept)
    except UNREADABLE as error:
        raise _unreadable(str(error), "JSON as the agent keeps it") from error
    statistics = Statistics(found.samples, np.array(found.mean), np.array(found.covariance))
    return _Counted(statistics, found.pods)


def _unreadable(seen: str, wanted: str) -> BadInput:
    return BadInput("what pigeon remembers", [Problem("pigeon.json", seen, wanted)])


def _mark(uid: str) -> str:
    return blake2b(uid.encode("utf-8", "replace"), digest_size=_MARK_BYTES).hexdigest()
