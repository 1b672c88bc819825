"""Policies as the telemetry agent reads and evaluates them, the metrics that they name, and the pods that they select.

Metrics are requested where the replicas request them, as far as that is possible with the rights of doctor: from the
custom metrics API and from metrics.k8s.io, not from Prometheus or from files.
"""

import asyncio
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from nodewise.agent import ClusterState, NodeIndex, ObjectKey
from nodewise.agents import find_agent_kind
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.clock import SystemClock
from nodewise.base.errors import UNREADABLE, NodewiseError, closest_name, short
from nodewise.doctor.collectors.nodes import collect_nodes, collect_nodes_not_measured
from nodewise.doctor.collectors.session import (
    ClusterReader,
    MissingFact,
    Session,
    attempt,
    missing_after_error,
    parse_json,
    read_all,
)
from nodewise.doctor.collectors.workloads import MAX_PODS, WORKLOAD_KINDS, collect_nodewise_workloads
from nodewise.doctor.facts import (
    MetricCoverage,
    MetricsApiStatus,
    NodewiseWorkload,
    PodInfo,
    PolicyEvaluation,
    UnavailableFact,
    UnmatchedSelector,
    UsageSamples,
)
from nodewise.doctor.parsing import objects
from nodewise.doctor.parsing.objects import (
    get,
    get_condition,
    get_list,
    get_mapping,
    get_text,
    get_text_list,
    get_text_mapping,
)
from nodewise.install.scheduler_configuration import DEFAULT_SCHEDULER
from nodewise.kube import resource_kinds
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import PODS, Resource
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
from nodewise.policies.agent import find_misspelt_policy_label
from nodewise.policies.native_mode_admission import GATE
from nodewise.policies.options import TelemetryOptions, max_age_s
from nodewise.policies.placement_policy import (
    Comparison,
    PodSelection,
    Policy,
    PolicyKey,
    Requirement,
)
from nodewise.policies.policy_namespace_trust import NAMESPACES, NamespaceObject, drop_oversized_labels
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, drop_oversized_spec
from nodewise.policies.policy_selection import (
    POLICY_LABEL,
    SYSTEM_NAMESPACE,
    PodFields,
    PodMetadata,
    SelectionIndex,
)
from nodewise.policies.policy_status_fields import PolicyCondition, RuleCounts
from nodewise.policies.state import POLICY_KINDS, PolicyState, TelemetryStateBuilder
from nodewise.policies.verdict_labels import NodeConstraints, verdict_requirements

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


async def collect_policy_objects(session: Session) -> PolicyObjects:
    """All policies. Unavailable if no kind can be read."""
    lists = await asyncio.gather(
        *(attempt(session.reader.get_list(RESOURCES[kind], parse_policy)) for kind in POLICY_KINDS.values())
    )
    listed: dict[str, Mapping[ObjectKey, Any]] = {}
    missing: list[UnavailableFact] = []
    for name, part in zip(POLICY_KINDS, lists, strict=True):
        if isinstance(part, UnavailableFact):
            missing.append(part)
        else:
            listed[name] = {(item.metadata.namespace, item.metadata.name): item for item in part}
    if not listed:
        rights = ", ".join(filter(None, (part.right for part in missing)))
        raise MissingFact(missing[0]._replace(right=rights))
    if any(listed.get(name) for name, kind in POLICY_KINDS.items() if kind == "ClusterPlacementPolicy"):
        namespaces = await attempt(
            session.reader.get_list(
                resource_kinds.NAMESPACES, lambda body: _decode(body, NamespaceObject, drop_oversized_labels)
            )
        )
        if isinstance(namespaces, UnavailableFact):
            missing.append(namespaces)
        else:
            listed[NAMESPACES] = {("", item.metadata.name): item for item in namespaces}
    return policy_objects(listed, next(iter(session.target.namespaces), ""), missing)


def parse_policy(body: bytes) -> PolicyObject | None:
    """A policy; None if the API server would not have accepted it."""
    return _decode(body, PolicyObject, drop_oversized_spec)


def _decode(body: bytes, type_: type[T], keep: Callable[[T], T]) -> T | None:
    """An object as the agent stores it; None if it has another shape."""
    try:
        return keep(msgspec.json.decode(body, type=type_))
    except UNREADABLE:
        return None


class PolicySelectors(NamedTuple):
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


