"""The source `prometheus`, and PromQL queries for metrics.

An instant query of a selector returns every value with the time of the evaluation, regardless of the age of the sample.
So the query of a plain selector is a range, `temp[60s]`, which returns the samples with their own times (Prometheus,
"Querying basics": range vector selectors). Any other expression is used unchanged; the age of its values is unknown.
"""

import contextlib
import math
import re
import time
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from nodewise.base import cooperative_scheduling
from nodewise.base.errors import Problem, closest_name, visible
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.custom_metrics_api import SeriesBuilder, parse_value
from nodewise.metrics.fair_concurrency_limit import DECODING, FairConcurrencyLimit
from nodewise.metrics.metrics_source import MetricRequest, MetricsSource, NoValues, SourceDependencies
from nodewise.metrics.node_attributes import NodeAttributes, NodeLookup
from nodewise.metrics.prometheus import node_matching, query_responses, range_matrix
from nodewise.metrics.prometheus.client import PrometheusClient, PrometheusConnection
from nodewise.metrics.prometheus.node_matching import Identity, SeriesByNode
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.query_responses import QueryResponse
from nodewise.metrics.prometheus.range_matrix import Points
from nodewise.metrics.series import Sample, Series, pack_samples
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_STRING: Final = r"""(?:"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|`[^`]*+`)"""
_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABEL: Final = rf"(?:[a-zA-Z_][a-zA-Z0-9_]*+|{_STRING})"
_MATCHER: Final = rf"(?:{_LABEL}\s*+(?:=~|!~|!=|=)\s*+{_STRING}|{_STRING})\s*+"
_MATCHERS: Final = rf"\{{\s*+(?:{_MATCHER}(?:,\s*+{_MATCHER})*+(?:,\s*+)?+)?+\}}"
# possessive quantifiers throughout: the text is untrusted, and matching must take linear time
_SELECTOR: Final = re.compile(rf"(?:{_NAME}\s*+(?:{_MATCHERS})?+|{_MATCHERS})")
_NUMBERS: Final = ("inf", "nan")
"""Names that PromQL reads as numbers."""


def range_query(request: MetricRequest, lookback_s: float) -> str:
    """The query of a request: the rule's query, else a selector of the metric; samples no older than `lookback_s`."""
    expression = instant_query(request)
    return f"{expression}[{promql_duration(lookback_s)}]" if is_selector(expression) else expression


def last_value_query(request: MetricRequest, max_age_s: float, *, only_current: bool) -> str:
    """The query whose value at any time is that of the newest sample no older than `max_age_s`.

    With `only_current` it has no series that have ended. An expression is used unchanged.
    """
    expression = instant_query(request)
    if not is_selector(expression):
        return expression
    newest = f"last_over_time({expression}[{promql_duration(max_age_s)}])"
    return f"{newest} and {expression}" if only_current else newest


def instant_query(request: MetricRequest) -> str:
    """The same without a range. For a selector, Prometheus returns the series that have not ended."""
    query = request.query or request.own_query
    return query.strip() if query else _metric_selector(request.metric)


def existing_metrics_query(names: Sequence[str]) -> str:
    """The query whose result has one series for each of these metrics that has series."""
    return f"count by (__name__) ({' or '.join(map(_metric_selector, names))})"


def is_selector(text: str) -> bool:
    """Whether this is a plain selector such as `temp` or `temp{job="node"}`, without offset or function."""
    return _SELECTOR.fullmatch(text) is not None and text.lower() not in _NUMBERS


def _metric_selector(metric: str) -> str:
    """A selector by name. The name is always quoted: it is a tenant's text and must not be parsed as PromQL."""
    escaped = metric.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{__name__="{escaped}"}}'


def promql_duration(seconds: float) -> str:
    """A duration in PromQL, which does not support fractions."""
    milli = max(round(seconds * 1000), 1)
    return f"{milli}ms" if milli % 1000 else f"{milli // 1000}s"


NAME: Final = source_table.PROMETHEUS
_NAMES_RANGE_S: Final = 300.0
_MOST_EXAMINED: Final = 20
"""Series whose labels a message considers."""
_DISTANCE_RANGE_S: Final = 600.0
"""The time in which samples are counted for their usual distance."""
_MISSED_SAMPLES: Final = 3
"""A series that lacks so many samples at their usual distance has ended."""
_SHORTEST_GAP_S: Final = 15.0
_END_RANGES: Final = ((3600.0, 15.0), (14 * 86400.0, 3600.0))
"""Ranges and steps of the queries for the end of a series. At most 336 steps are evaluated, with 1.7 million values of
5,000 nodes."""


