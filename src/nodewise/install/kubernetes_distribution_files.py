"""Configuration files for Kubernetes distributions, by file name.

Those for Cluster API, k3s, RKE2, MicroK8s and Talos follow their documentation and are not tested.
"""

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from nodewise.install import scheduler_static_pod, yaml_editor


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
