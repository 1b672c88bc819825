"""Checks of nodewise's own workloads and their rights, nodes with GPUs or CPU pools, and the cluster's version."""

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from nodewise.base.errors import list_first, short
from nodewise.doctor.facts import (
    AdmissionPolicy,
    Controllers,
    Extenders,
    GpuNodeInfo,
    KubeletConfiguration,
    LeaderLease,
    MissingRights,
    NodewiseWorkload,
    Registration,
    UnavailableFact,
)
from nodewise.doctor.findings import (
    NOT_CHECKED,
    Finding,
    NotChecked,
    Result,
    Severity,
    apply_parts,
    change_setting,
    check,
    finding,
    kubectl,
)
from nodewise.doctor.parsing import objects
from nodewise.install import scheduler_versions
from nodewise.install.scheduler_versions import SchedulerVersion
from nodewise.policies.policy_namespace_trust import LABEL

_MAX_RIGHTS: Final = 6
_REJECTING: Final = frozenset({"restricted", "single-numa-node"})
"""Topology manager policies by which a kubelet rejects pods."""


@check("replicas-not-ready")
def check_nodewise_is_installed(
    extenders: Extenders,
    controllers: Controllers,
    namespaces: tuple[str, ...],
    now: datetime,
    registrations: tuple[Registration | UnavailableFact, ...] = (),
    leases: tuple[LeaderLease, ...] = (),
    programs_elsewhere: tuple[str, ...] = (),
) -> Iterator[Finding]:
    is_reached = any(
        isinstance(registration, Registration) and registration.server.address
        for registration in registrations
    )
    # a server that responds, or a process that leads, may run outside of this cluster
    leads = any(lease.is_held(now) for lease in leases)
    if not (extenders or controllers or is_reached or leads):
        where = ", ".join(f"Namespace/{name}" for name in namespaces) or "cluster"
        actual = "no workload runs nodewise extender or nodewise controller"
        expected = "a Deployment that does, or --nodewise-namespace with its namespace"
        remedy = "install it: for policies from Kubernetes 1.36 by the command, otherwise with the chart"
        own = next(iter(namespaces), "nodewise")
        option = f" --namespace={shlex.quote(own)}" if own != "nodewise" else ""
        command = f"nodewise configure --mode native{option} | kubectl apply --server-side -f -"
        remedy, command = look_elsewhere_first(programs_elsewhere, remedy, command)
        yield finding("replicas-not-ready", where, actual, expected, remedy=remedy, command=command)


def look_elsewhere_first(programs_elsewhere: tuple[str, ...], remedy: str, command: str) -> tuple[str, str]:
    """Remedy and command for a cluster without nodewise. If it may run in a namespace that was not examined, the
    command examines that one: `command` would remove what it uses, or install it twice.
    """
    if not programs_elsewhere:
        return remedy, command
    namespace = short(programs_elsewhere[0].split("/")[1], 80)
    elsewhere = f"if nodewise runs in namespace {namespace}, examine it by the command"
    otherwise = remedy.replace("by the command", f"by {command}") if command else remedy
    return f"{elsewhere}. Otherwise: {otherwise}", f"nodewise doctor --nodewise-namespace {namespace}"


_UNKNOWN_WORKLOADS: Final = UnavailableFact(
    "nodewise's flags, account and replicas",
    "no workload in the examined namespaces runs nodewise, which may run outside of the cluster",
    remedy="if it runs in another namespace: --nodewise-namespace with its name",
    is_minor=True,
)


@check(
    "any-client",
    "all-namespaces-trusted",
    "rights-missing",
    "admission-policy-missing",
    "identity-shared",
    "controller-beside-extender",
    "replicas-not-ready",
)
def check_workloads_are_known(extenders: Extenders, controllers: Controllers) -> Iterator[NotChecked]:
    """Without a workload there is nothing that these checks could examine."""
    if not (extenders or controllers):
        yield from (NotChecked(id_, _UNKNOWN_WORKLOADS) for id_ in check_workloads_are_known.ids)


