"""Checks of policies, of the pods that name them, and of what policies need in the cluster."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nodewise.agents.telemetry.agent import SCHEDULING_RESOURCE
from nodewise.agents.telemetry.policy_selection import POLICY_LABEL
from nodewise.doctor.check_declaration import check
from nodewise.doctor.facts import (
    Descheduler,
    Extenders,
    MetricCoverage,
    MetricsApiStatus,
    PodInfo,
    Pods,
    Policies,
    PolicyEvaluation,
    Registrations,
    ReplicaMetrics,
    Schedulers,
    UnavailableFact,
)
from nodewise.doctor.findings import Finding, NotChecked, Result, finding
from nodewise.doctor.parsing.scheduler_configuration import ExtenderEntry, SchedulerConfiguration
from nodewise.terminal_escaping import short

_AFFINITY_PLUGIN: Final = "RemovePodsViolatingNodeAffinity"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_DESCHEDULER: Final = f"a descheduler with {_AFFINITY_PLUGIN} for {_REQUIRED}, here or in a namespace of -n"
_MIN_NODES_TO_FIND: Final = 100
_MIN_PERCENTAGE: Final = 5
_MAX_LISTED: Final = 3
_SELECTED_POD: Final = "a pod that kube-scheduler sends to nodewise"
_NEWER_POLICY_REMEDY: Final = "the policy is newer than the pod: create the pod again"
_NO_REQUEST_REMEDY: Final = (
    "apply deploy/extender-pods.yaml, which adds the request to new pods that a policy selects, and create the pod"
    " again; or remove managedResources from nodewise's entry"
)
_STATUS_REMEDY: Final = (
    "the policy's status says so once nodewise runs; or grant doctor the right to get metrics"
)


def feasible_nodes_to_find(nodes: int, percentage: int) -> int:
    """How many feasible nodes kube-scheduler looks for (v1.36 `schedule_one.go`, numFeasibleNodesToFind)."""
    if nodes < _MIN_NODES_TO_FIND:
        return nodes
    share = percentage or max(50 - nodes // 125, _MIN_PERCENTAGE)
    return min(max(nodes * share // 100, _MIN_NODES_TO_FIND), nodes)


def _format_names(names: list[str]) -> str:
    return ", ".join(names[:_MAX_LISTED]) + (" …" if len(names) > _MAX_LISTED else "")


@check("policy-unknown")
def check_pods_of_missing_policies(pods: Pods, policies: Policies) -> Iterator[Finding]:
    existing = {(policy.namespace, policy.name) for policy in policies if policy.kind == "TASPolicy"}
    missing: dict[tuple[str, str], list[str]] = {}
    for pod in pods:
        if pod.policy and (pod.namespace, pod.policy) not in existing:
            missing.setdefault((pod.namespace, pod.policy), []).append(pod.name)
    for (namespace, name), names in sorted(missing.items()):
        elsewhere = sorted(other for other, same in existing if same == name)
        hint = f"; one exists in {', '.join(elsewhere[:_MAX_LISTED])}" if elsewhere else ""
        actual = (
            f"{len(names)} {'pods name' if len(names) > 1 else 'pod names'} it ({_format_names(names)}){hint}"
        )
        where = f"TASPolicy/{namespace}/{name}"
        yield finding("policy-unknown", where, actual, f"a TASPolicy in namespace {namespace}")


@check("policy-label-misspelt")
def check_misspelled_labels(pods: Pods) -> Iterator[Finding]:
    """Pods that are scheduled without their policy, one finding for each key of a namespace."""
    by_key: dict[tuple[str, str], list[str]] = {}
    for pod in pods:
        if pod.misspelled_label:
            by_key.setdefault((pod.namespace, pod.misspelled_label), []).append(pod.name)
    for (namespace, key), names in sorted(by_key.items()):
        count = f"{len(names)} pods have" if len(names) > 1 else "1 pod has"
        actual = f"{count} the label {key} ({_format_names(names)})"
        where = f"Pod/{namespace}/{names[0]}"
        yield finding("policy-label-misspelt", where, actual, f"the label {POLICY_LABEL}")


@check("kind-not-served")
def check_kinds_are_served(kinds_not_served: tuple[str, ...]) -> Iterator[Finding]:
    for name in kinds_not_served:
        where = f"CustomResourceDefinition/{name}"
        yield finding("kind-not-served", where, "the API server does not serve it", "the file of deploy/crds")


@check("policy-without-effect")
def check_policy_problems(policies: Policies) -> Iterator[Finding]:
    for policy in policies:
        if policy.problems:
            more = len(policy.problems) - _MAX_LISTED
            actual = "; ".join(policy.problems[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
            yield finding("policy-without-effect", policy.where, actual, "fields that can be read")


@check("policy-without-effect")
def check_policies_beyond_limit(policies: Policies) -> Iterator[Finding]:
    for policy in policies:
        if policy.not_enforced:
            actual = f"is not enforced: {policy.not_enforced}"
            remedy = "remove policies that are not needed; the oldest ones are enforced"
            yield finding(
                "policy-without-effect", policy.where, actual, "a policy with effect", remedy=remedy
            )


@check("policy-without-effect")
def check_policies_without_agent(policies: Policies, extenders: Extenders) -> Iterator[Finding]:
    if policies and extenders and not any("telemetry" in extender.agents for extender in extenders):
        where = ", ".join(extender.workload.where for extender in extenders)
        actual = f"{len(policies)} policies, and --agents is {', '.join(extenders[0].agents)}"
        yield finding("policy-without-effect", where, actual, "the agent telemetry among --agents")


@check("policy-without-effect")
def check_policies_without_filter(policies: Policies, registrations: Registrations) -> Iterator[Finding]:
    """Policies that filter, without an entry that filters."""
    entries = [
        registration.entry
        for registration in registrations
        if _entry_calls_telemetry_agent(registration.entry)
    ]
    policy = next((candidate for candidate in policies if candidate.rejecting_part), None)
    if policy and entries and not any(entry.filter_verb for entry in entries):
        actual = f"has rules in {policy.rejecting_part}, and no entry of nodewise has a filterVerb"
        yield finding("policy-without-effect", policy.where, actual, "filterVerb: filter")


def _entry_calls_telemetry_agent(entry: ExtenderEntry) -> bool:
    return entry.agent in ("", "telemetry")


@check("policy-without-effect")
def check_pods_without_extender(
    policies: Policies, pods: Pods, schedulers: Schedulers = ()
) -> Iterator[Finding]:
    """Pods of policies which reject nodes, that no scheduler sends to nodewise; one for each policy."""
    not_sent = _first_pods_not_sent(pods, schedulers)
    for policy in policies:
        if not policy.rejecting_part or policy.not_enforced or policy.where not in not_sent:
            continue
        pod, why = not_sent[policy.where]
        if policy.kind == "TASPolicy":
            expected = "a scheduler that calls nodewise, and a request of the entry's managedResources"
            actual = f"names the policy {pod.policy}, {why}"
            yield finding("policy-without-effect", pod.where, actual, expected)
        else:
            actual = f"is selected by {policy.where}, {why}"
            remedy = _NEWER_POLICY_REMEDY if pod.age_s > policy.age_s else _NO_REQUEST_REMEDY
            yield finding("policy-without-effect", pod.where, actual, _SELECTED_POD, remedy=remedy)


def _first_pods_not_sent(pods: Pods, schedulers: Schedulers) -> dict[str, tuple[PodInfo, str]]:
    """By policy, as in `PolicyEvaluation.where`, the first of its pods that is not sent to nodewise, and why."""
    configurations = [
        scheduler.configuration
        for scheduler in schedulers
        if isinstance(scheduler.configuration, SchedulerConfiguration)
    ]
    not_sent: dict[str, tuple[PodInfo, str]] = {}
    for pod in pods:
        if not pod.avoids_violating and (why := _reason_pod_is_not_sent(pod, configurations)):
            for where in pod.policies:
                not_sent.setdefault(where, (pod, why))
    return not_sent


def _reason_pod_is_not_sent(pod: PodInfo, configurations: list[SchedulerConfiguration]) -> str:
    """Why its scheduler does not send a pod to nodewise; empty if it does, or if that is unknown."""
    if not configurations:
        return _format_missing_request(pod, [{SCHEDULING_RESOURCE}])
    serving = [
        configuration
        for configuration in configurations
        if configuration.has_profile_for_scheduler(pod.scheduler_name)
    ]
    entries = [entry for configuration in serving for entry in configuration.entries]
    if filters := list(filter(_entry_filters_by_policy, entries)):
        return _format_missing_request(
            pod, [{resource.name for resource in entry.managed_resources} for entry in filters]
        )
    # without any entry of nodewise, extender-not-registered reports it
    is_known = bool(serving) and any(map(_configuration_has_nodewise, configurations))
    return f"and its scheduler {pod.scheduler_name} does not call nodewise to filter" if is_known else ""


def _configuration_has_nodewise(configuration: SchedulerConfiguration) -> bool:
    return any(entry.is_nodewise for entry in configuration.entries)


def _entry_filters_by_policy(entry: ExtenderEntry) -> bool:
    return entry.is_nodewise and bool(entry.filter_verb) and _entry_calls_telemetry_agent(entry)


def _format_missing_request(pod: PodInfo, resources: list[set[str]]) -> str:
    """Says that a pod requests no managed resource of any entry; empty if it does, or if an entry has none."""
    if any(not names or names & {*pod.resources} for names in resources):
        return ""
    listed = ", ".join(sorted(set().union(*resources))[:_MAX_LISTED])
    return f"and does not request {listed}, by which kube-scheduler selects the pods for nodewise"


@check("sample-too-small")
def check_policies_against_node_sample(
    registrations: Registrations, policies: Policies, node_count: int, pods: Pods = ()
) -> Iterator[Result]:
    """Whether a policy may reject all nodes of kube-scheduler's sample, by its verdicts as they are now."""
    filtering = [policy for policy in policies if policy.rejecting_part]
    for registration in registrations:
        if not registration.entry.filter_verb or not _entry_calls_telemetry_agent(registration.entry):
            continue
        configuration = registration.configuration
        for profile in configuration.profiles:
            share = configuration.percentage if profile.percentage is None else profile.percentage
            size = feasible_nodes_to_find(node_count, share)
            for policy in filtering if size < node_count else ():
                yield from _check_node_sample_of_policy(
                    policy, pods, profile.scheduler_name, (size, node_count)
                )


