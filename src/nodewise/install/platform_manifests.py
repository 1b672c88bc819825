"""Manifests and files for clusters whose static pods are not edited: a second scheduler, native mode, distributions.

A second scheduler is kube-scheduler and nodewise in one pod, with plain HTTP on loopback. It needs no certificates,
Service, name resolution or host access, so it works on clusters whose control plane cannot be changed. Its permissions
are those of deploy/rbac.yaml, gpu.yaml and memory.yaml, and those of kube-scheduler.
"""

import functools
import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

import nodewise
from nodewise.base.errors import BadSettings, Problem
from nodewise.install import scheduler_static_pod
from nodewise.install.scheduler_configuration import AgentRole
from nodewise.install.scheduler_versions import SchedulerVersion
from nodewise.kube import object_files, yaml_writer

URL: Final = "http://127.0.0.1:9001"
_RBAC: Final = "rbac.authorization.k8s.io"
_CONFIG_FOLDER: Final = "/etc/nodewise"
_NOBODY_UID: Final = 65534

Rule = Mapping[str, Sequence[str]]


def _deploy_folder() -> Path:
    """The folder `deploy`: beside the package, or in the checkout."""
    package = Path(nodewise.__file__).parent
    inside = package / "deploy"
    return inside if inside.exists() else package.parents[1] / "deploy"


@functools.cache
def shipped_rules(file: str, kind: str) -> tuple[Rule, ...]:
    """The rules of the ClusterRoles or Roles in a file of `deploy`."""
    documents = object_files.split_documents((_deploy_folder() / file).read_bytes(), file)
    manifests = [msgspec.json.decode(document) for _, document in documents]
    return tuple(rule for manifest in manifests if manifest["kind"] == kind for rule in manifest["rules"])


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
    cluster_rules, rules = (list(shipped_rules("rbac.yaml", kind)) for kind in ("ClusterRole", "Role"))
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [options.name]}
    rules.append({**lease, "verbs": ["get", "update"]})
    if binds:
        cluster_rules += shipped_rules("gpu.yaml", "ClusterRole")
        rules += shipped_rules("gpu.yaml", "Role")
    if any(role.keeps_memory for role in options.agents):
        rules += shipped_rules("memory.yaml", "Role")
    election = {"leaderElect": True, "resourceName": options.name, "resourceNamespace": options.namespace}
    configuration = {**options.configuration, "leaderElection": election}

    def header(version: str, kind: str) -> dict[str, Any]:
        metadata = {"name": options.name, "namespace": options.namespace}
        return {"apiVersion": version, "kind": kind, "metadata": metadata}

    def binding(kind: str, role: str, suffix: str = "", namespace: str = "") -> dict[str, Any]:
        name = f"{options.name}-{suffix}" if suffix else options.name
        return {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
            "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
            "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": options.name, "namespace": options.namespace}],
        }

    cluster_role = {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": options.name}}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace}},
        header("v1", "ServiceAccount"),
        {**header("v1", "ResourceQuota"), "spec": {"scopeSelector": {"matchExpressions": [_PRIORITY_SCOPE]}}},
        binding("ClusterRole", "system:kube-scheduler", "scheduling"),
        binding("ClusterRole", "system:volume-scheduler", "volumes"),
        binding("Role", "extension-apiserver-authentication-reader", "authentication", "kube-system"),
        {**cluster_role, "rules": cluster_rules},
        binding("ClusterRole", options.name),
        {**header(f"{_RBAC}/v1", "Role"), "rules": rules},
        binding("Role", options.name, namespace=options.namespace),
        {**header("v1", "ConfigMap"), "data": {"scheduler.yaml": yaml_writer.dump(configuration)}},
        {**header("apps/v1", "Deployment"), "spec": _second_scheduler_deployment(options)},
    ]


