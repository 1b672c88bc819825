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
from nodewise_cpu.pool_planning import INFRA

TASKS_S: Final = 10.0
"""How long to wait for running tasks."""
_ROUND_S: Final = 1.0  # longer than a node agent takes from reading the store to advertising
_SHARED_PODS: Final = ("cmk-cluster-init-pod", "cmk-discover-pod", "cmk-init-pod", "cmk-install-pod")
_SHARED_DAEMON_SETS: Final = ("cmk-node-report-ds-all", "cmk-reconcile-ds-all")


class RemovalStep(NamedTuple):
    """An object, and what was done to it: removed, or not there."""

    name: str
    outcome: str


class RemovedNode(NamedTuple):
    name: str
    namespace: str
    store: AllocationStore
    collect_garbage: Callable[[], object] | None
    """Removes ended tasks from the store; NotFound without a store. None if the node's processes cannot be read: then
    all stored tasks count as running.
    """


def removal_step(name: str, *, was_there: bool) -> RemovalStep:
    return RemovalStep(name, "removed" if was_there else "not there")


def remove_from_node(  # complexity: one step after the other
    api: ApiClient, node: RemovedNode, features: ApiFeatures, deadline: Deadline
) -> Iterator[RemovalStep]:
    """Remove everything but the program from a node. Unavailable if tasks are running: then nothing has changed."""
    pods = node_setup.list_all_pages(api, PODS.path(node.namespace), {})
    form = re.compile(rf"cmk-[a-z-]+-ds-{re.escape(node.name)}-[a-z0-9]+")
    # the pods of this node's DaemonSets are tasks of the pool infra themselves
    own = frozenset(pod["metadata"]["uid"] for pod in pods if form.fullmatch(pod["metadata"]["name"]))
    _wait_for_end_of_tasks(node, deadline, lambda pool, pod: pool == INFRA and (not pod or pod in own))
    for reference in _objects_of_node(api, node, features):
        yield _remove_object(api, reference, deadline)
    yield _remove_state(node, deadline)
    if not features.resources:
        yield RemovalStep("resources", "not supported by Kubernetes 1.8.0: left as they are")
    try:
        was_there = again = exclusive_core_advertisement.withdraw_node_resources(
            api, node.name, features=features
        )
        # a node agent in the middle of a round may advertise once more
        while again and not deadline.is_over:
            deadline.sleep(_ROUND_S)
            again = exclusive_core_advertisement.withdraw_node_resources(api, node.name, features=features)
        yield removal_step("resources, taint and label", was_there=was_there)
    except NotFound:
        yield removal_step(f"Node {node.name}", was_there=False)
    name = report_custom_resources.report_name(node.name)
    for kind in report_custom_resources.KINDS:
        place = kind.third_party_resource if features.reports == "third-party" else kind.resource
        # CMK always wrote reports to `default`
        for namespace in dict.fromkeys((node.namespace, "default")):
            yield _delete_object(api, place.path(namespace, name), f"{place.kind} {namespace}/{name}")
    former = f"cmk-reconfigure-{node.name}"
    config_maps = Resource("", "v1", "configmaps", "ConfigMap")
    yield _delete_object(api, config_maps.path(node.namespace, former), f"ConfigMap {former}")


def remove_from_cluster(
    api: ApiClient, namespace: str, shared: Iterable[Object], features: ApiFeatures, deadline: Deadline
) -> Iterator[RemovalStep]:
    """Remove the objects that all nodes share, such as the webhook; the first of `shared` first."""
    samples = [_object_reference("Pod", "v1", name, namespace) for name in _SHARED_PODS]
    samples += [
        _object_reference("DaemonSet", features.daemon_sets, name, namespace) for name in _SHARED_DAEMON_SETS
    ]
    for reference in (*samples, *shared):
        yield _remove_object(api, reference, deadline)


def report_crd_references(features: ApiFeatures) -> Sequence[Object]:
    """The definitions of report kinds; their objects are removed with them."""
    return [report_custom_resources.definition(kind, features) for kind in report_custom_resources.KINDS]


