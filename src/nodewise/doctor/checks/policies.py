"""Checks of policies and of the pods that they apply to: whether policies have an effect."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from nodewise.base.errors import list_first, short
from nodewise.doctor.facts import (
    Controllers,
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
    SelectedSourcePod,
    UnavailableFact,
    UnmatchedSelector,
    UsageSamples,
)
from nodewise.doctor.findings import (
    Finding,
    NotChecked,
    Result,
    apply_parts,
    change_setting,
    check,
    finding,
    kubectl,
)
from nodewise.doctor.parsing.scheduler_configuration import ExtenderEntry, SchedulerConfiguration
from nodewise.metrics import source_table
from nodewise.policies import policy_status_fields
from nodewise.policies.agent import SCHEDULING_RESOURCE
from nodewise.policies.policy_selection import POLICY_LABEL
from nodewise.policies.policy_status import REJECTS_EVERY_NODE

_MIN_NODES_TO_FIND: Final = 100
_MIN_PERCENTAGE: Final = 5
_MAX_LISTED: Final = 3
_SELECTED_POD: Final = "a pod that kube-scheduler sends to nodewise"
_NEWER_POLICY_REMEDY: Final = "the policy is newer than the pod: create the pod again"
_NO_REQUEST_REMEDY: Final = (
    "apply the admission policies that add the request to new pods that a policy selects, and create the pod"
    " again; or remove managedResources from nodewise's entry"
)
_NO_REQUIREMENT_REMEDY: Final = (
    "native mode selects pods when they are created: create the pod again, also if the policy or the pod's"
    " labels have"
    " changed since"
)
_CONDITION_REMEDIES: Final = {
    "Suspended": "restore the values of the metric: the message has the cause. The rule is evaluated again when half of"
    " the nodes have values",
    "SteppedBack": "the guard ended the enforcement; nothing is wrong with its mode. Correct the rule that the message"
    " names, or repair the nodes: an edit of the spec ends the step-back, as does guard.resumeAfter",
    "LabelConflict": "remove the label of the other owner, or use another key in the policy",
    "LabelRefused": "remove what refuses changes of the node: the message has the cause, such as a webhook, or an"
    " object that is too large",
    "Flapping": "add the field that the message suggests to the rule",
    "DevicesUnmatched": "set driver, deviceLabel and deviceAttribute of the rule so that the label has the value of the"
    " attribute: the message has the closest one",
    "DeviceLimitReached": "repair the devices, or raise maxTaintedShare if so many of them may be tainted",
    "DeviceTaintsRefused": "the message has the cause: for missing rights, apply what nodewise configure manifests"
    " device-taints prints; for NoExecute, bind its ClusterRole nodewise-device-eviction; for a missing API, upgrade to"
    " Kubernetes 1.37 or remove deviceTaints",
    "IncompleteAnswers": f"{source_table.INCOMPLETE_REMEDY}. Absent nodes are evaluated again with the next complete"
    " response",
    "SamplesTooSparse": "set maxAge of the rule (max_age in a TASPolicy) to the time in the message, or remove it: the"
    " default follows from the distance of samples, up to 10 minutes. Or scrape the metric more often",
}
"""By type, the conditions that are a finding while they are True, if no other check reports them."""
_NO_VALUES_REMEDY: Final = (
    "no node has a value of a metric, and its rule rejects nodes without one: the rule need not be relaxed. Follow the"
    " remedy of metric-missing or metrics-api-unavailable: exporters, the source of metrics, or the name"
)
_NOT_EVALUATED_REMEDY: Final = (
    "a rule of the policy is not evaluated, and passes no node: it need not be relaxed. Follow the remedy of the other"
    " finding of this policy"
)
_NOT_ENFORCED_REMEDIES: Final = {
    "are enforced": "remove policies that are not needed; the oldest ones are enforced",
    "are not selected by policies": "create policy and pods in another namespace",
    "canary": "replace canary.percent by canary.podSelector, or have an extender enforce the policy",
    "": "correct what the message names",
}
"""By a part of the reason for which a policy is not enforced."""
_CONDITIONS_OF_SPEC: Final = (
    "SteppedBack",
    "Flapping",
    "SamplesTooSparse",
    "DevicesUnmatched",
    "DeviceLimitReached",
)
"""Those that an edit of the policy ends."""
_NOTED_CONDITIONS: Final = ("Flapping",)  # those that are notes: the rules are enforced
_OTHER_NAMES_REMEDY: Final = (
    "series of the metric have other names for nodes, as the condition NodesWithoutValues says: relabel them, or set"
    " --prometheus-node-label"
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


def format_names(names: list[str]) -> str:
    """The first names of a list, for a message."""
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
        count = f"{len(names)} pods name" if len(names) > 1 else "1 pod names"
        actual = f"{count} it ({format_names(names)}){hint}"
        expected = f"a TASPolicy in namespace {namespace}"
        yield finding("policy-unknown", f"TASPolicy/{namespace}/{name}", actual, expected)


@check("policy-label-misspelt")
def check_misspelled_labels(pods: Pods) -> Iterator[Finding]:
    """Pods that are scheduled without their policy, one finding for each key of a namespace."""
    by_key: dict[tuple[str, str], list[str]] = {}
    for pod in pods:
        if pod.misspelled_label:
            by_key.setdefault((pod.namespace, pod.misspelled_label), []).append(pod.name)
    for (namespace, key), names in sorted(by_key.items()):
        count = f"{len(names)} pods have" if len(names) > 1 else "1 pod has"
        actual = f"{count} the label {key} ({format_names(names)})"
        where = f"Pod/{namespace}/{names[0]}"
        yield finding("policy-label-misspelt", where, actual, f"the label {POLICY_LABEL}")


@check("policy-label-misspelt", "policy-without-effect")
def check_every_pod_was_read(all_pods: bool) -> Iterator[Finding]:  # noqa: ARG001 - declares the needed fact
    """Not checked for pods that were not read in a large cluster."""
    return iter(())


@check("kind-not-served")
def check_kinds_are_served(kinds_not_served: tuple[str, ...]) -> Iterator[Finding]:
    for name in kinds_not_served:
        where = f"CustomResourceDefinition/{name}"
        actual, expected = "the API server does not serve it", "the definition of this version"
        command = apply_parts("crds")
        yield finding("kind-not-served", where, actual, expected, command=command)


@check("policy-without-effect", "namespace-not-trusted", "namespace-over-budget", "policy-condition")
def check_policy_status(policies: Policies) -> Iterator[Finding]:
    """Problems of the spec, and the verdict of the replicas from the status. Rules that are enforced are noted."""
    for policy in policies:
        where = policy.where
        if policy.problems:
            actual, expected = list_first(policy.problems, _MAX_LISTED, "; "), "fields that can be read"
            remedy = "correct these fields; nodewise policy lint FILE checks a file before it is applied"
            command = kubectl("edit", where)
            yield finding("policy-without-effect", where, actual, expected, remedy=remedy, command=command)
        if policy.not_enforced and "SteppedBack" not in dict(policy.true_conditions):
            actual = f"is not enforced: {policy.not_enforced}"
            remedy = next(
                text for part, text in _NOT_ENFORCED_REMEDIES.items() if part in policy.not_enforced
            )
            expected, command = "a policy with effect", kubectl("edit", where)
            yield finding("policy-without-effect", where, actual, expected, remedy=remedy, command=command)
        if policy.not_trusted:
            command = kubectl("label", f"Namespace/{policy.namespace}", "nodewise.io/trusted=true")
            expected = "a trusted namespace"
            yield finding("namespace-not-trusted", where, policy.not_trusted, expected, command=command)
        if policy.over_budget:
            expected = "a policy within the budgets"
            yield finding("namespace-over-budget", where, policy.over_budget, expected)
        yield from _check_true_conditions(policy)


def _check_true_conditions(policy: PolicyEvaluation) -> Iterator[Finding]:
    for kind, message in policy.true_conditions:
        if remedy := _CONDITION_REMEDIES.get(kind, ""):
            yield finding(
                "policy-condition",
                policy.where,
                f"{kind}: {message}",
                f"the condition {kind} is not True",
                remedy=remedy,
                command=kubectl("edit" if kind in _CONDITIONS_OF_SPEC else "describe", policy.where),
                severity="note" if kind in _NOTED_CONDITIONS else None,
            )


@check("selector-without-pods")
def check_selectors_match_pods(
    policies: Policies, unmatched_selectors: tuple[UnmatchedSelector, ...] | None = None
) -> Iterator[Result]:
    """By the pods that doctor reads; in a large cluster, by the status of the policies."""
    id_, expected = "selector-without-pods", "the labels of a pod"
    for selector in unmatched_selectors or ():
        actual = f"selects pods with {selector.labels}, and no pod and no workload has them"
        actual += f"; pods have {selector.similar}" if selector.similar else ""
        command = kubectl("edit", selector.policy)
        yield finding(id_, selector.policy, actual, expected, command=command)
    for policy in policies if unmatched_selectors is None else ():
        message = dict(policy.true_conditions).get("NoPodsSelected", "")
        if message:
            command = kubectl("edit", policy.where)
            yield finding(id_, policy.where, message, expected, command=command)
        elif policy.kind != "TASPolicy" and not policy.has_status:
            unavailable = UnavailableFact(policy.where, "it has no status yet", is_minor=True)
            yield NotChecked(id_, unavailable)


@check("metric-source-selected")
def check_metric_sources_are_not_selected(
    selected_source_pods: tuple[SelectedSourcePod, ...],
) -> Iterator[Finding]:
    """Policies that reject every node for the pods of Prometheus when it does not run."""
    for policy, pod, service in selected_source_pods:
        actual = f"selects {pod}, and {service}, which serves metrics, leads to this pod"
        command = kubectl("edit", policy)
        yield finding("metric-source-selected", policy, actual, "other pods only", command=command)


@check("all-namespaces-trusted")
def check_trust_of_all_namespaces(extenders: Extenders, controllers: Controllers) -> Iterator[Finding]:
    for listed in (*extenders, *controllers):
        if listed.is_set("trust_all_namespaces"):
            where, expected = listed.workload.where, "trust for single namespaces"
            command = change_setting(listed.workload, "trust_all_namespaces")
            yield finding(
                "all-namespaces-trusted", where, "--trust-all-namespaces", expected, command=command
            )


@check("all-nodes-rejected")
def check_policies_rejecting_every_node(policies: Policies) -> Iterator[Finding]:
    """The verdict of the replicas, from the status of policies; one finding for policies that do so together."""
    together: dict[tuple[str, str], list[PolicyEvaluation]] = {}
    for policy in policies:
        if policy.all_rejected:
            # the message of policies that do so together names them, the other one is the same for any policy
            alone = policy.where if policy.all_rejected == REJECTS_EVERY_NODE else ""
            together.setdefault((alone, policy.all_rejected), []).append(policy)
    for (_, actual), rejecting in together.items():
        remedy, command = "", kubectl("edit", rejecting[0].where)
        for policy in rejecting:
            if cause := _cause_beside_values(policy):
                remedy, command = cause, kubectl("describe", policy.where)
        names, expected = [policy.where for policy in rejecting], "a node that passes all policies"
        yield finding(
            "all-nodes-rejected", format_names(names), actual, expected, remedy=remedy, command=command
        )


def _cause_beside_values(policy: PolicyEvaluation) -> str:
    """The remedy of a policy that rejects every node whatever the values are; empty if its rules do."""
    if policy.unavailable_metrics:
        return _NO_VALUES_REMEDY
    return _NOT_EVALUATED_REMEDY if policy.over_budget or policy.not_trusted or policy.problems else ""


@check("policy-without-effect")
def check_policies_without_agent(
    policies: Policies, extenders: Extenders, controllers: Controllers = ()
) -> Iterator[Finding]:
    listed = (*extenders, *controllers)
    if policies and extenders and not any("telemetry" in workload.agents for workload in listed):
        where = ", ".join(extender.workload.where for extender in extenders)
        actual = f"{len(policies)} policies, and --agents is {', '.join(extenders[0].agents)}"
        yield finding("policy-without-effect", where, actual, "the agent telemetry among --agents")


@check("policy-without-effect")
def check_policies_without_filter(
    policies: Policies, registrations: Registrations, *, uses_native_mode: bool = False
) -> Iterator[Finding]:
    if uses_native_mode:
        return
    entries = [
        registration.entry
        for registration in registrations
        if entry_calls_telemetry_agent(registration.entry)
    ]
    policy = next((candidate for candidate in policies if candidate.rejecting_part), None)
    if policy and entries and not any(entry.filter_verb for entry in entries):
        actual = f"has rules in {policy.rejecting_part}, and no entry of nodewise has a filterVerb"
        yield finding("policy-without-effect", policy.where, actual, "filterVerb: filter")


def entry_calls_telemetry_agent(entry: ExtenderEntry) -> bool:
    """Whether kube-scheduler calls the agent that evaluates policies by this entry."""
    return entry.agent in ("", "telemetry")


@check("policy-without-effect")
def check_pods_without_extender(
    policies: Policies,
    pods: Pods,
    schedulers: Schedulers = (),
    extenders: Extenders = (),
    *,
    uses_native_mode: bool = False,
) -> Iterator[Finding]:
    """Pods of policies which reject nodes, that no scheduler sends to nodewise; one for each policy."""
    if uses_native_mode:
        yield from _check_pods_have_requirements(policies, pods)
        return
    not_sent = _first_pods_not_sent(pods, schedulers)
    namespace = next((extender.workload.namespace for extender in extenders), "nodewise")
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
            remedy, command = _NEWER_POLICY_REMEDY, ""
            if pod.age_s <= policy.age_s:
                remedy = _NO_REQUEST_REMEDY
                command = apply_parts("extender-pods", namespace=namespace, keeps_changes=True)
            yield finding(
                "policy-without-effect", pod.where, actual, _SELECTED_POD, remedy=remedy, command=command
            )


def _check_pods_have_requirements(policies: Policies, pods: Pods) -> Iterator[Finding]:
    """Pods of native mode that do not require the label of a policy that selects them; one for each policy."""
    for policy in policies:
        if not policy.avoids_nodes or policy.not_enforced or not policy.node_label:
            continue
        own = (pod for pod in pods if policy.where in pod.policies and policy.where not in pod.observed_by)
        if pod := next((pod for pod in own if policy.node_label not in pod.verdict_keys), None):
            actual = f"is selected by {policy.where}, and does not require the policy's node label"
            remedy = _NEWER_POLICY_REMEDY if pod.age_s > policy.age_s else _NO_REQUIREMENT_REMEDY
            expected = "a requirement for the node label"
            yield finding("policy-without-effect", pod.where, actual, expected, remedy=remedy)


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


def _reason_pod_is_not_sent(
    pod: PodInfo, configurations: list[SchedulerConfiguration]
) -> str:  # complexity: schedulers, entries and resources of one pod
    """Why its scheduler does not send a pod to nodewise; empty if it does, or if that is unknown."""
    serving = [item for item in configurations if item.has_profile_for_scheduler(pod.scheduler_name)]
    filters = [
        {resource.name for resource in entry.managed_resources}
        for configuration in serving
        for entry in configuration.nodewise_entries
        if entry.filter_verb and entry_calls_telemetry_agent(entry)
    ]
    if filters or not configurations:
        return _format_missing_request(pod, filters or [{SCHEDULING_RESOURCE}])
    if not serving or not any(configuration.nodewise_entries for configuration in configurations):
        return ""  # without any entry of nodewise, extender-not-registered reports it
    return f"and its scheduler {pod.scheduler_name} does not call nodewise to filter"


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
        if registration.entry.filter_verb and entry_calls_telemetry_agent(registration.entry):
            configuration = registration.configuration
            for profile in configuration.profiles:
                share = configuration.percentage if profile.percentage is None else profile.percentage
                size = feasible_nodes_to_find(node_count, share)
                for policy in filtering if size < node_count else ():
                    yield from _check_node_sample(policy, pods, profile.scheduler_name, size, node_count)


def _check_node_sample(
    policy: PolicyEvaluation, pods: Pods, scheduler_name: str, size: int, node_count: int
) -> Iterator[Result]:
    """`size`: of the sample."""
    rejected = policy.rejected_nodes
    if rejected is None:
        reason = "it is unknown how many nodes it rejects"
        yield NotChecked("sample-too-small", UnavailableFact(policy.where, reason, remedy=_STATUS_REMEDY))
        return
    own = [pod for pod in pods if policy.where in pod.policies]
    is_avoided = bool(own) and all(pod.avoids_violating for pod in own)
    if size <= rejected < node_count and not is_avoided:
        nodes = f"{rejected:,} of {node_count:,} nodes ({policy.source})"
        actual = f"rejects {nodes}, and {scheduler_name} looks at {size:,}"
        expected = f"fewer than {size:,} rejected, a larger sample, or the node affinity"
        yield finding("sample-too-small", policy.where, actual, expected)


@check("metrics-api-unavailable")
def check_metrics_apis(metrics_apis: tuple[MetricsApiStatus, ...]) -> Iterator[Finding]:
    for api in metrics_apis:
        where = f"APIService/{api.name}"
        if not api.exists:
            actual = "does not exist, and policies or agents need its metrics"
            remedy = (
                "install the adapter with its APIService; or take metrics from Prometheus: --prometheus-url"
            )
            yield finding("metrics-api-unavailable", where, actual, "one that is Available", remedy=remedy)
        elif not api.available:
            actual = f"is not Available: {short(api.message)}"
            command = kubectl("describe", where)
            yield finding("metrics-api-unavailable", where, actual, "Available: True", command=command)


_LONGEST_WINDOW_S: Final = 60.0
"""The window of metrics-server by default. Pods count with an estimate until the window began after their start."""


@check("usage-late")
def check_usage_samples(usage_samples: UsageSamples | None) -> Iterator[Finding]:
    """Old usage of nodes, or a long window, in which bursts disappear."""
    if usage_samples is None:
        return
    window_s, age_s = usage_samples
    where, expected = "APIService/v1beta1.metrics.k8s.io", f"a window of at most {_LONGEST_WINDOW_S:.0f} s"
    if age_s > source_table.USAGE_MAX_AGE_S:
        actual = f"the usage of most nodes is {age_s:.0f} s old by the clock of this host: missing"
        yield finding("usage-late", where, actual, f"at most {source_table.USAGE_MAX_AGE_S:.0f} s")
    elif window_s > _LONGEST_WINDOW_S:
        yield finding("usage-late", where, f"usage is a mean of {window_s:.0f} s", expected)


_METRICS_API_UNAVAILABLE: Final = UnavailableFact(
    "metrics", "the metrics API does not respond", is_minor=True
)


@check("metric-missing", "metric-names-mismatch")
def check_metrics_have_values(  # complexity: the sources of a coverage in their order
    policies: Policies,
    metrics: Mapping[str, MetricCoverage | UnavailableFact] | None = None,
    metrics_apis: tuple[MetricsApiStatus, ...] | None = None,
    replica_metrics: tuple[ReplicaMetrics, ...] = (),
) -> Iterator[Result]:
    """Metrics without values. The replicas' own counts decide; without them, the values that doctor reads."""
    without_finding = dict.fromkeys(policies)
    users_by_metric: dict[str, list[PolicyEvaluation]] = {}
    for policy in policies:
        for metric in policy.metrics:
            users_by_metric.setdefault(metric, []).append(policy)
    is_available = metrics_apis is not None and all(api.available for api in metrics_apis)
    for metric, users in sorted(users_by_metric.items()):
        coverage = _metric_coverage(metric, users, metrics or {}, replica_metrics)
        if isinstance(coverage, UnavailableFact):
            missing = coverage if is_available else _METRICS_API_UNAVAILABLE
            yield from (NotChecked(id_, missing) for id_ in check_metrics_have_values.ids)
        elif coverage is not None:
            yield from _check_metric_coverage(metric, users, coverage)
            for policy in () if coverage.nodes else users:
                without_finding.pop(policy, None)
    yield from _check_metrics_in_status(without_finding)


