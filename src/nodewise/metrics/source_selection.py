"""Selects the source of each metric: the first source, in the configured order, that has the metric.

The source that returned a metric is queried first the next time, so that a source that lacks the metric or hangs does
not delay it. Every `SEARCH_PERIOD_S` the sources before it are queried again, and the first that has the metric takes
over. For a metric that no source has, the cause says when its series ended, or suggests the most similar existing name.

After `MAX_TIMEOUTS` timeouts in a row a metric is not requested from that source for a pause, which doubles with each
further timeout. A timeout counts only if the source answered another request since the previous one: an outage of
the source opens no breaker, so that all metrics are fetched again when it ends.

Anyone can create policies with any names, so the cost is limited: within `NAMES_S`, the names of a source are
requested once, and as many missing metrics are looked up as a namespace, and all namespaces, may have.
"""

import asyncio
import contextlib
import heapq
import math
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

import msgspec

from nodewise.base import cooperative_scheduling, distributions
from nodewise.base.clock import Clock, format_rfc3339
from nodewise.base.errors import BadInput, NodewiseError, Unavailable, closest_names, shown
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.fair_concurrency_limit import AGENTS, FairConcurrencyLimit, Slot
from nodewise.metrics.metrics_source import (
    MetricCatalog,
    MetricNotFound,
    MetricRequest,
    MetricsSource,
    NoValues,
    SeriesCatalog,
)
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.series import Series
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

NAMES_S: Final = 60.0
"""The time for which the names of a source are kept."""
RETRY_S: Final = 5.0
"""The pause after a first failure of a source to say what it has; it doubles up to `NAMES_S`."""
OUTDATED_S: Final = 20.0
"""The time for which the values of existing series count as outdated; soon after, they may have ended."""
RECHECK_S: Final = 600.0
"""The time for which a suggestion is kept, so that it does not change a status with each refresh."""
MAX_NAMES: Final = 20_000
"""Names of a source that are considered."""
MAX_COMPARED: Final = 100
"""Names that are compared thoroughly with a misspelt one."""
MAX_SUGGESTED: Final = 3
"""Names that are considered as a suggestion."""
MAX_LENGTH: Final = 80
"""Characters of the misspelt name that are compared."""
MAX_OF_NAMESPACE: Final = 5
MAX_OF_ALL: Final = 20
"""Misspelt names that are compared within `NAMES_S`. Each takes 0.1 s with 20,000 names, in small parts."""
_STRIDE: Final = 50
"""Number of names in one part of the work, which takes about 0.1 ms."""


class _Names:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.due_s = float("-inf")
        self.pause_s = 0.0
        """After the last failure; 0 after a success."""
        self.names: Sequence[str] = ()


class _KnownCause(NamedTuple):
    """The cause for a metric without values."""

    cause: Cause
    due_s: float
    """When the source is asked again, on the monotonic clock."""
    pause_s: float
    """After the last failure of the source; 0 if it told what it has."""


def _next_pause_s(pause_s: float) -> float:
    return min(2 * pause_s or RETRY_S, NAMES_S)


