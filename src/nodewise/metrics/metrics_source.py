"""Interface of a source of node metrics, and requests for metrics."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from nodewise.base.errors import Problem, Unavailable
from nodewise.metrics import series
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.series import Series


class MetricRequest(NamedTuple):
    """A request for one metric."""

    metric: str
    query: str = ""
    """An expression that replaces the name, for sources that support expressions."""
    max_age_s: float = 0.0
    """Maximum age of a value; 0: the default of the source."""
    aggregate: str = ""
    """Aggregation of several values of one node, one of `aggregation.AGGREGATIONS`; empty: they must be equal."""
    empty_is_healthy: bool = False
    """Whether an empty result of a query is valid: it becomes a series without samples."""
    namespaces: frozenset[str] = frozenset()
    """The namespaces whose objects request the metric; empty for a request of an agent's own. Requests are scheduled
    fairly by namespace. They do not affect the result: requests that differ only in them are one request.
    """
    lookback_s: float = 0.0
    """How far back a source with several samples of a node looks for their distance, if that is more than `max_age_s`.
    Series without a sample of the maximum age do not count (`sample_distance`)."""

    @property
    def name(self) -> str:
        """The metric as messages and Prometheus metrics name it: `temp`, or `max(temp)` with an aggregation."""
        return f"{self.aggregate}({self.metric})" if self.aggregate else self.metric

    @property
    def key(self) -> str:
        """The key of the result. A name with a query has a different key than the name alone or with another query: any
        tenant can write any query, and tenants must not affect each other.
        """
        name = f"{self.name} or nothing" if self.empty_is_healthy else self.name
        return f"{name} by {self.query}" if self.query else name


class NoValues(Unavailable):
    """The source responded, and no node has a value."""

    def __init__(
        self, what: str, problems: Iterable[Problem] = (), *, cause: Cause, remedy: str = ""
    ) -> None:
        super().__init__(what, problems, remedy=remedy)
        self.cause = cause


class MetricNotFound(Unavailable):
    """The source does not have the metric, or is not installed. This is not a failure: another source may have it."""

    def __init__(self, what: str, *, cause: Cause, remedy: str = "") -> None:
        super().__init__(what, remedy=remedy)
        self.cause = cause


class MetricsSource(Protocol):
    """A source of node metrics."""

    name: str

    def supports(self, request: MetricRequest) -> bool:
        """Whether this source can have such a metric; if not, `fetch` is not called."""
        ...

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        """The values of one metric for all nodes. Raises a kind of `NodewiseError` if there are none."""
        ...


@runtime_checkable
class MetricCatalog(Protocol):
    """A source that knows the names of its metrics."""

    async def metric_names(self) -> Sequence[str]:
        """The names of its metrics, also of those that are not of nodes if it does not tell them apart."""
        ...


@runtime_checkable
class SeriesCatalog(MetricCatalog, Protocol):
    """A source that knows which metrics have series now. Its names may be those of series that have ended."""

    async def existing_metrics(self, names: Sequence[str]) -> Sequence[str]:
        """Those of these names that have series now, in the same order."""
        ...


def with_lookback(request: MetricRequest, before: Series | None, default_max_age_s: float) -> MetricRequest:
    """The request as it is sent, given the last response: it sees at least two samples of a node if there are any.

    `default_max_age_s` applies to a request without a maximum age. A request whose empty result means healthy sees no
    samples that are older than its maximum age.
    """
    distance_s = before.sample_distance_s if before is not None else None
    looks_back = not request.empty_is_healthy and not (before is not None and before.is_distance_measured)
    max_age_s = series.derived_max_age_s(request.max_age_s or default_max_age_s, distance_s)
    return request._replace(max_age_s=max_age_s, lookback_s=series.LOOKBACK_S if looks_back else 0.0)


def merge_requests(requests: Iterable[MetricRequest]) -> frozenset[MetricRequest]:
    """One request for each key, with the largest maximum age and look-back, and the namespaces of all."""
    by_key: dict[str, MetricRequest] = {}
    for request in requests:
        known = by_key.get(request.key)
        by_key[request.key] = request if known is None else _merge(known, request)
    return frozenset(by_key.values())


def _merge(first: MetricRequest, second: MetricRequest) -> MetricRequest:
    # a namespace that names a metric of an agent must not take the agent's place in the queue
    of_agent = not first.namespaces or not second.namespaces
    return first._replace(
        max_age_s=max(first.max_age_s, second.max_age_s),
        lookback_s=max(first.lookback_s, second.lookback_s),
        namespaces=frozenset() if of_agent else first.namespaces | second.namespaces,
    )
