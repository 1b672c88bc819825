"""Usage statistics of samples that the annotator takes, for sources that only have current values."""

from collections import deque
from collections.abc import Mapping, Sequence
from math import nan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodewise.base import clock as clocks
from nodewise.base import cooperative_scheduling
from nodewise.base.quantity import NANO
from nodewise.metrics.metrics_source import MetricRequest
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
from nodewise_scorers.statistics.prometheus_load_queries import WindowOptions

CPU: Final = "cpu_usage"
MEMORY: Final = "memory_usage"
"""The names in `metrics.resource_metrics_api`, in cores and bytes."""

_MIN_INTERVAL_S: Final = 5.0
"""metrics-server itself has new values every 15 s."""


class SampledUsageSource:
    """Keeps the samples of a window (`node_usage.UsageSource`). A single sample has a mean and no deviation."""

    def __init__(
        self, selector: SourceSelector, options: WindowOptions, config: AnnotatorConfig, clock: clocks.Clock
    ) -> None:
        self._selector = selector
        self._window_s = options.statistics_window_s
        self._has_forecasts = config.forecast
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
        summary = sample_statistics.summarize(values)
        forecast = sample_statistics.forecast(values) if self._has_forecasts else nan
        return ResourceUsage(summary.mean, summary.deviation, forecast)