@check("replicas-not-ready")
def check_ready_replicas(extenders: Extenders, controllers: Controllers) -> Iterator[Finding]:
    id_ = "replicas-not-ready"
    for workload in (listed.workload for listed in (*extenders, *controllers)):
        if not workload.replicas:
            if not workload.where.startswith("Pod/"):
                is_daemon_set = workload.where.startswith("DaemonSet/")
                remedy = "let its node selector match nodes" if is_daemon_set else "scale it"
                command = "" if is_daemon_set else kubectl("scale", workload.where, "--replicas=2")
                yield finding(
                    id_, workload.where, "has 0 replicas", "at least one", remedy=remedy, command=command
                )
        elif workload.ready is not None and workload.ready < workload.replicas:
            reasons = f": {'; '.join(dict.fromkeys(workload.problems))}" if workload.problems else ""
            actual = f"{workload.ready} of {workload.replicas} are ready{reasons}"
            severity: Severity = "warning" if workload.ready else "error"
            command = kubectl("describe", workload.where)
            yield finding(id_, workload.where, actual, "all", command=command, severity=severity)


@check("identity-shared")
def check_identities(extenders: Extenders, controllers: Controllers) -> Iterator[Finding]:
    for listed in (*extenders, *controllers):
        identity = listed.settings.get("identity", "")
        # $(NAME) is another variable, such as the name of the pod
        if listed.workload.replicas > 1 and identity and "$(" not in identity:
            actual = f"{listed.workload.replicas} replicas with the identity {short(identity, 80)}"
            where, expected = listed.workload.where, "one identity per replica"
            command = change_setting(listed.workload, "identity")
            yield finding("identity-shared", where, actual, expected, command=command)


@check("controller-beside-extender")
def check_one_program_evaluates_policies(extenders: Extenders, controllers: Controllers) -> Iterator[Result]:
    id_ = "controller-beside-extender"
    for controller in (listed for listed in controllers if listed.workload.replicas):
        for extender in (listed for listed in extenders if listed.workload.replicas):
            if extender.unread_settings is not None:  # the settings say which agents run
                yield NotChecked(id_, extender.unread_settings)
            elif "telemetry" in extender.agents:
                actual = f"runs beside {extender.workload.where}, whose agent telemetry evaluates the same policies"
                yield finding(id_, controller.workload.where, actual, "one of them")


@check("rights-missing")
def check_rights(
    missing_rights: tuple[MissingRights, ...], extenders: Extenders = (), controllers: Controllers = ()
) -> Iterator[Result]:
    for listed in (*extenders, *controllers):
        if listed.unread_settings is not None:  # the settings say which agents need rights
            yield NotChecked("rights-missing", listed.unread_settings)
    for account, missing, parts in missing_rights:
        if missing:
            actual = f"may not {list_first(list(map(str, missing)), _MAX_RIGHTS, '; ')}"
            _, namespace, name = account.split("/", 2)
            command = apply_parts(*parts, namespace=namespace, name=name)
            yield finding(
                "rights-missing", account, actual, "the rights that its agents need", command=command
            )


@check("admission-policy-missing")
def check_missing_admission_policies(
    extenders: Extenders, controllers: Controllers, admission_policies: tuple[AdmissionPolicy, ...]
) -> Iterator[Finding]:
    """Accounts whose writes no policy limits, and the namespace label that everybody may set."""

    def is_limited(resource: str, text: str) -> bool:
        """Whether a policy matches a resource under a condition that contains the text."""
        return any(
            resource in policy.resources and any(text in condition for condition in policy.conditions)
            for policy in admission_policies
        )

    id_ = "admission-policy-missing"
    writing = [listed for listed in (*extenders, *controllers) if _has_own_service_account(listed)]
    for listed in writing:
        namespace, account = listed.workload.namespace, listed.workload.account
        parts = {"nodes": "rbac"}
        if "gpu" in listed.agents or listed.may_use_native_mode:
            parts["pods"] = "gpu" if "gpu" in listed.agents else "controller"
        for resource, part in parts.items():
            if not is_limited(resource, f"'system:serviceaccount:{namespace}:{account}'"):
                actual = f"no policy limits what it writes to {resource}"
                expected = "a policy for this account, with a binding that denies"
                where = f"ServiceAccount/{namespace}/{account}"
                command = apply_parts(part, namespace=namespace, name=account)
                yield finding(id_, where, actual, expected, command=command)
    if writing and not is_limited("namespaces", LABEL):
        actual = f"no policy limits who may set the namespace label {LABEL}"
        where, expected = "ValidatingAdmissionPolicy/nodewise-trust", "a policy, with a binding that denies"
        command = apply_parts("trust")
        yield finding(id_, where, actual, expected, command=command)


def _has_own_service_account(listed: NodewiseWorkload) -> bool:
    """Whether it writes to a cluster with an account that it does not share with kube-scheduler."""
    containers = listed.workload.containers
    is_shared = any(objects.runs(container, "kube-scheduler") for container in containers)
    return not (is_shared or listed.is_set("no_cluster") or listed.settings.get("objects_from"))


