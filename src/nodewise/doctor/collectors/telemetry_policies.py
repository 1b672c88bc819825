"""Policies as the telemetry agent evaluates them, and the metrics that they name.

Metrics are requested where the replicas request them, as far as that is possible with the rights of doctor: from the
custom metrics API and from metrics.k8s.io, not from Prometheus or from files.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise import clock, cooperative_scheduling
from nodewise.agent import ClusterState, NodeIndex
from nodewise.agents.telemetry.options import TelemetryOptions, max_age_s
from nodewise.agents.telemetry.placement_policy import Comparison, Policy, PolicyKey
from nodewise.agents.telemetry.policy_conditions import PolicyCondition
from nodewise.agents.telemetry.policy_objects import RESOURCES, PolicyObject
from nodewise.agents.telemetry.state import (
    POLICY_KINDS,
    PolicyState,
    TelemetryStateBuilder,
    missing_metric_cause,
)
from nodewise.clock import SystemClock
from nodewise.doctor.collectors.cluster_reader import API_SERVICES, ClusterReader, unavailable
from nodewise.doctor.collectors.collection_session import Session
from nodewise.doctor.collectors.extender_workloads import collect_extenders
from nodewise.doctor.collectors.nodes import collect_nodes
from nodewise.doctor.collectors.policy_objects import PolicyObjects, collect_policy_objects
from nodewise.doctor.facts import (
    ExtenderWorkload,
    MetricCoverage,
    MetricsApiStatus,
    PolicyEvaluation,
    UnavailableFact,
)
from nodewise.doctor.parsing.object_fields import get_condition, get_text
from nodewise.errors import UNREADABLE, NodewiseError
from nodewise.kube.api_server_interface import NotFound
from nodewise.metrics import custom_metrics_api, resource_metrics_api
from nodewise.metrics import series_arrays as columns
from nodewise.metrics.custom_metrics_api import CustomMetricsSource
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import MetricRequest, MetricsSource
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.resource_metrics_api import ResourceMetricsSource
from nodewise.metrics.series import Series, ValueState
from nodewise.terminal_escaping import short

MAX_METRICS: Final = 100
_MAX_NAMES: Final = 5
_MAX_CONCURRENT: Final = 8
_TIMEOUT_S: Final = 5.0
_SYNC_PERIOD_S: Final = 5.0


class _MetricSources(NamedTuple):
    """The sources of the replicas, by their settings; those of a default installation if there is no replica."""

    custom: bool
    resource: bool
    other: bool
    """Whether a metric may come from a source that doctor cannot read."""


async def _collect_metric_sources(session: Session) -> _MetricSources:
    listed = await session.get(collect_extenders)
    if isinstance(listed, UnavailableFact) or not listed:
        return _MetricSources(custom=True, resource=True, other=True)
    names = {name for extender in listed for name in extender.values("metrics") or ["auto"]}
    has_prometheus = any("prometheus_url" in extender.settings for extender in listed)
    return _MetricSources(
        custom=bool(names & {"auto", "custom"}),
        resource=bool(names & {"auto", "resource"}),
        other=has_prometheus or any(name.startswith("file:") for name in names),
    )


async def collect_kinds_not_served(session: Session) -> tuple[str | UnavailableFact, ...]:
    """The definitions that are missing, `placementpolicies.nodewise.io`, of kinds that the telemetry agent reads."""
    listed = await session.require(collect_extenders)
    if not any("telemetry" in extender.agents for extender in listed):
        return ()
    kinds = RESOURCES.values()
    answers = await asyncio.gather(*map(session.reader.is_served, kinds))
    return tuple(
        answer if isinstance(answer, UnavailableFact) else f"{kind.plural}.{kind.group}"
        for kind, answer in zip(kinds, answers, strict=True)
        if isinstance(answer, UnavailableFact) or not answer
    )


async def collect_metric_requests(session: Session) -> list[MetricRequest]:
    """The metrics of all rules, without those of a query, which only Prometheus can answer."""
    read = await session.require(collect_policy_objects)
    requests = (
        rule.metric_request() for policy in read.policies.values() for rule in _rules_naming_metrics(policy)
    )
    return sorted({MetricRequest(request.metric, aggregate=request.aggregate) for request in requests})


async def collect_metric_names(session: Session) -> list[str]:
    return sorted(
        {metric_request.metric for metric_request in await session.require(collect_metric_requests)}
    )


def _rules_naming_metrics(policy: Policy) -> list[Comparison]:
    """The usable rules that name a metric and have no query."""
    return [rule for rule in policy.usable_comparisons() if rule.metric and not rule.query]


async def collect_metric_series(session: Session) -> dict[str, Series | UnavailableFact]:
    """The values of each metric by `MetricRequest.name`.

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

    async def fetch(request: MetricRequest) -> Series | UnavailableFact:
        series: Series | UnavailableFact = _empty_metric_series(request.metric, "no source was asked")
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
    series = dict(zip(requested, await asyncio.gather(*map(fetch, requested)), strict=True))
    reason = f"there are {len(requests)} metrics, of which {MAX_METRICS} are requested"
    for request in requests[MAX_METRICS:]:
        series[request] = UnavailableFact(f"metric {request.name}", reason, is_minor=True)
    return {request.name: values for request, values in series.items()}