_WITHOUT_VALUES: Final = re.compile(r"no (?:series|valid value) of (.{1,300}?) on (\d+) nodes?: ([^;:]+)")
"""A part of the message of the condition NodesWithoutValues (`metrics.missing_values.describe`)."""
_OTHER_NAMES: Final = "; closest names"
_MAX_NODES_LISTED: Final = 10
_REJECTED: Final = "the rule rejects them"


class _WithoutValues(NamedTuple):
    """Nodes without a value of a metric, or of the metrics of a rule."""

    metric: str
    nodes: int
    names: str
    """The names of some, or what is known of them."""
    remedy: str = ""


@check("nodes-without-values")
def check_every_node_has_values(
    policies: Policies,
    node_count: int,
    metrics: Mapping[str, MetricCoverage | UnavailableFact] | None = None,
    nodes_not_measured: frozenset[str] = frozenset(),
) -> Iterator[Result]:
    """Nodes without a value of a metric that other nodes have. If most nodes have no value, only some nodes have what
    it measures, which is a note.
    """
    users: dict[_WithoutValues, list[str]] = {}
    for policy in policies:
        is_read = all(isinstance((metrics or {}).get(name), MetricCoverage) for name in policy.metrics)
        if not (policy.has_status or is_read):
            unavailable = UnavailableFact(
                policy.where, "it has no status yet", remedy=_STATUS_REMEDY, is_minor=True
            )
            yield NotChecked("nodes-without-values", unavailable)
        for without in _nodes_without_values(policy, node_count, metrics or {}, nodes_not_measured):
            users.setdefault(without, []).append(policy.where)
    for without, names in users.items():
        have = "has" if without.nodes == 1 else "have"
        actual = (
            f"{without.nodes:,} of {node_count:,} nodes {have} no value of {without.metric}: {without.names}"
        )
        severity: Literal["warning", "note"] = "warning" if 2 * without.nodes <= node_count else "note"
        node = without.names.partition(",")[0]
        words = ["kubectl", "get", "pods", "-A", "-o", "wide", f"--field-selector=spec.nodeName={node}"]
        yield finding(
            "nodes-without-values",
            format_names(names),
            actual,
            "a value of each node",
            remedy=without.remedy,
            command=shlex.join(words) if without.names != _REJECTED else "",
            severity=severity,
        )