_EXTENDER_LABELS: Final = {"app.kubernetes.io/name": "nodewise", "app.kubernetes.io/component": "extender"}
"""The labels by which commands find the replicas, as in the chart (`nodewise.kube.replicas`)."""
_PRIORITY_CLASS: Final = "system-cluster-critical"
_PRIORITY_SCOPE: Final = {"scopeName": "PriorityClass", "operator": "In", "values": [_PRIORITY_CLASS]}
"""GKE admits pods of this class only in namespaces with a quota for it. Without `hard`, the quota limits nothing."""
_RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def _second_scheduler_deployment(options: SecondSchedulerOptions) -> dict[str, Any]:
    labels = {"app": options.name}
    health = {"httpGet": {"scheme": "HTTPS", "path": "/healthz", "port": 10259}}
    scheduler = {
        "name": "scheduler",
        "image": options.scheduler_image,
        "command": ["kube-scheduler", f"--config={_CONFIG_FOLDER}/scheduler.yaml"],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "securityContext": _RESTRICTED,
        "readinessProbe": health,
        "livenessProbe": {**health, "initialDelaySeconds": 15},
        "volumeMounts": [{"name": "config", "mountPath": _CONFIG_FOLDER, "readOnly": True}],
    }
    agents = ",".join(role.agent for role in options.agents)
    flags = [f"--agents={agents}", "--unsafe", "--health-address=0.0.0.0"]
    flags += [f"--prometheus-url={url}" for url in options.prometheus_urls]
    extender = {
        "name": "nodewise",
        "image": options.image,
        "command": ["nodewise", "extender", *flags],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": _RESTRICTED,
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 9002}, "periodSeconds": 2},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": 9002},
            "periodSeconds": 5,
            "timeoutSeconds": 2,
            "failureThreshold": 6,
        },
    }
    pod = {
        "serviceAccountName": options.name,
        "enableServiceLinks": False,  # a Service named nodewise would set variables that look like our settings
        "priorityClassName": _PRIORITY_CLASS,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY_UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [scheduler, extender],
        "volumes": [{"name": "config", "configMap": {"name": options.name}}],
    }
    return {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels | _EXTENDER_LABELS}, "spec": pod},
    }


OLDEST_NATIVE: Final = SchedulerVersion(36)
"""The first version in which MutatingAdmissionPolicies are enabled by default."""
_DEFINITIONS: Final = tuple(
    f"crds/{plural}.yaml" for plural in ("taspolicies", "placementpolicies", "clusterplacementpolicies")
)
FILES: Final = (
    *_DEFINITIONS,
    "rbac.yaml",
    "policy-fields.yaml",
    "policy-roles.yaml",
    "trust.yaml",
    "pod-admission.yaml",
    "native.yaml",
    "controller.yaml",
)
"""The files of `deploy`, in the order in which they are applied. They are part of the wheel (pyproject.toml)."""
_ONLY_EXTENDER: Final = ("extender-pods.yaml", "gpu.yaml", "memory.yaml")
"""Files that native mode does not use; also part of the wheel, as are the following."""
_OPTIONAL: Final = ("device-taints.yaml",)
_ONLY_READERS: Final = ("doctor.yaml", "reader.yaml")
PARTS: Final[Mapping[str, tuple[str, ...]]] = {"crds": _DEFINITIONS} | {
    file.removesuffix(".yaml"): (file,)
    for file in (*FILES, *_OPTIONAL, *_ONLY_EXTENDER, *_ONLY_READERS)
    if file not in _DEFINITIONS
}
"""The parts of an installation by name, in the order in which they are applied."""
_COMMAND: Final = "command: [nodewise, controller, --native-mode, --health-address=0.0.0.0]"


def check_native_version(version: SchedulerVersion) -> None:
    """`BadSettings` if the API server of this version does not change pods by MutatingAdmissionPolicies."""
    if version < OLDEST_NATIVE:
        expected = f"{OLDEST_NATIVE} or later; --mode second-scheduler works with older clusters"
        raise BadSettings("settings", [Problem("--mode native", f"Kubernetes {version}", expected)])


