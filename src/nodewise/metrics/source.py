"""What a source of node metrics is, and what one is asked for."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from nodewise.errors import Unavailable, shown
from nodewise.metrics.series import Series


class Want(NamedTuple):
    """A metric that somebody needs."""

    metric: str
    query: str = ""
    """An expression to ask instead of the name, for sources that understand one."""
    max_age_s: float = 0.0
    """How old a value may be and still be of use; 0: the source decides how far back it looks."""


class NotThere(Unavailable):
    """The whole source is not installed here, which is no fault: another one may have the metric."""


class Source(Protocol):
    """Somebody who measures nodes."""

    name: str

    def takes(self, want: Want) -> bool:
        """Whether this source could have such a metric at all; if not, it is not asked."""
        ...

    async def fetch(self, want: Want, now: float) -> Series:
        """All nodes' values of one metric. Errors say why there are none, each of a kind of `NodewiseError`."""
        ...


class Wanted(NamedTuple):
    """What to ask for: each metric once."""

    wants: frozenset[Want]
    disputed: Mapping[str, str]
    """Metrics that cannot be asked for, and why."""


def merged(wants: Iterable[Want]) -> Wanted:
    """One want a metric, with the longest of the ages. A name with two queries would be two things: disputed."""
    by_metric: dict[str, list[Want]] = {}
    for want in wants:
        by_metric.setdefault(want.metric, []).append(want)
    disputed = {
        metric: _dispute(queries)
        for metric, same in by_metric.items()
        if len(queries := {want.query for want in same}) > 1
    }
    longest = (
        max(same, key=lambda want: want.max_age_s)
        for metric, same in by_metric.items()
        if metric not in disputed
    )
    return Wanted(frozenset(longest), disputed)


def _dispute(queries: set[str]) -> str:
    texts = " and ".join(shown(query) if query else "its name" for query in sorted(queries))
    return f"rules ask for it by {texts}: give each query a metric name of its own"
