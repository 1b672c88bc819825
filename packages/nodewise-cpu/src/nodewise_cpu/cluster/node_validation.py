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
from nodewise_cpu.cmk_names import EXCLUSIVE_CORES, INJECTED, LABEL, TAINT

WEBHOOK: Final = "cmk.intel.com"
"""The webhook's name, which is the same in every configuration."""
NUM_CORES: Final = "CMK_NUM_CORES"
_OK, _WRONG, _UNKNOWN = True, False, None
_COLLECTORS: Final = re.compile(r"\b(cpu|cmk) agent\b|\breconcile\b")
"""The commands of containers that release the CPUs of ended tasks."""


class ValidationCheck(NamedTuple):
    """The result of a check. `ok` is None if it is unknown or not required."""

    name: str
    ok: bool | None
    seen: str
    remedy: str = ""
    """The action for the user; empty if none is needed."""


class ValidationTarget(NamedTuple):
    """The node to validate, and the expected state. The dry run's pod is in the namespace `pods`."""

    node: str
    namespace: str
    taint: bool = True
    pods: str = "default"

    @property
    def discover(self) -> str:
        """The command that advertises the node's cores."""
        return f"nodewise cpu discover --node-name {self.node} --namespace {self.namespace}"


def validate_node_setup(
    api: ApiClient, store: AllocationStore, wanted: ValidationTarget, features: ApiFeatures
) -> Iterator[ValidationCheck]:
    """All checks through the API server, in the manual's order. Unavailable without a response."""
    try:
        node: Object = api.get(NODES.path(name=wanted.node))
    except NotFound as error:
        yield ValidationCheck("node", _WRONG, str(error), "name one of `kubectl get nodes`")
        return
    label = (node["metadata"].get("labels") or {}).get(LABEL)
    is_labelled = label == "true"
    seen = f"{LABEL}={label}" if label else f"no {LABEL}"
    yield ValidationCheck("label", is_labelled, seen, "" if is_labelled else wanted.discover)
    yield _check_taint(node, wanted, features)
    stored, check = _check_pools(store, wanted)
    yield check
    yield from _check_extended_resources(node, stored, wanted, features)
    yield from check_tasks_and_collector(api, stored, wanted)
    yield _check_node_report(api, stored, wanted, features)
    yield _check_webhook(api, wanted, features)


def _check_taint(node: Object, wanted: ValidationTarget, features: ApiFeatures) -> ValidationCheck:
    try:
        taints = exclusive_core_advertisement.read_taints(node, features)
    except NodewiseError as error:
        return ValidationCheck("taint", _WRONG, str(error), "correct the node's annotation")
    ours = [taint for taint in taints if taint.get("key") == TAINT]
    is_there = any(exclusive_core_advertisement.is_cpu_manager_taint(taint) for taint in ours)
    seen = "cmk=true:NoSchedule" if is_there else f"{ours[0]}" if ours else "no taint cmk"
    if is_there or not wanted.taint:
        return ValidationCheck("taint", is_there or _UNKNOWN, seen)
    return ValidationCheck("taint", _WRONG, seen, wanted.discover)


def _check_pools(
    store: AllocationStore, wanted: ValidationTarget
) -> tuple[StoredAllocations | None, ValidationCheck]:
    try:
        stored = store.read()
    except NotFound as error:
        remedy = f"nodewise cpu cluster-init --host-list {wanted.node} --namespace {wanted.namespace}"
        return None, ValidationCheck("pools", _WRONG, str(error), remedy)
    except NodewiseError as error:
        return None, ValidationCheck("pools", _WRONG, str(error), f"correct {store.location}")
    if stored.intent:
        seen = f"being reconfigured by process {stored.intent.by.pid} since {stored.intent.since}"
        remedy = "wait; the node agent rolls it back if that process has ended"
        return stored, ValidationCheck("pools", _WRONG, seen, remedy)
    if overlaps := pool_allocations.overlaps(stored.allocations):
        remedy = "give each CPU to one list: nodewise cpu reconfigure"
        return stored, ValidationCheck("pools", _WRONG, "; ".join(overlaps), remedy)
    lists = [f"{pool.name} {len(list(pool.cpu_lists))}" for pool in stored.allocations.pools.values()]
    return stored, ValidationCheck("pools", _OK, f"{store.location}: {', '.join(lists)}")


