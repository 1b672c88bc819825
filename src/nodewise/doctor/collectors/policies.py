"""Policies of all kinds as the telemetry agent reads them, and which pods their selectors select."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from nodewise.agent import ClusterState, NodeIndex, ObjectKey
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.clock import SystemClock
from nodewise.base.errors import UNREADABLE, NodewiseError, short
from nodewise.doctor.collectors.nodes import collect_nodes
from nodewise.doctor.collectors.session import API_SERVICES, ClusterReader, Session, unavailable
from nodewise.doctor.collectors.workloads import collect_nodewise_workloads
from nodewise.doctor.facts import (
    MetricCoverage,
    MetricsApiStatus,
    NodewiseWorkload,
    PolicyEvaluation,
    UnavailableFact,
)
from nodewise.doctor.parsing.objects import get_condition, get_text
from nodewise.kube import resource_kinds
from nodewise.kube.api_server_interface import NotFound
from nodewise.metrics import custom_metrics_api, missing_values, resource_metrics_api, source_table
from nodewise.metrics import series as columns
from nodewise.metrics.custom_metrics_api import CustomMetricsSource
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import MetricNotFound, MetricRequest, MetricsSource, NoValues
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.resource_metrics_api import ResourceMetricsSource
from nodewise.metrics.series import Series, ValueState
from nodewise.policies import policy_selection, policy_status_fields, verdict_labels
from nodewise.policies.options import TelemetryOptions, max_age_s
from nodewise.policies.placement_policy import Comparison, Policy, PolicyKey
from nodewise.policies.policy_namespace_trust import NAMESPACES, NamespaceObject, drop_oversized_labels
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, drop_oversized_spec
from nodewise.policies.policy_selection import PodFields, SelectionIndex
from nodewise.policies.policy_status_fields import PolicyCondition
from nodewise.policies.state import POLICY_KINDS, PolicyState, TelemetryStateBuilder

T = TypeVar("T")


class PolicyObjects(NamedTuple):
    """All policies that doctor could read."""

    objects: Mapping[str, Mapping[ObjectKey, Any]]
    """Policies, and namespaces if a ClusterPlacementPolicy exists, as in `ClusterState.objects`."""
    policies: Mapping[PolicyKey, Policy]
    """The parsed policies. Every namespace counts as trusted: replicas write into the status what is not."""
    unavailable: tuple[UnavailableFact, ...] = ()
    """Kinds that could not be read."""


def policy_objects(
    objects: Mapping[str, Mapping[ObjectKey, Any]],
    own_namespace: str = "",
    unavailable: Sequence[UnavailableFact] = (),
) -> PolicyObjects:
    """The parsed policies. `own_namespace` is that of nodewise."""
    options = TelemetryOptions(trust_all_namespaces=True, own_namespace=own_namespace)
    policies = TelemetryStateBuilder(options, 0.0).policies(objects)
    return PolicyObjects(objects, policies, tuple(unavailable))


def rules_naming_metrics(policy: Policy) -> list[Comparison]:
    """The usable rules that name a metric and have no query."""
    return [rule for rule in policy.usable_comparisons() if rule.metric and not rule.query]


async def collect_policy_objects(session: Session) -> PolicyObjects | UnavailableFact:
    """All policies. Unavailable if no kind can be read."""
    objects, missing = await _read_policies(session.reader)
    if not objects:
        return missing[0]._replace(right=", ".join(filter(None, (fact.right for fact in missing))))
    if any(objects.get(name) for name, kind in POLICY_KINDS.items() if kind == "ClusterPlacementPolicy"):
        namespaces = await _read_namespaces(session.reader)
        if isinstance(namespaces, UnavailableFact):
            missing.append(namespaces)
        else:
            objects[NAMESPACES] = namespaces
    return policy_objects(objects, next(iter(session.target.namespaces), ""), missing)


async def _read_policies(
    reader: ClusterReader,
) -> tuple[dict[str, Mapping[ObjectKey, Any]], list[UnavailableFact]]:
    """The policies of each kind that can be read, as in `ClusterState.objects`, and the other kinds."""
    names = list(POLICY_KINDS)
    lists = await asyncio.gather(
        *(reader.get_list(RESOURCES[POLICY_KINDS[name]], parse_policy) for name in names)
    )
    objects: dict[str, Mapping[ObjectKey, Any]] = {}
    missing: list[UnavailableFact] = []
    for name, listed in zip(names, lists, strict=True):
        if isinstance(listed, UnavailableFact):
            missing.append(listed)
        else:
            objects[name] = {(item.metadata.namespace, item.metadata.name): item for item in listed}
    return objects, missing


def parse_policy(body: bytes) -> PolicyObject | None:
    """A policy; None if the API server would not have accepted it."""
    return _decode(body, PolicyObject, drop_oversized_spec)


async def _read_namespaces(reader: ClusterReader) -> Mapping[ObjectKey, Any] | UnavailableFact:
    listed = await reader.get_list(
        resource_kinds.NAMESPACES, lambda body: _decode(body, NamespaceObject, drop_oversized_labels)
    )
    return (
        listed if isinstance(listed, UnavailableFact) else {("", item.metadata.name): item for item in listed}
    )


def _decode(body: bytes, type_: type[T], keep: Callable[[T], T]) -> T | None:
    """An object as the agent stores it; None if it has another shape."""
    try:
        return keep(msgspec.json.decode(body, type=type_))
    except UNREADABLE:
        return None


class PolicySelectors(NamedTuple):
    """The selectors of all policies."""

    selection: SelectionIndex = SelectionIndex((), {})
    policies: Mapping[PolicyKey, Policy] = {}

    def is_enforced_for(self, key: PolicyKey, pod: PodFields) -> bool:
        """Whether a policy that selects a pod has an effect on it; True for a TASPolicy that does not exist."""
        return key not in self.policies or policy_selection.is_enforced_for(self.policies[key], pod)


async def collect_selectors(session: Session) -> PolicySelectors:
    """The selectors of all policies; none if policies cannot be read, which the collector of policies reports."""
    read = await session.get(collect_policy_objects)
    if isinstance(read, UnavailableFact):
        return PolicySelectors()
    own_namespace = next(iter(session.target.namespaces), "")
    selection = SelectionIndex(read.policies.values(), read.objects.get(NAMESPACES, {}), own_namespace)
    return PolicySelectors(selection, read.policies)


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


_SYNC_PERIOD_S: Final = 5.0


async def collect_kinds_not_served(session: Session) -> tuple[str | UnavailableFact, ...]:
    """The definitions that are missing, `placementpolicies.nodewise.io`, of kinds that the telemetry agent reads."""
    listed = await session.require(collect_nodewise_workloads)
    if not any("telemetry" in extender.agents for extender in listed):
        return ()
    kinds = RESOURCES.values()
    answers = await asyncio.gather(*map(session.reader.is_served, kinds))
    return tuple(
        answer if isinstance(answer, UnavailableFact) else f"{kind.plural}.{kind.group}"
        for kind, answer in zip(kinds, answers, strict=True)
        if isinstance(answer, UnavailableFact) or not answer
    )


async def collect_policies(session: Session) -> tuple[PolicyEvaluation | UnavailableFact, ...]:
    """All policies, evaluated with the metrics that doctor can read, and what replicas wrote into their status."""
    read = await session.require(collect_policy_objects)
    listed = await session.get(collect_nodewise_workloads)
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
    series: Mapping[str, Series | Cause | UnavailableFact],
    nodes: Iterable[str],
    listed: Sequence[NodewiseWorkload],
) -> Mapping[PolicyKey, PolicyState]:
    """The telemetry agent's own evaluation. Every namespace counts as trusted: replicas write into a policy's status
    what of it needs a trusted namespace.
    """
    rules = (rule for policy in read.policies.values() for rule in rules_naming_metrics(policy))
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


def _telemetry_agent_options(listed: Sequence[NodewiseWorkload]) -> tuple[TelemetryOptions, float]:
    """The telemetry agent's options and the refresh period of the first workload that runs it."""
    settings = next((extender.settings for extender in listed if "telemetry" in extender.agents), {})
    options = TelemetryOptions(
        max_age_s=_parse_duration_or_default(settings.get("max_age", ""), 0.0),
        when_missing="reject" if settings.get("when_missing") == "reject" else "pass",
        trust_all_namespaces=True,
    )
    return options, _parse_duration_or_default(settings.get("sync_period", ""), _SYNC_PERIOD_S)


def _parse_duration_or_default(text: str, default: float) -> float:
    try:
        return clock.parse_option_duration(text) if text else default
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
        tuple(dict.fromkeys(rule.metric_request().name for rule in rules_naming_metrics(policy))),
        tuple(short(str(problem)) for problem in policy.problems),
        tuple(short(name, 100) for name in status.missing_metrics),
        short(
            status.message_if("MetricsFetched", "False") or status.message_if("MetricsAvailable", "False"),
            policy_status_fields.MAX_LENGTH,
        ),
        rejected,
        source,
        short(status.refusal("NotTrusted"), 500),
        short(status.refusal("BudgetExceeded"), 500),
        policy.key.kind,
        short(policy.not_enforced or status.message_if("NotEnforced", "True"), 500),
        _age_s(policy.created, now),
        short(status.message_if("AllNodesRejected", "True"), 500),
        verdict_labels.label_key(policy.uid) if policy.uid else "",
        policy.only_prefers,
        tuple(
            (condition.type, short(condition.message, 500))
            for condition in status.conditions
            if condition.status == "True"
        ),
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