def _check_node_sample_of_policy(
    policy: PolicyEvaluation, pods: Pods, scheduler_name: str, sizes: tuple[int, int]
) -> Iterator[Result]:
    """`sizes`: of the sample and of the cluster."""
    size, node_count = sizes
    if policy.rejected_nodes is None:
        reason = "it is unknown how many nodes it rejects"
        yield NotChecked("sample-too-small", UnavailableFact(policy.where, reason, remedy=_STATUS_REMEDY))
        return
    own = [pod for pod in pods if policy.where in pod.policies]
    is_avoided = bool(own) and all(pod.avoids_violating for pod in own)
    if size <= policy.rejected_nodes < node_count and not is_avoided:
        actual = (
            f"rejects {policy.rejected_nodes:,} of {node_count:,} nodes ({policy.source}), and {scheduler_name}"
            f" looks at {size:,}"
        )
        expected = f"fewer than {size:,} rejected, a larger sample, or the node affinity"
        yield finding("sample-too-small", policy.where, actual, expected)


@check("descheduler-missing")
def check_descheduler(
    policies: Policies, deschedulers: tuple[Descheduler, ...], namespaces: tuple[str, ...]
) -> Iterator[Result]:
    """The strategy deschedule needs a descheduler that evicts pods from the labelled nodes."""
    id_ = "descheduler-missing"
    policy = next((candidate for candidate in policies if "deschedule" in candidate.strategies), None)
    if policy is None:
        return
    if not deschedulers:
        places = " or ".join(namespaces) or "this cluster"
        actual = f"has the strategy deschedule, and no descheduler runs in {places}"
        yield finding(id_, policy.where, actual, _DESCHEDULER)
    unavailable = next(
        (
            descheduler.plugins
            for descheduler in deschedulers
            if isinstance(descheduler.plugins, UnavailableFact)
        ),
        None,
    )
    if any(map(_descheduler_evicts, deschedulers)):
        return
    if unavailable is not None:
        yield NotChecked(id_, unavailable)
        return
    for where, plugins, _ in deschedulers:
        names = ", ".join(map(str, plugins)) or "no plugin"
        actual = f"has {names}, and {policy.where} has the strategy deschedule"
        yield finding(id_, where, actual, _DESCHEDULER)