@check(NOT_CHECKED)
def check_unexamined_namespaces(
    programs_elsewhere: tuple[str, ...] = (), namespaces: tuple[str, ...] = ()
) -> Iterator[Finding]:
    """Programs that were not examined: a tenant's, or those of a namespace that no option names."""
    if programs_elsewhere:
        where = list_first([short(name, 100) for name in programs_elsewhere], 3)
        outside = ", ".join(namespaces)
        actual = f"run or are named as a scheduler, a descheduler or nodewise, outside {outside}"
        remedy = f"if they are yours: --nodewise-namespace {short(programs_elsewhere[0].split('/')[1], 80)}"
        expected = "nothing, if they are a tenant's"
        yield finding(NOT_CHECKED, where, actual, expected, remedy=remedy, severity="note")


@check("gpu-node-without-labels")
def check_gpu_labels(  # complexity: three findings
    gpu_nodes: tuple[GpuNodeInfo, ...],
) -> Iterator[Finding]:

    def format_reason(nodes: Sequence[GpuNodeInfo]) -> str:
        problem = next((node.problems[0] for node in nodes if node.problems), "")
        return f": {problem}" if problem else ""

    id_ = "gpu-node-without-labels"
    if unlisted := [node for node in gpu_nodes if not node.resource and not node.drivers]:
        actual = f"has the label {unlisted[0].label}, no allocatable resource of GPUs and no ResourceSlices"
        remedy = "repair the device plugin or the DRA driver of these nodes, or remove the label"
        where, expected = _format_nodes(unlisted), "an allocatable resource of GPUs"
        command = kubectl("describe", f"Node/{unlisted[0].node}")
        yield finding(id_, where, actual, expected, remedy=remedy, command=command, severity="warning")
    if without := [node for node in gpu_nodes if node.resource and not node.gpus]:
        actual = f"{without[0].resource} is allocatable, and no GPU is named{format_reason(without)}"
        yield finding(id_, _format_nodes(without), actual, "labels or an annotation with GPUs")
    if incomplete := [node for node in gpu_nodes if node.gpus and node.problems]:
        actual = f"not everything is known of their GPUs{format_reason(incomplete)}"
        expected = "labels or an annotation that describe each GPU"
        yield finding(id_, _format_nodes(incomplete), actual, expected, severity="warning")


@check("kubelet-policy-conflict")
def check_kubelet_policies(kubelets: tuple[KubeletConfiguration, ...]) -> Iterator[Finding]:
    """Kubelets that assign the CPUs of pools, one finding for each combination of policies."""
    by_policies: dict[str, list[KubeletConfiguration]] = {}
    for kubelet in kubelets:
        policies = [
            ("cpuManagerPolicy", kubelet.cpu_manager, kubelet.cpu_manager == "static"),
            ("topologyManagerPolicy", kubelet.topology_manager, kubelet.topology_manager in _REJECTING),
            ("memoryManagerPolicy", kubelet.memory_manager, kubelet.memory_manager == "Static"),
        ]
        conflicts = ", ".join(f"{name}: {policy}" for name, policy, conflicts in policies if conflicts)
        if conflicts:
            by_policies.setdefault(conflicts, []).append(kubelet)
    for conflicts, nodes in sorted(by_policies.items()):
        actual = f"{conflicts}, and the node has pools"
        yield finding("kubelet-policy-conflict", _format_nodes(nodes), actual, "none on nodes with pools")


def _format_nodes(nodes: Sequence[GpuNodeInfo | KubeletConfiguration]) -> str:
    return list_first([f"Node/{node.node}" for node in nodes], 3)


@check("kubernetes-version-untested")
def check_kubernetes_version(cluster_version: SchedulerVersion | None) -> Iterator[Finding]:
    """Whether the tests of nodewise run on the minor version of the API server.

    An older version is a note: what nodewise needs of it is known, and checked where it is used.
    """
    if cluster_version is None:
        return
    id_, expected = (
        "kubernetes-version-untested",
        f"1.{scheduler_versions.OLDEST_TESTED} to 1.{scheduler_versions.NEWEST}",
    )
    is_older = cluster_version.minor < scheduler_versions.OLDEST_TESTED
    for text in cluster_version.untested_warnings("Kubernetes"):
        yield finding(id_, "API server", text, expected, severity="note" if is_older else None)
