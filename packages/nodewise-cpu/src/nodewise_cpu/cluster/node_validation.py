"""Validation of a node: the checks that CMK's manual described, each with a remedy.

Nothing is changed. A pod that requests a core is sent to the API server as a dry run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base.errors import NodewiseError, Refused
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import NODES, PODS, Resource, selector
from nodewise_cpu import pool_allocations
from nodewise_cpu.allocation_store import AllocationStore, StoredAllocations
from nodewise_cpu.cluster import exclusive_core_advertisement, report_custom_resources
from nodewise_cpu.cluster.api_server import ApiClient, ApiFeatures, Object
from nodewise_cpu.cmk_names import EXCLUSIVE_CORES, INJECTED, LABEL
from nodewise_cpu.pool_allocations import Allocations

WEBHOOK: Final = "cmk.intel.com"
"""The webhook's name, which is the same in every configuration."""
NUM_CORES: Final = "CMK_NUM_CORES"


class ValidationCheck(NamedTuple):
    """The result of a check. `ok` is None if it is unknown or not required."""

    name: str
    ok: bool | None
    seen: str
    remedy: str = ""
    """The action for the user; empty if none is needed."""

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()


class ValidationTarget(NamedTuple):
    """The node to validate, and the expected state. The dry run's pod is in the namespace `pods`."""

    node: str
    namespace: str
    taint: bool = True
    pods: str = "default"


def check_webhook(api: ApiClient, wanted: ValidationTarget, features: ApiFeatures) -> ValidationCheck:
    """Check that a pod which requests a core gets what it needs. Unknown if the API server has no dry run."""
    if features.webhooks != "v1":
        return ValidationCheck("webhook", ok=None, seen="this API server has no dry run")
    configurations = Resource(
        "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "", namespaced=False
    )
    try:
        webhook_configs = api.get(configurations.path())["items"]
    except Refused as error:
        return ValidationCheck(
            "webhook", ok=None, seen=str(error), remedy="the right to list webhook configurations"
        )
    if not any(
        hook["name"] == WEBHOOK for config in webhook_configs for hook in config.get("webhooks") or ()
    ):
        return ValidationCheck(
            "webhook", ok=None, seen="not installed: pod manifests must include all that `isolate` needs"
        )
    return _create_pod_dry_run(api, wanted)


def _create_pod_dry_run(api: ApiClient, wanted: ValidationTarget) -> ValidationCheck:
    try:
        pod = api.create(f"{PODS.path(wanted.pods)}?dryRun=All", _probe_pod(wanted))
    except Refused as error:
        return ValidationCheck(
            "webhook", ok=None, seen=str(error), remedy="the right to create pods, for a dry run"
        )
    except NodewiseError as error:
        remedy = (
            f"see what keeps pods out of namespace {wanted.pods}; `kubectl logs` of cmk-webhook-deployment"
        )
        return ValidationCheck("webhook", ok=False, seen=str(error), remedy=remedy)
    annotated = (pod["metadata"].get("annotations") or {}).get(INJECTED) == "true"
    environment = {
        variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0].get("env") or ()
    }
    lacking = [
        *([] if annotated else [f"annotation {INJECTED}"]),
        *([] if environment.get(NUM_CORES) == "1" else [NUM_CORES]),
        *([] if pod["spec"]["containers"][0].get("volumeMounts") else ["mounts"]),
    ]
    if lacking:
        remedy = (
            "is cmk-webhook-deployment ready, and its certificate in cmk-webhook-config? `kubectl logs` it"
        )
        return ValidationCheck(
            "webhook", ok=False, seen=f"a pod that asks for a core lacks {', '.join(lacking)}", remedy=remedy
        )
    return ValidationCheck("webhook", ok=True, seen="a pod that asks for a core gets what it needs")


def _probe_pod(wanted: ValidationTarget) -> dict[str, Any]:
    resources = {kind: {EXCLUSIVE_CORES: "1"} for kind in ("requests", "limits")}
    container = {"name": "main", "image": "none", "command": ["true"], "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "cmk-validate-"},
        "spec": {"containers": [container], "restartPolicy": "Never", "nodeName": wanted.node},
    }


_COLLECTORS: Final = re.compile(r"\b(cpu|cmk) agent\b|\breconcile\b")
"""The commands of containers that release the CPUs of ended tasks."""