_PENDING: Final = {"fieldSelector": "spec.nodeName=,status.phase!=Succeeded,status.phase!=Failed"}
_MAX_LABELS: Final = 5_000
_MAX_SIMILAR: Final = 3
_MAX_COMPARED: Final = 200
_MAX_DESCRIBED: Final = 10  # policies whose similar labels are searched, which takes time
_WITH_POLICY: Final = {"labelSelector": POLICY_LABEL}


async def collect_pending_and_policy_pods(session: Session) -> tuple[PodInfo, ...]:
    """Pods that wait for a node, name a policy or nearly name one, or that a policy selects.

    In a large cluster only waiting pods and those that name a policy are read.
    """
    parse = partial(parse_pod, SystemClock().now(), await session.require(collect_selectors))
    *lists, everywhere = await asyncio.gather(
        attempt(session.reader.get_list(PODS, parse, selectors=_PENDING)),
        attempt(session.reader.get_list(PODS, parse, selectors=_WITH_POLICY)),
        session.get(_collect_all_pods),
    )
    by_key: dict[tuple[str, str], PodInfo] = {}
    for part in (*lists, everywhere if isinstance(everywhere, UnavailableFact) else everywhere.pods):
        if not isinstance(part, UnavailableFact):
            by_key |= {(pod.namespace, pod.name): pod for pod in part}
        elif not part.is_minor:
            raise MissingFact(part)
    return tuple(by_key.values())


class _AllPods(NamedTuple):
    """What is kept of all pods of a cluster."""

    pods: Sequence[PodInfo]
    """Those that a policy selects, or that nearly name one, and that are not finished."""
    selected: AbstractSet[PolicyKey]
    """The policies that select a pod, finished or not."""
    labels: Mapping[str, AbstractSet[tuple[str, str]]]
    """Keys and values of labels by namespace, at most `_MAX_LABELS` in all."""


async def _collect_all_pods(session: Session) -> _AllPods:
    """All pods, of which only a few fields are decoded if no policy selects them. A minor `MissingFact` in a large
    cluster.
    """
    selectors = await session.require(collect_selectors)
    now = SystemClock().now()
    selected: set[PolicyKey] = set()
    labels_by_namespace: dict[str, set[tuple[str, str]]] = {}
    kept = 0

    def parse_pod_of_policy(body: bytes) -> PodInfo | None:
        nonlocal kept
        try:
            fields = msgspec.json.decode(body, type=PodFields)
        except msgspec.MsgspecError:
            return None
        labels, keys = fields.metadata.labels or {}, selectors.selection.select(fields)
        selected.update(keys)
        own = labels_by_namespace.setdefault(fields.metadata.namespace, set())
        new = set(labels.items()) - own if kept < _MAX_LABELS else set()
        own |= new
        kept += len(new)
        return parse_pod(now, selectors, body) if keys or find_misspelt_policy_label(labels) else None

    pods = await session.reader.get_list(PODS, parse_pod_of_policy, limit=MAX_PODS)
    return _AllPods(pods, selected, labels_by_namespace)


async def collect_whether_all_pods_are_read(session: Session) -> bool:
    """True, or a minor `MissingFact` in a large cluster."""
    await session.require(_collect_all_pods)
    return True


async def collect_unmatched_selectors(session: Session) -> tuple[UnmatchedSelector, ...]:
    """The policies that select no pod, and no pod that a workload would make: a Deployment may have 0 replicas, and a
    CronJob makes pods from time to time.
    """
    read = await session.require(collect_policy_objects)
    pods = await session.require(_collect_all_pods)
    unmatched = [
        policy
        for key, policy in read.policies.items()
        if policy.selection not in (None, PodSelection())  # every pod, which a new namespace may not have yet
        and not policy.not_enforced
        and key not in pods.selected
    ]
    made = await _collect_policies_of_templates(session) if unmatched else frozenset()
    unmatched = [policy for policy in unmatched if policy.key not in made]
    return tuple(
        _describe_unmatched_selector(policy, pods.labels if number < _MAX_DESCRIBED else {})
        for number, policy in enumerate(unmatched)
    )


async def _collect_policies_of_templates(session: Session) -> AbstractSet[PolicyKey]:
    """The policies that select pods of a Deployment, a StatefulSet or a CronJob."""
    selection = (await session.require(collect_selectors)).selection

    def select_template(kind: str, body: bytes) -> tuple[PolicyKey, ...] | None:
        workload = objects.parse(kind, parse_json(body))
        template = PodFields(PodMetadata(workload.namespace, dict(workload.labels)))
        return selection.select(template) or None

    kinds = [kind for kind in WORKLOAD_KINDS if kind.kind != "DaemonSet"]
    lists = await read_all(
        session.reader.get_list(kind, partial(select_template, kind.kind), limit=MAX_PODS) for kind in kinds
    )
    return {key for part in lists for keys in part for key in keys}


