"""Usage statistics that Prometheus computes, by the same queries that agents use with `--statistics metrics`."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Final, NamedTuple

from nodewise.base import clock as clocks
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import NodewiseError
from nodewise.base.quantity import NANO
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus.range_matrix import Points
from nodewise.metrics.prometheus.source import PrometheusSource, promql_duration
from nodewise.metrics.series import Series
from nodewise.metrics.source_selection import SourceSelector
from nodewise_scorers.annotator import sample_statistics
from nodewise_scorers.annotator.node_usage import (
    MILLI,
    MemoryRequests,
    NodeUsage,
    ResourceUsage,
    UsageMeasurement,
)
from nodewise_scorers.annotator.options import AnnotatorConfig
from nodewise_scorers.statistics import prometheus_load_queries
from nodewise_scorers.statistics.prometheus_load_queries import WindowOptions

ValueByNode = Mapping[str, float]


class SampleQuery(NamedTuple):
    """A query for the usage at one time, evaluated once per step."""

    resource: str
    text: str
    step_s: float


_SAMPLES_PER_CHUNK: Final = 3
"""Samples of a forecast."""
_MIN_RATE_S: Final = 60.0
"""A rate needs two scrapes."""
_SAMPLES_PER_WINDOW: Final = 60


class PrometheusUsageSource:
    """Queries the statistics, and the samples that forecasts need (`node_usage.UsageSource`)."""

    def __init__(
        self,
        selector: SourceSelector,
        options: WindowOptions,
        config: AnnotatorConfig,
        sources: Sequence[PrometheusSource],
        clock: clocks.Clock,
    ) -> None:
        self._selector = selector
        self._metric_requests = prometheus_load_queries.metric_requests(options)
        self._options = options
        self._config = config
        self._sources = sources
        self._clock = clock
        self._forecasts: tuple[ValueByNode, ValueByNode] = ({}, {})
        self._forecast_s = float("-inf")

    async def take_sample(self) -> None:
        """Do nothing: Prometheus stores the samples."""

    async def measure(self, requests: Mapping[str, MemoryRequests]) -> UsageMeasurement:
        failures: list[str] = []
        cpu_mean, cpu_deviation, memory_mean, memory_deviation = [
            await self._query_values(metric_request, failures) for metric_request in self._metric_requests
        ]
        if self._config.use_requests:
            window_s = self._options.statistics_window_s
            query = self._memory_query(window_s / _SAMPLES_PER_WINDOW)
            points = await self._query_samples(query, window_s, failures)
            memory_mean, memory_deviation = await _limited_statistics(points, requests)
        cpu_forecast, memory_forecast = await self._update_forecasts(failures)
        usage = {}
        async for node in cooperative_scheduling.iterate_with_pauses(cpu_mean.keys() | memory_mean.keys()):
            usage[node] = NodeUsage(
                _resource_usage(node, (cpu_mean, cpu_deviation, cpu_forecast), MILLI),
                _resource_usage(node, (memory_mean, memory_deviation, memory_forecast), 1.0),
            )
        return UsageMeasurement(usage, tuple(failures))

    async def _query_values(self, metric_request: MetricRequest, failures: list[str]) -> ValueByNode:
        outcome = await self._selector.fetch(metric_request)
        if isinstance(outcome, Series):
            if outcome.incomplete:
                failures.append(f"{metric_request.metric}: an incomplete response: {outcome.incomplete}")
            return {node: sample.value / NANO for node, sample in outcome.samples.items()}
        failures.append(f"{metric_request.metric}: {outcome.why}")
        return {}

    async def _update_forecasts(self, failures: list[str]) -> tuple[ValueByNode, ValueByNode]:
        """Forecasts of CPU and memory; computed once per step of their samples, since more often changes nothing."""
        window_s = self._config.forecast_window_s
        step_s = window_s / (_SAMPLES_PER_CHUNK * sample_statistics.CHUNKS)
        if self._config.forecast and self._clock.monotonic() - self._forecast_s >= step_s:
            cpu = await self._compute_forecasts(self._cpu_query(step_s), window_s, failures)
            memory = await self._compute_forecasts(self._memory_query(step_s), window_s, failures)
            self._forecasts = cpu, memory
            if cpu and memory:
                self._forecast_s = self._clock.monotonic()
        return self._forecasts

    async def _compute_forecasts(
        self, query: SampleQuery, window_s: float, failures: list[str]
    ) -> ValueByNode:
        forecasts = {}
        points_by_node = await self._query_samples(query, window_s, failures)
        async for node, points in cooperative_scheduling.iterate_with_pauses(points_by_node.items()):
            forecasts[node] = sample_statistics.forecast(points[:, 1])
        return forecasts

    def _cpu_query(self, step_s: float) -> SampleQuery:
        default = prometheus_load_queries.cpu_usage_query(
            max(step_s, _MIN_RATE_S), self._options.exporter_matchers
        )
        return SampleQuery("cpu", self._config.cpu_samples_query or default, step_s)

    def _memory_query(self, step_s: float) -> SampleQuery:
        default = prometheus_load_queries.memory_usage_query(self._options.exporter_matchers)
        return SampleQuery("memory", self._config.memory_samples_query or default, step_s)

    async def _query_samples(
        self, query: SampleQuery, window_s: float, failures: list[str]
    ) -> Mapping[str, Points]:
        """The samples of the first Prometheus that has any, by node name."""
        text = f"({query.text})[{promql_duration(window_s)}:{promql_duration(query.step_s)}]"
        reason = "only Prometheus has samples, and none is configured: give --prometheus-url"
        for source in self._sources:
            try:
                points = await source.samples(text)
            except NodewiseError as error:
                reason = str(error)
            else:
                if points:
                    return points
                reason = "no series of a node"
        failures.append(f"samples of {query.resource}: {reason}")
        return {}


async def _limited_statistics(
    points_by_node: Mapping[str, Points], requests: Mapping[str, MemoryRequests]
) -> tuple[ValueByNode, ValueByNode]:
    """Mean and deviation of memory usage without the usage beyond requests, which is a limit on free memory."""
    means, deviations = {}, {}
    async for node, points in cooperative_scheduling.iterate_with_pauses(points_by_node.items()):
        if memory := requests.get(node):
            free = memory.allocatable_bytes - points[:, 1]
            summary = sample_statistics.summarize(sample_statistics.limit_usage_to_requests(free, *memory))
            means[node], deviations[node] = memory.allocatable_bytes - summary.mean, summary.deviation
    return means, deviations


def _resource_usage(
    node: str, statistics: tuple[ValueByNode, ValueByNode, ValueByNode], scale: float
) -> ResourceUsage:
    return ResourceUsage(*(values.get(node, nan) * scale for values in statistics))
