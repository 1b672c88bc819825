"""Selects the source of each metric: the first source, in the configured order, that has the metric.

A source that gave a metric is asked first the next time, so that one without it, or one that hangs, costs the
metric nothing. Once in `LOOK_S` the sources before it are asked again, and the first that has it now takes over.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from nodewise.clock import Clock
from nodewise.errors import NodewiseError, shown
from nodewise.metrics.series import Series
from nodewise.metrics.source import MetricRequest, NotThere, NoValues, Source
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

LOOK_S: Final = 60.0
"""How often the sources before the one that has a metric are asked whether they have it by now."""


class Limits(NamedTuple):
    """Limits of the calls to sources."""

    timeout_s: float
    """Of one call."""
    calls: int
    """Under way at once."""


class Failure(NamedTuple):
    """Why no source has a metric."""

    why: str
    """In the words of all sources, for the log."""
    cause: str = ""
    """In words for a policy's status, where a source answered (`source.NoValues`)."""


class _Failure(NamedTuple):
    """Why a source gave nothing."""

    source: str
    why: str
    not_there: bool = False
    cause: str = ""


class _Known(NamedTuple):
    """Who gave a metric last, and when all who come before were asked."""

    source: Source
    looked_at_s: float


class SourceSelector:
    """Fetches metrics from sources, each call with its own deadline and not too many at once."""

    def __init__(
        self, sources: Sequence[Source], limits: Limits, clock: Clock, meters: MetricsRegistry
    ) -> None:
        self._sources = sources
        self._limits = limits
        self._clock = clock
        self._meters = meters
        self._places = asyncio.Semaphore(limits.calls)
        self._known: dict[MetricRequest, _Known] = {}
        self._compared: set[MetricRequest] = set()
        self._told: set[tuple[str, str]] = set()

    async def ask(self, request: MetricRequest) -> Series | Failure:
        """The metric from the first source that has it, or why none has.

        An empty answer counts only if no source failed: the one that failed could have had values.
        """
        failures = []
        empty = None
        looking = self._looks(request)
        for source in self._order(request, looking=looking):
            outcome = await self._one(source, request)
            if isinstance(outcome, _Failure):
                failures.append(outcome)
            elif _is_empty(outcome):
                empty = empty or outcome
            else:
                self._remember(request, source, looked=looking)
                return outcome
        self._known.pop(request, None)
        if empty and all(failure.not_there for failure in failures):
            return empty
        if not failures:
            return Failure(_untaken(request, self._sources))
        cause = next((failure.cause for failure in failures if failure.cause), "")
        return Failure(_words(failures, len(self._sources)), cause)

    async def name_losers(self, request: MetricRequest) -> None:
        """Say which later sources have the metric too, once: the operator should know that the order decides."""
        known = self._known.get(request)
        if known is None or request in self._compared:
            return
        self._compared.add(request)
        takers = self._takers(request)
        for source in takers[takers.index(known.source) + 1 :]:
            outcome = await self._one(source, request)
            if isinstance(outcome, Series) and not _is_empty(outcome):
                self._tell(request, known.source, source)

    def forget(self, gone: frozenset[MetricRequest]) -> None:
        """Nobody needs these any more."""
        metrics = {request.key for request in gone}
        self._known = {request: known for request, known in self._known.items() if request not in gone}
        self._compared -= gone
        self._told = {key for key in self._told if key[0] not in metrics}

    def _takers(self, request: MetricRequest) -> list[Source]:
        return [source for source in self._sources if source.takes(request)]

    def _looks(self, request: MetricRequest) -> bool:
        """Whether it is time to ask in the order given."""
        known = self._known.get(request)
        return known is None or self._clock.monotonic() - known.looked_at_s >= LOOK_S

    def _order(self, request: MetricRequest, *, looking: bool) -> list[Source]:
        takers = self._takers(request)
        if looking:
            return takers
        first = self._known[request].source
        return [first, *(source for source in takers if source is not first)]

    def _remember(self, request: MetricRequest, source: Source, *, looked: bool) -> None:
        before = self._known.get(request)
        if before and looked and before.source is not source:
            self._tell(request, source, before.source)
        if looked or not before or before.source is not source:
            self._known[request] = _Known(source, self._clock.monotonic())

    def _tell(self, request: MetricRequest, used: Source, unused: Source) -> None:
        if (request.key, unused.name) not in self._told:
            self._told.add((request.key, unused.name))
            logs.emit("metric_in_two_sources", metric=request.metric, used=used.name, unused=unused.name)

    async def _one(self, source: Source, request: MetricRequest) -> Series | _Failure:
        try:
            async with self._places, asyncio.timeout(self._limits.timeout_s):
                series = await source.fetch(request, self._clock.now())
        except TimeoutError:
            failure = _Failure(source.name, f"no answer within {self._limits.timeout_s:g} s")
        except NodewiseError as error:
            cause = error.cause if isinstance(error, NoValues) else ""
            failure = _Failure(source.name, str(error), isinstance(error, NotThere), cause)
        except Exception as error:  # noqa: BLE001 - what one metric runs into must not keep the others from being asked
            failure = self._defect(request, source, error)
        else:
            self._meters.count("metric_fetches_total", source=source.name, outcome="good")
            return (
                series
                if series.metric == request.key
                else msgspec.structs.replace(series, metric=request.key)
            )
        outcome = "not_there" if failure.not_there else "failed"
        self._meters.count("metric_fetches_total", source=source.name, outcome=outcome)
        return failure

    def _defect(self, request: MetricRequest, source: Source, error: Exception) -> _Failure:
        """A failure that nobody thought of, with its traceback in the log, once a metric."""
        key = (request.key, f"defect of {source.name}")
        if key not in self._told:
            self._told.add(key)
            logs.emit("task_failed", task=f"fetching metric {shown(request.key)}", exc_info=error)
        return _Failure(source.name, f"a defect of nodewise: {type(error).__name__}: {error}")


def _is_empty(series: Series) -> bool:
    return not series.samples and not series.invalid


def _words(failures: Sequence[_Failure], sources: int) -> str:
    """A source that is not installed is named only where there is nothing else to say."""
    named = [failure for failure in failures if not failure.not_there] or failures
    return "; ".join(f"{failure.source}: {failure.why}" if sources > 1 else failure.why for failure in named)


def _untaken(request: MetricRequest, sources: Sequence[Source]) -> str:
    if not sources:
        return "no source of metrics is configured"
    if request.query:
        return "a query is answered by Prometheus only, and none is configured: give --prometheus-url"
    return f"none of --metrics has such a metric: {', '.join(source.name for source in sources)}"
