"""Asks the sources, over and over, for what is wanted. Each metric has its own call, deadline and outcome."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import msgspec

from nodewise.clock import Clock
from nodewise.errors import NodewiseError
from nodewise.metrics.series import Series
from nodewise.metrics.snapshot import Snapshot
from nodewise.metrics.source import Source, Want
from nodewise.observe import logs
from nodewise.observe.meters import Meters


class RefreshOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how patiently metrics are asked for."""

    sync_period_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """How often metrics are asked for and verdicts are renewed. The older system's default."""

    metrics_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """How long one metric may take before it counts as failed in this round."""

    metrics_concurrency: Annotated[int, msgspec.Meta(ge=1)] = 64
    """Calls under way at once, so that thousands of metric names do not become thousands of connections."""


class Refresher:
    """Keeps `snapshot` as new as the sources allow."""

    def __init__(
        self,
        sources: Sequence[Source],
        options: RefreshOptions,
        clock: Clock,
        meters: Meters,
    ) -> None:
        self.snapshot = Snapshot()
        self._sources = sources
        self._options = options
        self._clock = clock
        self._meters = meters
        self._subscribers: list[Callable[[], None]] = []
        self._wants: frozenset[Want] = frozenset()
        self._under_way: dict[Want, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(options.metrics_concurrency)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have each outcome told, after it is in the snapshot."""
        self._subscribers.append(changed)

    def want(self, wants: frozenset[Want]) -> None:
        """Set what is needed. A metric that is new is asked for at once; one that nobody names is forgotten."""
        if wants == self._wants:
            return
        new, gone = wants - self._wants, self._wants - wants
        self._wants = wants
        names = frozenset(want.metric for want in wants)
        self.snapshot = self.snapshot.only(names)
        for want in gone:
            if want.metric not in names:
                self._meters.forget("metric_nodes", metric=want.metric)
                self._meters.forget("metric_age_seconds", metric=want.metric)
        self._start(new)

    async def run(self) -> None:
        """Ask for everything once a period, until cancelled."""
        try:
            while True:
                await self._clock.sleep(self._options.sync_period_s)
                self._start(self._wants)
                self._report_ages()
        finally:
            for task in self._under_way.values():
                task.cancel()

    async def settle(self) -> None:
        """Wait until no call is under way: for tests, and for commands that ask once."""
        while self._under_way:
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    def _start(self, wants: frozenset[Want]) -> None:
        # A call that still hangs from the round before is left to its own deadline.
        for want in wants - self._under_way.keys():
            task = asyncio.create_task(self._refresh(want))
            self._under_way[want] = task
            task.add_done_callback(partial(self._end, want))

    def _end(self, want: Want, _: asyncio.Task[None]) -> None:
        self._under_way.pop(want, None)

    def _changed(self) -> None:
        for changed in self._subscribers:
            changed()

    async def _refresh(self, want: Want) -> None:
        failures: list[str] = []
        for source in self._sources:
            outcome = await self._ask(source, want)
            if isinstance(outcome, Series):
                self._keep(want, outcome)
                return
            failures.append(f"{source.name}: {outcome}" if len(self._sources) > 1 else outcome)
        self._fail(want, "; ".join(failures) or "no source of metrics is configured")

    async def _ask(self, source: Source, want: Want) -> Series | str:
        """The series, or why there is none."""
        try:
            async with self._places, asyncio.timeout(self._options.metrics_timeout_s):
                series = await source.fetch(want, self._clock.now())
        except TimeoutError:
            why = f"no answer within {self._options.metrics_timeout_s:g} s"
        except NodewiseError as error:
            why = str(error)
        else:
            self._meters.count("metric_fetches_total", source=source.name, outcome="good")
            return series
        self._meters.count("metric_fetches_total", source=source.name, outcome="failed")
        return why

    def _keep(self, want: Want, series: Series) -> None:
        if want not in self._wants:
            return
        if want.metric in self.snapshot.failures:
            logs.emit("metric_back", metric=want.metric, nodes=len(series.samples))
        before = self.snapshot.series.get(want.metric)
        if series.invalid and (before is None or before.invalid.keys() != series.invalid.keys()):
            node, why = next(iter(series.invalid.items()))
            logs.emit(
                "metric_values_bad", metric=want.metric, nodes=len(series.invalid), example=f"{node}: {why}"
            )
        self.snapshot = self.snapshot.with_series(series)
        self._meters.set("metric_nodes", len(series.samples), metric=want.metric)
        self._changed()

    def _fail(self, want: Want, why: str) -> None:
        if want not in self._wants:
            return
        if self.snapshot.failures.get(want.metric) != why:
            logs.emit("metric_failed", metric=want.metric, error=why)
        self.snapshot = self.snapshot.with_failure(want.metric, why)
        self._changed()

    def _report_ages(self) -> None:
        now = self._clock.now()
        for metric, series in self.snapshot.series.items():
            self._meters.set("metric_age_seconds", now - series.fetched_at, metric=metric)