def _nodes_without_values(
    policy: PolicyEvaluation,
    node_count: int,
    metrics: Mapping[str, MetricCoverage | UnavailableFact],
    nodes_not_measured: frozenset[str],
) -> Iterator[_WithoutValues]:  # complexity: the sources of values in their order
    """By the values that doctor reads; of other metrics by the status of the policy."""
    coverages = {name: metrics.get(name) for name in policy.metrics}
    read = {name: coverage for name, coverage in coverages.items() if isinstance(coverage, MetricCoverage)}
    for name, coverage in read.items():
        if coverage.nodes and coverage.missing:
            yield _WithoutValues(name, len(coverage.missing), list_first(coverage.missing, _MAX_NODES_LISTED))
    if not read:
        for rule, count in policy.rejected_without_value:
            if len(nodes_not_measured) < count < node_count:
                yield _WithoutValues(rule, count, _REJECTED)
    message = dict(policy.true_conditions).get("NodesWithoutValues", "")
    remedy = _OTHER_NAMES_REMEDY if _OTHER_NAMES in message else ""
    for name, count, names in _WITHOUT_VALUES.findall(message):
        listed = set(re.sub(r" and \d+ more$", "", names).split(", "))
        is_due = int(count) > len(nodes_not_measured) or not listed <= nodes_not_measured
        if name not in read and is_due:
            yield _WithoutValues(name, int(count), names, remedy)