class MetricNameSuggestions:
    """The suggestions for all metrics that sources do not have."""

    def __init__(self, clock: Clock, timeout_s: float, computed: Sequence[MetricCatalog] = ()) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._computed = computed
        """Of metrics that nodewise computes, which are suggested beside those of any source."""
        self._names: dict[str, _Names] = {}
        """By name of the source."""
        self._causes: dict[str, _KnownCause] = {}
        """By `MetricRequest.key`."""
        self._compared: Counter[str] = Counter()
        """By namespace, the number of misspelt names that were compared since `_since_s`."""
        self._since_s = float("-inf")

    async def suggest(self, cause: Cause, request: MetricRequest, source: MetricsSource) -> Cause:
        """The cause, with the end of the metric's series or else the most similar name that the source has."""
        if cause.reason not in ("MetricUnknown", "NoSeries") or not isinstance(source, MetricCatalog):
            return cause
        known = self._causes.get(request.key, _KnownCause(cause, float("-inf"), 0.0))
        if self._clock.monotonic() < known.due_s or not self._has_budget(
            request.namespaces or frozenset([AGENTS])
        ):
            return known.cause
        kept_s, pause_s = 0.0, 0.0
        try:
            async with asyncio.timeout(self._timeout_s):
                cause, kept_s = await self._find_cause(cause, request, source)
        except (NodewiseError, TimeoutError):
            cause = known.cause
        if not kept_s:
            kept_s = pause_s = _next_pause_s(known.pause_s)
        self._causes[request.key] = _KnownCause(cause, self._clock.monotonic() + kept_s, pause_s)
        return cause

    async def _find_cause(
        self, cause: Cause, request: MetricRequest, source: MetricsSource
    ) -> tuple[Cause, float]:
        """The cause with what the source knows, and how long it is kept; 0 if the names of the source are not known.
        Errors are those of the source.
        """
        has_series = source if isinstance(source, SeriesCatalog) else None
        ended_at = await has_series.series_end(request) if has_series else None
        if ended_at == math.inf:
            return missing_values.OUTDATED, OUTDATED_S
        if ended_at is not None:
            ended = missing_values.cause_of_ended_series(source.name, ended_at, has_query=bool(request.query))
            return ended, RECHECK_S
        if cause.reason != "MetricUnknown":
            return cause, RECHECK_S
        names = await self._names_of(source)
        suggested = await self._suggest_similar(cause, request.metric, names, has_series)
        return suggested, RECHECK_S if names or suggested != cause else 0.0

    async def _suggest_similar(
        self, cause: Cause, metric: str, names: Sequence[str], has_series: SeriesCatalog | None
    ) -> Cause:
        """The cause with the most similar of these names that has series, or of a metric that nodewise computes."""
        computed = {name for catalog in self._computed for name in await catalog.metric_names()}
        similar = await cooperative_scheduling.run(select_similar_names(metric, [*computed, *names]))
        closest = closest_metrics(metric, similar)
        existing = await has_series.existing_metrics(closest) if has_series and closest else closest
        for name in closest:
            if name in computed or name in existing:
                return missing_values.suggest(cause, name, is_computed=name in computed)
        return cause

    def forget(self, keys: frozenset[str]) -> None:
        """Drop metrics that have values or are no longer requested, by `MetricRequest.key`."""
        for key in keys & self._causes.keys():
            del self._causes[key]

    def _has_budget(self, namespaces: frozenset[str]) -> bool:
        """Whether one of these namespaces may compare one more name, which is counted."""
        if self._clock.monotonic() - self._since_s >= NAMES_S:
            self._since_s = self._clock.monotonic()
            self._compared.clear()
        name = min(namespaces, key=lambda name: (self._compared[name], name))
        if self._compared[name] >= MAX_OF_NAMESPACE or self._compared.total() >= MAX_OF_ALL:
            return False
        self._compared[name] += 1
        return True

    async def _names_of(self, source: MetricsSource) -> Sequence[str]:
        """The names that a source has; none if it does not respond."""
        assert isinstance(source, MetricCatalog)
        known = self._names.setdefault(source.name, _Names())
        async with known.lock:
            if self._clock.monotonic() >= known.due_s:
                # also if the caller's timeout cancels it
                known.pause_s = _next_pause_s(known.pause_s)
                known.due_s = self._clock.monotonic() + known.pause_s
                known.names = ()
                with contextlib.suppress(NodewiseError, TimeoutError):
                    async with asyncio.timeout(self._timeout_s):
                        known.names = (await source.metric_names())[:MAX_NAMES]
                    known.due_s, known.pause_s = self._clock.monotonic() + NAMES_S, 0.0
        return known.names


def closest_metrics(metric: str, names: Sequence[str]) -> list[str]:
    """Up to `MAX_SUGGESTED` of these names, the most similar first. A name may lack the prefix of the node exporter."""
    others = [name for name in names if name != metric]
    prefixed = [name for name in (f"node_{metric}",) if name in others]
    return list(dict.fromkeys([*prefixed, *closest_names(metric, others, MAX_SUGGESTED)]))[:MAX_SUGGESTED]


def select_similar_names(metric: str, names: Sequence[str]) -> Generator[None, None, list[str]]:
    """The names to compare: those that share most pairs of letters and have about the same length. Yields between
    parts.
    """
    pairs = {metric[at : at + 2] for at in range(min(len(metric), MAX_LENGTH) - 1)}
    ranked: list[tuple[int, str]] = []
    for number, name in enumerate(names, 1):
        shared = sum(pair in name for pair in pairs)
        if shared:
            ranked.append((abs(len(name) - len(metric)) - 2 * shared, name))
        if not number % _STRIDE:
            yield
    return [name for _, name in heapq.nsmallest(MAX_COMPARED, ranked)]


