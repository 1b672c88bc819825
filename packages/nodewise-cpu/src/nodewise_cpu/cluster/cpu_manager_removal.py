"""Removal of the CPU manager from one node, and of the objects that all nodes share.

Running tasks are looked for first, so a node with running tasks is not changed. Every step is idempotent: steps can be
repeated, in any order, on any number of nodes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base.errors import Conflict, Problem, Unavailable
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import NODES, PODS, Resource, selector
from nodewise_cpu import allocation_store
from nodewise_cpu.allocation_store import AllocationStore, StoredAllocations
from nodewise_cpu.cluster import (
    exclusive_core_advertisement,
    node_setup,
    node_setup_objects,
    object_writer,
    report_custom_resources,
)
from nodewise_cpu.cluster.api_server import ApiClient, ApiFeatures, Object
from nodewise_cpu.cluster.object_writer import Deadline
from nodewise_cpu.cmk_names import LABEL
from nodewise_cpu.pool_allocations import Allocations
from nodewise_cpu.pool_planning import INFRA

GarbageCollection = Callable[[], object]
"""Removes ended tasks from the node's store, as found in its processes; NotFound without a store."""

TASKS_S: Final = 10.0
"""How long to wait for running tasks."""
_ROUND_S: Final = 1.0
"""Longer than a node agent takes from reading the store to advertising."""
_SHARED_PODS: Final = ("cmk-cluster-init-pod", "cmk-discover-pod", "cmk-init-pod", "cmk-install-pod")
_SHARED_DAEMON_SETS: Final = ("cmk-node-report-ds-all", "cmk-reconcile-ds-all")
_DAEMON_SETS: Final = "daemonsets"


class RemovalStep(NamedTuple):
    """An object, and what was done to it: removed, or not there."""

    name: str
    outcome: str


ProgressReporter = Callable[[RemovalStep], None]


class RemovedNode(NamedTuple):
    """A node to remove the CPU manager from."""

    name: str
    namespace: str
    store: AllocationStore
    collect_garbage: GarbageCollection | None
    """None if the node's processes cannot be read: then all stored tasks count as running."""


def remove_from_node(
    api: ApiClient,
    node: RemovedNode,
    features: ApiFeatures,
    deadline: Deadline,
    report_progress: ProgressReporter,
) -> None:
    """Remove everything but the program from a node. Unavailable if tasks are running: then nothing has changed."""
    _wait_for_end_of_tasks(node, deadline, _uids_of_node_daemon_set_pods(api, node), spares_infra=True)
    for reference in _objects_of_node(api, node, features):
        _remove_object(api, reference, deadline, report_progress)
    _remove_state(node, deadline, report_progress)
    if not features.resources:
        report_progress(RemovalStep("resources", "not supported by Kubernetes 1.8.0: left as they are"))
    _withdraw_advertisement(api, node, features, deadline, report_progress)
    _remove_reports(api, node, features, report_progress)
    gone = Resource("", "v1", "configmaps", "ConfigMap").path(node.namespace, f"cmk-reconfigure-{node.name}")
    _delete_object(api, gone, f"ConfigMap cmk-reconfigure-{node.name}", report_progress)


def remove_from_cluster(
    api: ApiClient,
    namespace: str,
    shared: Iterable[Object],
    features: ApiFeatures,
    deadline: Deadline,
    report_progress: ProgressReporter,
) -> None:
    """Remove the objects that all nodes share, such as the webhook; the first of `shared` first."""
    samples = [_object_reference("Pod", "v1", name, namespace) for name in _SHARED_PODS]
    samples += [
        _object_reference("DaemonSet", features.daemon_sets, name, namespace) for name in _SHARED_DAEMON_SETS
    ]
    for reference in (*samples, *shared):
        _remove_object(api, reference, deadline, report_progress)


def report_crd_references(features: ApiFeatures) -> Sequence[Object]:
    """The definitions of report kinds; their objects are removed with them."""
    return [report_custom_resources.definition(kind, features) for kind in report_custom_resources.KINDS]


