"""Fetches the requested metrics periodically. Each metric has its own call, timeout and outcome.

Of the names of metrics, which tenants choose, only a limited number labels series of `/metrics`.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from nodewise.base import cooperative_scheduling
from nodewise.base.clock import Clock
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import MetricRequest, MetricsSource, RefreshOptions, merge_requests
from nodewise.metrics.missing_values import CauseReason
from nodewise.metrics.series import LOOKBACK_S, Series, derived_max_age_s, keep_nodes, merge_newer
from nodewise.metrics.source_selection import FetchFailure, FetchLimits, SourceSelector
from nodewise.observe import logs, traces
from nodewise.observe.metrics_registry import MetricsRegistry

MAX_METRIC_NAMES: Final = 500
"""Names that policies of all namespaces request. Names that an agent requests itself are exported in addition."""

POD_PERIOD_S: Final = 60.0
"""Period of metrics by pod, of which a large cluster has a hundred thousand values."""


def select_exported_names(
    requests: Iterable[MetricRequest], exported: frozenset[str], most: int = MAX_METRIC_NAMES
) -> frozenset[str]:
    """The names to export: an equal share for each namespace, in which the names that are `exported` already come
    first. What a namespace does not use of its share is for the others.
    """
    of_agents: set[str] = set()
    by_namespace: dict[str, set[str]] = {}
    for request in requests:
        if not request.namespaces:
            of_agents.add(request.name)
        for namespace in request.namespaces:
            by_namespace.setdefault(namespace, set()).add(request.name)
    ranks: dict[str, int] = {}
    """By name: its place within the namespace where it is first."""
    for names in by_namespace.values():
        for rank, name in enumerate(sorted(names - of_agents, key=lambda name: (name not in exported, name))):
            ranks[name] = min(rank, ranks.get(name, rank))
    chosen = sorted(ranks, key=lambda name: (ranks[name], name not in exported, name))[:most]
    return frozenset(chosen) | of_agents


_METRICS_BY_NAME: Final = (
    "metric_nodes",
    "metric_age_seconds",
    "metric_series_unmatched",
    "metric_incomplete",
)
"""Metrics of `/metrics` with a label for the requested metric."""
_TOO_LARGE: Final[frozenset[CauseReason]] = frozenset(
    {"InvalidQuery", "RequestsPaused", "ResponseUnreadable", "SourceFails", "SourceTimesOut"}
)
"""The causes of failures that a response with fewer samples may not have."""


def with_lookback(request: MetricRequest, before: Series | None, default_max_age_s: float) -> MetricRequest:
    """The request as it is sent, given the last response: it sees at least two samples of a node if there are any.

    `default_max_age_s` applies to a request without a maximum age. A request whose empty result means healthy sees no
    samples that are older than its maximum age.
    """
    distance_s = before.sample_distance_s if before is not None else None
    looks_back = not request.empty_is_healthy and not (before is not None and before.is_distance_measured)
    max_age_s = derived_max_age_s(request.max_age_s or default_max_age_s, distance_s)
    return request._replace(max_age_s=max_age_s, lookback_s=LOOKBACK_S if looks_back else 0.0)


class MetricsRefresher:
    """Fetches metrics and keeps `snapshot` up to date."""

    def __init__(
        self,
        sources: Sequence[MetricsSource],
        options: RefreshOptions,
        clock: Clock,
        metrics_registry: MetricsRegistry,
        own_nodes: Container[str] | None = None,
    ) -> None:
        self.snapshot = MetricsSnapshot()
        self._own_nodes = own_nodes
        """With shards: the nodes of this replica, the only ones whose samples are kept."""
        limits = FetchLimits(options.metrics_timeout_s, options.metrics_concurrency)
        self._selector = SourceSelector(sources, limits, clock, metrics_registry)
        self._options = options
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._subscribers: list[Callable[[], None]] = []
        self._requests: Mapping[str, MetricRequest] = {}
        """By key."""
        self._exported: frozenset[str] = frozenset()
        """Names of metrics that label series of `/metrics`."""
        self._under_way: dict[str, asyncio.Task[None]] = {}
        """By key."""

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after each outcome, when it is in the snapshot."""
        self._subscribers.append(on_change)

    def set_requests(self, requests: frozenset[MetricRequest]) -> None:
        """Set the requested metrics.

        A new metric, or one with another maximum age, is fetched at once; one that is no longer requested is dropped.
        """
        before = self._requests
        self._requests = {request.key: request for request in merge_requests(requests)}
        if self._requests == before:
            return
        self._select_exported_names()
        gone = before.keys() - self._requests.keys()
        if gone:
            self._drop([before[key] for key in gone])
        for key, request in self._requests.items():
            if key not in before or before[key].max_age_s != request.max_age_s:
                self._start_fetch(request)

    def _select_exported_names(self) -> None:
        self._exported = select_exported_names(self._requests.values(), self._exported)
        excluded = frozenset(request.name for request in self._requests.values()) - self._exported
        self._metrics_registry.exclude("metric", excluded)
        self._metrics_registry.set("metric_names_not_exported", len(excluded))

    def _drop(self, gone: Sequence[MetricRequest]) -> None:
        self.snapshot = self.snapshot.only(frozenset(self._requests))
        names = {request.name for request in self._requests.values()}
        for metric in {request.name for request in gone} - names:
            for name in _METRICS_BY_NAME:
                self._metrics_registry.forget(name, metric=metric)
        keys = frozenset(request.key for request in gone)
        self._selector.forget(keys)
        for key in keys & self._under_way.keys():
            self._under_way.pop(key).cancel()

    async def run(self) -> None:
        """Fetch all metrics once per period, until cancelled."""
        try:
            while True:
                await self._run_period()
                self._report_metric_ages()
        finally:
            for task in self._under_way.values():
                task.cancel()

    async def _run_period(self) -> None:
        """Run one period. Its calls start one after another during the first half, so that the responses do not arrive
        at once and delay requests.
        """
        period_s, begun_s = self._options.sync_period_s, self._clock.monotonic()
        keys = sorted(self._requests)
        gap_s = period_s / 2 / max(len(keys), 1)
        for number, key in enumerate(keys):
            await self._sleep_until(begun_s + number * gap_s)
            request = self._requests.get(key)
            if request is not None and not (request.by_pod and self._is_recent(key)):
                self._start_fetch(request)
        await self._sleep_until(begun_s + period_s)

    def _is_recent(self, key: str) -> bool:
        series = self.snapshot.series.get(key)
        return series is not None and 0 <= self._clock.now() - series.fetched_at < POD_PERIOD_S

    async def _sleep_until(self, time_s: float) -> None:
        # Not for a duration: every sleep ends up to a millisecond late, which would add up over thousands of metrics.
        await self._clock.sleep(max(time_s - self._clock.monotonic(), 0.0))

    async def settle(self) -> None:
        """Wait until all calls have ended, for tests and for commands that fetch once."""
        while self._under_way:
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def fetch_all(self) -> bool:
        """Fetch all metrics now, also those whose call is under way, and wait until their calls have ended.

        Returns whether the values of each metric that has some are from this time or later.
        """
        since = self._clock.now()
        for task in self._under_way.values():
            task.cancel()
        self._under_way.clear()
        for request in self._requests.values():
            self._start_fetch(request)
        await self.settle()
        return all(series.fetched_at >= since for series in self.snapshot.series.values())

    def _start_fetch(self, request: MetricRequest) -> None:
        # A call of the previous period that still hangs ends with its own timeout.
        if request.key not in self._under_way:
            task = asyncio.create_task(self._fetch_metric(request))
            self._under_way[request.key] = task
            task.add_done_callback(partial(self._remove_ended_fetch, request.key))

    def _remove_ended_fetch(self, key: str, task: asyncio.Task[None]) -> None:
        # a canceled call may end after the metric was requested again
        if self._under_way.get(key) is task:
            del self._under_way[key]

    def _notify(self) -> None:
        for on_change in self._subscribers:
            on_change()

    async def _fetch_metric(self, request: MetricRequest) -> None:
        with traces.span("refresh metric", **{"nodewise.metric": request.key}) as span:
            outcome = await self._selector.fetch(self._with_lookback(request))
            if not isinstance(outcome, Series):
                span.fail(outcome.why)
        before = self.snapshot.series.get(request.key)
        if isinstance(outcome, Series):
            if self._own_nodes is not None and not (request.by_pod or request.device_label):
                outcome = await cooperative_scheduling.run(keep_nodes(outcome, self._own_nodes))
            outcome = await cooperative_scheduling.run(merge_newer(before, outcome))
        if request.key not in self._requests:
            return
        if isinstance(outcome, Series):
            self._store_fetched_series(request, before, outcome)
            await self._selector.log_unused_sources(request)
        else:
            self._store_fetch_failure(request, outcome)

    def _with_lookback(self, request: MetricRequest) -> MetricRequest:
        before = self.snapshot.series.get(request.key)
        sent = with_lookback(request, before, self._options.default_max_age_s)
        cause = self.snapshot.causes.get(request.key)
        return sent._replace(lookback_s=0.0) if cause is not None and cause.reason in _TOO_LARGE else sent

    def _store_fetched_series(self, request: MetricRequest, before: Series | None, series: Series) -> None:
        if request.key in self.snapshot.failures:
            logs.emit("metric_back", metric=request.key, nodes=len(series.samples))
        if series.invalid and (before is None or before.invalid.keys() != series.invalid.keys()):
            node, why = next(iter(series.invalid.items()))
            logs.emit(
                "metric_values_bad", metric=request.key, nodes=len(series.invalid), example=f"{node}: {why}"
            )
        self.snapshot = self.snapshot.with_series(series)
        self._metrics_registry.set("metric_nodes", len(series.samples), metric=request.name)
        self._metrics_registry.set("metric_incomplete", float(bool(series.incomplete)), metric=request.name)
        self._notify()

    def _store_fetch_failure(self, request: MetricRequest, failure: FetchFailure) -> None:
        key = request.key
        # errors of the same cause differ in counts and times
        if self.snapshot.causes.get(key) != failure.cause and not request.is_optional:
            logs.emit("metric_failed", metric=key, error=failure.why)
        self.snapshot = self.snapshot.with_failure(key, failure.why, failure.cause)
        if key not in self.snapshot.series:
            self._metrics_registry.set("metric_nodes", 0, metric=request.name)
        is_incomplete = failure.cause.reason == "IncompleteAnswer"
        self._metrics_registry.set("metric_incomplete", float(is_incomplete), metric=request.name)
        self._notify()

    def _report_metric_ages(self) -> None:
        now = self._clock.now()
        for request in self._requests.values():
            series = self.snapshot.series.get(request.key)
            if series is not None:
                self._metrics_registry.set("metric_age_seconds", now - series.fetched_at, metric=request.name)
