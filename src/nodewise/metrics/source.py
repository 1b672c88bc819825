"""What a source of node metrics is, and what one is asked for."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from nodewise.errors import Problem, Unavailable
from nodewise.metrics.series import Series


class MetricRequest(NamedTuple):
    """A metric that somebody needs."""

    metric: str
    query: str = ""
    """An expression to ask instead of the name, for sources that understand one."""
    max_age_s: float = 0.0
    """How old a value may be and still be of use; 0: the source decides how far back it looks."""
    aggregate: str = ""
    """How several values of one node become one, one of `aggregation.AGGREGATIONS`; empty: they must be equal."""
    empty_is_healthy: bool = False
    """Whether a query that gives no series at all is answered: a series without samples then."""

    @property
    def name(self) -> str:
        """The metric as messages and Prometheus metrics name it: `temp`, or `max(temp)` with an aggregation."""
        return f"{self.aggregate}({self.metric})" if self.aggregate else self.metric

    @property
    def key(self) -> str:
        """What the answer is kept under. A name that is asked for by a query is another thing than the name alone,
        or than by another query: any tenant can write any query, and none may stand in another's way.
        """
        name = f"{self.name} or nothing" if self.empty_is_healthy else self.name
        return f"{name} by {self.query}" if self.query else name


class MetricNotFound(Unavailable):
    """The source does not have the metric, or is not installed here at all, which is no fault: another one may."""


class NoValues(Unavailable):
    """The source answered, and no node has a value.

    `cause` says why in a policy's status, which tenants read: it names no address and counts no series.
    """

    def __init__(self, what: str, problems: Iterable[Problem] = (), *, cause: str, remedy: str = "") -> None:
        super().__init__(what, problems, remedy=remedy)
        self.cause = cause


class MetricsSource(Protocol):
    """Somebody who measures nodes."""

    name: str

    def supports(self, request: MetricRequest) -> bool:
        """Whether this source could have such a metric at all; if not, it is not asked."""
        ...

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        """All nodes' values of one metric. Errors say why there are none, each of a kind of `NodewiseError`."""
        ...


def merge_requests(requests: Iterable[MetricRequest]) -> frozenset[MetricRequest]:
    """One request for each key, with the longest of the ages."""
    by_key: dict[str, MetricRequest] = {}
    for request in requests:
        known = by_key.get(request.key)
        if known is None or known.max_age_s < request.max_age_s:
            by_key[request.key] = request
    return frozenset(by_key.values())
