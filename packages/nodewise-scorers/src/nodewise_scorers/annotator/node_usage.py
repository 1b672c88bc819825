"""The usage of nodes: its statistics, its sources (Prometheus or samples), and its annotations.

The forecast is an autoregression of order 5 on the first differences of a series, fitted by least squares. That is
ARIMA(5, 1, 0), which the older annotator took from a statistics package. Samples are averaged in chunks first, so
that the next value is the average over a stretch of time, without the noise of single scrapes.

Prometheus computes usage statistics by the same queries that agents use with `--statistics metrics`. From sources that
only have current values, the annotator takes samples.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from nodewise.base import clock as clocks
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import NodewiseError
from nodewise.base.quantity import NANO
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus.range_matrix import Points
from nodewise.metrics.prometheus.source import PrometheusSource, promql_duration
from nodewise.metrics.series import Series
from nodewise.metrics.source_selection import SourceSelector
from nodewise_scorers.annotator import ForecastOptions
from nodewise_scorers.statistics import node_usage_reader
from nodewise_scorers.statistics.load_annotations import USAGE_KEYS, Capacity
from nodewise_scorers.statistics.node_usage_reader import WindowOptions

MILLI: Final = 1000.0
"""Milli-CPU per core."""


class ResourceUsage(NamedTuple):
    """Usage of one resource of a node in milli-CPU or bytes; NaN where unknown."""

    mean: float = nan
    deviation: float = nan
    forecast: float = nan


class NodeUsage(NamedTuple):
    cpu: ResourceUsage = ResourceUsage()
    memory: ResourceUsage = ResourceUsage()
    is_brief: bool = False
    """Whether the samples span less than half of the window."""

    @property
    def is_complete(self) -> bool:
        """Whether all statistics except the forecasts are known, and the samples span enough of the window."""
        statistics = (self.cpu.mean, self.cpu.deviation, self.memory.mean, self.memory.deviation)
        return not self.is_brief and all(map(isfinite, statistics))

    @property
    def is_known(self) -> bool:
        """Whether the mean of any resource is known."""
        return isfinite(self.cpu.mean) or isfinite(self.memory.mean)


class MemoryRequests(NamedTuple):
    """Memory of a node that its pods request, for `--annotate-use-requests`."""

    allocatable_bytes: float
    requested_bytes: float


class UsageMeasurement(NamedTuple):
    """The usage of all nodes at one time."""

    usage: Mapping[str, NodeUsage]
    """By node name, without the nodes that were not measured."""
    failures: tuple[str, ...] = ()
    """Messages that name a metric and why it could not be measured."""


REQUIRED_KEYS: Final = (*USAGE_KEYS[:2], *USAGE_KEYS[3:5])
"""All keys except those of forecasts."""


def usage_annotations(usage: NodeUsage, capacity: Capacity) -> Mapping[str, str | None]:
    """The annotations of a node; None for an annotation to delete because its value is unknown.

    Free is allocatable less the usage of all processes, so that an agent can compute the usage from allocatable again.
    It is between 0 and allocatable.
    """
    texts: list[str | None] = []
    for resource, allocatable, digits in (
        (usage.cpu, capacity.cpu_milli, 3),
        (usage.memory, capacity.memory_bytes, 0),
    ):
        is_known = allocatable and isfinite(resource.mean)
        # a value between 0 and allocatable cannot deviate by more than allocatable, so the same bounds hold
        for value in (allocatable - resource.mean, resource.deviation, allocatable - resource.forecast):
            limited = min(max(value, 0.0), allocatable)
            texts.append(format_number(limited, digits) if is_known and isfinite(value) else None)
    return dict(zip(USAGE_KEYS, texts, strict=True))


def format_number(value: float, digits: int) -> str:
    """Format without an exponent and with at most `digits` digits after the point."""
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


CHUNKS: Final = 100
ORDER: Final = 5
MIN_VALUES: Final = 3 * ORDER
"""With fewer values there are hardly more equations than unknowns."""


class SampleSummary(NamedTuple):
    """NaN for statistics that need more samples."""

    mean: float
    deviation: float
    """Of a sample, with the divisor n - 1."""
    minimum: float


def summarize(samples: NDArray[np.float64]) -> SampleSummary:
    """Return mean, standard deviation and minimum; the deviation needs two samples."""
    if not samples.size:
        return SampleSummary(np.nan, np.nan, np.nan)
    deviation = float(samples.std(ddof=1)) if samples.size > 1 else np.nan
    return SampleSummary(float(samples.mean()), deviation, float(samples.min()))


def limit_usage_to_requests(
    free: NDArray[np.float64], allocatable: float, requested: float
) -> NDArray[np.float64]:
    """Raise samples of free memory to allocatable less requested: usage beyond the requests does not count."""
    return np.maximum(free, allocatable - requested)


def means_of_sample_chunks(samples: NDArray[np.float64], chunks: int = CHUNKS) -> NDArray[np.float64]:
    """Return the means of `chunks` stretches of nearly equal length, oldest first; fewer samples are returned as is.

    Each mean is of the stretch's own samples. The older annotator filled shorter chunks up with the median of all,
    which drew the newest values, the ones on which a forecast rests, towards the middle.
    """
    if samples.size <= chunks:
        return samples
    short, longer = divmod(samples.size, chunks)
    sizes = np.full(chunks, short)
    sizes[:longer] += 1
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    means: NDArray[np.float64] = np.add.reduceat(samples, starts) / sizes
    return means


def predict_next(values: NDArray[np.float64]) -> float:
    """Predict the next value; NaN for fewer than `MIN_VALUES` values, or where one of them is not finite.

    A forecast never leaves the range of the values by more than their spread: a fit to a series that jumped once may
    run away.
    """
    if values.size < MIN_VALUES or not np.isfinite(values).all():
        return float("nan")
    steps = np.diff(values)
    size = np.abs(steps).max()
    if size == 0:
        return float(values[-1])
    steps = steps / size  # squares of bytes would cost half of the digits
    windows = sliding_window_view(steps, ORDER)
    weights, *_ = np.linalg.lstsq(windows[:-1], steps[ORDER:], rcond=1e-10)
    prediction = float(values[-1] + size * (windows[-1] @ weights))
    low, high = values.min(), values.max()
    return float(np.clip(prediction, low - (high - low), high + (high - low)))


def forecast_mean(samples: NDArray[np.float64]) -> float:
    """Predict the mean over the next chunk, which has as many samples as the last one."""
    return predict_next(means_of_sample_chunks(samples))


ValueByNode = Mapping[str, float]


_NO_FORECASTS: Final[tuple[float, ValueByNode]] = (float("-inf"), {})
_SAMPLES_PER_CHUNK: Final = 3  # samples of a forecast
_MIN_RATE_S: Final = 60.0  # a rate needs two scrapes
_SAMPLES_PER_WINDOW: Final = 60


class PrometheusUsageSource:
    """Queries the statistics, and the samples that forecasts need."""

    def __init__(
        self,
        selector: SourceSelector,
        options: WindowOptions,
        config: ForecastOptions,
        sources: Sequence[PrometheusSource],
        clock: clocks.Clock,
    ) -> None:
        self._selector = selector
        self._metric_requests = node_usage_reader.metric_requests(options)
        self._options = options
        self._config = config
        self._sources = sources
        self._clock = clock
        self._forecasts = {"cpu": _NO_FORECASTS, "memory": _NO_FORECASTS}
        """By resource, when the forecasts were made, and those."""

    async def take_sample(self) -> None:
        """Do nothing: Prometheus stores the samples."""

    async def measure(self, requests: Mapping[str, MemoryRequests]) -> UsageMeasurement:
        failures: list[str] = []
        cpu_mean, cpu_deviation, memory_mean, memory_deviation = [
            await self._query_values(metric_request, failures) for metric_request in self._metric_requests
        ]
        if self._config.annotate_use_requests:
            window_s = self._options.statistics_window_s
            step_s = window_s / _SAMPLES_PER_WINDOW
            points = await self._query_samples("memory", window_s, step_s, failures)
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
        """Forecasts of CPU and memory; computed once per step of their samples, since more often changes nothing.

        Without samples the last forecasts stay until the end of the time that they are for.
        """
        window_s = self._config.annotate_forecast_window_s
        step_s = window_s / (_SAMPLES_PER_CHUNK * CHUNKS)
        if not self._config.annotate_forecast:
            return {}, {}
        for resource, (made_s, _) in self._forecasts.items():
            age_s = self._clock.monotonic() - made_s
            if age_s < step_s:
                continue
            by_node = {}
            points_by_node = await self._query_samples(resource, window_s, step_s, failures)
            async for node, points in cooperative_scheduling.iterate_with_pauses(points_by_node.items()):
                by_node[node] = forecast_mean(points[:, 1])
            if by_node:
                self._forecasts[resource] = self._clock.monotonic(), by_node
            elif age_s >= window_s / CHUNKS:
                self._forecasts[resource] = _NO_FORECASTS
        return self._forecasts["cpu"][1], self._forecasts["memory"][1]

    async def _query_samples(
        self, resource: str, window_s: float, step_s: float, failures: list[str]
    ) -> Mapping[str, Points]:
        """The samples of the first Prometheus that has any, one per step of the window, by node name."""
        matchers = self._options.exporter_matchers
        if resource == "cpu":
            default = node_usage_reader.cpu_usage_query(max(step_s, _MIN_RATE_S), matchers)
            query = self._config.annotate_cpu_samples_query or default
        else:
            query = self._config.annotate_memory_samples_query
            query = query or node_usage_reader.memory_usage_query(matchers)
        text = f"({query})[{promql_duration(window_s)}:{promql_duration(step_s)}]"
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
        failures.append(f"samples of {resource}: {reason}")
        return {}


async def _limited_statistics(
    points_by_node: Mapping[str, Points], requests: Mapping[str, MemoryRequests]
) -> tuple[ValueByNode, ValueByNode]:
    """Mean and deviation of memory usage without the usage beyond requests, which is a limit on free memory."""
    means, deviations = {}, {}
    async for node, points in cooperative_scheduling.iterate_with_pauses(points_by_node.items()):
        if memory := requests.get(node):
            free = memory.allocatable_bytes - points[:, 1]
            summary = summarize(limit_usage_to_requests(free, *memory))
            means[node], deviations[node] = memory.allocatable_bytes - summary.mean, summary.deviation
    return means, deviations


def _resource_usage(
    node: str, statistics: tuple[ValueByNode, ValueByNode, ValueByNode], scale: float
) -> ResourceUsage:
    return ResourceUsage(*(values.get(node, nan) * scale for values in statistics))


CPU: Final = "cpu_usage"
MEMORY: Final = "memory_usage"
"""The names in `metrics.resource_metrics_api`, in cores and bytes."""

_MIN_INTERVAL_S: Final = 5.0  # metrics-server itself has new values every 15 s


class SampledUsageSource:
    """Keeps the samples of a window. A single sample has a mean and no deviation."""

    def __init__(
        self, selector: SourceSelector, options: WindowOptions, config: ForecastOptions, clock: clocks.Clock
    ) -> None:
        self._selector = selector
        self._window_s = options.statistics_window_s
        self._has_forecasts = config.annotate_forecast
        self._clock = clock
        self._samples: dict[str, dict[str, deque[tuple[float, float]]]] = {CPU: {}, MEMORY: {}}
        """By metric and node: times and values."""
        self._failures: dict[str, str] = {}
        self._sampled_s = float("-inf")

    @property
    def interval_s(self) -> float:
        """The time between samples: 30 per window."""
        return max(self._window_s / 30, _MIN_INTERVAL_S)

    async def take_sample(self) -> None:
        if self._clock.monotonic() - self._sampled_s < self.interval_s:
            return
        self._sampled_s = self._clock.monotonic()
        for metric, samples_by_node in self._samples.items():
            outcome = await self._selector.fetch(MetricRequest(metric))
            if isinstance(outcome, Series):
                self._failures.pop(metric, None)
                await self._append(outcome, samples_by_node)
            else:
                self._failures[metric] = outcome.why

    async def _append(self, series: Series, samples_by_node: dict[str, deque[tuple[float, float]]]) -> None:
        """Store each sample once: the source may return the same one several times."""
        now = self._clock.now()
        async for node, sample in cooperative_scheduling.iterate_with_pauses(series.samples.items()):
            samples = samples_by_node.setdefault(node, deque())
            while samples and samples[-1][0] > now:
                samples.pop()  # the clock was set back
            time = min(sample.at if sample.at is not None else now, now)
            if not samples or time > samples[-1][0]:
                samples.append((time, sample.value / NANO))

    async def _remove_expired(self) -> None:
        """Remove samples older than the window, also while the source fails."""
        oldest = self._clock.now() - self._window_s
        for samples_by_node in self._samples.values():
            async for node, samples in cooperative_scheduling.iterate_with_pauses(
                list(samples_by_node.items())
            ):
                while samples and samples[0][0] <= oldest:
                    samples.popleft()
                if not samples:
                    del samples_by_node[node]

    async def measure(
        self,
        requests: Mapping[str, MemoryRequests],  # noqa: ARG002 - Prometheus only
    ) -> UsageMeasurement:
        await self._remove_expired()
        cpu, memory = self._samples[CPU], self._samples[MEMORY]
        failures = tuple(f"{metric}: {reason}" for metric, reason in self._failures.items())
        usage = {}
        async for node in cooperative_scheduling.iterate_with_pauses(cpu.keys() | memory.keys()):
            spans = [
                samples[-1][0] - samples[0][0] for samples in (cpu.get(node), memory.get(node)) if samples
            ]
            usage[node] = NodeUsage(
                self._resource_usage(cpu.get(node), MILLI),
                self._resource_usage(memory.get(node), 1.0),
                is_brief=min(spans) < self._window_s / 2,
            )
        return UsageMeasurement(usage, failures)

    def _resource_usage(self, samples: Sequence[tuple[float, float]] | None, scale: float) -> ResourceUsage:
        if not samples:
            return ResourceUsage()
        values: NDArray[np.float64] = np.array(samples)[:, 1] * scale
        summary = summarize(values)
        forecast = forecast_mean(values) if self._has_forecasts else nan
        return ResourceUsage(summary.mean, summary.deviation, forecast)