def build_native_manifest(namespace: str, image: str, prometheus_urls: Sequence[str]) -> str:
    """The files of `FILES` as one YAML stream."""
    urls = "".join(", " + json.dumps(f"--prometheus-url={url}") for url in prometheus_urls)
    replacements = {
        f"image: nodewise:{nodewise.__version__}": f"image: {yaml_writer.scalar(image)}",
        # pods need no request, because kube-scheduler does not call nodewise for them
        "{name: resource, expression: \"'telemetry/scheduling'\"}": "{name: resource, expression: \"''\"}",
        _COMMAND: f"{_COMMAND[:-1]}{urls}]",
    }
    text = _read_shipped_files(FILES, namespace)
    for shipped, own in replacements.items():
        text = text.replace(shipped, own)
    return text


def build_parts(parts: Sequence[str], namespace: str, name: str) -> str:
    """The objects of some of `PARTS` as one YAML stream, without Deployments and Jobs.

    `name` is that of nodewise's account, with which the names of the objects begin.
    """
    files = [file for part, files in PARTS.items() if part in parts for file in files]
    documents = re.split(r"^---\n", _read_shipped_files(files, namespace), flags=re.MULTILINE)
    text = "---\n".join(
        document
        for document in documents
        if not re.search(r"^kind: (Deployment|Job)$", document, re.MULTILINE)
    )
    text = text.replace(
        f"system:serviceaccount:{namespace}:nodewise'", f"system:serviceaccount:{namespace}:{name}'"
    )
    return re.sub(
        r"\b(name|policyName): nodewise((?:-[-a-z0-9]*)?)(?=[,}\n])",
        lambda match: f"{match[1]}: {yaml_writer.scalar(name + match[2])}",
        text,
    )


def _read_shipped_files(files: Sequence[str], namespace: str) -> str:
    """Files of `deploy` as one YAML stream, with the namespace of an installation."""
    value = yaml_writer.scalar(namespace)
    replacements = {
        "namespace: nodewise}": f"namespace: {value}}}",
        "namespace: nodewise,": f"namespace: {value},",
        # in quotes, so that it is not taken for the name of an installation
        "kind: Namespace\nmetadata: {name: nodewise}": f'kind: Namespace\nmetadata: {{name: "{namespace}"}}',
        "system:serviceaccount:nodewise:": f"system:serviceaccount:{namespace}:",
        "values: [kube-system, nodewise]": f"values: [kube-system, {value}]",
    }
    text = "---\n".join((_deploy_folder() / name).read_text() for name in files)
    for shipped, own in replacements.items():
        text = text.replace(shipped, own)
    return text


_KUBECONFIG: Final = "/etc/kubernetes/scheduler.conf"
_CONFIG_FILE: Final = "scheduler-config.yaml"
_PATCH_FILE: Final = "patches/kube-scheduler+strategic.yaml"
_PATCH_FOLDER: Final = "/etc/kubernetes/nodewise/patches"
_KUBEADM_VERSIONS: Final = ("v1beta3", "v1beta4")
"""Versions of kubeadm's configuration: v1beta3 up to Kubernetes 1.36, v1beta4 from 1.31 on."""
_SECRET_KEYS: Final = {"ca.crt": "ca.crt", "client.crt": "tls.crt", "client.key": "tls.key"}
"""Keys of the Secret that `nodewise certs` creates for kube-scheduler, by file name."""
_DNS_POLICY_PATCH: Final = {"spec": {"dnsPolicy": scheduler_static_pod.DNS_POLICY}}

Files = Mapping[str, str | Sequence[Mapping[str, Any]]]
"""Texts, or the documents of YAML files, by name."""


