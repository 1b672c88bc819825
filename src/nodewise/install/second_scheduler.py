"""Deploys a second scheduler: kube-scheduler and nodewise in one pod, with plain HTTP on loopback.

It needs no certificates, Service, name resolution or host access, so it works on clusters whose control plane cannot be
changed. Its permissions are those of deploy/rbac.yaml, gpu.yaml and memory.yaml, and those of kube-scheduler.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.install import yaml_editor
from nodewise.install.scheduler_configuration import AgentRole

URL: Final = "http://127.0.0.1:9001"
_RBAC: Final = "rbac.authorization.k8s.io"
_CONFIG_FOLDER: Final = "/etc/nodewise"
_NOBODY_UID: Final = 65534

Rule = Mapping[str, Sequence[str]]


def _rbac_rule(group: str, resource: str, verbs: str, *names: str) -> Rule:
    named = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": [resource], **named, "verbs": verbs.split()}


CLUSTER_RULES: Final = (
    _rbac_rule("", "nodes", "get list watch patch"),
    _rbac_rule("", "nodes/status", "patch"),
    _rbac_rule("", "pods", "list watch"),
    _rbac_rule("", "namespaces", "list watch"),
    _rbac_rule("events.k8s.io", "events", "create patch"),
    _rbac_rule("telemetry.intel.com", "taspolicies", "list watch"),
    _rbac_rule("telemetry.intel.com", "taspolicies/status", "patch"),
    _rbac_rule("nodewise.io", "placementpolicies", "list watch"),
    _rbac_rule("nodewise.io", "clusterplacementpolicies", "list watch"),
    _rbac_rule("nodewise.io", "placementpolicies/status", "patch"),
    _rbac_rule("nodewise.io", "clusterplacementpolicies/status", "patch"),
    _rbac_rule("metrics.k8s.io", "nodes", "list"),
    _rbac_rule("custom.metrics.k8s.io", "*", "get"),
)
RULES: Final = (
    _rbac_rule("coordination.k8s.io", "leases", "create"),
    _rbac_rule("coordination.k8s.io", "leases", "get update", "nodewise-extender"),
)
GPU_CLUSTER_RULES: Final = (
    _rbac_rule("", "pods", "get list watch patch"),
    _rbac_rule("", "pods/binding", "create"),
    _rbac_rule("resource.k8s.io", "deviceclasses", "list watch"),
    _rbac_rule("resource.k8s.io", "resourceslices", "list watch"),
)
GPU_RULES: Final = (
    _rbac_rule("coordination.k8s.io", "leases", "get list watch create update delete"),
    _rbac_rule("", "configmaps", "list watch update", "nodewise-gpu-typical-pods"),
    _rbac_rule("", "configmaps", "create"),
)
MEMORY_RULES: Final = (
    _rbac_rule("", "configmaps", "create"),
    _rbac_rule("", "configmaps", "get update", "nodewise-memory"),
)


class SecondSchedulerOptions(NamedTuple):
    name: str
    """The schedulerName of its pods, and the name of all objects."""
    namespace: str
    agents: Sequence[AgentRole]
    scheduler_image: str
    """The image of kube-scheduler, with the minor version of the cluster."""
    image: str
    configuration: Mapping[str, Any]
    prometheus_urls: Sequence[str] = ()


def build_second_scheduler_objects(options: SecondSchedulerOptions) -> list[dict[str, Any]]:
    """All objects, in the order in which they are applied."""
    binds = any(role.binds for role in options.agents)
    cluster_rules = [*CLUSTER_RULES, *(GPU_CLUSTER_RULES if binds else ())]
    own = _rbac_rule("coordination.k8s.io", "leases", "get update", options.name)
    rules = [*RULES, own, *(GPU_RULES if binds else ())]
    rules += MEMORY_RULES if any(role.keeps_memory for role in options.agents) else ()
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace}},
        _object_header(options, "v1", "ServiceAccount"),
        *_role_binding(options, "ClusterRole", "system:kube-scheduler", "scheduling"),
        *_role_binding(options, "ClusterRole", "system:volume-scheduler", "volumes"),
        *_role_binding(
            options, "Role", "extension-apiserver-authentication-reader", "authentication", "kube-system"
        ),
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": options.name},
            "rules": cluster_rules,
        },
        *_role_binding(options, "ClusterRole", options.name),
        {**_object_header(options, f"{_RBAC}/v1", "Role"), "rules": rules},
        *_role_binding(options, "Role", options.name, "", options.namespace),
        {
            **_object_header(options, "v1", "ConfigMap"),
            "data": {"scheduler.yaml": yaml_editor.dump_yaml(dict(_with_leader_election(options)))},
        },
        _deployment(options),
    ]


def _with_leader_election(options: SecondSchedulerOptions) -> Mapping[str, Any]:
    election = {
        "leaderElect": True,
        "resourceName": options.name,
        "resourceNamespace": options.namespace,
    }
    return {**options.configuration, "leaderElection": election}


def _object_header(options: SecondSchedulerOptions, version: str, kind: str) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": options.name, "namespace": options.namespace},
    }


def _role_binding(
    options: SecondSchedulerOptions, kind: str, role: str, suffix: str = "", namespace: str = ""
) -> Iterable[dict[str, Any]]:
    name = f"{options.name}-{suffix}" if suffix else options.name
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": options.name, "namespace": options.namespace}],
    }


_EXTENDER_LABELS: Final = {
    "app.kubernetes.io/name": "nodewise",
    "app.kubernetes.io/component": "extender",
}
"""The labels by which commands find the replicas, as in the chart (`nodewise.kube.replicas`)."""


def _deployment(options: SecondSchedulerOptions) -> dict[str, Any]:
    labels = {"app": options.name}
    pod = {
        "serviceAccountName": options.name,
        "enableServiceLinks": False,  # a Service named nodewise would set variables that look like our settings
        "priorityClassName": "system-cluster-critical",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY_UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_scheduler_container(options), _nodewise_container(options)],
        "volumes": [{"name": "config", "configMap": {"name": options.name}}],
    }
    return {
        **_object_header(options, "apps/v1", "Deployment"),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels | _EXTENDER_LABELS}, "spec": pod},
        },
    }


def _scheduler_container(options: SecondSchedulerOptions) -> dict[str, Any]:
    return {
        "name": "scheduler",
        "image": options.scheduler_image,
        "command": ["kube-scheduler", f"--config={_CONFIG_FOLDER}/scheduler.yaml"],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "securityContext": _restricted_security_context(),
        "readinessProbe": {"httpGet": {"scheme": "HTTPS", "path": "/healthz", "port": 10259}},
        "livenessProbe": {
            "httpGet": {"scheme": "HTTPS", "path": "/healthz", "port": 10259},
            "initialDelaySeconds": 15,
        },
        "volumeMounts": [{"name": "config", "mountPath": _CONFIG_FOLDER, "readOnly": True}],
    }


def _nodewise_container(options: SecondSchedulerOptions) -> dict[str, Any]:
    agents = ",".join(role.agent for role in options.agents)
    urls = [f"--prometheus-url={url}" for url in options.prometheus_urls]
    return {
        "name": "nodewise",
        "image": options.image,
        "command": [
            "nodewise",
            "extender",
            f"--agents={agents}",
            "--unsafe",
            "--health-address=0.0.0.0",
            *urls,
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": _restricted_security_context(),
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 9002}, "periodSeconds": 2},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": 9002},
            "periodSeconds": 5,
            "timeoutSeconds": 2,
            "failureThreshold": 6,
        },
    }


def _restricted_security_context() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