def agent_objects_to_remove(
    api: ApiClient, namespace: str, features: ApiFeatures, report: Callable[[RemovalStep], None]
) -> Sequence[Object]:
    """The node agent's DaemonSet; none, which is reported, if any node still has pools."""
    if features.webhooks == "none":
        return ()
    made = _object_reference("DaemonSet", features.daemon_sets, node_setup_objects.AGENT, namespace)
    left = [node["metadata"]["name"] for node in node_setup.list_node_objects(api, f"{LABEL}=true")]
    if not left:
        return [made]
    several = f"{len(left)} nodes have pools, {left[0]} among them"
    nodes = several if len(left) > 1 else f"node {left[0]} has pools"
    report(RemovalStep(object_writer.title(made), f"left: {nodes}"))
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
    daemon_sets = Resource(group, version, "daemonsets", "")
    return [
        _object_reference(kind, version, item["metadata"]["name"], node.namespace)
        for kind, version, resource in (
            ("Pod", "v1", PODS),
            ("DaemonSet", features.daemon_sets, daemon_sets),
        )
        for item in node_setup.list_all_pages(api, resource.path(node.namespace), {})
        if form.fullmatch(item["metadata"]["name"])
    ]


def _remove_object(api: ApiClient, made: Object, deadline: Deadline) -> RemovalStep:
    """Remove an object; with a DaemonSet also wait for its pods, which are tasks of the pool infra."""
    was_there = object_writer.remove(api, made, deadline)
    if made["kind"] == "DaemonSet":
        params = {"labelSelector": selector("app", node_setup_objects.label(made["metadata"]["name"]))}
        for pod in node_setup.list_all_pages(api, PODS.path(made["metadata"]["namespace"]), params):
            object_writer.remove(api, {**_POD, "metadata": pod["metadata"]}, deadline)
    return removal_step(object_writer.title(made), was_there=was_there)


_POD: Final = {"apiVersion": "v1", "kind": "Pod"}


def _wait_for_end_of_tasks(
    node: RemovedNode, deadline: Deadline, spared: Callable[[str, str], bool]
) -> StoredAllocations | None:
    """The store's content without running tasks; None without a store.

    `spared` returns whether the tasks of a pod in a pool may run. Unavailable if others run after `TASKS_S`, or during
    a reconfiguration.
    """
    end = deadline.now() + TASKS_S
    while True:
        try:
            if node.collect_garbage:
                node.collect_garbage()
            stored = node.store.read()
        except NotFound:
            return None
        if stored.intent:
            raise allocation_store.under_reconfiguration_error(node.store.location, stored.intent)
        running = [
            Problem(
                f"pool {pool.name}",
                f"process {task.pid}{f' of pod {task.pod}' if task.pod else ''} on CPUs {cpu_list.text}",
                "no task",
            )
            for pool, cpu_list in stored.allocations.cpu_lists
            for task in cpu_list.tasks
            if not spared(pool.name, task.pod)
        ]
        if not running:
            return stored
        if deadline.now() >= end:
            remedy = "end them first; nothing was changed"
            raise Unavailable(f"running tasks on node {node.name}", running, remedy=remedy)
        deadline.pause()


def _remove_state(node: RemovedNode, deadline: Deadline) -> RemovalStep:
    while stored := _wait_for_end_of_tasks(node, deadline, lambda _pool, _pod: False):
        try:
            node.store.delete(stored.version)
        except Conflict:
            continue  # a task was started or ended meanwhile
        break
    return removal_step(node.store.location, was_there=stored is not None)


def _delete_object(api: ApiClient, path: str, title: str) -> RemovalStep:
    try:
        api.delete(path)
    except NotFound:
        return removal_step(title, was_there=False)
    return removal_step(title, was_there=True)


def read_node_boot_id(api: ApiClient, node: str) -> str:
    """The boot id of the node's kernel as the kubelet reported it; empty if unknown."""
    node_object: Mapping[str, Any] = object_writer.find_object(api, NODES.path(name=node)) or {}
    return str((node_object.get("status") or {}).get("nodeInfo", {}).get("bootID", ""))
