"""Deploys a second scheduler: kube-scheduler and nodewise in one pod, with plain HTTP on loopback.

It needs no certificates, Service, name resolution or host access, so it works on clusters whose control plane cannot be
changed. Its permissions are those of deploy/rbac.yaml, gpu.yaml and memory.yaml, and those of kube-scheduler.
"""

import json
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import nodewise
from nodewise.base.errors import BadSettings, Problem
from nodewise.install import scheduler_static_pod, yaml_editor
from nodewise.install.scheduler_configuration import AgentRole
from nodewise.install.scheduler_versions import SchedulerVersion

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


OLDEST: Final = SchedulerVersion(36)
"""The first version in which MutatingAdmissionPolicies are enabled by default."""
FILES: Final = (
    "crds/taspolicies.yaml",
    "crds/placementpolicies.yaml",
    "crds/clusterplacementpolicies.yaml",
    "rbac.yaml",
    "policy-fields.yaml",
    "policy-roles.yaml",
    "trust.yaml",
    "pod-admission.yaml",
    "native.yaml",
    "controller.yaml",
)
"""The files of `deploy`, in the order in which they are applied. They are part of the wheel (pyproject.toml)."""
_COMMAND: Final = "command: [nodewise, controller, --native-mode, --health-address=0.0.0.0]"


def read_files() -> dict[str, str]:
    """The content of `FILES`: beside the package, or in the checkout."""
    package = Path(nodewise.__file__).parent
    inside = package / "deploy"
    folder = inside if inside.exists() else package.parents[1] / "deploy"
    return {name: (folder / name).read_text() for name in FILES}


def check_version(version: SchedulerVersion) -> None:
    """`BadSettings` if the API server of this version does not change pods by MutatingAdmissionPolicies."""
    if version < OLDEST:
        expected = f"{OLDEST} or later; --mode second-scheduler works with older clusters"
        raise BadSettings("settings", [Problem("--mode native", f"Kubernetes {version}", expected)])


def build_manifest(
    texts: Mapping[str, str], namespace: str, image: str, prometheus_urls: Sequence[str]
) -> str:
    """The files as one YAML stream."""
    replacements = {
        "namespace: nodewise}": f"namespace: {namespace}}}",
        "namespace: nodewise,": f"namespace: {namespace},",
        "kind: Namespace\nmetadata: {name: nodewise}": f"kind: Namespace\nmetadata: {{name: {namespace}}}",
        "system:serviceaccount:nodewise:": f"system:serviceaccount:{namespace}:",
        "values: [kube-system, nodewise]": f"values: [kube-system, {namespace}]",
        f"image: nodewise:{nodewise.__version__}": f"image: {image}",
        # pods need no request, because kube-scheduler does not call nodewise for them
        "{name: resource, expression: \"'telemetry/scheduling'\"}": "{name: resource, expression: \"''\"}",
        _COMMAND: _command(prometheus_urls),
    }
    text = "---\n".join(texts[name] for name in FILES)
    for shipped, own in replacements.items():
        text = text.replace(shipped, own)
    return text


def _command(prometheus_urls: Sequence[str]) -> str:
    urls = [json.dumps(f"--prometheus-url={url}") for url in prometheus_urls]
    return f"{_COMMAND[:-1]}{''.join(f', {url}' for url in urls)}]"


class Platform(NamedTuple):
    folder: str
    """Folder on control-plane hosts for the configuration and the certificates."""
    certs: str
    """The certificate folder as kube-scheduler sees it."""
    kubeconfig: str
    render: Callable[["Platform", Mapping[str, Any]], Mapping[str, str]]
    has_dns: bool = False
    """Whether kube-scheduler can resolve Services by name."""

    @property
    def config(self) -> str:
        return posixpath.join(self.folder, "scheduler-config.yaml")


CONFIG_FILE: Final = "scheduler-config.yaml"
PATCH_FILE: Final = "patches/kube-scheduler+strategic.yaml"
_PATCH_FOLDER: Final = "/etc/kubernetes/nodewise/patches"
_KUBEADM_VERSIONS: Final = ("v1beta3", "v1beta4")
"""Versions of kubeadm's configuration: v1beta3 up to Kubernetes 1.36, v1beta4 from 1.31 on."""
_SECRET_KEYS: Final = {"ca.crt": "ca.crt", "client.crt": "tls.crt", "client.key": "tls.key"}
"""Keys of the Secret that `nodewise certs` creates for kube-scheduler, by file name."""


