"""Checks of how policies reach the pods that they select, and of the labels of native mode."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import nodewise
from nodewise.doctor.checks.policies import entry_calls_telemetry_agent
from nodewise.doctor.checks.workloads_and_nodes import look_elsewhere_first
from nodewise.doctor.facts import (
    Controllers,
    Descheduler,
    Extenders,
    LeaderLease,
    NodeRestriction,
    NodewiseWorkload,
    PodAdmission,
    PodAdmissionPolicy,
    Pods,
    Policies,
    PolicyEvaluation,
    Registrations,
    UnavailableFact,
    native_mode_workloads,
)
from nodewise.doctor.findings import Finding, NotChecked, Result, apply_parts, check, finding, kubectl
from nodewise.doctor.parsing import objects
from nodewise.policies.node_labels import VERDICT_LABEL_PREFIX

_EXTENDER_PART, _NATIVE_PART = "extender-pods", "native"
"""Parts of an installation, as `nodewise configure manifests` prints them."""
_EXTENDER_POLICIES: Final = {
    "PlacementPolicy": ("MutatingAdmissionPolicy/nodewise-extender-pods",),
    "ClusterPlacementPolicy": ("MutatingAdmissionPolicy/nodewise-extender-pods-cluster",),
}
"""By kind of policy, the admission policies that have its pods sent to the extender. A pod names its TASPolicy, and has
the request in its template."""
_NATIVE_POLICIES_OF_ALL_KINDS: Final = (
    "MutatingAdmissionPolicy/nodewise-native-reset",
    "ValidatingAdmissionPolicy/nodewise-native-size",
    "ValidatingAdmissionPolicy/nodewise-native-gate",
)
_NATIVE_POLICIES: Final = {
    "PlacementPolicy": ("MutatingAdmissionPolicy/nodewise-native", *_NATIVE_POLICIES_OF_ALL_KINDS),
    "ClusterPlacementPolicy": (
        "MutatingAdmissionPolicy/nodewise-native-cluster",
        *_NATIVE_POLICIES_OF_ALL_KINDS,
    ),
    "TASPolicy": (
        "MutatingAdmissionPolicy/nodewise-native-named",
        "ValidatingAdmissionPolicy/nodewise-native-named-exists",
        "ValidatingAdmissionPolicy/nodewise-native-named",
        *_NATIVE_POLICIES_OF_ALL_KINDS,
    ),
}
_GATING_POLICIES: Final = frozenset(
    policy
    for policies in _NATIVE_POLICIES.values()
    for policy in policies
    if policy.startswith("MutatingAdmissionPolicy/") and policy not in _NATIVE_POLICIES_OF_ALL_KINDS
)
"""The admission policies that add requirements and scheduling gates to pods."""
_LEFTOVER_LABELS_REMEDY: Final = (
    "if native mode was uninstalled, remove the labels by the command; otherwise run the controller: nodewise"
    " configure --mode native prints it"
)
_REMOVE_LABELS: Final = (
    f"kubectl get nodes --output=yaml | grep --only-matching '{VERDICT_LABEL_PREFIX}[^:]*' | sort --unique"
    " | sed 's/$/-/' | xargs kubectl label nodes --all"
)
_LEFTOVER_REMEDY: Final = (
    "if native mode was uninstalled, delete the admission policies by the command, and recreate pods with the gate"
    " nodewise.io/policy-not-active; otherwise run the controller: nodewise configure --mode native prints it"
)
_NO_POD_ADMISSION: Final = PodAdmission()
_GATE_S: Final = 60.0
_LABELLED_PER_S: Final = 25.0  # nodes that the leader labels at least, half of the default limit of writes
_NO_ADMISSION_REMEDY: Final = (
    "apply the admission policies, with the chart by its upgrade; then create the selected pods again"
)
_OLD_SERVER_REMEDY: Final = (
    "upgrade to Kubernetes 1.36; or have kube-scheduler send all pods: nodewise configure render-scheduler"
    " --filter-all-pods"
)


@check("pod-admission-missing")
def check_native_pod_admission(
    policies: Policies,
    pod_admission: PodAdmission,
    extenders: Extenders = (),
    controllers: Controllers = (),
    *,
    uses_native_mode: bool,
) -> Iterator[Finding]:
    """Whether the API server adds the requirements of native mode to pods, for the kinds that have policies."""
    if uses_native_mode:
        enforced = [
            policy
            for policy in policies
            if (policy.avoids_nodes or policy.scores_nodes) and not policy.not_enforced
        ]
        command = _apply_command(_NATIVE_PART, extenders, controllers)
        yield from _check_shipped_policies(enforced, _NATIVE_POLICIES, pod_admission, command)


def _apply_command(part: str, extenders: Extenders, controllers: Controllers) -> str:
    """A command that applies admission policies, which leave out the namespace of nodewise."""
    own = (*controllers, *extenders)
    namespace = own[0].workload.namespace if own else "nodewise"
    return apply_parts(part, namespace=namespace, keeps_changes=True)


@check("pod-admission-missing")
def check_extender_pod_admission(  # complexity: the conditions of one finding
    policies: Policies,
    registrations: Registrations,
    pod_admission: PodAdmission,
    pods: Pods = (),
    extenders: Extenders = (),
    controllers: Controllers = (),
    *,
    uses_native_mode: bool = False,
) -> Iterator[Finding]:
    """Whether selected pods get the request by which kube-scheduler sends them to nodewise. It sends all pods if an
    entry for the telemetry agent has no managed resources.
    """
    entries = [item.entry for item in registrations if entry_calls_telemetry_agent(item.entry)]
    managed = {resource.name for entry in entries for resource in entry.managed_resources}
    if uses_native_mode or not all(entry.managed_resources for entry in entries):
        return

    def all_pods_request(policy: PolicyEvaluation) -> bool:
        """Whether the policy has pods, and all request a managed resource themselves."""
        own = [pod for pod in pods if policy.where in pod.policies]
        return bool(own) and all(managed & {*pod.resources} for pod in own)

    selecting = [policy for policy in policies if policy.strategies and not policy.not_enforced]
    if managed:
        needing = [policy for policy in selecting if not all_pods_request(policy)]
        command = _apply_command(_EXTENDER_PART, extenders, controllers)
        yield from _check_shipped_policies(needing, _EXTENDER_POLICIES, pod_admission, command)


def _check_shipped_policies(
    policies: list[PolicyEvaluation],
    needed_by_kind: Mapping[str, tuple[str, ...]],
    pod_admission: PodAdmission,
    command: str,
) -> Iterator[Finding]:
    """One finding for each admission policy that is missing or differs, with the first policy that needs it."""
    id_ = "pod-admission-missing"
    installed = {policy.shipped: policy for policy in pod_admission.policies}
    first_users: dict[str, str] = {}
    for policy in policies:
        for name in needed_by_kind.get(policy.kind, ()):
            first_users.setdefault(name, policy.where)
    for name, user in first_users.items():
        own = installed.get(name)
        if own is None and not pod_admission.is_served:
            actual = f"the API server has no MutatingAdmissionPolicy, and {user} selects pods"
            where = "nodewise's admission policies for pods"
            yield finding(id_, where, actual, "Kubernetes 1.36", remedy=_OLD_SERVER_REMEDY)
        elif own is None:
            actual = f"does not exist or has no binding, and {user} selects pods"
            expected = f"that of nodewise {nodewise.__version__}"
            yield finding(id_, name, actual, expected, remedy=_NO_ADMISSION_REMEDY, command=command)
        elif not own.is_current:
            actual = f"differs from that of nodewise {nodewise.__version__}"
            is_renamed = own.where != name  # by the name of a release of the chart
            expected, remedy = (
                "the same expressions",
                "upgrade the chart" if is_renamed else "apply those of this version",
            )
            forced = "" if is_renamed else command.replace("--server-side", "--server-side --force-conflicts")
            yield finding(id_, own.where, actual, expected, severity="warning", remedy=remedy, command=forced)


@check("labels-frozen")
def check_labels_are_updated(
    extenders: Extenders,
    controllers: Controllers,
    nodes_with_verdicts: int,
    leases: tuple[LeaderLease, ...],
    now: datetime,
) -> Iterator[Finding]:
    """Labels of native mode keep their last values if no replica leads and evaluates policies."""
    held = [lease for lease in leases if lease.is_held(now)]
    writing = native_mode_workloads(extenders, controllers)
    if _is_native_mode_off(held, (*extenders, *controllers)) or any(
        lease.is_evaluating(now) for lease in held
    ):
        return
    if held:
        last, where = _format_time(held[0].evaluated), writing[0].workload.where if writing else held[0].where
        actual = f"{held[0].holder} leads and has not evaluated the policies since {last}"
        actual += _format_count_of_labels(nodes_with_verdicts)
        remedy = "the log of that replica has the reason; a restart lets another replica lead"
        command = _restart_command(where)
        expected = "an evaluation each period"
        yield finding("labels-frozen", where, actual, expected, remedy=remedy, command=command)
    elif writing:
        renewals = [lease.renewed for lease in leases if lease.renewed]
        actual = f"no replica leads{f' since {_format_time(max(renewals))}' if renewals else ''}"
        actual += _format_count_of_labels(nodes_with_verdicts)
        where, expected = writing[0].workload.where, "a controller that leads"
        yield finding("labels-frozen", where, actual, expected, command=kubectl("describe", where))


@check("labels-frozen")
def check_shards_are_held(leases: tuple[LeaderLease, ...], now: datetime) -> Iterator[Finding]:
    """Labels of nodes keep their last values if no replica holds their shard."""
    for lease in leases:
        free = [shard for shard, held in enumerate(lease.shards) if held is None or not held.is_held(now)]
        if free and lease.is_held(now):
            numbers, count = ", ".join(map(str, free)), len(lease.shards)
            actual = f"no replica holds shard {numbers} of {count}, so the labels of its nodes do not change"
            remedy = f"run replicas of the controller with --shards={count}; their logs have the reason"
            yield finding("labels-frozen", lease.where, actual, "a holder of each shard", remedy=remedy)


@check("labels-frozen")
def check_leftovers(
    extenders: Extenders,
    controllers: Controllers,
    nodes_with_verdicts: int,
    leases: tuple[LeaderLease, ...],
    now: datetime,
    pod_admission: PodAdmission = _NO_POD_ADMISSION,
    programs_elsewhere: tuple[str, ...] = (),
) -> Iterator[Finding]:
    """Node labels and admission policies that are left where nothing runs in native mode."""
    held, gating = [lease for lease in leases if lease.is_held(now)], _gating_policies(pod_admission)
    is_used = held or native_mode_workloads(extenders, controllers)
    if is_used and not _is_native_mode_off(held, (*extenders, *controllers)):
        return
    expected = "a controller that leads"
    if gating and not (held and (controllers or not extenders)):  # otherwise native-mode-off reports it
        actual = "nothing removes the scheduling gates that it adds to pods"
        actual += _format_count_of_labels(nodes_with_verdicts)
        where, command = gating[0].where, _delete_command(gating[0])
        remedy, command = look_elsewhere_first(programs_elsewhere, _LEFTOVER_REMEDY, command)
        yield finding("labels-frozen", where, actual, expected, remedy=remedy, command=command)
    elif nodes_with_verdicts and not gating:
        actual = f"nothing updates them{_format_count_of_labels(nodes_with_verdicts)}"
        where = "Node labels of native mode"
        remedy, command = look_elsewhere_first(programs_elsewhere, _LEFTOVER_LABELS_REMEDY, _REMOVE_LABELS)
        yield finding("labels-frozen", where, actual, expected, remedy=remedy, command=command)


def _restart_command(where: str) -> str:
    """Empty for a leader that is known by its Lease only."""
    return "" if where.startswith("Lease/") else kubectl("rollout restart", where)


def _delete_command(policy: PodAdmissionPolicy) -> str:
    """Empty for policies of the chart, which have other names."""
    is_named_as_shipped = policy.where == policy.shipped
    return (
        "nodewise configure manifests native | kubectl delete --ignore-not-found -f -"
        if is_named_as_shipped
        else ""
    )


def _format_count_of_labels(nodes_with_verdicts: int) -> str:
    return f"; {nodes_with_verdicts:,} nodes keep their last verdicts" if nodes_with_verdicts else ""


@check("native-mode-off")
def check_native_mode_is_on(
    extenders: Extenders,
    controllers: Controllers,
    leases: tuple[LeaderLease, ...],
    now: datetime,
    pod_admission: PodAdmission,
) -> Iterator[Finding]:
    """Whether a controller that leads is in native mode while its admission policies gate pods."""
    held, gating = [lease for lease in leases if lease.is_held(now)], _gating_policies(pod_admission)
    is_controller = bool(controllers) or not extenders  # beside an extender alone they are leftovers
    if gating and is_controller and _is_native_mode_off(held, (*extenders, *controllers)):
        where = controllers[0].workload.where if controllers else held[0].where
        actual = f"{held[0].holder} leads and is not in native mode, and {gating[0].where} adds gates to pods"
        remedy, command = _native_mode_remedy(controllers)
        expected = "a leader in native mode"
        yield finding("native-mode-off", where, actual, expected, remedy=remedy, command=command)


def _is_native_mode_off(held: Sequence[LeaderLease], workloads: Sequence[NodewiseWorkload]) -> bool:
    """Whether no leader is in native mode. An older one does not say so: if it runs outside of the cluster, its flags
    are unknown.
    """
    is_set = any(workload.is_set("native_mode") for workload in workloads)
    is_older_off = bool(workloads) and not is_set
    return bool(held) and all(
        is_older_off if lease.native_mode is None else not lease.native_mode for lease in held
    )


def _native_mode_remedy(controllers: Controllers) -> tuple[str, str]:
    """How to turn native mode on, and the command: a variable, unless a flag, which wins over it, turns it off."""
    for listed in controllers:
        where = listed.workload.where
        flags = {flag for container in listed.workload.containers for flag in objects.flags(container)}
        if not where.startswith("Pod/"):
            if flags & {"native_mode", "no_native_mode"}:
                return "remove --no-native-mode from the arguments", kubectl("edit", where)
            return "turn native mode on", kubectl("set env", where, "NODEWISE_NATIVE_MODE=true")
    return "", ""


@check("native-mode-off")
def check_gates_are_removed(
    pods: Pods, leases: tuple[LeaderLease, ...], now: datetime, node_count: int = 0
) -> Iterator[Finding]:
    """Pods that still have their gate when the leader should have written all labels of a new policy."""
    held = [lease for lease in leases if lease.is_held(now)]
    due_s = _GATE_S + node_count / _LABELLED_PER_S
    # a tenant may write the gate into a pod that no policy selects
    waiting = [pod for pod in pods if pod.waits_for_labels and pod.policies and pod.age_s > due_s]
    if waiting and held:
        count = f"{len(waiting)} pods wait" if len(waiting) > 1 else "it waits"
        actual = f"{count} with the gate for more than {due_s:.0f} s, and {held[0].holder} leads"
        remedy = (
            "kubectl describe the policies of the pod, and kubectl logs of the leader: they name the cause"
        )
        yield finding(
            "native-mode-off", waiting[0].where, actual, "a leader that removes gates", remedy=remedy
        )


def _gating_policies(pod_admission: PodAdmission) -> list[PodAdmissionPolicy]:
    return [policy for policy in pod_admission.policies if policy.shipped in _GATING_POLICIES]


def _format_time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}" if at else "its start"


@check("verdict-labels-writable")
def check_kubelets_cannot_write_verdicts(node_restriction: NodeRestriction) -> Iterator[Finding]:
    if not node_restriction.is_enforced:
        expected = "the admission plugin NodeRestriction"
        yield finding("verdict-labels-writable", "kube-apiserver", node_restriction.evidence, expected)


_AFFINITY_PLUGIN: Final = "RemovePodsViolatingNodeAffinity"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_DESCHEDULER: Final = (
    f"a descheduler with {_AFFINITY_PLUGIN} for {_REQUIRED}, here or in a namespace of --nodewise-namespace"
)


@check("descheduler-missing")
def check_descheduler(
    policies: Policies, deschedulers: tuple[Descheduler, ...], namespaces: tuple[str, ...]
) -> Iterator[Result]:
    """The strategy deschedule needs a descheduler that evicts pods from the labelled nodes."""
    id_ = "descheduler-missing"
    policy = next((candidate for candidate in policies if "deschedule" in candidate.strategies), None)
    if policy is None or any(map(_descheduler_evicts, deschedulers)):
        return
    if not deschedulers:
        places = " or ".join(namespaces) or "this cluster"
        actual = f"has the strategy deschedule, and no descheduler runs in {places}"
        yield finding(id_, policy.where, actual, _DESCHEDULER)
    for _, plugins, _ in deschedulers:
        if isinstance(plugins, UnavailableFact):
            yield NotChecked(id_, plugins)
            return
    for where, plugins, _ in deschedulers:
        names = ", ".join(map(str, plugins)) or "no plugin"
        actual = f"has {names}, and {policy.where} has the strategy deschedule"
        yield finding(id_, where, actual, _DESCHEDULER)


@check("native-mode-evictions")
def check_native_mode_evictions(
    deschedulers: tuple[Descheduler, ...], nodes_with_verdicts: int
) -> Iterator[Finding]:
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