async def _fetch_metric(
    source: MetricsSource, right: str, request: MetricRequest
) -> Series | UnavailableFact:
    """A metric from a source. A source without the metric has an empty series, with the reason as its source."""
    try:
        return await source.fetch(request, SystemClock().now())
    except NotFound as error:
        return _empty_metric_series(request.metric, str(error))
    except NodewiseError as error:
        if "an empty list" in str(error):
            return _empty_metric_series(request.metric, str(error))
        return unavailable(f"metric {short(request.metric, 100)}", right, error)


def _empty_metric_series(metric: str, reason: str) -> Series:
    return Series(metric, short(reason), 0.0, {})


def _has_samples(series: Series | UnavailableFact) -> bool:
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
        elif series.samples or series.invalid or not has_other_source:
            coverages[name] = _metric_node_coverage(series, index)
    return coverages


def _metric_node_coverage(series: Series, index: NodeIndex) -> MetricCoverage:
    names = {*series.samples, *series.invalid}
    if not names:
        return MetricCoverage(0, (), series.source)
    column = cooperative_scheduling.run_without_pauses(columns.build_column(series, index))
    nodes = int(np.count_nonzero(column.initial_states[:-1] == ValueState.FRESH))
    others = sorted(short(name, 100) for name in names if name not in index)
    return MetricCoverage(nodes, tuple(others[:_MAX_NAMES]), missing_metric_cause(series, index, column))


async def collect_policies(session: Session) -> tuple[PolicyEvaluation | UnavailableFact, ...]:
    """All policies, evaluated with the metrics that doctor can read, and what replicas wrote into their status."""
    read = await session.require(collect_policy_objects)
    listed = await session.get(collect_extenders)
    series = await session.get(collect_metric_series)
    nodes = await session.get(collect_nodes)
    states = evaluate_policies(
        read,
        {} if isinstance(series, UnavailableFact) else series,
        [] if isinstance(nodes, UnavailableFact) else nodes.measured.allocatable,
        [] if isinstance(listed, UnavailableFact) else listed,
    )
    now = SystemClock().now()
    evaluations = (
        _create_evaluation(
            read.objects[name][key.namespace, key.name], state, now, isinstance(nodes, UnavailableFact)
        )
        for name, kind in POLICY_KINDS.items()
        for key, state in states.items()
        if key.kind == kind
    )
    return (*evaluations, *read.unavailable)


def evaluate_policies(
    read: PolicyObjects,
    series: Mapping[str, Series | UnavailableFact],
    nodes: Iterable[str],
    listed: Sequence[ExtenderWorkload],
) -> Mapping[PolicyKey, PolicyState]:
    """The telemetry agent's own evaluation. Every namespace counts as trusted: replicas write into a policy's status
    what of it needs a trusted namespace.
    """
    rules = (rule for policy in read.policies.values() for rule in _rules_naming_metrics(policy))
    by_request: dict[str, Series] = {}
    for metric_request in (rule.metric_request() for rule in rules):
        values = series.get(metric_request.name)
        if isinstance(values, Series) and (values.samples or values.invalid):
            by_request[metric_request.key] = values
    options, sync_period_s = _telemetry_agent_options(listed)
    state = TelemetryStateBuilder(options, max_age_s(options, sync_period_s))
    now = SystemClock().now()
    cluster = ClusterState(NodeIndex(nodes), read.objects, MetricsSnapshot(by_request), now)
    return cooperative_scheduling.run_without_pauses(state.build(cluster)).policies