class Platform(NamedTuple):
    folder: str
    """Folder on control-plane hosts for the configuration and the certificates."""
    render: Callable[["Platform", Mapping[str, Any]], Files]
    kubeconfig: str = _KUBECONFIG
    certs: str = scheduler_static_pod.CERTS_MOUNT
    """The certificate folder as kube-scheduler sees it."""
    has_dns: bool = False
    """Whether kube-scheduler can resolve Services by name."""

    @property
    def config(self) -> str:
        return posixpath.join(self.folder, _CONFIG_FILE)


def render_platform_files(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    """The content of the files by name. Those for Cluster API, k3s, RKE2, MicroK8s and Talos follow their documentation
    and are not tested.
    """
    return {
        name: content if isinstance(content, str) else yaml_writer.dump_all(content)
        for name, content in platform.render(platform, dict(value)).items()
    }


def _scheduler_component(platform: Platform, *, is_list: bool) -> dict[str, Any]:
    """The `scheduler` part of kubeadm's configuration. `extraArgs` was a map before it became a list."""
    volumes = [
        (scheduler_static_pod.CONFIG_VOLUME, platform.config, platform.config, "File"),
        (scheduler_static_pod.CERTS_VOLUME, f"{platform.folder}/certs", platform.certs, "Directory"),
    ]
    return {
        "extraArgs": [{"name": "config", "value": platform.config}]
        if is_list
        else {"config": platform.config},
        "extraVolumes": [
            {"name": name, "hostPath": host, "mountPath": mount, "readOnly": True, "pathType": kind}
            for name, host, mount, kind in volumes
        ],
    }


def _kubeadm_documents(platform: Platform, version: str, patches: str) -> list[dict[str, Any]]:
    header = {"apiVersion": f"kubeadm.k8s.io/{version}"}
    component = _scheduler_component(platform, is_list=version != "v1beta3")
    return [
        {**header, "kind": "ClusterConfiguration", "scheduler": component},
        {**header, "kind": "InitConfiguration", "patches": {"directory": patches}},
    ]


def _kubeadm_files(platform: Platform, value: Mapping[str, Any]) -> Files:
    by_version = {
        f"kubeadm-{version}.yaml": _kubeadm_documents(platform, version, _PATCH_FOLDER)
        for version in _KUBEADM_VERSIONS
    }
    return {_CONFIG_FILE: [value], _PATCH_FILE: [_DNS_POLICY_PATCH], **by_version}


def _kind_files(platform: Platform, value: Mapping[str, Any]) -> Files:
    """Files for kind, with patches in both versions: kind uses those of the version that the node image requires."""
    folder = f"{platform.folder}/patches"
    patches = [
        yaml_writer.dump(document)
        for version in _KUBEADM_VERSIONS
        for document in _kubeadm_documents(platform, version, folder)
    ]
    # of a node: `kubeadm join` of a worker, which does not mount the folder, would fail
    join_patches = [
        yaml_writer.dump(
            {
                "apiVersion": f"kubeadm.k8s.io/{version}",
                "kind": "JoinConfiguration",
                "patches": {"directory": folder},
            }
        )
        for version in _KUBEADM_VERSIONS
    ]
    node = {
        "role": "control-plane",
        "extraMounts": [{"hostPath": ".", "containerPath": platform.folder}],
        "kubeadmConfigPatches": join_patches,
    }
    cluster = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "kubeadmConfigPatches": patches,
        "nodes": [node, {"role": "worker"}],
    }
    return {_CONFIG_FILE: [value], _PATCH_FILE: [_DNS_POLICY_PATCH], "kind.yaml": [cluster]}


