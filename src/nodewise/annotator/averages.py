"""Statistics that Prometheus makes of what it scraped: the same that agents ask for with `--statistics metrics`."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Final, NamedTuple

from nodewise import clock as clocks
from nodewise import cooperative
from nodewise.annotator import forecast, samples
from nodewise.annotator.measured import MILLI, Left, Measured
from nodewise.annotator.options import Task
from nodewise.annotator.usage import Usage, Used
from nodewise.errors import NodewiseError
from nodewise.metrics.asking import Asker
from nodewise.metrics.prometheus.ranges import Points
from nodewise.metrics.prometheus.source import PrometheusMetrics
from nodewise.metrics.series import Series
from nodewise.metrics.source import MetricRequest
from nodewise.quantity import NANO
from nodewise.statistics import queries
from nodewise.statistics.queries import WindowOptions

Numbers = Mapping[str, float]
"""By node name."""


class Expression(NamedTuple):
    """What is in use at one time, of which there is one sample a step."""

    of: str
    text: str
    step_s: float


_A_CHUNK: Final = 3
"""Samples of a forecast."""
_LEAST_RATE_S: Final = 60.0
"""A rate needs two scrapes."""
_OF_WINDOW: Final = 60
"""Samples of a window."""


class Averages:
    """Asks for them, and for the samples that forecasts need (`measured.Measure`)."""

    def __init__(
        self,
        asker: Asker,
        options: WindowOptions,
        task: Task,
        sources: Sequence[PrometheusMetrics],
        clock: clocks.Clock,
    ) -> None:
        self._asker = asker
        self._metric_requests = queries.metric_requests(options)
        self._options = options
        self._task = task
        self._sources = sources
        self._clock = clock
        self._foreseen: tuple[Numbers, Numbers] = ({}, {})
        self._foreseen_s = float("-inf")

    async def look(self) -> None:
        """Prometheus keeps the samples."""

    async def measured(self, lefts: Mapping[str, Left]) -> Measured:
        failures: list[str] = []
        cpu_mean, cpu_deviation, memory_mean, memory_deviation = [
            await self._numbers(metric_request, failures) for metric_request in self._metric_requests
        ]
        if self._task.use_requests:
            window_s = self._options.statistics_window_s
            points = await self._points(self._memory(window_s / _OF_WINDOW), window_s, failures)
            memory_mean, memory_deviation = await _curated(points, lefts)
        cpu_next, memory_next = await self._forecasts(failures)
        found = {}
        async for node in cooperative.iterate(cpu_mean.keys() | memory_mean.keys()):
            found[node] = Usage(
                _used(node, (cpu_mean, cpu_deviation, cpu_next), MILLI),
                _used(node, (memory_mean, memory_deviation, memory_next), 1.0),
            )
        return Measured(found, tuple(failures))

    async def _numbers(self, metric_request: MetricRequest, failures: list[str]) -> Numbers:
        outcome = await self._asker.ask(metric_request)
        if isinstance(outcome, Series):
            return {node: sample.value / NANO for node, sample in outcome.samples.items()}
        failures.append(f"{metric_request.metric}: {outcome.why}")
        return {}

    async def _forecasts(self, failures: list[str]) -> tuple[Numbers, Numbers]:
        """Of CPU and memory; worked out once a sample, which is the least that makes a difference."""
        window_s = self._task.forecast_window_s
        step_s = window_s / (_A_CHUNK * forecast.CHUNKS)
        if self._task.forecast and self._clock.monotonic() - self._foreseen_s >= step_s:
            cpu = await self._ahead(self._cpu(step_s), window_s, failures)
            memory = await self._ahead(self._memory(step_s), window_s, failures)
            self._foreseen = cpu, memory
            if cpu and memory:
                self._foreseen_s = self._clock.monotonic()
        return self._foreseen

    async def _ahead(self, expression: Expression, window_s: float, failures: list[str]) -> Numbers:
        ahead = {}
        points = await self._points(expression, window_s, failures)
        async for node, one in cooperative.iterate(points.items()):
            ahead[node] = forecast.forecast(one[:, 1])
        return ahead

    def _cpu(self, step_s: float) -> Expression:
        own = queries.cpu_used(max(step_s, _LEAST_RATE_S), self._options.exporter_matchers)
        return Expression("cpu", self._task.cpu_samples_query or own, step_s)

    def _memory(self, step_s: float) -> Expression:
        own = queries.memory_used(self._options.exporter_matchers)
        return Expression("memory", self._task.memory_samples_query or own, step_s)

    async def _points(
        self, expression: Expression, window_s: float, failures: list[str]
    ) -> Mapping[str, Points]:
        """The samples of the first Prometheus that has any."""
        query = f"({expression.text})[{queries.span(window_s)}:{queries.span(expression.step_s)}]"
        why = "it is asked of Prometheus only, and none is configured: give --prometheus-url"
        for source in self._sources:
            try:
                points = await source.samples(query)
            except NodewiseError as error:
                why = str(error)
            else:
                if points:
                    return points
                why = "no series of a node"
        failures.append(f"samples of {expression.of}: {why}")
        return {}


async def _curated(points: Mapping[str, Points], lefts: Mapping[str, Left]) -> tuple[Numbers, Numbers]:
    """Mean and deviation of memory in use, as the requests allow: that is a matter of what is free."""
    means, deviations = {}, {}
    async for node, one in cooperative.iterate(points.items()):
        if left := lefts.get(node):
            found = samples.summary(samples.curated(left.allocatable_bytes - one[:, 1], *left))
            means[node], deviations[node] = left.allocatable_bytes - found.mean, found.deviation
    return means, deviations


def _used(node: str, by_statistic: tuple[Numbers, Numbers, Numbers], scale: float) -> Used:
    return Used(*(numbers.get(node, nan) * scale for numbers in by_statistic))
