"""The metrics for `nodewise decide` and similar commands, and the time of the decision.

Values come from files, from a running nodewise, or from metric sources, which are requested once.
"""

import contextlib
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, NamedTuple

from nodewise.agent import MetricRequest
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Problem, closest_names, shown
from nodewise.cli import object_and_metric_sources
from nodewise.cli.decide_inputs import ObjectsAndMetrics
from nodewise.cli.object_and_metric_sources import SourceDependencies
from nodewise.cli.progress import Progress
from nodewise.kube.api_server_interface import Api
from nodewise.metrics import metric_files
from nodewise.metrics import node_attributes as node_facts
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import MetricCatalog, MetricsSource, SeriesCatalog, merge_requests
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import MetricsRefresher, RefreshOptions
from nodewise.metrics.series import Series
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_MAX_CHECKED: Final = 20
"""Similar names of which a source is asked whether they have series."""
_YEAR_S: Final = 365.2425 * 86400


class LoadedMetrics:
    """A source of metrics that were read already. Standard input, for example, cannot be read again."""

    name = metric_files.SOURCE

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def supports(self, request: MetricRequest) -> bool:
        return bool(request.metric)

    async def fetch(self, request: MetricRequest, now: float) -> Series:  # noqa: ARG002 - the contract of a source
        series = metric_files.select_series(self._snapshot, request)
        if series is None:
            raise metric_files.missing_from_files(request.metric, "these files", self._snapshot)
        return series


class MetricSettings(NamedTuple):
    """How to fetch metrics."""

    names: Sequence[str]
    """The values of `--metrics`."""
    refresh: RefreshOptions
    prometheus: PrometheusOptions


async def fetch_metrics(
    inputs: ObjectsAndMetrics,
    metric_requests: Iterable[MetricRequest],
    settings: MetricSettings,
    api: Api | None,
    running: MetricsSnapshot = MetricsSnapshot(),  # noqa: B008 - it is immutable
) -> MetricsSnapshot:
    """The requested metrics: from the files, then those of a running nodewise, then fetched once from the sources in
    their order.
    """
    requests = merge_requests(metric_requests)
    in_files = {
        request.key
        for request in requests
        if metric_files.select_series(inputs.snapshot, request) is not None
    }
    known = running.only(frozenset(request.key for request in requests) - in_files)
    for key in known.failures.keys() - known.series.keys():
        logs.emit("metric_failed", metric=key, error=known.failures[key])
    rest = frozenset(request for request in requests if not known.was_fetched(request.key))
    return known.with_older(await _fetch_from_sources(inputs, rest, settings, api)) if rest else known


async def _fetch_from_sources(
    inputs: ObjectsAndMetrics, requests: frozenset[MetricRequest], settings: MetricSettings, api: Api | None
) -> MetricsSnapshot:
    registry = MetricsRegistry()
    async with _open_sources(inputs, settings, api, registry) as sources:
        refresher = MetricsRefresher(sources, settings.refresh, clock.SystemClock(), registry)
        with Progress() as progress:
            progress.say("requesting metrics")
            refresher.set_requests(requests)
            await refresher.settle()
        return refresher.snapshot


async def metric_names(inputs: ObjectsAndMetrics, settings: MetricSettings, api: Api | None) -> list[str]:
    """The names of metrics that the sources have, for messages about a misspelt one. Errors of sources are ignored."""
    names = dict.fromkeys(series.metric for series in inputs.snapshot.series.values())
    async with _open_sources(inputs, settings, api, MetricsRegistry()) as sources:
        for source in sources:
            if isinstance(source, MetricCatalog):
                with contextlib.suppress(NodewiseError):
                    names |= dict.fromkeys(await source.metric_names())
    return list(names)


async def similar_metrics(
    metric: str,
    inputs: ObjectsAndMetrics,
    settings: MetricSettings,
    api: Api | None,
    count: int,
    known: Iterable[str] = (),
) -> list[str]:
    """Up to so many other names of metrics that are similar to a misspelt one: of the files, known ones, and those that
    sources have. A source whose names may be those of series that have ended is asked which of them have series.
    """
    existing = {*known, *(series.metric for series in inputs.snapshot.series.values())}
    async with _open_sources(inputs, settings, api, MetricsRegistry()) as sources:
        for source in sources:
            with contextlib.suppress(NodewiseError):
                names = await source.metric_names() if isinstance(source, MetricCatalog) else ()
                if isinstance(source, SeriesCatalog):
                    similar = closest_names(metric, list(names), _MAX_CHECKED)
                    names = await source.existing_metrics(similar) if similar else ()
                existing |= set(names)
    return closest_names(metric, sorted(existing - {metric}), count)


@contextlib.asynccontextmanager
async def _open_sources(
    inputs: ObjectsAndMetrics, settings: MetricSettings, api: Api | None, registry: MetricsRegistry
) -> AsyncIterator[Sequence[MetricsSource]]:
    """The metrics of the files, and the live sources."""
    nodes = cooperative_scheduling.run_without_pauses(node_facts.read_node_attributes(inputs.nodes.values()))

    async def lookup() -> NodeAttributes:
        return nodes

    dependencies = SourceDependencies(
        api,
        lookup,
        settings.prometheus,
        settings.refresh.default_max_age_s,
        settings.refresh.metrics_timeout_s,
        registry,
    )
    live = object_and_metric_sources.create_metric_sources(settings.names, (), dependencies)
    loaded: list[MetricsSource] = (
        [LoadedMetrics(inputs.snapshot)] if inputs.snapshot.series or not live else []
    )
    try:
        yield [*loaded, *live]
    finally:
        for source in live:
            if isinstance(source, object_and_metric_sources.ClosableSource):
                await source.close()


def decision_time(text: str, metrics: MetricsSnapshot | None) -> float:
    """The time of the decision: `text`, else the newest timestamp of files, else now.

    `BadSettings` and `BadInput` for a time before 1970 or after 2106.
    """
    if text:
        try:
            return clock.parse_input_time(text)
        except ValueError as error:
            raise BadSettings("settings", [Problem("--now", shown(text), clock.INPUT_TIME)]) from error
    series = metrics.series.values() if metrics else ()
    times = (
        (sample.at, node_series.metric, node)
        for node_series in series
        for node, sample in node_series.samples.items()
        if sample.at is not None
    )
    newest, metric, node = max(times, default=(clock.SystemClock().now(), "", ""))
    if not 0 <= newest <= clock.LAST_TIME_S:
        year = f"a time in the year {math.floor(1970 + newest / _YEAR_S)}"
        raise BadInput(
            "metrics", [Problem(f"the timestamp of {metric} of node {node}", year, clock.INPUT_TIME)]
        )
    return newest