def _capi_files(platform: Platform, value: Mapping[str, Any]) -> Files:
    """A KubeadmControlPlane whose bootstrap provider writes the files on each machine."""
    sources: dict[str, dict[str, Any]] = {
        platform.config: {"content": yaml_writer.dump(value)},
        f"{_PATCH_FOLDER}/{posixpath.basename(_PATCH_FILE)}": {
            "content": yaml_writer.dump(_DNS_POLICY_PATCH)
        },
    }
    for name, key in _SECRET_KEYS.items():
        secret = {"name": "nodewise-scheduler-client", "key": key}
        sources[f"{platform.folder}/certs/{name}"] = {"contentFrom": {"secret": secret}}
    files: dict[str, Sequence[Mapping[str, Any]]] = {}
    for version, is_list in (("v1beta1", False), ("v1beta2", True)):
        bootstrap = {
            "files": [
                {
                    "path": path,
                    "owner": "root:root",
                    "permissions": "0600" if path.endswith(".key") else "0644",
                    **source,
                }
                for path, source in sources.items()
            ],
            "clusterConfiguration": {"scheduler": _scheduler_component(platform, is_list=is_list)},
            "initConfiguration": {"patches": {"directory": _PATCH_FOLDER}},
            "joinConfiguration": {"patches": {"directory": _PATCH_FOLDER}},
        }
        control_plane = {
            "apiVersion": f"controlplane.cluster.x-k8s.io/{version}",
            "kind": "KubeadmControlPlane",
            "metadata": {"name": "CONTROL-PLANE"},
            "spec": {"kubeadmConfigSpec": bootstrap},
        }
        files[f"kubeadmcontrolplane-{version}.yaml"] = [control_plane]
    return {**files, "clusterresourceset.yaml": [_RESOURCE_SET]}


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


def _k3s_files(platform: Platform, value: Mapping[str, Any]) -> Files:
    snippet = {"kube-scheduler-arg+": [f"config={platform.config}"]}
    return {_CONFIG_FILE: [value], "config.yaml.d/nodewise.yaml": [snippet]}


def _rke2_files(platform: Platform, value: Mapping[str, Any]) -> Files:
    snippet = {
        "kube-scheduler-arg+": [f"config={platform.config}"],
        "kube-scheduler-extra-mount+": [f"{platform.folder}:{platform.folder}:ro"],
    }
    return {_CONFIG_FILE: [value], "config.yaml.d/nodewise.yaml": [snippet]}


def _microk8s_files(platform: Platform, value: Mapping[str, Any]) -> Files:
    return {_CONFIG_FILE: [value], "args/kube-scheduler": f"--config={platform.config}\n"}


def _talos_files(platform: Platform, value: Mapping[str, Any]) -> Files:
    """The machine configuration includes the whole scheduler configuration; Talos sets the client connection itself."""
    config = {name: item for name, item in value.items() if name != "clientConnection"}
    volume = {"hostPath": platform.folder, "mountPath": platform.certs, "readonly": True}
    scheduler = {"config": config, "extraVolumes": [volume]}
    return {"machine-config-patch.yaml": [{"cluster": {"scheduler": scheduler}}]}


def _distribution(
    folder: str, render: Callable[[Platform, Mapping[str, Any]], Files], kubeconfig: str
) -> Platform:
    return Platform(folder, render, kubeconfig, f"{folder}/certs")


PLATFORMS: Final = {
    "kubeadm": Platform("/etc/kubernetes/nodewise", _kubeadm_files, has_dns=True),
    "kind": Platform("/nodewise", _kind_files, has_dns=True),
    "capi": Platform("/etc/kubernetes/nodewise", _capi_files, has_dns=True),
    "k3s": _distribution(
        "/etc/rancher/k3s/nodewise", _k3s_files, "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig"
    ),
    "rke2": _distribution(
        "/etc/rancher/rke2/nodewise", _rke2_files, "/var/lib/rancher/rke2/server/cred/scheduler.kubeconfig"
    ),
    "microk8s": _distribution(
        "/var/snap/microk8s/current/nodewise",
        _microk8s_files,
        "/var/snap/microk8s/current/credentials/scheduler.config",
    ),
    "talos": Platform("/var/nodewise/certs", _talos_files, ""),
}
