"""A second scheduler beside the cluster's own: kube-scheduler and nodewise in one pod, plain HTTP on loopback.

It needs no certificate, no Service, no name that has to be resolved and nothing of any host, so it runs where nobody
may change the control plane. Its rights are those of deploy/rbac.yaml, gpu.yaml and memory.yaml, and kube-scheduler's.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.configure import yaml_editor
from nodewise.configure.scheduler_configuration import Role

URL: Final = "http://127.0.0.1:9001"
_RBAC: Final = "rbac.authorization.k8s.io"
_FOLDER: Final = "/etc/nodewise"
_NOBODY: Final = 65534

Rule = Mapping[str, Sequence[str]]


def _rule(group: str, resource: str, verbs: str, *names: str) -> Rule:
    named = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": [resource], **named, "verbs": verbs.split()}


CLUSTER_RULES: Final = (
    _rule("", "nodes", "get list watch patch"),
    _rule("", "nodes/status", "patch"),
    _rule("", "pods", "list watch"),
    _rule("", "namespaces", "list watch"),
    _rule("events.k8s.io", "events", "create patch"),
    _rule("telemetry.intel.com", "taspolicies", "list watch"),
    _rule("telemetry.intel.com", "taspolicies/status", "patch"),
    _rule("metrics.k8s.io", "nodes", "list"),
    _rule("custom.metrics.k8s.io", "*", "get"),
)
RULES: Final = (
    _rule("coordination.k8s.io", "leases", "create"),
    _rule("coordination.k8s.io", "leases", "get update", "nodewise-extender"),
)
GPU_CLUSTER_RULES: Final = (
    _rule("", "pods", "get list watch patch"),
    _rule("", "pods/binding", "create"),
)
GPU_RULES: Final = (
    _rule("coordination.k8s.io", "leases", "get list watch create update delete"),
    _rule("", "configmaps", "list watch update", "nodewise-gpu-typical-pods"),
    _rule("", "configmaps", "create"),
)
MEMORY_RULES: Final = (
    _rule("", "configmaps", "create"),
    _rule("", "configmaps", "get update", "nodewise-memory"),
)


class SecondSchedulerOptions(NamedTuple):
    name: str
    """Of the scheduler, by which pods choose it, and of all objects."""
    namespace: str
    agents: Sequence[Role]
    scheduler_image: str
    """Of the same minor version as the cluster."""
    image: str
    configuration: Mapping[str, Any]


def objects(wish: SecondSchedulerOptions) -> list[dict[str, Any]]:
    """All that has to be applied, in order."""
    binds = any(role.binds for role in wish.agents)
    cluster_rules = [*CLUSTER_RULES, *(GPU_CLUSTER_RULES if binds else ())]
    own = _rule("coordination.k8s.io", "leases", "get update", wish.name)
    rules = [*RULES, own, *(GPU_RULES if binds else ())]
    rules += MEMORY_RULES if any(role.keeps_memory for role in wish.agents) else ()
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": wish.namespace}},
        _object(wish, "v1", "ServiceAccount"),
        *_bound(wish, "ClusterRole", "system:kube-scheduler", "scheduling"),
        *_bound(wish, "ClusterRole", "system:volume-scheduler", "volumes"),
        *_bound(wish, "Role", "extension-apiserver-authentication-reader", "authentication", "kube-system"),
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": wish.name},
            "rules": cluster_rules,
        },
        *_bound(wish, "ClusterRole", wish.name),
        {**_object(wish, f"{_RBAC}/v1", "Role"), "rules": rules},
        *_bound(wish, "Role", wish.name, "", wish.namespace),
        {
            **_object(wish, "v1", "ConfigMap"),
            "data": {"scheduler.yaml": yaml_editor.dump(dict(_configuration(wish)))},
        },
        _deployment(wish),
    ]


def _configuration(wish: SecondSchedulerOptions) -> Mapping[str, Any]:
    election = {
        "leaderElect": True,
        "resourceName": wish.name,
        "resourceNamespace": wish.namespace,
    }
    return {**wish.configuration, "leaderElection": election}


def _object(wish: SecondSchedulerOptions, version: str, kind: str) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": wish.name, "namespace": wish.namespace},
    }


def _bound(
    wish: SecondSchedulerOptions, kind: str, role: str, suffix: str = "", namespace: str = ""
) -> Iterable[dict[str, Any]]:
    name = f"{wish.name}-{suffix}" if suffix else wish.name
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": wish.name, "namespace": wish.namespace}],
    }


def _deployment(wish: SecondSchedulerOptions) -> dict[str, Any]:
    labels = {"app": wish.name}
    pod = {
        "serviceAccountName": wish.name,
        "enableServiceLinks": False,  # a Service named nodewise would set variables that look like our settings
        "priorityClassName": "system-cluster-critical",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_scheduler(wish), _nodewise(wish)],
        "volumes": [{"name": "config", "configMap": {"name": wish.name}}],
    }
    return {
        **_object(wish, "apps/v1", "Deployment"),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _scheduler(wish: SecondSchedulerOptions) -> dict[str, Any]:
    return {
        "name": "scheduler",
        "image": wish.scheduler_image,
        "command": ["kube-scheduler", f"--config={_FOLDER}/scheduler.yaml"],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "securityContext": _closed(),
        "readinessProbe": {"httpGet": {"scheme": "HTTPS", "path": "/healthz", "port": 10259}},
        "livenessProbe": {
            "httpGet": {"scheme": "HTTPS", "path": "/healthz", "port": 10259},
            "initialDelaySeconds": 15,
        },
        "volumeMounts": [{"name": "config", "mountPath": _FOLDER, "readOnly": True}],
    }


def _nodewise(wish: SecondSchedulerOptions) -> dict[str, Any]:
    agents = ",".join(role.agent for role in wish.agents)
    return {
        "name": "nodewise",
        "image": wish.image,
        "command": ["nodewise", "extender", f"--agents={agents}", "--unsafe", "--health-address=0.0.0.0"],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": _closed(),
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 9002}, "periodSeconds": 2},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": 9002},
            "periodSeconds": 5,
            "timeoutSeconds": 2,
            "failureThreshold": 6,
        },
    }


def _closed() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