def validate_node_setup(
    api: ApiClient, store: AllocationStore, wanted: ValidationTarget, features: ApiFeatures
) -> Iterator[ValidationCheck]:
    """All checks through the API server, in the manual's order. Unavailable without a response."""
    try:
        node: Object = api.get(NODES.path(name=wanted.node))
    except NotFound as error:
        yield ValidationCheck("node", ok=False, seen=str(error), remedy="name one of `kubectl get nodes`")
        return
    yield _check_node_label(node, wanted)
    yield _check_taint(node, wanted, features)
    stored, check = _check_pools(store, wanted)
    yield check
    yield from _check_extended_resources(node, stored, wanted, features)
    yield from _check_tasks_and_collector(api, stored, wanted)
    yield _check_node_report(api, stored, wanted, features)
    yield check_webhook(api, wanted, features)


def _check_node_label(node: Object, wanted: ValidationTarget) -> ValidationCheck:
    seen = (node["metadata"].get("labels") or {}).get(LABEL)
    return ValidationCheck(
        "label",
        seen == "true",
        f"{LABEL}={seen}" if seen else f"no {LABEL}",
        _discover_remedy(wanted, seen != "true"),
    )


def _discover_remedy(wanted: ValidationTarget, is_wrong: bool) -> str:
    remedy = f"nodewise cpu discover --node-name {wanted.node} --namespace {wanted.namespace}"
    return remedy if is_wrong else ""


def _check_taint(node: Object, wanted: ValidationTarget, features: ApiFeatures) -> ValidationCheck:
    try:
        ours = [
            taint
            for taint in exclusive_core_advertisement.read_taints(node, features)
            if taint.get("key") == exclusive_core_advertisement.OURS["key"]
        ]
    except NodewiseError as error:
        return ValidationCheck("taint", ok=False, seen=str(error), remedy="correct the node's annotation")
    is_there = any(exclusive_core_advertisement.is_cpu_manager_taint(taint) for taint in ours)
    seen = "cmk=true:NoSchedule" if is_there else f"{ours[0]}" if ours else "no taint cmk"
    if not wanted.taint and not is_there:
        return ValidationCheck("taint", ok=None, seen=seen)
    return ValidationCheck("taint", is_there, seen, _discover_remedy(wanted, not is_there))


def _check_pools(
    store: AllocationStore, wanted: ValidationTarget
) -> tuple[StoredAllocations | None, ValidationCheck]:
    try:
        stored = store.read()
    except NotFound as error:
        remedy = f"nodewise cpu cluster-init --host-list {wanted.node} --namespace {wanted.namespace}"
        return None, ValidationCheck("pools", ok=False, seen=str(error), remedy=remedy)
    except NodewiseError as error:
        return None, ValidationCheck("pools", ok=False, seen=str(error), remedy=f"correct {store.location}")
    if stored.intent:
        seen = f"being reconfigured by process {stored.intent.by.pid} since {stored.intent.since}"
        remedy = "wait; the node agent rolls it back if that process has ended"
        return stored, ValidationCheck("pools", ok=False, seen=seen, remedy=remedy)
    if overlaps := pool_allocations.overlaps(stored.allocations):
        remedy = "give each CPU to one list: nodewise cpu reconfigure"
        return stored, ValidationCheck("pools", ok=False, seen="; ".join(overlaps), remedy=remedy)
    lists = ", ".join(
        f"{pool.name} {len(list(pool.cpu_lists))}" for pool in stored.allocations.pools.values()
    )
    return stored, ValidationCheck("pools", ok=True, seen=f"{store.location}: {lists}")


def _check_extended_resources(
    node: Object, stored: StoredAllocations | None, wanted: ValidationTarget, features: ApiFeatures
) -> Iterator[ValidationCheck]:
    """Check that the node advertises as many of each resource as its pools have, and that pods may use them."""
    if not features.resources:
        yield ValidationCheck(
            "resources", ok=False, seen="Kubernetes 1.8.0 takes none", remedy="Kubernetes 1.8.1 or later"
        )
        return
    if stored is None:
        yield ValidationCheck("resources", ok=None, seen="the pools are not known")
        return
    try:
        counts = exclusive_core_advertisement.count_resources_to_advertise(stored.allocations)
    except NodewiseError as error:
        yield ValidationCheck("resources", ok=False, seen=str(error), remedy="nodewise cpu reconfigure")
        return
    for resource, count in counts.items():
        name = features.resources[resource]
        if not count and resource != EXCLUSIVE_CORES:
            continue
        status = node.get("status") or {}
        has, gives = (str((status.get(part) or {}).get(name, "none")) for part in ("capacity", "allocatable"))
        remedy = ""
        if has != str(count):
            remedy = (
                f"{_discover_remedy(wanted, is_wrong=True)}; the node agent does it after a kubelet's restart"
            )
        elif gives != has:
            remedy = "the kubelet reports resources within seconds: is it running?"
        seen = f"capacity {has}, allocatable {gives}; the pool has {count}"
        yield ValidationCheck(name, not remedy, seen, remedy)