def _check_metrics_in_status(policies: Iterable[PolicyEvaluation]) -> Iterator[Finding]:
    """Doctor cannot request the metrics of queries, so only the status says whether they are available."""
    for policy in policies:
        missing = policy_status_fields.parse_missing_metrics(policy.unavailable_metrics)
        expected = "a value of each node"
        for entry in missing:
            actual = f"no node has a value of {', '.join(entry.metrics)}: {entry.text}"
            yield finding("metric-missing", policy.where, actual, expected, remedy=entry.remedy)
        if policy.unavailable_metrics and not missing:
            yield finding("metric-missing", policy.where, short(policy.unavailable_metrics), expected)


def _metric_coverage(  # complexity: the sources of a coverage in their order
    metric: str,
    policies: list[PolicyEvaluation],
    metrics: Mapping[str, MetricCoverage | UnavailableFact],
    replica_metrics: tuple[ReplicaMetrics, ...],
) -> MetricCoverage | UnavailableFact | None:
    """The coverage of a metric by the replicas' counts, its source or a policy's status; None if it is unknown."""
    if known := [replica for replica in replica_metrics if metric in replica.metric_nodes]:
        nodes = max(replica.metric_nodes[metric] for replica in known)
        unmatched = max(replica.unmatched.get(metric, 0) for replica in known)
        text, remedy = ("", "") if nodes else _cause_in_status(metric, policies)
        where = (f"{unmatched} series",) if unmatched else ()
        return MetricCoverage(nodes, where, text or f"from {known[0].pod}", remedy)
    if metric in metrics:
        return metrics[metric]
    if any(metric in policy.missing_metrics for policy in policies):
        text, remedy = _cause_in_status(metric, policies)
        return MetricCoverage(0, (), text or "it was never fetched, according to the policy's status", remedy)
    if any(policy.has_status for policy in policies):
        return None
    return UnavailableFact(policies[0].where, "it has no status yet", is_minor=True)