class PrometheusSettings(NamedTuple):
    """Settings of queries."""

    options: PrometheusOptions
    max_age_s: float
    """Range of a selector if a request has no maximum age."""


def create_sources(dependencies: SourceDependencies, _paths: Sequence[str]) -> list[MetricsSource]:
    """One source for each URL."""
    settings = PrometheusSettings(dependencies.prometheus, dependencies.max_age_s)
    nodes, registry = dependencies.nodes, dependencies.registry
    return [PrometheusSource(url, settings, nodes, registry) for url in settings.options.prometheus_url]


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
        self._labels = node_matching.series_labels(setting.options)
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
        if request.by_pod:
            return await self._fetch_by_pod(request, now)
        max_age_s = request.max_age_s or self._max_age_s
        query = range_query(request, max(max_age_s, request.lookback_s))
        nodes = await self._nodes()
        async with contextlib.AsyncExitStack() as stack:
            slot = self._decoding.slot(request.namespaces)
            answer = await self._client.query(query, partial(stack.enter_async_context, slot))
            values = query_responses.newest_values(answer)
            grouped = await cooperative_scheduling.run(
                node_matching.group_by_node(values, self._labels, nodes, max_age_s)
            )
            if request.device_label:
                grouped = await cooperative_scheduling.run(
                    node_matching.group_by_device(grouped, request.device_label, self._labels)
                )
        unmatched = 0 if nodes.is_partial else len(grouped.unmatched)
        self._metrics_registry.set("metric_series_unmatched", unmatched, metric=request.name)
        self._log_condition_once(request.name, "metric_warning", warnings="; ".join(answer.warnings))
        if not grouped.by_node and answer.incomplete:
            raise self._incomplete_error(query, answer)
        if not grouped.by_node and (unmatched or not request.empty_is_healthy):
            raise self._no_values_error(request, query, grouped, nodes)
        hosts: tuple[str, ...] = ()
        if not request.device_label:
            hosts = await cooperative_scheduling.run(
                node_matching.unmatched_hosts(grouped.unmatched, self._labels)
            )
            await self._log_unmatched_series(request, grouped, hosts, nodes)
        current = await self._series_that_have_not_ended(request, grouped)
        node_values = await cooperative_scheduling.run(
            node_matching.reduce(grouped, request.aggregate, self._labels, current)
        )
        samples = await cooperative_scheduling.run(pack_samples(node_values.samples))
        return Series(
            request.metric,
            self.name,
            now,
            samples,
            node_values.invalid,
            node_values.differing,
            hosts,
            answer.incomplete,
            sample_distance_s=grouped.distance_s,
            is_distance_measured=grouped.distance_s is not None,
        )

    async def _fetch_by_pod(self, request: MetricRequest, now: float) -> Series:
        """The values of an expression whose series have the labels `namespace` and `pod`."""
        async with self._decoding.slot(request.namespaces):
            answer = await self._client.query(instant_query(request))
            builder = SeriesBuilder()
            values = query_responses.newest_values(answer)
            async for item in cooperative_scheduling.iterate_with_pauses(values):
                with contextlib.suppress(ValueError, KeyError):
                    name = f"{item.labels['namespace']}/{item.labels['pod']}"
                    builder.add(name, Sample(parse_value(item.value), item.at))
            return await cooperative_scheduling.run(builder.series(request, self.name, now))

    async def _log_unmatched_series(
        self, request: MetricRequest, grouped: SeriesByNode, hosts: Sequence[str], nodes: NodeAttributes
    ) -> None:
        """Log series of no node once, with nodes that have a similar name and no series."""
        event, example = "metric_series_unmatched", ""
        if grouped.unmatched and not nodes.is_partial:
            example = node_matching.describe_unmatched_series(grouped, self._labels)
            example = f"{len(grouped.unmatched)} series, such as {example}"
        if example and (request.name, event) not in self._logged:
            without = [node for node in nodes.allocatable if node not in grouped.by_node]
            similar = await cooperative_scheduling.run(missing_values.closest_nodes(hosts, without))
            example = f"{example}; {missing_values.name_hosts(similar)}" if similar else example
        self._log_condition_once(request.name, event, example=example)

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
        answer = await self._client.query(instant_query(request))
        return await cooperative_scheduling.run(
            node_matching.identities(query_responses.newest_values(answer), self._labels)
        )

    async def metric_names(self) -> list[str]:
        """The names of all series of the last minutes. They come from Prometheus' index, without reading series."""
        return await self._client.metric_names(time.time() - _NAMES_RANGE_S)

    async def existing_metrics(self, names: Sequence[str]) -> list[str]:
        """Those of these names that have series. The index also has the names of series that ended hours ago."""
        answer = await self._client.query(existing_metrics_query(names))
        existing = {item.labels.get("__name__") for item in query_responses.newest_values(answer)}
        return [name for name in names if name in existing]

    async def series_end(self, request: MetricRequest) -> float | None:
        """The time of the last sample, of the last two weeks. None for an expression that is no selector."""
        selector = instant_query(request)
        if not is_selector(selector):
            return None
        # Prometheus returns a series for five minutes after its last sample, unless a scrape of the same process failed
        gap_s = (
            f"{_MISSED_SAMPLES * _DISTANCE_RANGE_S:g} / count_over_time({selector}[{_DISTANCE_RANGE_S:g}s])"
        )
        expected_by = f"max(timestamp({selector}) + clamp_min({gap_s}, {_SHORTEST_GAP_S:g}))"
        left_s = await self._number(f"{expected_by} - time()")
        if left_s is not None and left_s > 0:
            return math.inf
        recent, coarse = (
            f"max(max_over_time(timestamp({selector})[{promql_duration(span_s)}:{promql_duration(step_s)}]))"
            for span_s, step_s in _END_RANGES
        )
        if (end := await self._number(recent)) is not None:
            return end
        before = await self._number(coarse)
        # the end is less than one step after the sample that was found
        return None if before is None else await self._number(recent, at=before + _END_RANGES[1][1])

    async def _number(self, query: str, at: float | None = None) -> float | None:
        """The only value of a result; None if it has none."""
        values = query_responses.newest_values(await self._client.query(query, at=at))
        return next((float(item.value) for item in values), None)

    async def samples(self, query: str) -> dict[str, Points]:
        """All samples of each node in the result of a range query such as `up[1h:1m]`. Errors are those of `fetch`; an
        incomplete response is an error.
        """
        answer = await self._client.query(query)
        if answer.incomplete:
            raise self._incomplete_error(query, answer)
        nodes = await self._nodes()
        return await cooperative_scheduling.run(range_matrix.samples_by_node(answer, self._labels, nodes))

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.http.aclose()

    def _incomplete_error(self, query: str, answer: QueryResponse) -> NoValues:
        """The error of a response without values that may exist."""
        text = "gave an incomplete response, without a value of a node"
        cause = missing_values.cause("IncompleteAnswer", NAME, text)
        problem = Problem("", f"an incomplete response: {answer.incomplete}", "all series")
        return NoValues(
            f"query {query} to {self._connection.url}", [problem], cause=cause, remedy=cause.remedy
        )

    def _no_values_error(
        self, request: MetricRequest, query: str, grouped: SeriesByNode, nodes: NodeAttributes
    ) -> NoValues:
        what = f"query {query} to {self._connection.url}"
        if grouped.unmatched and request.device_label:
            names = sorted({*chain.from_iterable(item.labels for item in grouped.unmatched[:_MOST_EXAMINED])})
            closest = closest_name(request.device_label, names)
            text = f"has series, and none has the label {request.device_label}"
            remedy = (
                f"set deviceLabel: {visible(closest)[:80]}"
                if closest
                else "set deviceLabel to a label of them"
            )
            cause = missing_values.cause("NoSeriesOfNodes", NAME, text, remedy)
            return NoValues.of(what, "", text, "the label deviceLabel", cause=cause, remedy=cause.remedy)
        if grouped.unmatched:
            example = node_matching.describe_unmatched_series(grouped, self._labels)
            labels = self._labels.text()
            expected = f"a node's name or address in {labels}"
            actual = f"{len(grouped.unmatched)} series, none of a node, such as {example}"
            others = node_matching.other_labels_that_name_nodes(grouped.unmatched, self._labels, nodes)
            remedy = f"give --prometheus-node-label {others[0]}" if others else ""
            text = f"has series, and none has a node's name or address in label {labels}"
            cause = missing_values.cause("NoSeriesOfNodes", NAME, text, remedy)
            return NoValues(what, [Problem("", actual, expected)], cause=cause, remedy=cause.remedy)
        if request.query:
            remedy = "if a healthy cluster gives none, set emptyMeans: Healthy (empty_means: healthy in a TASPolicy)"
            cause = missing_values.cause("NoSeries", NAME, "gives no series for the query", remedy)
        else:
            cause = missing_values.cause("MetricUnknown", NAME, "has no series of this name")
        return NoValues.of(what, "", "no series", "one of each node", cause=cause, remedy=cause.remedy)

    def _log_condition_once(self, metric: str, event: str, **fields: str) -> None:
        """Log a condition of a metric once, until it has ended."""
        key = (metric, event)
        if not any(fields.values()):
            self._logged.discard(key)
        elif key not in self._logged:
            self._logged.add(key)
            logs.emit(event, metric=metric, **fields)
