"""The metrics that policies name: which nodes have values of them, and whether the metrics APIs are available.

Metrics are requested where the replicas request them, as far as that is possible with the rights of doctor: from the
custom metrics API and from metrics.k8s.io, not from Prometheus or from files.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from nodewise.agent import NodeIndex
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import SystemClock
from nodewise.base.errors import NodewiseError, short
from nodewise.doctor.collectors.nodes import collect_nodes
from nodewise.doctor.collectors.nodewise_workloads import collect_nodewise_workloads
from nodewise.doctor.collectors.policy_objects import collect_policy_objects, rules_naming_metrics
from nodewise.doctor.collectors.session import API_SERVICES, ClusterReader, Session, unavailable
from nodewise.doctor.facts import MetricCoverage, MetricsApiStatus, UnavailableFact
from nodewise.doctor.parsing.object_fields import get_condition, get_text
from nodewise.kube.api_server_interface import NotFound
from nodewise.metrics import custom_metrics_api, missing_values, resource_metrics_api, source_table
from nodewise.metrics import series as columns
from nodewise.metrics.custom_metrics_api import CustomMetricsSource
from nodewise.metrics.metrics_source import MetricNotFound, MetricRequest, MetricsSource, NoValues
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.resource_metrics_api import ResourceMetricsSource
from nodewise.metrics.series import Series, ValueState

MAX_METRICS: Final = 100
_MAX_NAMES: Final = 5
_MAX_CONCURRENT: Final = 8
_TIMEOUT_S: Final = 5.0


class _MetricSources(NamedTuple):
    """The sources of the replicas, by their settings; those of a default installation if there is no replica."""

    custom: bool
    resource: bool
    other: bool
    """Whether a metric may come from a source that doctor cannot read."""


async def _collect_metric_sources(session: Session) -> _MetricSources:
    listed = await session.get(collect_nodewise_workloads)
    if isinstance(listed, UnavailableFact) or not listed:
        return _MetricSources(custom=True, resource=True, other=True)
    kinds = source_table.kinds(name for extender in listed for name in extender.values("metrics") or ["auto"])
    has_prometheus = any("prometheus_url" in extender.settings for extender in listed)
    return _MetricSources(
        custom=source_table.CUSTOM in kinds,
        resource=source_table.RESOURCE in kinds,
        other=has_prometheus or any(source_table.SOURCES[kind].path for kind in kinds),
    )


async def collect_metric_requests(session: Session) -> list[MetricRequest]:
    """The metrics of all rules, without those of a query, which only Prometheus can answer."""
    read = await session.require(collect_policy_objects)
    requests = (
        rule.metric_request() for policy in read.policies.values() for rule in rules_naming_metrics(policy)
    )
    return sorted({MetricRequest(request.metric, aggregate=request.aggregate) for request in requests})


async def collect_metric_names(session: Session) -> list[str]:
    return sorted(
        {metric_request.metric for metric_request in await session.require(collect_metric_requests)}
    )


async def collect_metric_series(session: Session) -> dict[str, Series | Cause | UnavailableFact]:
    """The values of each metric, or why there are none, by `MetricRequest.name`.

    They come from the custom metrics API or, by the metric's name, from metrics.k8s.io.
    """
    requests = await session.require(collect_metric_requests)
    nodes = (await session.require(collect_nodes)).measured
    sources = await session.require(_collect_metric_sources)
    session.reader.say("requesting metrics")
    limit = asyncio.Semaphore(_MAX_CONCURRENT)
    api = session.reader.api

    async def lookup() -> NodeAttributes:
        return nodes

    custom_source, resource_source = (
        CustomMetricsSource(api, _TIMEOUT_S),
        ResourceMetricsSource(api, lookup, _TIMEOUT_S),
    )

    async def fetch(request: MetricRequest) -> Series | Cause | UnavailableFact:
        series: Series | Cause | UnavailableFact = missing_values.NEVER_FETCHED
        async with limit:
            if sources.custom:
                series = await _fetch_metric(
                    custom_source, f"get nodes/{request.metric}.{custom_metrics_api.GROUP}", request
                )
            if (
                sources.resource
                and request.metric in resource_metrics_api.METRICS
                and not _has_samples(series)
            ):
                series = await _fetch_metric(
                    resource_source, f"list nodes.{resource_metrics_api.GROUP}", request
                )
        return series

    if not (sources.custom or sources.resource):
        return {}
    requested = requests[:MAX_METRICS]
    series: dict[MetricRequest, Series | Cause | UnavailableFact] = dict(
        zip(requested, await asyncio.gather(*map(fetch, requested)), strict=True)
    )
    reason = f"there are {len(requests)} metrics, of which {MAX_METRICS} are requested"
    for request in requests[MAX_METRICS:]:
        series[request] = UnavailableFact(f"metric {request.name}", reason, is_minor=True)
    return {request.name: values for request, values in series.items()}


async def _fetch_metric(
    source: MetricsSource, right: str, request: MetricRequest
) -> Series | Cause | UnavailableFact:
    """A metric from a source, or why the source does not have it."""
    try:
        return await source.fetch(request, SystemClock().now())
    except (NotFound, MetricNotFound, NoValues) as error:
        return missing_values.cause_of_error(error, source.name)
    except NodewiseError as error:
        return unavailable(f"metric {short(request.metric, 100)}", right, error)


def _has_samples(series: Series | Cause | UnavailableFact) -> bool:
    return isinstance(series, Series) and bool(series.samples)


async def collect_metrics(session: Session) -> dict[str, MetricCoverage | UnavailableFact]:
    """Which nodes have a value of each metric; without the metrics that another source may have."""
    index = NodeIndex((await session.require(collect_nodes)).measured.allocatable)
    has_other_source = (await session.require(_collect_metric_sources)).other
    coverages: dict[str, MetricCoverage | UnavailableFact] = {}
    for name, series in (await session.require(collect_metric_series)).items():
        if isinstance(series, UnavailableFact):
            if series.right or not has_other_source:
                coverages[name] = series
        elif isinstance(series, Cause):
            if not has_other_source:
                coverages[name] = MetricCoverage(0, (), series.text, series.remedy)
        else:
            coverages[name] = _metric_node_coverage(series, index)
    return coverages


def _metric_node_coverage(series: Series, index: NodeIndex) -> MetricCoverage:
    column = cooperative_scheduling.run_without_pauses(columns.build_column(series, index))
    nodes = int(np.count_nonzero(column.initial_states[:-1] == ValueState.FRESH))
    others = sorted(short(name, 100) for name in {*series.samples, *series.invalid} if name not in index)
    cause = missing_values.cause_of_series(series, index, column)
    text, remedy = (cause.text, cause.remedy) if cause else ("", "")
    return MetricCoverage(nodes, tuple(others[:_MAX_NAMES]), text, remedy)


async def collect_metrics_apis(session: Session) -> tuple[MetricsApiStatus, ...] | UnavailableFact:
    """The API groups that the policies' metrics have to come from."""
    names = await session.require(collect_metric_names)
    sources = await session.require(_collect_metric_sources)
    if sources.other:
        return ()
    usage = set(names) & set(resource_metrics_api.METRICS)
    groups = {
        custom_metrics_api.GROUP: ("v1beta1", "v1beta2") if sources.custom and set(names) - usage else (),
        resource_metrics_api.GROUP: ("v1beta1",) if sources.resource and usage else (),
    }
    apis: list[MetricsApiStatus] = []
    for group, versions in groups.items():
        api = await _read_metrics_api(session.reader, group, versions) if versions else ()
        if isinstance(api, UnavailableFact):
            return api
        apis += [api] if api else []
    return tuple(apis)


async def _read_metrics_api(
    reader: ClusterReader, group: str, versions: Sequence[str]
) -> MetricsApiStatus | UnavailableFact:
    """The available version of an API group, or any that exists."""
    services = await asyncio.gather(
        *(_read_api_service(reader, f"{version}.{group}") for version in versions)
    )
    existing: list[MetricsApiStatus] = []
    for service in services:
        if isinstance(service, UnavailableFact):
            return service
        existing += [service] if service.exists else []
    missing = MetricsApiStatus(f"{versions[0]}.{group}", exists=False, available=False)
    return max(existing, key=lambda api: api.available, default=missing)


async def _read_api_service(reader: ClusterReader, name: str) -> MetricsApiStatus | UnavailableFact:
    right = f"get {API_SERVICES.plural}.{API_SERVICES.group}"
    service: Any = await reader.get(f"APIService/{name}", right, API_SERVICES.path(name=name))
    if isinstance(service, UnavailableFact):
        return service
    condition = get_condition(service, "Available")
    message = f"{get_text(condition, 'reason')}: {get_text(condition, 'message')}"
    return MetricsApiStatus(
        name, service is not None, get_text(condition, "status") == "True", short(message)
    )