def _check_extended_resources(
    node: Object, stored: StoredAllocations | None, wanted: ValidationTarget, features: ApiFeatures
) -> Iterator[ValidationCheck]:
    """Check that the node advertises as many of each resource as its pools have, and that pods may use them."""
    if not features.resources:
        seen, remedy = "Kubernetes 1.8.0 takes none", "Kubernetes 1.8.1 or later"
        yield ValidationCheck("resources", _WRONG, seen, remedy)
        return
    if stored is None:
        yield ValidationCheck("resources", _UNKNOWN, "the pools are not known")
        return
    try:
        counts = exclusive_core_advertisement.count_resources_to_advertise(stored.allocations)
    except NodewiseError as error:
        yield ValidationCheck("resources", _WRONG, str(error), "nodewise cpu reconfigure")
        return
    status = node.get("status") or {}
    for resource, count in counts.items():
        name = features.resources[resource]
        if not count and resource != EXCLUSIVE_CORES:
            continue
        has, gives = (str((status.get(part) or {}).get(name, "none")) for part in ("capacity", "allocatable"))
        remedy = ""
        if has != str(count):
            remedy = (
                f"{wanted.discover}; the node agent does it after a kubelet's restart, and does not count free lists"
                " with offline CPUs (see the node report)"
            )
        elif gives != has:
            remedy = "the kubelet reports resources within seconds: is it running?"
        seen = f"capacity {has}, allocatable {gives}; the pool has {count}"
        yield ValidationCheck(name, not remedy, seen, remedy)


def check_tasks_and_collector(
    api: ApiClient, stored: StoredAllocations | None, wanted: ValidationTarget
) -> Iterator[ValidationCheck]:
    """Check that a garbage collector is running, and that the tasks belong to pods of the node."""
    try:
        pods = api.get(PODS.path(), {"fieldSelector": selector("spec.nodeName", wanted.node)})["items"]
    except Refused as error:
        yield ValidationCheck("agent", _WRONG, str(error), "the right to list pods")
        return
    yield _check_collector(pods)
    if stored is None:
        return
    tasks, known = stored.allocations.tasks, {pod["metadata"]["uid"] for pod in pods}
    strays = sorted(str(task.pid) for task in tasks if task.pod and task.pod not in known)
    if strays:
        seen = f"processes {', '.join(strays)} hold cores for pods that are not on the node"
        yield ValidationCheck("tasks", _WRONG, seen, "nodewise cpu reconcile, on the node")
    else:
        yield ValidationCheck("tasks", _OK, f"{len(tasks)} running")


def _check_collector(pods: Sequence[Object]) -> ValidationCheck:
    collectors = [pod for pod in pods if _COLLECTORS.search(_container_commands(pod))]
    if not collectors:
        remedy = "kubectl apply -f deploy/cpu-agent.yaml"
        return ValidationCheck("agent", _WRONG, "no node agent, no reconcile", remedy)
    ready = [
        pod["metadata"]["name"]
        for pod in collectors
        for condition in (pod.get("status") or {}).get("conditions") or ()
        if condition.get("type") == "Ready" and condition.get("status") == "True"
    ]
    if ready:
        return ValidationCheck("agent", _OK, f"ready: {', '.join(ready)}")
    names = ", ".join(pod["metadata"]["name"] for pod in collectors)
    return ValidationCheck("agent", _WRONG, f"not ready: {names}", "`kubectl describe` the pod")


def _container_commands(pod: Object) -> str:
    parts = [
        [*(container.get("command") or ()), *(container.get("args") or ())]
        for container in pod["spec"].get("containers") or ()
    ]
    return "\n".join(" ".join(map(str, words)) for words in parts)


