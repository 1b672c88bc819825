"""One metric as a source gave it: a value for each node, with its time, window and origin."""

from collections.abc import Generator
from enum import IntEnum
from itertools import islice

import msgspec


class ValueState(IntEnum):
    """What a value is worth. Only FRESH values break or keep a rule."""

    FRESH = 0
    STALE = 1
    """Older than the rule's max age."""
    MISSING = 2
    """The source gave no value for this node."""
    INVALID = 3
    """The source gave something that is no quantity."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One node's value: exact nano-units, when it was measured, and over which window."""

    value: int
    at: float | None
    """Seconds since 1970; None where the source cannot tell, which counts as just measured."""
    window_s: float = 60.0


class Series(msgspec.Struct, frozen=True):
    """One metric from one source."""

    metric: str
    """What it is kept under: `MetricRequest.key`."""
    source: str
    fetched_at: float
    """Seconds since 1970 by our own clock."""
    samples: dict[str, Sample]
    """By node name."""
    invalid: dict[str, str] = {}
    """Node name -> what the source gave instead of a quantity, as an error shows it."""


_AHEAD_S = 60.0
"""How much later than our own clock a source's may be."""
_PART = 512
"""So many nodes are looked at between two requests."""


def merge_newer(old: Series | None, new: Series) -> Generator[None, None, Series]:
    """The series to keep, in parts: exactly the nodes of `new`, each with the newer of its two samples.

    A node that the new answer lacks is gone. A source with several replicas may answer with an older sample
    than it gave before; the newer one stays, unless its time was still to come when it was read: a clock that once
    was wrong must not hold a value for ever.
    """
    if old is None or old.source != new.source:
        return new
    latest = old.fetched_at + _AHEAD_S
    late: dict[str, Sample] = {}
    rest = iter(new.samples.items())
    while part := list(islice(rest, _PART)):
        late |= {
            node: old.samples[node]
            for node, sample in part
            if node in old.samples and (sample.at or float("inf")) < (old.samples[node].at or 0.0) <= latest
        }
        yield
    return msgspec.structs.replace(new, samples=new.samples | late) if late else new