def _telemetry_agent_options(listed: Sequence[ExtenderWorkload]) -> tuple[TelemetryOptions, float]:
    """The telemetry agent's options and the refresh period of the first extender that runs it."""
    settings = next((extender.settings for extender in listed if "telemetry" in extender.agents), {})
    options = TelemetryOptions(
        max_age_s=_parse_duration_or_default(settings.get("max_age", ""), 0.0),
        when_missing="reject" if settings.get("when_missing") == "reject" else "pass",
        trust_all_namespaces=True,
    )
    return options, _parse_duration_or_default(settings.get("sync_period", ""), _SYNC_PERIOD_S)


def _parse_duration_or_default(text: str, default: float) -> float:
    try:
        return clock.parse_duration(text) if text else default
    except ValueError:
        return default


class _PolicyStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What doctor reads of the status of any kind of policy."""

    conditions: list[PolicyCondition] = []
    violating_nodes: int = 0
    rejected_nodes: int | None = None
    """The same, of kinds other than TASPolicy."""
    missing_metrics: list[str] = []

    def message_if(self, kind: str, status: str) -> str:
        """The message of a condition with this status; empty without it."""
        messages = (
            condition.message or kind
            for condition in self.conditions
            if (condition.type, condition.status) == (kind, status)
        )
        return next(messages, "")

    def refusal(self, reason: str) -> str:
        """Why a part has no effect: a TASPolicy has a condition of this type, other kinds a reason of Ready."""
        messages = (
            condition.message or reason
            for condition in self.conditions
            if (condition.type, condition.status, condition.reason) == ("Ready", "False", reason)
        )
        return self.message_if(reason, "True") or next(messages, "")


def _parse_status(status: msgspec.Raw) -> _PolicyStatus:
    try:
        return msgspec.json.decode(status, type=_PolicyStatus | None) or _PolicyStatus()
    except UNREADABLE:
        return _PolicyStatus()


def _create_evaluation(
    item: PolicyObject, state: PolicyState, now: float, is_unknown: bool
) -> PolicyEvaluation:
    """A policy with its status."""
    policy, status = state.policy, _parse_status(item.status)
    rejected, source = _count_rejected_nodes(state, status, is_unknown)
    return PolicyEvaluation(
        policy.namespace,
        policy.name,
        policy.sections,
        tuple(dict.fromkeys(rule.metric_request().name for rule in _rules_naming_metrics(policy))),
        tuple(short(str(problem)) for problem in policy.problems),
        tuple(short(name, 100) for name in status.missing_metrics),
        short(status.message_if("MetricsFetched", "False") or status.message_if("MetricsAvailable", "False")),
        rejected,
        source,
        short(status.refusal("NotTrusted"), 500),
        short(status.refusal("BudgetExceeded"), 500),
        policy.key.kind,
        short(policy.not_enforced, 500),
        _age_s(policy.created, now),
    )


def _count_rejected_nodes(
    state: PolicyState, status: _PolicyStatus, is_unknown: bool
) -> tuple[int | None, str]:
    """How many nodes it rejects, and the source: its status if doctor does not have all values. None if unknown."""
    filtering = [rule for rule in state.policy.avoided() if not rule.unusable]
    if filtering and (is_unknown or any(rule.metric_request().key in state.unfetched for rule in filtering)):
        counted = status.violating_nodes or status.rejected_nodes or 0
        return (counted if status.conditions else None), "by its status"
    rejected = 0 if state.verdict is None else int(np.count_nonzero(state.verdict.codes[:-1]))
    return rejected, "by its metrics"


def _age_s(created: str, now: float) -> float:
    """The age of an object; 0 if its creation time cannot be read."""
    try:
        return now - clock.parse_rfc3339(created)
    except ValueError:
        return 0.0


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