def _cause_in_status(metric: str, policies: Iterable[PolicyEvaluation]) -> tuple[str, str]:
    """Why the metric has no value, and the remedy, by the status of a policy that names it; empty if unknown."""
    for policy in policies:
        for entry in policy_status_fields.parse_missing_metrics(policy.unavailable_metrics):
            if metric in entry.metrics:
                return entry.text, entry.remedy
    return "", ""


def _check_metric_coverage(
    metric: str, policies: list[PolicyEvaluation], coverage: MetricCoverage
) -> Iterator[Finding]:
    users = format_names([policy.where for policy in policies])
    reason = f" ({short(coverage.error)})" if coverage.error else ""
    others = ", ".join(coverage.other_names[:_MAX_LISTED])
    if others and not coverage.nodes:
        actual = f"metric {metric} has values under names that are no nodes: {others}{reason}"
        yield finding("metric-names-mismatch", users, actual, "names of nodes", remedy=coverage.remedy)
    elif not coverage.nodes:
        actual = f"no node has a value of {metric}{reason}"
        yield finding("metric-missing", users, actual, "a value of each node", remedy=coverage.remedy)
    elif others:
        actual = (
            f"metric {metric} has values of {coverage.nodes} nodes, and under other names: {others}{reason}"
        )
        expected = "names of nodes only"
        yield finding("metric-names-mismatch", users, actual, expected, severity="note")
