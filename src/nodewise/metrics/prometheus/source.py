"""The source `prometheus`."""

from typing import Final, NamedTuple

from nodewise import cooperative_scheduling
from nodewise.errors import Problem
from nodewise.metrics.node_attributes import Lookup
from nodewise.metrics.prometheus import node_matching, queries, query_responses, range_samples
from nodewise.metrics.prometheus.client import Client
from nodewise.metrics.prometheus.credentials import Access
from nodewise.metrics.prometheus.node_matching import Identity, Owned
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.range_samples import Points
from nodewise.metrics.series import Series
from nodewise.metrics.source import MetricRequest, NoValues
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

NAME: Final = "prometheus"


class Setting(NamedTuple):
    """What a Prometheus is asked with."""

    options: PrometheusOptions
    max_age_s: float
    """How far back a selector looks where a request does not say."""


class PrometheusMetrics:
    """One Prometheus. A rule's query is asked as it stands, a selector with its samples' own times (`queries`)."""

    def __init__(self, url: str, setting: Setting, nodes: Lookup, meters: MetricsRegistry) -> None:
        """`BadSettings` names every setting that cannot be used."""
        # one of several is known by its address, so that an operator sees which of them failed
        several = len(setting.options.prometheus_url) > 1
        self.name = f"{NAME} {url}" if several else NAME
        self._access = Access(url, setting.options, meters)
        self._client = Client(self._access, setting.options.prometheus_timeout_s)
        self._labels = setting.options.prometheus_node_label
        self._max_age_s = setting.max_age_s
        self._nodes = nodes
        self._meters = meters
        self._told: set[tuple[str, str]] = set()

    def takes(self, request: MetricRequest) -> bool:
        """Anything: metrics by their names, and expressions."""
        return bool(request.metric or request.query)

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        """Each node's value. `NoValues` if no series is of a node; errors of the call as in `Client`."""
        query = queries.of(request, request.max_age_s or self._max_age_s)
        answer = await self._client.ask(query)
        nodes = await self._nodes()
        owned = await cooperative_scheduling.run(
            node_matching.match(query_responses.found(answer), self._labels, nodes)
        )
        strangers, example = len(owned.strangers), node_matching.example(owned, self._labels)
        self._meters.set("metric_series_unmatched", strangers, metric=request.name)
        self._tell(request.name, "metric_warning", warnings="; ".join(answer.warnings)[:500])
        if not owned.by_node and (strangers or not request.empty_is_healthy):
            raise self._nothing(request, query, strangers, example)
        self._tell(
            request.name,
            "metric_series_unmatched",
            example=f"{strangers} series, such as {example}" if example else "",
        )
        matched = await cooperative_scheduling.run(
            node_matching.reduce(owned, request.aggregate, await self._current(request, owned))
        )
        return Series(request.metric, self.name, now, matched.samples, matched.invalid)

    async def _current(self, request: MetricRequest, owned: Owned) -> frozenset[Identity] | None:
        """The series that have not ended, where the values depend on it.

        A range has the samples of series that have ended as well. An instant query leaves these out: Prometheus marks
        a series as ended when its target is gone, or gives it up after a look-back of five minutes.
        """
        if not await cooperative_scheduling.run(node_matching.needs_ended(owned, request.aggregate)):
            return None
        answer = await self._client.ask(queries.instant(request))
        return await cooperative_scheduling.run(node_matching.identities(query_responses.found(answer)))

    async def samples(self, query: str) -> dict[str, Points]:
        """All samples of each node that a query of a range gives, such as `up[1h:1m]`. Errors as those of `fetch`."""
        answer = await self._client.ask(query)
        nodes = await self._nodes()
        return await cooperative_scheduling.run(range_samples.by_node(answer, self._labels, nodes))

    async def close(self) -> None:
        """End all connections."""
        await self._access.http.aclose()

    def _nothing(self, request: MetricRequest, query: str, strangers: int, example: str) -> NoValues:
        what = f"query {query} to {self._access.url}"
        if strangers:
            cause = "no series is of a node"
            wanted = f"a node's name, InternalIP or Hostname in {' or '.join(self._labels)}"
            problem = Problem("", f"{strangers} series, none of a node, such as {example}", wanted)
            return NoValues(what, [problem], cause=cause, remedy="give --prometheus-node-label")
        if request.query:
            cause = "the query gives no series"
            remedy = "set empty_means: healthy if that is how a healthy cluster looks"
        else:
            cause = "Prometheus has no series of this name"
            remedy = f"if Prometheus has it by another name, set the rule's query: node_{request.metric}"
        problem = Problem("", "no series", "one of each node")
        return NoValues(what, [problem], cause=f"{cause}: {remedy}", remedy=remedy)

    def _tell(self, metric: str, event: str, **fields: str) -> None:
        """Log what is there to say of a metric, once until it is gone."""
        key = (metric, event)
        if not any(fields.values()):
            self._told.discard(key)
        elif key not in self._told:
            self._told.add(key)
            logs.emit(event, metric=metric, **fields)