def agent_objects_to_remove(
    api: ApiClient, namespace: str, features: ApiFeatures, report_progress: ProgressReporter
) -> Sequence[Object]:
    """The node agent's DaemonSet; none, with a progress message, if any node still has pools."""
    if features.webhooks == "none":
        return ()
    made = _object_reference("DaemonSet", features.daemon_sets, node_setup_objects.AGENT, namespace)
    left = [node["metadata"]["name"] for node in node_setup.list_node_objects(api, f"{LABEL}=true")]
    if not left:
        return [made]
    who = (
        f"node {left[0]} has pools"
        if len(left) == 1
        else f"{len(left)} nodes have pools, {left[0]} among them"
    )
    report_progress(RemovalStep(object_writer.title(made), f"left: {who}"))
    return ()


def webhook_objects_to_remove(namespace: str, features: ApiFeatures) -> Sequence[Object]:
    """The webhook's objects, its registration first: the API server never calls a webhook that is being removed."""
    if features.webhooks == "none":
        return ()
    group = f"admissionregistration.k8s.io/{features.webhooks}"
    return [
        _object_reference("MutatingWebhookConfiguration", group, "cmk-webhook-config", ""),
        _object_reference("Secret", "v1", "cmk-webhook-certs", namespace),
        _object_reference("ConfigMap", "v1", "cmk-webhook-configmap", namespace),
        _object_reference("Service", "v1", "cmk-webhook-service", namespace),
        _object_reference("Deployment", "apps/v1", "cmk-webhook-deployment", namespace),
    ]


def _object_reference(kind: str, version: str, name: str, namespace: str) -> Object:
    about = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": about}


def _objects_of_node(api: ApiClient, node: RemovedNode, features: ApiFeatures) -> list[Object]:
    """The pods and DaemonSets that were created for this node, whatever their commands are."""
    command = f"(?:{'|'.join(node_setup_objects.ALLOWED)})"
    name = re.escape(node.name)
    form = re.compile(
        rf"cmk-{command}(?:-{command})*-(?:pod|ds)-{name}|cmk-reconfigure(?:-check)?-pod-{name}"
    )
    group, _, version = features.daemon_sets.rpartition("/")
    folders = {
        ("Pod", "v1"): PODS.path(node.namespace),
        ("DaemonSet", features.daemon_sets): Resource(group, version, _DAEMON_SETS, "").path(node.namespace),
    }
    return [
        _object_reference(kind, version, item["metadata"]["name"], node.namespace)
        for (kind, version), folder in folders.items()
        for item in node_setup.list_all_pages(api, folder, {})
        if form.fullmatch(item["metadata"]["name"])
    ]


def _uids_of_node_daemon_set_pods(api: ApiClient, node: RemovedNode) -> frozenset[str]:
    """The UIDs of the pods of this node's DaemonSets, which are tasks of the pool infra themselves."""
    there = node_setup.list_all_pages(api, PODS.path(node.namespace), {})
    form = re.compile(rf"cmk-[a-z-]+-ds-{re.escape(node.name)}-[a-z0-9]+")
    return frozenset(pod["metadata"]["uid"] for pod in there if form.fullmatch(pod["metadata"]["name"]))


def _remove_object(
    api: ApiClient, made: Object, deadline: Deadline, report_progress: ProgressReporter
) -> None:
    """Remove an object; with a DaemonSet also wait for its pods, which are tasks of the pool infra."""
    was_there = object_writer.remove(api, made, deadline)
    if made["kind"] == "DaemonSet":
        _remove_pods(api, made, deadline)
    report_progress(RemovalStep(object_writer.title(made), "removed" if was_there else "not there"))


def _remove_pods(api: ApiClient, made: Object, deadline: Deadline) -> None:
    about = made["metadata"]
    params = {"labelSelector": selector("app", node_setup_objects.label(about["name"]))}
    for pod in node_setup.list_all_pages(api, PODS.path(about["namespace"]), params):
        object_writer.remove(api, {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]}, deadline)