@check("native-mode-evictions")
def check_native_mode_evictions(
    deschedulers: tuple[Descheduler, ...], nodes_with_verdicts: int
) -> Iterator[Finding]:
    """Deschedulers that evict the running pods of native mode."""
    for descheduler in deschedulers:
        if nodes_with_verdicts and _descheduler_evicts(descheduler):
            count = "1 node has" if nodes_with_verdicts == 1 else f"{nodes_with_verdicts:,} nodes have"
            actual = f"enables {_AFFINITY_PLUGIN}, and {count} labels of native mode"
            yield finding("native-mode-evictions", descheduler.where, actual, f"no {_AFFINITY_PLUGIN}")


def _descheduler_evicts(descheduler: Descheduler) -> bool:
    """Whether it evicts pods from the nodes that a policy labels."""
    has_plugin = (
        not isinstance(descheduler.plugins, UnavailableFact) and _AFFINITY_PLUGIN in descheduler.plugins
    )
    return has_plugin and (not descheduler.affinity_types or _REQUIRED in descheduler.affinity_types)


@check("metrics-api-unavailable")
def check_metrics_apis(metrics_apis: tuple[MetricsApiStatus, ...]) -> Iterator[Finding]:
    for api in metrics_apis:
        where = f"APIService/{api.name}"
        if not api.exists:
            actual = "does not exist, and policies name its metrics"
            yield finding("metrics-api-unavailable", where, actual, "one that is Available")
        elif not api.available:
            actual = f"is not Available: {short(api.message)}"
            yield finding("metrics-api-unavailable", where, actual, "Available: True")