def render_platform_files(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    """The content of the files by name."""
    return dict(platform.render(platform, value))


def _scheduler_volumes(platform: Platform) -> list[dict[str, Any]]:
    return [
        {
            "name": scheduler_static_pod.CONFIG_VOLUME,
            "hostPath": platform.config,
            "mountPath": platform.config,
            "readOnly": True,
            "pathType": "File",
        },
        {
            "name": scheduler_static_pod.CERTS_VOLUME,
            "hostPath": f"{platform.folder}/certs",
            "mountPath": platform.certs,
            "readOnly": True,
            "pathType": "Directory",
        },
    ]


def _scheduler_component(platform: Platform, *, is_list: bool) -> dict[str, Any]:
    """The `scheduler` part of kubeadm's configuration. `extraArgs` was a map before it became a list."""
    args = [{"name": "config", "value": platform.config}] if is_list else {"config": platform.config}
    return {"extraArgs": args, "extraVolumes": _scheduler_volumes(platform)}


def _cluster_configuration(platform: Platform, version: str) -> dict[str, Any]:
    return {
        "apiVersion": f"kubeadm.k8s.io/{version}",
        "kind": "ClusterConfiguration",
        "scheduler": _scheduler_component(platform, is_list=version != "v1beta3"),
    }


def _kubeadm_files(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    texts_by_name = {CONFIG_FILE: yaml_editor.dump_yaml(dict(value)), PATCH_FILE: _dns_policy_patch()}
    for version in _KUBEADM_VERSIONS:
        init = {
            "apiVersion": f"kubeadm.k8s.io/{version}",
            "kind": "InitConfiguration",
            "patches": {"directory": _PATCH_FOLDER},
        }
        texts = [
            yaml_editor.dump_yaml(document) for document in (_cluster_configuration(platform, version), init)
        ]
        texts_by_name[f"kubeadm-{version}.yaml"] = "---\n".join(texts)
    return texts_by_name


def _dns_policy_patch() -> str:
    return yaml_editor.dump_yaml({"spec": {"dnsPolicy": scheduler_static_pod.DNS_POLICY}})


def _kind_files(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    """Files for kind, with patches in both versions: kind uses those of the version that the node image requires."""
    patches = []
    for version in _KUBEADM_VERSIONS:
        init = {
            "apiVersion": f"kubeadm.k8s.io/{version}",
            "kind": "InitConfiguration",
            "patches": {"directory": f"{platform.folder}/patches"},
        }
        patches += [_cluster_configuration(platform, version), init]
    node = {"role": "control-plane", "extraMounts": [{"hostPath": ".", "containerPath": platform.folder}]}
    cluster = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "kubeadmConfigPatches": [yaml_editor.dump_yaml(patch) for patch in patches],
        "nodes": [node, {"role": "worker"}],
    }
    return {
        CONFIG_FILE: yaml_editor.dump_yaml(dict(value)),
        PATCH_FILE: _dns_policy_patch(),
        "kind.yaml": yaml_editor.dump_yaml(cluster),
    }


def _capi_files(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    """A KubeadmControlPlane whose bootstrap provider writes the files on each machine."""
    texts = {
        platform.config: yaml_editor.dump_yaml(dict(value)),
        f"{_PATCH_FOLDER}/{posixpath.basename(PATCH_FILE)}": _dns_policy_patch(),
    }
    written = [_cluster_api_machine_file(path, {"content": text}) for path, text in texts.items()]
    for name, key in _SECRET_KEYS.items():
        source = {"contentFrom": {"secret": {"name": "nodewise-scheduler-client", "key": key}}}
        written.append(_cluster_api_machine_file(f"{platform.folder}/certs/{name}", source))
    texts_by_name = {}
    for version, is_list in (("v1beta1", False), ("v1beta2", True)):
        spec = {
            "files": written,
            "clusterConfiguration": {"scheduler": _scheduler_component(platform, is_list=is_list)},
            "initConfiguration": {"patches": {"directory": _PATCH_FOLDER}},
            "joinConfiguration": {"patches": {"directory": _PATCH_FOLDER}},
        }
        texts_by_name[f"kubeadmcontrolplane-{version}.yaml"] = yaml_editor.dump_yaml(
            {
                "apiVersion": f"controlplane.cluster.x-k8s.io/{version}",
                "kind": "KubeadmControlPlane",
                "metadata": {"name": "CONTROL-PLANE"},
                "spec": {"kubeadmConfigSpec": spec},
            }
        )
    return {**texts_by_name, "clusterresourceset.yaml": yaml_editor.dump_yaml(_RESOURCE_SET)}


def _cluster_api_machine_file(path: str, source: Mapping[str, Any]) -> dict[str, Any]:
    permissions = "0600" if path.endswith(".key") else "0644"
    return {"path": path, "owner": "root:root", "permissions": permissions, **source}


_RESOURCE_SET: Final = {
    "apiVersion": "addons.cluster.x-k8s.io/v1beta1",
    "kind": "ClusterResourceSet",
    "metadata": {"name": "nodewise"},
    "spec": {
        "clusterSelector": {"matchLabels": {"scheduler": "nodewise"}},
        "strategy": "ApplyOnce",
        "resources": [
            {"kind": "ConfigMap", "name": "nodewise-manifests"},
            {"kind": "Secret", "name": "nodewise-tls-manifest"},
        ],
    },
}
"""Makes the management cluster install nodewise and its certificate in each cluster with this label."""


def _k3s_files(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    snippet = {"kube-scheduler-arg+": [f"config={platform.config}"]}
    return {
        CONFIG_FILE: yaml_editor.dump_yaml(dict(value)),
        "config.yaml.d/nodewise.yaml": yaml_editor.dump_yaml(snippet),
    }


def _rke2_files(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    snippet = {
        "kube-scheduler-arg+": [f"config={platform.config}"],
        "kube-scheduler-extra-mount+": [f"{platform.folder}:{platform.folder}:ro"],
    }
    return {
        CONFIG_FILE: yaml_editor.dump_yaml(dict(value)),
        "config.yaml.d/nodewise.yaml": yaml_editor.dump_yaml(snippet),
    }


def _microk8s_files(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    return {
        CONFIG_FILE: yaml_editor.dump_yaml(dict(value)),
        "args/kube-scheduler": f"--config={platform.config}\n",
    }


def _talos_files(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    """The machine configuration includes the whole scheduler configuration; Talos sets the client connection itself."""
    config = {name: item for name, item in value.items() if name != "clientConnection"}
    volume = {"hostPath": platform.folder, "mountPath": platform.certs, "readonly": True}
    scheduler = {"config": config, "extraVolumes": [volume]}
    return {"machine-config-patch.yaml": yaml_editor.dump_yaml({"cluster": {"scheduler": scheduler}})}


PLATFORMS: Final = {
    "kubeadm": Platform(
        "/etc/kubernetes/nodewise",
        scheduler_static_pod.CERTS_MOUNT,
        "/etc/kubernetes/scheduler.conf",
        _kubeadm_files,
        has_dns=True,
    ),
    "kind": Platform(
        "/nodewise",
        scheduler_static_pod.CERTS_MOUNT,
        "/etc/kubernetes/scheduler.conf",
        _kind_files,
        has_dns=True,
    ),
    "capi": Platform(
        "/etc/kubernetes/nodewise",
        scheduler_static_pod.CERTS_MOUNT,
        "/etc/kubernetes/scheduler.conf",
        _capi_files,
        has_dns=True,
    ),
    "k3s": Platform(
        "/etc/rancher/k3s/nodewise",
        "/etc/rancher/k3s/nodewise/certs",
        "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig",
        _k3s_files,
    ),
    "rke2": Platform(
        "/etc/rancher/rke2/nodewise",
        "/etc/rancher/rke2/nodewise/certs",
        "/var/lib/rancher/rke2/server/cred/scheduler.kubeconfig",
        _rke2_files,
    ),
    "microk8s": Platform(
        "/var/snap/microk8s/current/nodewise",
        "/var/snap/microk8s/current/nodewise/certs",
        "/var/snap/microk8s/current/credentials/scheduler.config",
        _microk8s_files,
    ),
    "talos": Platform("/var/nodewise/certs", scheduler_static_pod.CERTS_MOUNT, "", _talos_files),
}
