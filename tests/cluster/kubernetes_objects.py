"""Nodes and pods as plain Kubernetes objects, for a real API server and for a simulated one."""

from collections.abc import Mapping, Sequence

from tests.cluster.api_client import Object


def node(
    name: str,
    *,
    cpu: str = "4",
    memory: str = "16Gi",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    extra: Mapping[str, str] | None = None,
) -> Object:
    """A ready node; `extra` are additional resources, such as GPUs."""
    capacity = {"cpu": cpu, "memory": memory, "pods": str(pods), **(extra or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test"}],
            "addresses": [{"type": "Hostname", "address": name}],
        },
    }


def pod(
    name: str,
    *,
    cpu: str = "100m",
    memory: str = "64Mi",
    labels: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    priority: int = 0,
) -> Object:
    """A pod of one container; `limits` are extended resources, such as telemetry/scheduling.

    The pod has no grace period. A priority needs its `priority_class` in the cluster.
    """
    resources = {"requests": {"cpu": cpu, "memory": memory, **(limits or {})}, "limits": dict(limits or {})}
    spec = {
        "containers": [{"name": "main", "image": "none", "resources": resources}],
        "terminationGracePeriodSeconds": 0,
    }
    if priority:
        spec |= {"priority": priority, "priorityClassName": priority_class(priority)["metadata"]["name"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": spec,
    }


def running_on(node_name: str, pod: Object) -> Object:
    """The pod, bound to a node."""
    return pod | {"spec": pod["spec"] | {"nodeName": node_name}}


def priority_class(value: int) -> Object:
    """The PriorityClass that an API server requires for pods of this priority."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": f"priority-{value}"},
        "value": value,
    }


def namespace(name: str, *, trusted: bool = False) -> Object:
    """A namespace. Policies in a trusted namespace may label nodes and use queries."""
    labels = {"nodewise.io/trusted": "true"} if trusted else {}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def priorities(pods: Sequence[Object]) -> set[int]:
    """The priorities of these pods."""
    return {pod["spec"]["priority"] for pod in pods if "priority" in pod["spec"]}


def nodes(names: str, cpu: str = "4") -> list[Object]:
    """Plain nodes with these space-separated names."""
    return [node(name, cpu=cpu) for name in names.split()]
