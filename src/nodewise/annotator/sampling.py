"""Statistics of samples that we take ourselves, where a source only says what is so now."""

from collections import deque
from collections.abc import Mapping, Sequence
from math import nan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodewise import clock as clocks
from nodewise import cooperative
from nodewise.annotator import forecast, samples
from nodewise.annotator.measured import MILLI, Left, Measured
from nodewise.annotator.options import Task
from nodewise.annotator.usage import Usage, Used
from nodewise.metrics.asking import Asker
from nodewise.metrics.series import Series
from nodewise.metrics.source import MetricRequest
from nodewise.quantity import NANO
from nodewise.statistics.queries import WindowOptions

CPU: Final = "cpu_usage"
MEMORY: Final = "memory_usage"
"""As `metrics.resource` names what it measures: cores and bytes."""


class Samples:
    """Statistics of our own, of what a source says now and again. A single sample has a mean and nothing else."""

    def __init__(self, asker: Asker, options: WindowOptions, task: Task, clock: clocks.Clock) -> None:
        self._asker = asker
        self._window_s = options.statistics_window_s
        self._forecasts = task.forecast
        self._clock = clock
        self._kept: dict[str, dict[str, deque[tuple[float, float]]]] = {CPU: {}, MEMORY: {}}
        """By metric and node: times and values."""
        self._failures: dict[str, str] = {}
        self._looked_s = float("-inf")

    @property
    def every_s(self) -> float:
        """How often a sample is taken: 30 times in a window."""
        return max(self._window_s / 30, _LEAST_S)

    async def look(self) -> None:
        if self._clock.monotonic() - self._looked_s < self.every_s:
            return
        self._looked_s = self._clock.monotonic()
        for metric, kept in self._kept.items():
            outcome = await self._asker.ask(MetricRequest(metric))
            if isinstance(outcome, Series):
                self._failures.pop(metric, None)
                await self._keep(outcome, kept)
            else:
                self._failures[metric] = outcome.why

    async def _keep(self, series: Series, kept: dict[str, deque[tuple[float, float]]]) -> None:
        """Each sample once, for the source may give the same one several times."""
        now = self._clock.now()
        async for node, sample in cooperative.iterate(series.samples.items()):
            own = kept.setdefault(node, deque())
            at = min(sample.at if sample.at is not None else now, now)
            if not own or at > own[-1][0]:
                own.append((at, sample.value / NANO))

    async def _forget(self) -> None:
        """Let go of what is older than the window, be it that the source says nothing any more."""
        oldest = self._clock.now() - self._window_s
        for kept in self._kept.values():
            async for node, own in cooperative.iterate(list(kept.items())):
                while own and own[0][0] <= oldest:
                    own.popleft()
                if not own:
                    del kept[node]

    async def measured(self, lefts: Mapping[str, Left]) -> Measured:  # noqa: ARG002 - Prometheus only
        await self._forget()
        cpu, memory = self._kept[CPU], self._kept[MEMORY]
        failures = tuple(f"{metric}: {why}" for metric, why in self._failures.items())
        found = {}
        async for node in cooperative.iterate(cpu.keys() | memory.keys()):
            spans = [own[-1][0] - own[0][0] for own in (cpu.get(node), memory.get(node)) if own]
            found[node] = Usage(
                self._used(cpu.get(node), MILLI),
                self._used(memory.get(node), 1.0),
                is_brief=min(spans) < self._window_s / 2,
            )
        return Measured(found, failures)

    def _used(self, own: Sequence[tuple[float, float]] | None, scale: float) -> Used:
        if not own:
            return Used()
        values: NDArray[np.float64] = np.array(own)[:, 1] * scale
        found = samples.summary(values)
        return Used(found.mean, found.deviation, forecast.forecast(values) if self._forecasts else nan)


_LEAST_S: Final = 5.0
"""metrics-server itself has something new every 15 s."""