def _running_tasks(allocations: Allocations, spared: Callable[[str, str], bool]) -> Iterator[Problem]:
    for pool, cpu_list in allocations.cpu_lists:
        for task in cpu_list.tasks:
            if not spared(pool.name, task.pod):
                pod = f" of pod {task.pod}" if task.pod else ""
                yield Problem(
                    f"pool {pool.name}", f"process {task.pid}{pod} on CPUs {cpu_list.text}", "no task"
                )


def _wait_for_end_of_tasks(
    node: RemovedNode, deadline: Deadline, own: frozenset[str], *, spares_infra: bool
) -> StoredAllocations | None:
    """The store's content without running tasks; None without a store. Unavailable if tasks run after `TASKS_S`.

    With `spares_infra`, tasks of the pool infra may run if they are those of `own` pods or of no known pod.
    """

    def spared(pool: str, pod: str) -> bool:
        return spares_infra and pool == INFRA and (not pod or pod in own)

    end = deadline.now() + TASKS_S
    while True:
        stored = _remove_ended_tasks(node)
        if stored is None:
            return None
        running = list(_running_tasks(stored.allocations, spared))
        if not running:
            return stored
        if deadline.now() >= end:
            remedy = "end them first; nothing was changed"
            raise Unavailable(f"running tasks on node {node.name}", running, remedy=remedy)
        deadline.pause()


def _remove_ended_tasks(node: RemovedNode) -> StoredAllocations | None:
    """The store's content without ended tasks; None without a store. Unavailable during a reconfiguration."""
    try:
        if node.collect_garbage:
            node.collect_garbage()
        stored = node.store.read()
    except NotFound:
        return None
    if stored.intent:
        raise allocation_store.under_reconfiguration_error(node.store.location, stored.intent)
    return stored


def _remove_state(node: RemovedNode, deadline: Deadline, report_progress: ProgressReporter) -> None:
    while True:
        stored = _wait_for_end_of_tasks(node, deadline, frozenset(), spares_infra=False)
        if stored is None:
            return report_progress(RemovalStep(node.store.location, "not there"))
        try:
            node.store.delete(stored.version)
        except Conflict:
            continue  # a task was started or ended meanwhile
        return report_progress(RemovalStep(node.store.location, "removed"))


def _remove_reports(
    api: ApiClient, node: RemovedNode, features: ApiFeatures, report_progress: ProgressReporter
) -> None:
    """Remove the reports in both namespaces: CMK always wrote them to `default`."""
    name = report_custom_resources.report_name(node.name)
    for kind in report_custom_resources.KINDS:
        place = kind.third_party_resource if features.reports == "third-party" else kind.resource
        for namespace in dict.fromkeys((node.namespace, "default")):
            _delete_object(
                api, place.path(namespace, name), f"{place.kind} {namespace}/{name}", report_progress
            )


def _delete_object(api: ApiClient, path: str, title: str, report_progress: ProgressReporter) -> None:
    try:
        api.delete(path)
    except NotFound:
        report_progress(RemovalStep(title, "not there"))
    else:
        report_progress(RemovalStep(title, "removed"))


def _withdraw_advertisement(
    api: ApiClient,
    node: RemovedNode,
    features: ApiFeatures,
    deadline: Deadline,
    report_progress: ProgressReporter,
) -> None:
    """Withdraw until nothing changes any more: a node agent in the middle of a round may advertise once more."""
    title = "resources, taint and label"
    try:
        was_there = again = exclusive_core_advertisement.withdraw_node_resources(
            api, node.name, features=features
        )
        while again and not deadline.is_over:
            deadline.sleep(_ROUND_S)
            again = exclusive_core_advertisement.withdraw_node_resources(api, node.name, features=features)
    except NotFound:
        report_progress(RemovalStep(f"Node {node.name}", "not there"))
    else:
        report_progress(RemovalStep(title, "removed" if was_there else "not there"))


def read_node_boot_id(api: ApiClient, node: str) -> str:
    """The boot id of the node's kernel as the kubelet reported it; empty if unknown."""
    node_object: Mapping[str, Any] = object_writer.find_object(api, NODES.path(name=node)) or {}
    return str((node_object.get("status") or {}).get("nodeInfo", {}).get("bootID", ""))