def _check_node_report(  # complexity: parts that an older report lacks
    api: ApiClient, stored: StoredAllocations | None, wanted: ValidationTarget, features: ApiFeatures
) -> ValidationCheck:
    kind = report_custom_resources.NODE_REPORT
    is_old = features.reports == "third-party"
    resource = kind.third_party_resource if is_old else kind.resource
    remedy = (
        "kubectl apply -f deploy/crds/cmk-reports.yaml; the node agent, or `node-report --publish`, writes it"
    )
    try:
        current = api.get(resource.path(wanted.namespace, report_custom_resources.report_name(wanted.node)))
    except Refused as error:
        return ValidationCheck(kind.name, _WRONG, str(error), remedy)
    report = (current if is_old else current.get("spec") or {}).get("report") or {}
    errors = [
        f"{name}: {error}"
        for name, check in (report.get("checks") or {}).items()
        for error in check.get("errors") or ()
    ]
    if errors:
        return ValidationCheck(kind.name, _WRONG, "; ".join(errors), "correct these errors")
    if stored is not None and _cpu_lists_by_pool(report.get("description")) != _cpu_lists_by_pool(
        pool_allocations.as_describe_output(stored.allocations)
    ):
        return ValidationCheck(kind.name, _WRONG, "outdated: it has other pools", remedy)
    return ValidationCheck(kind.name, _OK, "up to date, without errors")


def _cpu_lists_by_pool(description: Mapping[str, Any] | None) -> Mapping[str, set[str]]:
    pools = (description or {}).get("pools") or {}
    return {name: set(pool.get("cpuLists") or ()) for name, pool in pools.items()}


def _check_webhook(api: ApiClient, wanted: ValidationTarget, features: ApiFeatures) -> ValidationCheck:
    """Check that a pod which requests a core gets what it needs. Unknown if the API server has no dry run."""
    if features.webhooks != "v1":
        return ValidationCheck("webhook", _UNKNOWN, "this API server has no dry run")
    configurations = Resource(
        "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "", namespaced=False
    )
    try:
        webhooks = [
            hook["name"]
            for configuration in api.get(configurations.path())["items"]
            for hook in configuration.get("webhooks") or ()
        ]
    except Refused as error:
        return ValidationCheck("webhook", _UNKNOWN, str(error), "the right to list webhook configurations")
    if WEBHOOK not in webhooks:
        seen = "not installed: pod manifests must include all that `isolate` needs"
        return ValidationCheck("webhook", _UNKNOWN, seen)
    resources = {kind: {EXCLUSIVE_CORES: "1"} for kind in ("requests", "limits")}
    container = {"name": "main", "image": "none", "command": ["true"], "resources": resources}
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "cmk-validate-"},
        "spec": {"containers": [container], "restartPolicy": "Never", "nodeName": wanted.node},
    }
    try:
        pod = api.create(f"{PODS.path(wanted.pods)}?dryRun=All", probe)
    except Refused as error:
        return ValidationCheck("webhook", _UNKNOWN, str(error), "the right to create pods, for a dry run")
    except NodewiseError as error:
        remedy = (
            f"see what keeps pods out of namespace {wanted.pods}; `kubectl logs` of cmk-webhook-deployment"
        )
        return ValidationCheck("webhook", _WRONG, str(error), remedy)
    missing = _missing_mutations(pod)
    if missing:
        remedy = (
            "is cmk-webhook-deployment ready, and its certificate in cmk-webhook-config? `kubectl logs` it"
        )
        seen = f"a pod that asks for a core lacks {', '.join(missing)}"
        return ValidationCheck("webhook", _WRONG, seen, remedy)
    return ValidationCheck("webhook", _OK, "a pod that asks for a core gets what it needs")


def _missing_mutations(pod: Object) -> Sequence[str]:
    container = pod["spec"]["containers"][0]
    environment = {variable["name"]: variable.get("value") for variable in container.get("env") or ()}
    mutations = {
        f"annotation {INJECTED}": (pod["metadata"].get("annotations") or {}).get(INJECTED) == "true",
        NUM_CORES: environment.get(NUM_CORES) == "1",
        "mounts": bool(container.get("volumeMounts")),
    }
    return [name for name, is_there in mutations.items() if not is_there]
