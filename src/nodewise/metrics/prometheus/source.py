"""The source `prometheus`."""

from typing import Final, NamedTuple

from nodewise import cooperative_scheduling
from nodewise.errors import Problem
from nodewise.metrics.fair_concurrency_limit import DECODING, FairConcurrencyLimit
from nodewise.metrics.metrics_source import MetricRequest, NoValues
from nodewise.metrics.node_attributes import NodeLookup
from nodewise.metrics.prometheus import node_matching, queries, query_responses, range_samples
from nodewise.metrics.prometheus.client import PrometheusClient
from nodewise.metrics.prometheus.node_matching import Identity, SeriesByNode
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.prometheus_connection import PrometheusConnection
from nodewise.metrics.prometheus.range_samples import Points
from nodewise.metrics.series import Series, pack_samples
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

NAME: Final = "prometheus"


class PrometheusSettings(NamedTuple):
    """Settings of queries."""

    options: PrometheusOptions
    max_age_s: float
    """Range of a selector if a request has no maximum age."""


class PrometheusSource:
    """The source `prometheus`: one Prometheus server. `queries` describes how metrics are queried."""

    def __init__(
        self, url: str, setting: PrometheusSettings, nodes: NodeLookup, metrics_registry: MetricsRegistry
    ) -> None:
        """`BadSettings` names every setting that cannot be used."""
        # one of several servers has its URL in its name, so that an operator sees which of them failed
        several = len(setting.options.prometheus_url) > 1
        self.name = f"{NAME} {url}" if several else NAME
        self._connection = PrometheusConnection(url, setting.options, metrics_registry)
        self._client = PrometheusClient(self._connection, setting.options.prometheus_timeout_s)
        self._labels = setting.options.prometheus_node_label
        self._max_age_s = setting.max_age_s
        self._decoding = FairConcurrencyLimit(DECODING)
        self._nodes = nodes
        self._metrics_registry = metrics_registry
        self._logged: set[tuple[str, str]] = set()

    def supports(self, request: MetricRequest) -> bool:
        """All metrics, by name or by query."""
        return bool(request.metric or request.query)

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        """Each node's value. `NoValues` if no series is of a node; errors of the call as in `PrometheusClient`."""
        query = queries.range_query(request, request.max_age_s or self._max_age_s)
        answer = await self._client.query(query)
        nodes = await self._nodes()
        async with self._decoding.slot(request.namespaces):
            grouped = await cooperative_scheduling.run(
                node_matching.group_by_node(query_responses.newest_values(answer), self._labels, nodes)
            )
        unmatched, example = (
            len(grouped.unmatched),
            node_matching.describe_unmatched_series(grouped, self._labels),
        )
        self._metrics_registry.set("metric_series_unmatched", unmatched, metric=request.name)
        self._log_condition_once(request.name, "metric_warning", warnings="; ".join(answer.warnings)[:500])
        if not grouped.by_node and (unmatched or not request.empty_is_healthy):
            raise self._no_values_error(request, query, unmatched, example)
        self._log_condition_once(
            request.name,
            "metric_series_unmatched",
            example=f"{unmatched} series, such as {example}" if example else "",
        )
        node_values = await cooperative_scheduling.run(
            node_matching.reduce(
                grouped, request.aggregate, await self._series_that_have_not_ended(request, grouped)
            )
        )
        samples = await cooperative_scheduling.run(pack_samples(node_values.samples))
        return Series(request.metric, self.name, now, samples, node_values.invalid)

    async def _series_that_have_not_ended(
        self, request: MetricRequest, grouped: SeriesByNode
    ) -> frozenset[Identity] | None:
        """The series that have not ended; None if the values do not depend on it.

        A range includes samples of series that have ended. An instant query does not: Prometheus marks a series as
        ended when its target is gone, or after a lookback of five minutes.
        """
        if not await cooperative_scheduling.run(
            node_matching.depends_on_ended_series(grouped, request.aggregate)
        ):
            return None
        answer = await self._client.query(queries.instant_query(request))
        return await cooperative_scheduling.run(
            node_matching.identities(query_responses.newest_values(answer))
        )

    async def metric_names(self, like: str) -> list[str]:
        """The names that have a word of `like`. The names of all metrics of a large Prometheus would take seconds."""
        query = queries.names_query(like)
        if not query:
            return []
        answer = await self._client.query(query)
        return [value.labels.get("__name__", "") for value in query_responses.newest_values(answer)]

    async def samples(self, query: str) -> dict[str, Points]:
        """All samples of each node in the result of a range query such as `up[1h:1m]`. Errors are those of `fetch`."""
        answer = await self._client.query(query)
        nodes = await self._nodes()
        return await cooperative_scheduling.run(range_samples.samples_by_node(answer, self._labels, nodes))

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.http.aclose()

    def _no_values_error(self, request: MetricRequest, query: str, unmatched: int, example: str) -> NoValues:
        what = f"query {query} to {self._connection.url}"
        if unmatched:
            cause = "no series is of a node"
            expected = f"a node's name, InternalIP or Hostname in {' or '.join(self._labels)}"
            problem = Problem("", f"{unmatched} series, none of a node, such as {example}", expected)
            return NoValues(what, [problem], cause=cause, remedy="give --prometheus-node-label")
        if request.query:
            cause = "the query gives no series"
            remedy = "set empty_means: healthy if that is how a healthy cluster looks"
        else:
            cause = "Prometheus has no series of this name"
            remedy = f"if Prometheus has it by another name, set the rule's query: node_{request.metric}"
        problem = Problem("", "no series", "one of each node")
        return NoValues(what, [problem], cause=f"{cause}: {remedy}", remedy=remedy)

    def _log_condition_once(self, metric: str, event: str, **fields: str) -> None:
        """Log a condition of a metric once, until it has ended."""
        key = (metric, event)
        if not any(fields.values()):
            self._logged.discard(key)
        elif key not in self._logged:
            self._logged.add(key)
            logs.emit(event, metric=metric, **fields)