_METRICS_API_UNAVAILABLE: Final = UnavailableFact(
    "metrics", "the metrics API does not respond", is_minor=True
)


@check("metric-missing", "metric-names-mismatch")
def check_metrics_have_values(
    policies: Policies,
    metrics: Mapping[str, MetricCoverage | UnavailableFact] | None = None,
    metrics_apis: tuple[MetricsApiStatus, ...] | None = None,
    replica_metrics: tuple[ReplicaMetrics, ...] = (),
) -> Iterator[Result]:
    """Metrics without values. The replicas' own counts decide; without them, the values that doctor reads."""
    without_finding = dict.fromkeys(policies)
    for metric, users in _policies_by_metric(policies):
        coverage = _metric_coverage(metric, users, metrics or {}, replica_metrics)
        if isinstance(coverage, UnavailableFact):
            missing = coverage if _are_metrics_apis_available(metrics_apis) else _METRICS_API_UNAVAILABLE
            yield from (NotChecked(id_, missing) for id_ in check_metrics_have_values.ids)
        elif coverage is not None:
            yield from _check_metric_coverage(metric, users, coverage)
            for policy in () if coverage.nodes else users:
                without_finding.pop(policy, None)
    yield from _check_policy_status(without_finding)


def _check_policy_status(policies: Iterable[PolicyEvaluation]) -> Iterator[Finding]:
    """Doctor cannot request the metrics of queries, so only the status says whether they are available."""
    for policy in policies:
        if policy.unavailable_metrics:
            actual = short(policy.unavailable_metrics)
            yield finding("metric-missing", policy.where, actual, "MetricsFetched: True")