def _describe_unmatched_selector(
    policy: Policy, labels_by_namespace: Mapping[str, AbstractSet[tuple[str, str]]]
) -> UnmatchedSelector:
    """With similar labels of the pods in the policy's namespaces."""
    requirements = policy.selection.pods.requirements if policy.selection else ()
    values_by_key: dict[str, set[str]] = {}
    for namespace, labels in labels_by_namespace.items():
        if policy.namespace in ("", namespace) and namespace != SYSTEM_NAMESPACE:
            for key, value in labels:
                values_by_key.setdefault(key, set()).add(value)
    required = (
        f"{requirement.key}={','.join(sorted(requirement.values))}"
        if requirement.operator == "In"
        else f"{requirement.key} {requirement.operator}"
        for requirement in requirements
    )
    similar = [text for requirement in requirements for text in _similar_labels(requirement, values_by_key)]
    where = f"{policy.key.kind}/{policy.key.path}"
    labels_text = " and ".join(required) or "any labels"
    return UnmatchedSelector(where, short(labels_text, 200), short(", ".join(similar), 200))


def _similar_labels(requirement: Requirement, values_by_key: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Labels with the key of a requirement, or the closest one, and the closest values first; empty if it is met."""
    keys = sorted(values_by_key)[:_MAX_COMPARED]
    key = requirement.key if requirement.key in values_by_key else closest_name(requirement.key, keys)
    values = sorted(values_by_key.get(key, ()))[:_MAX_COMPARED]
    if key == requirement.key and not requirement.values.isdisjoint(values):
        return []
    closest = (closest_name(value, values) for value in sorted(requirement.values)[:_MAX_SIMILAR])
    return [f"{key}={value}" for value in dict.fromkeys(filter(None, [*closest, *values]))][:_MAX_SIMILAR]


class _Pod(msgspec.Struct, frozen=True):
    spec: NodeConstraints = NodeConstraints()


def parse_pod(now: float, selectors: PolicySelectors, body: bytes) -> PodInfo | None:
    """A pod; None if it is finished."""
    value = parse_json(body)
    if objects.is_finished(value):
        return None
    spec, labels = get(value, "spec"), get_text_mapping(value, "metadata", "labels")
    policy = labels.get(POLICY_LABEL, "")
    keys: tuple[PolicyKey, ...] = ()
    try:
        pod = msgspec.json.decode(body, type=PodFields)
        keys = selectors.selection.select(pod)
        named = policy if any(key.kind == "TASPolicy" for key in keys) else ""
        observing = [key for key in keys if not selectors.is_enforced_for(key, pod)]
    except msgspec.MsgspecError:
        named, observing = policy, []
    return PodInfo(
        name=get_text(value, "metadata", "name"),
        namespace=get_text(value, "metadata", "namespace"),
        policy=named,
        scheduler_name=get_text(spec, "schedulerName") or DEFAULT_SCHEDULER,
        node=get_text(spec, "nodeName"),
        age_s=_age_s(get_text(value, "metadata", "creationTimestamp"), now),
        resources=tuple(sorted(_extended_resources(spec))),
        message=short(objects.unscheduled_message(value), 500),
        avoids_violating=_avoids_nodes_violating_policy(spec, policy),
        is_gated=bool(get_list(spec, "schedulingGates")),
        waits_for_labels=GATE in (get_text(gate, "name") for gate in get_list(spec, "schedulingGates")),
        misspelled_label=find_misspelt_policy_label(labels),
        selected_by=tuple(f"{key.kind}/{key.path}" for key in keys if key.kind != "TASPolicy"),
        observed_by=tuple(f"{key.kind}/{key.path}" for key in observing),
        verdict_keys=_verdict_keys(body),
    )


def _extended_resources(spec: Any) -> set[str]:
    return {
        name
        for container in (*get_list(spec, "containers"), *get_list(spec, "initContainers"))
        for kind in ("requests", "limits")
        for name in get_mapping(container, "resources", kind)
        if "/" in name
    }


def _verdict_keys(body: bytes) -> frozenset[str]:
    try:
        requirements = verdict_requirements(msgspec.json.decode(body, type=_Pod).spec)
    except msgspec.MsgspecError:
        return frozenset()
    return frozenset(requirement.key for requirement in requirements)


def _avoids_nodes_violating_policy(spec: Any, policy: str) -> bool:
    """Whether every term of its required node affinity excludes nodes that the policy labels."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = get_list(spec, "affinity", "nodeAffinity", required, "nodeSelectorTerms")

    def excludes(expression: Any) -> bool:
        operator = get_text(expression, "operator")
        return get_text(expression, "key") == policy and (
            operator == "DoesNotExist"
            or (operator == "NotIn" and "violating" in get_text_list(expression, "values"))
        )

    return bool(policy and terms) and all(
        any(map(excludes, get_list(term, "matchExpressions"))) for term in terms
    )


def _age_s(created: str, now: float) -> float:
    """The age of an object; 0 if its creation time cannot be read."""
    try:
        return now - clock.parse_rfc3339(created)
    except ValueError:
        return 0.0


MAX_METRICS: Final = 100
_MAX_NAMES: Final = 5
_MAX_CONCURRENT: Final = 8
_TIMEOUT_S: Final = 5.0


class MetricSources(NamedTuple):
    """The sources of the replicas, by their settings; those of a default installation if there is no replica."""

    custom: bool
    resource: bool
    other: bool
    """Whether a metric may come from a source that doctor cannot read."""


async def collect_metric_sources(session: Session) -> MetricSources:
    listed = await session.get_or(collect_nodewise_workloads, ())
    if not listed:
        return MetricSources(custom=True, resource=True, other=True)
    kinds = source_table.kinds(name for extender in listed for name in extender.values("metrics") or ["auto"])
    has_prometheus = any("prometheus_url" in extender.settings for extender in listed)
    return MetricSources(
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
    return sorted({request.metric for request in await session.require(collect_metric_requests)})


async def collect_metric_series(session: Session) -> dict[str, Series | Cause | UnavailableFact]:
    """The values of each metric, or why there are none, by `MetricRequest.name`.

    They come from the custom metrics API or, by the metric's name, from metrics.k8s.io.
    """
    requests = await session.require(collect_metric_requests)
    nodes = (await session.require(collect_nodes)).measured
    sources = await session.require(collect_metric_sources)
    session.reader.say("requesting metrics")
    limit = asyncio.Semaphore(_MAX_CONCURRENT)

    async def lookup() -> NodeAttributes:
        return nodes

    custom_source = CustomMetricsSource(session.reader.api, _TIMEOUT_S)
    resource_source = ResourceMetricsSource(session.reader.api, lookup, _TIMEOUT_S)

    async def fetch(request: MetricRequest) -> Series | Cause | UnavailableFact:
        values: Series | Cause | UnavailableFact = missing_values.NEVER_FETCHED
        async with limit:
            if sources.custom:
                right = f"get nodes/{request.metric}.{custom_metrics_api.GROUP}"
                values = await attempt(_fetch_metric(custom_source, right, request))
            has_samples = isinstance(values, Series) and bool(values.samples)
            if sources.resource and request.metric in resource_metrics_api.METRICS and not has_samples:
                right = f"list nodes.{resource_metrics_api.GROUP}"
                values = await attempt(_fetch_metric(resource_source, right, request))
        return values

    if not (sources.custom or sources.resource):
        return {}
    requested = requests[:MAX_METRICS]
    fetched = await asyncio.gather(*map(fetch, requested))
    series = {request.name: values for request, values in zip(requested, fetched, strict=True)}
    reason = f"there are {len(requests)} metrics, of which {MAX_METRICS} are requested"
    for request in requests[MAX_METRICS:]:
        series[request.name] = UnavailableFact(f"metric {request.name}", reason, is_minor=True)
    return series


async def _fetch_metric(source: MetricsSource, right: str, request: MetricRequest) -> Series | Cause:
    try:
        return await source.fetch(request, SystemClock().now())
    except (NotFound, MetricNotFound, NoValues) as error:
        return missing_values.cause_of_error(error, source.name)
    except NodewiseError as error:
        raise missing_after_error(f"metric {short(request.metric, 100)}", right, error) from error


async def collect_metrics(session: Session) -> dict[str, MetricCoverage | UnavailableFact]:
    """Which nodes have a value of each metric; without the metrics that another source may have."""
    index = NodeIndex((await session.require(collect_nodes)).measured.allocatable)
    not_measured = await session.require(collect_nodes_not_measured)
    has_other_source = (await session.require(collect_metric_sources)).other
    coverages: dict[str, MetricCoverage | UnavailableFact] = {}
    for name, series in (await session.require(collect_metric_series)).items():
        if isinstance(series, UnavailableFact):
            if series.right or not has_other_source:
                coverages[name] = series
        elif isinstance(series, Cause):
            if not has_other_source:
                coverages[name] = MetricCoverage(0, (), series.text, series.remedy)
        else:
            coverages[name] = _metric_node_coverage(series, index, not_measured)
    return coverages


def _metric_node_coverage(series: Series, index: NodeIndex, not_measured: frozenset[str]) -> MetricCoverage:
    """The nodes that have a value, and those without that should have one."""
    column = cooperative_scheduling.run_without_pauses(columns.build_column(series, index))
    is_fresh = column.initial_states[:-1] == ValueState.FRESH
    nodes = int(np.count_nonzero(is_fresh))
    missing = sorted(set(index.names[:-1][~is_fresh].tolist()) - not_measured)
    others = sorted(short(name, 100) for name in {*series.samples, *series.invalid} if name not in index)
    cause = missing_values.cause_of_series(series, index, column)
    text, remedy = (cause.text, cause.remedy) if cause else ("", "")
    return MetricCoverage(nodes, tuple(others[:_MAX_NAMES]), text, remedy, tuple(missing))


def reads_usage(agents: Iterable[str]) -> bool:
    """Whether one of the agents reads the usage of nodes and pods."""
    kinds = map(find_agent_kind, agents)
    return any(kind is not None and kind.needs_metrics for kind in kinds)


async def _read_usage(session: Session) -> Series | Cause:
    """The usage of nodes from metrics-server, which was read already if policies use it."""
    for series in (await session.get_or(collect_metric_series, {})).values():
        if isinstance(series, Series) and series.source == source_table.RESOURCE and series.samples:
            return series
    nodes = (await session.require(collect_nodes)).measured

    async def lookup() -> NodeAttributes:
        return nodes

    source = ResourceMetricsSource(session.reader.api, lookup, _TIMEOUT_S)
    right = f"list nodes.{resource_metrics_api.GROUP}"
    return await _fetch_metric(source, right, MetricRequest(resource_metrics_api.METRICS[0]))


async def collect_usage_samples(session: Session) -> UsageSamples | None:
    """The samples of metrics-server, if an agent reads them."""
    workloads = await session.get_or(collect_nodewise_workloads, ())
    sources = await session.require(collect_metric_sources)
    if sources.other or not (sources.resource and any(reads_usage(each.agents) for each in workloads)):
        return None
    now, series = SystemClock().now(), await _read_usage(session)
    samples = [] if isinstance(series, Cause) else list(series.samples.values())
    if not samples:
        return None
    windows_s = [sample.window_s or 0.0 for sample in samples]
    ages_s = [now - (sample.at or now) for sample in samples]
    return UsageSamples(statistics.median(windows_s), statistics.median(ages_s))


async def collect_metrics_apis(session: Session) -> tuple[MetricsApiStatus, ...]:
    names = await session.require(collect_metric_names)
    sources = await session.require(collect_metric_sources)
    if sources.other:
        return ()
    usage = set(names) & set(resource_metrics_api.METRICS)
    workloads = await session.get_or(collect_nodewise_workloads, ())
    agent_needs_usage = any(reads_usage(workload.agents) for workload in workloads)
    apis: list[MetricsApiStatus] = []
    if sources.custom and set(names) - usage:
        apis.append(await _read_metrics_api(session.reader, custom_metrics_api.GROUP, ("v1beta1", "v1beta2")))
    if sources.resource and (usage or agent_needs_usage):
        apis.append(await _read_metrics_api(session.reader, resource_metrics_api.GROUP, ("v1beta1",)))
    return tuple(apis)


API_SERVICES: Final = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)


async def _read_metrics_api(reader: ClusterReader, group: str, versions: Sequence[str]) -> MetricsApiStatus:
    """The available version of an API group, or any that exists."""

    async def read_api_service(version: str) -> MetricsApiStatus:
        name = f"{version}.{group}"
        right = f"get {API_SERVICES.plural}.{API_SERVICES.group}"
        service = await reader.get(f"APIService/{name}", right, API_SERVICES.path(name=name))
        condition = get_condition(service, "Available")
        message = f"{get_text(condition, 'reason')}: {get_text(condition, 'message')}"
        is_available = get_text(condition, "status") == "True"
        return MetricsApiStatus(name, service is not None, is_available, short(message))

    services = await read_all(map(read_api_service, versions))
    missing = MetricsApiStatus(f"{versions[0]}.{group}", exists=False, available=False)
    return max((api for api in services if api.exists), key=lambda api: api.available, default=missing)


_SYNC_PERIOD_S: Final = 5.0


async def collect_kinds_not_served(session: Session) -> tuple[str | UnavailableFact, ...]:
    """The definitions that are missing, `placementpolicies.nodewise.io`, of kinds that the telemetry agent reads."""
    listed = await session.require(collect_nodewise_workloads)
    if not any("telemetry" in extender.agents for extender in listed):
        return ()
    kinds = RESOURCES.values()
    answers = await asyncio.gather(*(attempt(session.reader.is_served(kind)) for kind in kinds))
    return tuple(
        answer if isinstance(answer, UnavailableFact) else f"{kind.plural}.{kind.group}"
        for kind, answer in zip(kinds, answers, strict=True)
        if isinstance(answer, UnavailableFact) or not answer
    )


async def collect_policies(session: Session) -> tuple[PolicyEvaluation | UnavailableFact, ...]:
    """All policies, evaluated with the metrics that doctor can read, and what replicas wrote into their status."""
    read = await session.require(collect_policy_objects)
    listed = await session.get_or(collect_nodewise_workloads, ())
    series: Mapping[str, Series | Cause | UnavailableFact] = await session.get_or(collect_metric_series, {})
    nodes = await session.get(collect_nodes)
    is_unknown = isinstance(nodes, UnavailableFact)
    names = [] if isinstance(nodes, UnavailableFact) else nodes.measured.allocatable
    states = evaluate_policies(read, series, names, listed)
    now = SystemClock().now()
    evaluations = (
        _create_evaluation(read.objects[name][key.namespace, key.name], state, now, is_unknown)
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
    rules: list[RuleCounts] = []

    def message_if(self, kind: str, status: str, reason: str = "") -> str:
        """The message of a condition with this status, and with this reason if one is given; empty without it."""
        for condition in self.conditions:
            if (condition.type, condition.status) == (kind, status) and reason in ("", condition.reason):
                return condition.message or reason or kind
        return ""

    @property
    def unavailable_metrics(self) -> str:
        """Which metrics are not available, and why. Suspended rules are reported as such, so they do not count."""
        suspension = self.message_if("Suspended", "True")
        missing = self.message_if("MetricsFetched", "False") or self.message_if("MetricsAvailable", "False")
        return "" if missing == suspension else missing

    def refusal(self, reason: str) -> str:
        """Why a part has no effect: a TASPolicy has a condition of this type, other kinds a reason of Ready."""
        return self.message_if(reason, "True") or self.message_if("Ready", "False", reason)


def _create_evaluation(
    item: PolicyObject, state: PolicyState, now: float, is_unknown: bool
) -> PolicyEvaluation:
    policy = state.policy
    try:
        status = msgspec.json.decode(item.status, type=_PolicyStatus | None) or _PolicyStatus()
    except UNREADABLE:
        status = _PolicyStatus()
    rejected, source = _count_rejected_nodes(state, status, is_unknown)
    return PolicyEvaluation(
        policy.namespace,
        policy.name,
        policy.sections,
        tuple(dict.fromkeys(rule.metric_request().name for rule in rules_naming_metrics(policy))),
        tuple(short(str(problem)) for problem in policy.problems),
        tuple(short(name, 100) for name in status.missing_metrics),
        short(status.unavailable_metrics, policy_status_fields.MAX_LENGTH),
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
        bool(status.conditions),
        _count_rejected_without_value(policy, status),
    )


def _count_rejected_without_value(policy: Policy, status: _PolicyStatus) -> tuple[tuple[str, int], ...]:
    """The rules that reject nodes without a value, by their expressions. A node may be healthy without a series."""
    if not any(rule.when_missing == "reject" and not rule.empty_means for rule in policy.avoided()):
        return ()
    counted = [counts for counts in status.rules if counts.rule.startswith("avoid")]
    return tuple((short(counts.expression, 100), counts.missing) for counts in counted if counts.missing)


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