def _check_tasks_and_collector(
    api: ApiClient, stored: StoredAllocations | None, wanted: ValidationTarget
) -> Iterator[ValidationCheck]:
    """Check that a garbage collector is running, and that the tasks belong to pods of the node."""
    try:
        pods = api.get(PODS.path(), {"fieldSelector": selector("spec.nodeName", wanted.node)})["items"]
    except Refused as error:
        yield ValidationCheck("agent", ok=False, seen=str(error), remedy="the right to list pods")
        return
    yield _check_agent_pod([pod for pod in pods if _COLLECTORS.search(_container_commands(pod))])
    if stored is not None:
        yield _check_task_pods(stored.allocations, pods)


def _check_agent_pod(agent_pods: Sequence[Object]) -> ValidationCheck:
    """Check that one of the pods that release the CPUs of ended tasks is ready."""
    if not agent_pods:
        remedy = "kubectl apply -f deploy/cpu-agent.yaml"
        return ValidationCheck("agent", ok=False, seen="no node agent, no reconcile", remedy=remedy)
    ready = [pod for pod in agent_pods if _is_ready(pod)]
    names = ", ".join(pod["metadata"]["name"] for pod in ready or agent_pods)
    if not ready:
        return ValidationCheck(
            "agent", ok=False, seen=f"not ready: {names}", remedy="`kubectl describe` the pod"
        )
    return ValidationCheck("agent", ok=True, seen=f"ready: {names}")


def _container_commands(pod: Object) -> str:
    parts = [
        [*(container.get("command") or ()), *(container.get("args") or ())]
        for container in pod["spec"].get("containers") or ()
    ]
    return "\n".join(" ".join(map(str, words)) for words in parts)


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions
    )


def _check_task_pods(allocations: Allocations, pods: Sequence[Object]) -> ValidationCheck:
    tasks = {task for _, cpu_list in allocations.cpu_lists for task in cpu_list.tasks}
    known = {pod["metadata"]["uid"] for pod in pods}
    strays = sorted(str(task.pid) for task in tasks if task.pod and task.pod not in known)
    if strays:
        seen = f"processes {', '.join(strays)} hold cores for pods that are not on the node"
        return ValidationCheck("tasks", ok=False, seen=seen, remedy="nodewise cpu reconcile, on the node")
    return ValidationCheck("tasks", ok=True, seen=f"{len(tasks)} running")


def _check_node_report(
    api: ApiClient, stored: StoredAllocations | None, wanted: ValidationTarget, features: ApiFeatures
) -> ValidationCheck:
    kind = report_custom_resources.NODE_REPORT
    is_old = features.reports == "third-party"
    resource = kind.third_party_resource if is_old else kind.resource
    remedy = (
        "kubectl apply -f deploy/crds/cmk-reports.yaml; the node agent, or `node-report --publish`, writes it"
    )
    try:
        stored_object = api.get(
            resource.path(wanted.namespace, report_custom_resources.report_name(wanted.node))
        )
    except Refused as error:
        return ValidationCheck(kind.name, ok=False, seen=str(error), remedy=remedy)
    report = (stored_object if is_old else stored_object.get("spec") or {}).get("report") or {}
    if wrong := _report_errors(report):
        return ValidationCheck(kind.name, ok=False, seen="; ".join(wrong), remedy="correct these errors")
    if stored is not None and _count_cpu_lists(report.get("description")) != _count_cpu_lists(
        pool_allocations.as_describe_output(stored.allocations)
    ):
        return ValidationCheck(kind.name, ok=False, seen="outdated: it has other pools", remedy=remedy)
    return ValidationCheck(kind.name, ok=True, seen="up to date, without errors")


def _report_errors(report: Mapping[str, Any]) -> Sequence[str]:
    """The errors that a node report contains, each with the name of its check."""
    return [
        f"{name}: {error}"
        for name, check in (report.get("checks") or {}).items()
        for error in check.get("errors") or ()
    ]


def _count_cpu_lists(description: Mapping[str, Any] | None) -> Mapping[str, set[str]]:
    pools = (description or {}).get("pools") or {}
    return {name: set(pool.get("cpuLists") or ()) for name, pool in pools.items()}