def _are_metrics_apis_available(metrics_apis: tuple[MetricsApiStatus, ...] | None) -> bool:
    """Whether the metrics APIs are available; if not, metrics-api-unavailable reports it."""
    return metrics_apis is not None and all(api.available for api in metrics_apis)


def _policies_by_metric(policies: Policies) -> list[tuple[str, list[PolicyEvaluation]]]:
    """All metrics with the policies that name them."""
    users: dict[str, list[PolicyEvaluation]] = {}
    for policy in policies:
        for metric in policy.metrics:
            users.setdefault(metric, []).append(policy)
    return sorted(users.items())


def _metric_coverage(
    metric: str,
    policies: list[PolicyEvaluation],
    metrics: Mapping[str, MetricCoverage | UnavailableFact],
    replica_metrics: tuple[ReplicaMetrics, ...],
) -> MetricCoverage | UnavailableFact | None:
    """The coverage of a metric by the replicas' counts, its source or a policy's status; None if it is unknown."""
    known = [replica for replica in replica_metrics if metric in replica.metric_nodes]
    if known:
        return _metric_coverage_of_replicas(metric, policies, known)
    if metric in metrics:
        return metrics[metric]
    if any(metric in policy.missing_metrics for policy in policies):
        return MetricCoverage(0, (), "it was never fetched, according to the policy's status")
    return None


def _metric_coverage_of_replicas(
    metric: str, policies: list[PolicyEvaluation], replica_metrics: list[ReplicaMetrics]
) -> MetricCoverage:
    nodes = max(replica.metric_nodes[metric] for replica in replica_metrics)
    unmatched = max(replica.unmatched.get(metric, 0) for replica in replica_metrics)
    message = next((policy.unavailable_metrics for policy in policies if policy.unavailable_metrics), "")
    reason = ("" if nodes else message) or f"from {replica_metrics[0].pod}"
    return MetricCoverage(nodes, (f"{unmatched} series",) if unmatched else (), reason)


def _check_metric_coverage(
    metric: str, policies: list[PolicyEvaluation], coverage: MetricCoverage
) -> Iterator[Finding]:
    users = _format_names([policy.where for policy in policies])
    reason = f" ({short(coverage.error)})" if coverage.error else ""
    others = ", ".join(coverage.other_names[:_MAX_LISTED])
    if others and not coverage.nodes:
        actual = f"metric {metric} has values under names that are no nodes: {others}{reason}"
        yield finding("metric-names-mismatch", users, actual, "names of nodes")
    elif not coverage.nodes:
        actual = f"no node has a value of {metric}{reason}"
        remedy = (
            f"export {metric}, or name a metric that exists: kubectl get --raw"
            f" /apis/custom.metrics.k8s.io/v1beta1/nodes/*/{metric}"
        )
        if "aggregate" in coverage.error:
            remedy = "set aggregate in the rule, or have the source give each node one value"
        yield finding("metric-missing", users, actual, "a value of each node", remedy=remedy)
    elif others:
        actual = (
            f"metric {metric} has values of {coverage.nodes} nodes, and under other names: {others}{reason}"
        )
        expected = "names of nodes only"
        yield finding("metric-names-mismatch", users, actual, expected, severity="note")


CHECKS: Final = (
    check_kinds_are_served,
    check_pods_of_missing_policies,
    check_misspelled_labels,
    check_policy_problems,
    check_policies_beyond_limit,
    check_policies_without_agent,
    check_policies_without_filter,
    check_pods_without_extender,
    check_policies_against_node_sample,
    check_descheduler,
    check_native_mode_evictions,
    check_metrics_apis,
    check_metrics_have_values,
)
