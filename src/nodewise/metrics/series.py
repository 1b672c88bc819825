"""The series of one metric from one source: a value for each node, with time and window."""

from collections.abc import Generator
from enum import IntEnum
from itertools import islice

import msgspec


class ValueState(IntEnum):
    """The state of a value. Only FRESH values are compared by rules."""

    FRESH = 0
    STALE = 1
    """Older than the rule's max age."""
    MISSING = 2
    """The source has no value for this node."""
    INVALID = 3
    """The source returned something that is not a quantity."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The value of one node in nano-units, with its time and window."""

    value: int
    at: float | None
    """Seconds since 1970; None if unknown, which counts as just measured."""
    window_s: float = 60.0


class Series(msgspec.Struct, frozen=True):
    """One metric from one source."""

    metric: str
    """`MetricRequest.key`."""
    source: str
    fetched_at: float
    """Seconds since 1970 by the local clock."""
    samples: dict[str, Sample]
    """By node name."""
    invalid: dict[str, str] = {}
    """By node name, the reason why the value is invalid."""


_AHEAD_S = 60.0
"""Tolerated difference by which a source's clock may be ahead of the local clock."""
_PART = 512
"""Number of nodes between two yields."""


def merge_newer(old: Series | None, new: Series) -> Generator[None, None, Series]:
    """Merge two series; yields between parts. The result has the nodes of `new`, each with its newer sample.

    A node that is missing in the new series is dropped. A source with several replicas may return an older sample than
    before; then the newer one stays, unless its time was in the future when it was fetched: a wrong clock must not keep
    a value forever.
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
