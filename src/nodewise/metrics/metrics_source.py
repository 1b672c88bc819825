"""Interface of a source of node metrics, requests for metrics, and the sources that `--metrics` selects."""

from collections.abc import Container, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, Protocol, runtime_checkable

import msgspec

from nodewise.base.errors import BadSettings, Problem, Unavailable
from nodewise.metrics import source_table
from nodewise.metrics.source_table import SOURCES

if (
    TYPE_CHECKING
):  # policies contain requests for metrics, and commands that only read policies need no arrays
    from nodewise.kube.api_server_interface import Api
    from nodewise.metrics.missing_values import Cause
    from nodewise.metrics.node_attributes import NodeLookup
    from nodewise.metrics.prometheus.options import PrometheusOptions
    from nodewise.metrics.series import Series
    from nodewise.observe.metrics_registry import MetricsRegistry


AGGREGATIONS: Final = ("max", "min", "sum", "avg")
"""How several values of one node can become one value (`aggregation.reduce`)."""


class MetricRequest(NamedTuple):
    """A request for one metric."""

    metric: str
    query: str = ""
    """An expression that replaces the name, for sources that support expressions."""
    max_age_s: float = 0.0
    """Maximum age of a value; 0: the default of the source."""
    aggregate: str = ""
    """Aggregation of several values of one node, one of `AGGREGATIONS`; empty: they must be equal."""
    empty_is_healthy: bool = False
    """Whether an empty result of a query is valid: it becomes a series without samples."""
    namespaces: frozenset[str] = frozenset()
    """The namespaces whose objects request the metric; empty for a request of an agent's own. Requests are scheduled
    fairly by namespace. They do not affect the result: requests that differ only in them are one request.
    """
    lookback_s: float = 0.0
    """How far back a source with several samples of a node looks for their distance, if that is more than `max_age_s`.
    Series without a sample of the maximum age do not count (`sample_distance`)."""
    device_label: str = ""
    """The label that identifies a device. The names of the samples are then `NODE/VALUE` with the value of the label,
    or `/VALUE` if the node is not known. Empty: one value for each node."""
    own_query: str = ""
    """For a metric of nodewise's own: the expression for sources that support expressions. Others have it by name."""
    by_pod: bool = False
    """Whether the values are of pods instead of nodes, by `NAMESPACE/NAME`. They are fetched once a minute."""
    is_optional: bool = False
    """Whether the metric is used only where it exists, so that its absence is no failure."""

    @property
    def name(self) -> str:
        """The metric as messages and Prometheus metrics name it: `temp`, or `max(temp)` with an aggregation."""
        return f"{self.aggregate}({self.metric})" if self.aggregate else self.metric

    @property
    def key(self) -> str:
        """The key of the result. A name with a query has a different key than the name alone or with another query: any
        tenant can write any query, and tenants must not affect each other.
        """
        if self.own_query:
            return f"{self.name} of nodewise"
        name = f"{self.name} per {self.device_label}" if self.device_label else self.name
        name = f"{name} by pod" if self.by_pod else name
        name = f"{name} or nothing" if self.empty_is_healthy else name
        return f"{name} by {self.query}" if self.query else name


class RefreshOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Period and limits of metric requests."""

    sync_period_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """Period of metric requests and of the evaluation of policies."""

    metrics_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """Timeout per metric, source and period, including the time that a request waits for a slot of
    --metrics-concurrency."""

    metrics_concurrency: Annotated[int, msgspec.Meta(ge=1)] = 64
    """Limit of concurrent metric requests, and so of connections. It is shared fairly by the namespaces whose policies
    request the metrics; one namespace uses at most half of it."""

    @property
    def default_max_age_s(self) -> float:
        """The age at which a value counts as missing, unless a setting or the distance of samples says otherwise."""
        return default_max_age_s(self.sync_period_s)


def default_max_age_s(sync_period_s: float) -> float:
    """Five refresh periods, at least 60 s, so that a node keeps its value if one or two scrapes fail."""
    return max(5 * sync_period_s, 60.0)


class NoValues(Unavailable):
    """The source responded, and no node has a value."""

    def __init__(
        self, what: str, problems: Iterable[Problem] = (), *, cause: "Cause", remedy: str = ""
    ) -> None:
        super().__init__(what, problems, remedy=remedy)
        self.cause = cause


class MetricNotFound(Unavailable):
    """The source does not have the metric, or is not installed. This is not a failure: another source may have it."""

    def __init__(self, what: str, *, cause: "Cause", remedy: str = "") -> None:
        super().__init__(what, remedy=remedy)
        self.cause = cause


class MetricsSource(Protocol):
    """A source of node metrics."""

    name: str

    def supports(self, request: MetricRequest) -> bool:
        """Whether this source can have such a metric; if not, `fetch` is not called."""
        ...

    async def fetch(self, request: MetricRequest, now: float) -> "Series":
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

    async def series_end(self, request: MetricRequest) -> float | None:
        """When the last series of a metric ended, in seconds since 1970; infinity if one exists, and None if there was
        none in the last days, or if it is not known.
        """
        ...


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
        is_optional=first.is_optional and second.is_optional,
    )


class SourceDependencies(NamedTuple):
    """What sources of metrics are created from."""

    api: "Api | None"
    """None without a cluster."""
    nodes: "NodeLookup"
    prometheus: "PrometheusOptions"
    max_age_s: float
    """How far back queries of Prometheus look if a rule does not say."""
    timeout_s: float
    registry: "MetricsRegistry"
    own_nodes: Container[str] | None = None
    """With shards: the nodes of this replica, the only ones whose samples are kept. A source may drop those of other
    nodes, so that a response about all nodes takes less memory."""


def create_metric_sources(
    values: Sequence[str], objects_from: Sequence[str], dependencies: SourceDependencies
) -> list[MetricsSource]:
    """The sources that values of `--metrics` name, in that order, without duplicates. Files of objects are a source as
    well, the first one.

    `auto` means every source whose requirements are met. A source looks for its API with each request, so an API that
    is installed later is found then. BadSettings for an unknown name, or a requirement that is missing.
    """
    sources = _create(source_table.FILE, dependencies, objects_from) if objects_from else []
    names = [
        name
        for value in values
        for name in (source_table.AUTOMATIC if value == source_table.AUTO else [value])
    ]
    for value in dict.fromkeys(names):
        name, colon, path = value.partition(":")
        kind = SOURCES.get(name)
        if kind is None or (bool(colon), bool(path)) != (bool(kind.path), bool(kind.path)):
            *others, last = source_table.SYNTAX
            raise BadSettings.of("settings", "--metrics", repr(value), f"{', '.join(others)} or {last}")
        created = _create(name, dependencies, [path] if path else [])
        if not created and value in values:
            raise BadSettings.of("settings", "", f"--metrics {name} requires {kind.requires}")
        sources += created
    return sources


def _create(name: str, dependencies: SourceDependencies, paths: Sequence[str]) -> list[MetricsSource]:
    module, _, factory = SOURCES[name].factory.partition(":")
    created: list[MetricsSource] = getattr(import_module(module), factory)(dependencies, paths)
    return created