MAX_TIMEOUTS: Final = 3
"""Timeouts in a row after which a breaker opens."""
FIRST_PAUSE_S: Final = 30.0
MAX_PAUSE_S: Final = 300.0


class Pause(NamedTuple):
    """Why a metric is not requested."""

    timeouts: int
    """In a row."""
    timeout_s: float
    """The timeout of the last call."""
    until_s: float
    """On the monotonic clock."""
    until: str
    """RFC 3339."""


class _Breaker:
    """The timeouts of one metric at one source, in a row."""

    def __init__(self, started_s: float) -> None:
        self.last_started_s = started_s
        """Start of the last call that timed out, on the monotonic clock."""
        self.timeouts = 0
        self.pause: Pause | None = None


class TimeoutBreakers:
    """The breakers of all metrics, by `MetricRequest.key` and name of the source."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._breakers: dict[str, dict[str, _Breaker]] = {}
        self._answered_s: dict[str, float] = {}
        """Time of the last answer of each source, on the monotonic clock."""

    @property
    def open(self) -> int:
        """The number of open breakers."""
        return sum(
            breaker.pause is not None
            for by_source in self._breakers.values()
            for breaker in by_source.values()
        )

    def pause(self, key: str, source: str) -> Pause | None:
        """The pause in which the metric must not be requested now; None if it may."""
        breaker = self._breakers.get(key, {}).get(source)
        pause = breaker.pause if breaker else None
        return pause if pause and self._clock.monotonic() < pause.until_s else None

    def record_timeout(self, key: str, source: str, started_s: float, timeout_s: float) -> Pause | None:
        """Count a timeout of a call that began at `started_s`. The pause that follows; None if the metric may be
        requested again.
        """
        breaker = self._breakers.setdefault(key, {}).setdefault(source, _Breaker(started_s))
        since_s, breaker.last_started_s = breaker.last_started_s, started_s
        if self._answered_s.get(source, float("-inf")) < since_s:
            return None
        breaker.timeouts += 1
        if breaker.timeouts < MAX_TIMEOUTS:
            return None
        # the exponent is limited: a float has no power of two with an exponent above 1,023
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(breaker.timeouts - MAX_TIMEOUTS, 10), MAX_PAUSE_S)
        until = format_rfc3339(self._clock.now() + pause_s)
        breaker.pause = Pause(breaker.timeouts, timeout_s, self._clock.monotonic() + pause_s, until)
        return breaker.pause

    def record_answer(self, key: str, source: str) -> bool:
        """Close the breaker. Whether it was open."""
        self._answered_s[source] = self._clock.monotonic()
        breaker = self._breakers.get(key, {}).pop(source, None)
        return breaker is not None and breaker.pause is not None

    def forget(self, gone: frozenset[str]) -> None:
        """Drop metrics that are no longer requested."""
        for key in gone & self._breakers.keys():
            del self._breakers[key]


SEARCH_PERIOD_S: Final = 60.0
"""Period after which the sources before the current one are queried again."""
_MAX_LOGGED_NAMESPACES: Final = 5
_NOT_THERE: Final = "not_there"
"""Outcome of a source that does not have the metric, or is not installed."""


class FetchLimits(NamedTuple):
    timeout_s: float
    """Timeout of one call, including the time that it waits for a slot."""
    calls: int
    """Concurrent calls, shared fairly by namespaces."""


class FetchFailure(NamedTuple):
    """Why no source has a metric."""

    why: str
    """The errors of all sources, for the log."""
    cause: Cause
    """The cause for the status of a policy, which tenants read."""


class _SourceFailure(NamedTuple):
    source: str
    why: str
    cause: Cause
    outcome: str = "failed"
    """As in `nodewise_metric_fetches_total`."""


class _KnownSource(NamedTuple):
    """The current source of a metric, and the time at which the sources before it were last queried."""

    source: MetricsSource
    searched_at_s: float


class SourceSelector:
    """Fetches metrics from sources.

    Each call has its own timeout. Concurrent calls are limited, and shared fairly by the namespaces that request the
    metrics. A metric that keeps timing out is requested less often.
    """

    def __init__(
        self,
        sources: Sequence[MetricsSource],
        limits: FetchLimits,
        clock: Clock,
        metrics_registry: MetricsRegistry,
    ) -> None:
        self._sources = sources
        self._limits = limits
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._slots = FairConcurrencyLimit(limits.calls)
        self._breakers = TimeoutBreakers(clock)
        self._known: dict[str, _KnownSource] = {}
        """By `MetricRequest.key`."""
        self._compared: set[str] = set()
        """`MetricRequest.key` of the metrics whose later sources were queried."""
        self._logged: set[tuple[str, str]] = set()
        computed = [
            source
            for source in sources
            if source.name == source_table.COMPUTED and isinstance(source, MetricCatalog)
        ]
        self._suggestions = MetricNameSuggestions(clock, limits.timeout_s, computed)

    async def fetch(self, request: MetricRequest) -> Series | FetchFailure:  # complexity: each outcome
        """The metric from the first source that has it, or the reason why no source has it.

        An empty series is valid only if no source failed: the failed source might have values.
        """
        failures = []
        empty = None
        searching = self._is_search_due(request)
        for source in self._search_order(request, searching=searching):
            outcome = await self._fetch_from(source, request)
            if isinstance(outcome, _SourceFailure):
                failures.append(outcome)
            elif _is_empty(outcome):
                empty = empty or outcome
            else:
                self._record_source(request, source, searched=searching)
                self._suggestions.forget(frozenset([request.key]))
                return outcome
        self._known.pop(request.key, None)
        if _is_computed_elsewhere(request, self._sources):
            text = f"only a running nodewise computes {request.metric}"
            remedy = "name the namespace of the running nodewise with --nodewise-namespace"
            return FetchFailure(f"{text}: {remedy}", Cause("NoSource", text, remedy))
        if empty and all(failure.outcome == _NOT_THERE for failure in failures):
            return empty
        if not failures:
            return _no_source_failure(request, self._sources)
        return _failure_of_sources(failures, self._sources)

    async def log_unused_sources(self, request: MetricRequest) -> None:
        """Log once which later sources have the metric, too: the operator should know that the order decides."""
        known = self._known.get(request.key)
        if known is None or request.key in self._compared:
            return
        self._compared.add(request.key)
        supporting = self._supporting_sources(request)
        for source in supporting[supporting.index(known.source) + 1 :]:
            outcome = await self._fetch_from(source, request)
            if isinstance(outcome, Series) and not _is_empty(outcome):
                self._log_duplicate(request, known.source, source)

    def forget(self, gone: frozenset[str]) -> None:
        """Drop metrics that are no longer requested, by `MetricRequest.key`."""
        for key in gone & self._known.keys():
            del self._known[key]
        self._compared -= gone
        self._breakers.forget(gone)
        self._suggestions.forget(gone)
        self._report_paused()
        self._logged = {key for key in self._logged if key[0] not in gone}

    def _supporting_sources(self, request: MetricRequest) -> list[MetricsSource]:
        """Those that may have the metric. No other source is asked for a metric that nodewise computes."""
        supporting = [source for source in self._sources if source.supports(request)]
        computed = [source for source in supporting if source.name == source_table.COMPUTED]
        return computed or supporting

    def _is_search_due(self, request: MetricRequest) -> bool:
        """Whether to query all sources in the configured order."""
        known = self._known.get(request.key)
        return known is None or self._clock.monotonic() - known.searched_at_s >= SEARCH_PERIOD_S

    def _search_order(self, request: MetricRequest, *, searching: bool) -> list[MetricsSource]:
        supporting = self._supporting_sources(request)
        if searching:
            return supporting
        first = self._known[request.key].source
        return [first, *(source for source in supporting if source is not first)]

    def _record_source(self, request: MetricRequest, source: MetricsSource, *, searched: bool) -> None:
        before = self._known.get(request.key)
        if before and searched and before.source is not source:
            self._log_duplicate(request, source, before.source)
        if searched or not before or before.source is not source:
            self._known[request.key] = _KnownSource(source, self._clock.monotonic())

    def _log_duplicate(self, request: MetricRequest, used: MetricsSource, unused: MetricsSource) -> None:
        if (request.key, unused.name) not in self._logged:
            self._logged.add((request.key, unused.name))
            logs.emit("metric_in_two_sources", metric=request.metric, used=used.name, unused=unused.name)

    async def _fetch_from(self, source: MetricsSource, request: MetricRequest) -> Series | _SourceFailure:
        pause = self._breakers.pause(request.key, source.name)
        if pause is None:
            result = await self._call(source, request)
        else:
            result = _paused_failure(source, request, pause)._replace(outcome="paused")
        outcome = "good" if isinstance(result, Series) else result.outcome
        self._metrics_registry.count("metric_fetches_total", source=source.name, outcome=outcome)
        return result

    async def _call(self, source: MetricsSource, request: MetricRequest) -> Series | _SourceFailure:
        """One call with its timeout, which includes the time that the call waits for a slot."""
        begun_s, started_s = self._clock.monotonic(), None
        slot = self._slots.slot(request.namespaces)
        try:
            async with asyncio.timeout(self._limits.timeout_s), slot:
                started_s = self._clock.monotonic()
                series = await source.fetch(request, self._clock.now())
        except TimeoutError:
            # a call that had less than half of the timeout says nothing about the metric
            if started_s is None or started_s - begun_s > self._limits.timeout_s / 2:
                return _no_slot_failure(source, slot, self._limits)
            return self._timeout_failure(source, request, started_s, self._limits.timeout_s)
        except NodewiseError as error:
            return await self._failure_of_error(source, request, started_s or begun_s, error)
        except Exception as error:  # noqa: BLE001 - a defect with one metric must not affect other metrics
            return self._failure_of_exception(request, source, error)
        self._record_answer(source, request)
        return series if series.metric == request.key else msgspec.structs.replace(series, metric=request.key)

    async def _failure_of_error(
        self, source: MetricsSource, request: MetricRequest, started_s: float, error: NodewiseError
    ) -> _SourceFailure:
        if isinstance(error, Unavailable) and error.timeout_s:
            failure = self._timeout_failure(source, request, started_s, error.timeout_s)
            is_paused = failure.cause.reason == "RequestsPaused"
            return failure if is_paused else failure._replace(why=str(error))
        if isinstance(error, NoValues | BadInput):
            self._record_answer(source, request)
        own = missing_values.cause_of_error(error, source.name)
        cause = await self._suggestions.suggest(own, request, source)
        outcome = _NOT_THERE if isinstance(error, MetricNotFound) else "failed"
        why = str(error) if cause.reason == own.reason else str(cause)
        return _SourceFailure(source.name, why, cause, outcome)

    def _timeout_failure(
        self, source: MetricsSource, request: MetricRequest, started_s: float, timeout_s: float
    ) -> _SourceFailure:
        pause = self._breakers.record_timeout(request.key, source.name, started_s, timeout_s)
        if pause is None:
            cause = missing_values.cause_of_timeout(source.name, timeout_s)
            return _SourceFailure(source.name, f"no answer within {timeout_s:g} s", cause)
        if pause.timeouts == MAX_TIMEOUTS:
            logs.emit(
                "metric_paused",
                metric=request.key,
                source=source.name,
                namespaces=sorted(request.namespaces)[:_MAX_LOGGED_NAMESPACES],
                timeouts=pause.timeouts,
                until=pause.until,
            )
            self._report_paused()
        return _paused_failure(source, request, pause)

    def _record_answer(self, source: MetricsSource, request: MetricRequest) -> None:
        if self._breakers.record_answer(request.key, source.name):
            logs.emit("metric_resumed", metric=request.key, source=source.name)
            self._report_paused()

    def _report_paused(self) -> None:
        self._metrics_registry.set("metric_requests_paused", self._breakers.open)

    def _failure_of_exception(
        self, request: MetricRequest, source: MetricsSource, error: Exception
    ) -> _SourceFailure:
        """The failure of an unexpected exception, whose traceback is logged once per metric."""
        key = (request.key, f"defect of {source.name}")
        if key not in self._logged:
            self._logged.add(key)
            logs.emit("task_failed", task=f"fetching metric {shown(request.key)}", exc_info=error)
        cause = missing_values.cause("InternalError", source.name, "cannot be read: a defect of nodewise")
        return _SourceFailure(source.name, f"a defect of nodewise: {type(error).__name__}: {error}", cause)


def _is_empty(series: Series) -> bool:
    return not series.samples and not series.invalid


def _paused_failure(source: MetricsSource, request: MetricRequest, pause: Pause) -> _SourceFailure:
    """The failure of a metric that timed out too often."""
    cause = missing_values.cause_of_pause(source.name, pause.timeout_s, has_query=bool(request.query))
    what = f"no answer within {pause.timeout_s:g} s, {pause.timeouts} times in a row"
    return _SourceFailure(source.name, f"{what}; tried again at {pause.until}: {cause.remedy}", cause)


def _no_slot_failure(source: MetricsSource, slot: Slot, limits: FetchLimits) -> _SourceFailure:
    """The failure of a call that did not get a slot in time, which names the excess of its own namespace only."""
    why = f"no free request slot within {limits.timeout_s:g} s"
    text = "was not queried: no free request slot in time"
    namespace, calls = slot.calls_before
    if not calls:
        why = f"{why}: requests of other namespaces use all {limits.calls} (--metrics-concurrency)"
        cause = missing_values.cause("BudgetExceeded", source.name, text, "raise --metrics-concurrency")
        return _SourceFailure(source.name, why, cause)
    requester = "nodewise's agents" if namespace == AGENTS else f"namespace {namespace}"
    remedy = "use fewer metrics in the namespace, or cheaper queries"
    why = f"{why}: {requester} had {calls} requests before it (--metrics-concurrency {limits.calls})"
    return _SourceFailure(source.name, why, missing_values.cause("BudgetExceeded", source.name, text, remedy))


def _first_cause(failures: Sequence[_SourceFailure]) -> Cause:
    """The cause of the source that most likely has the metric."""
    cause = missing_values.first_cause(failure.cause for failure in failures)
    of_resource = [failure.cause for failure in failures if failure.source == source_table.RESOURCE]
    if of_resource and cause.reason == "MetricUnknown":
        return of_resource[0]  # only metrics-server has metrics of its names, and it is not installed
    return cause


def _cause_with_servers(failures: Sequence[_SourceFailure], sources: Sequence[MetricsSource]) -> Cause:
    """The cause to show. If several servers of Prometheus are configured, it numbers those that fail: tenants read the
    cause, so it contains no address.
    """
    cause = _first_cause(failures)
    servers = [source.name for source in sources if missing_values.is_one_of_several_servers(source.name)]
    alike = {failure.source for failure in failures if failure.cause.reason == cause.reason}
    failing = [str(number) for number, name in enumerate(servers, 1) if name in alike]
    if not failing:
        return cause
    noun = "server" if len(failing) == 1 else "servers"
    places = f"{noun} {', '.join(failing)} of {len(servers)} in --prometheus-url"
    return cause._replace(text=f"{cause.text} ({places})")


def _failure_of_sources(failures: list[_SourceFailure], sources: Sequence[MetricsSource]) -> FetchFailure:
    # a source that is not installed is named only if there is no other error, or if no other source has such names
    named = [
        failure
        for failure in failures
        if failure.outcome != _NOT_THERE or failure.source == source_table.RESOURCE
    ] or failures
    several = len(sources) > 1
    texts = [f"{failure.source}: {failure.why}" if several else failure.why for failure in named]
    return FetchFailure("; ".join(texts), _cause_with_servers(failures, sources))


def _is_computed_elsewhere(request: MetricRequest, sources: Sequence[MetricsSource]) -> bool:
    """Whether a metric is one that the controller or the extender computes, and this process is neither of them."""
    if any(source.name == source_table.COMPUTED for source in sources):
        return False
    names = {entry.name for entry in distributions.own_entry_points(distributions.COMPUTED_METRICS)}
    return request.metric in names and not request.query


def _no_source_failure(request: MetricRequest, sources: Sequence[MetricsSource]) -> FetchFailure:
    if not sources:
        cause = Cause("NoSource", "no source of metrics is configured", "set --metrics or --prometheus-url")
        return FetchFailure(cause.text, cause)
    if request.query or request.device_label:
        lack = (
            "a query is answered by Prometheus only"
            if request.query
            else "only Prometheus has values of devices"
        )
        cause = Cause("NoSource", f"{lack}, and none is configured", "give --prometheus-url")
        return FetchFailure(f"{cause.text}: {cause.remedy}", cause)
    text = f"none of --metrics has such a metric: {', '.join(source.name for source in sources)}"
    titles = " or ".join(dict.fromkeys(missing_values.source_title(source.name) for source in sources))
    remedy = "correct the name, or add the source that has it to --metrics"
    return FetchFailure(text, Cause("NoSource", f"{titles} cannot have a metric of this name", remedy))
