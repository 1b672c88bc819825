"""Where distributions take kube-scheduler's configuration from: files to put into place, by their names.

Those for k3s, RKE2, MicroK8s and Talos follow their documentation; nobody here has run them.
"""

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from nodewise.configure import manifest, yamltext


class Platform(NamedTuple):
    folder: str
    """On hosts of the control plane, for the configuration and the certificates."""
    certs: str
    """The same folder as kube-scheduler sees it."""
    kubeconfig: str
    files: Callable[["Platform", Mapping[str, Any]], Mapping[str, str]]
    has_dns: bool = False
    """Whether kube-scheduler can be made to find Services by name."""

    @property
    def config(self) -> str:
        return posixpath.join(self.folder, "scheduler-config.yaml")


NAME: Final = "scheduler-config.yaml"
PATCH: Final = "patches/kube-scheduler+strategic.yaml"
_PATCHES: Final = "/etc/kubernetes/nodewise/patches"


def files(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    """Names and texts."""
    return dict(platform.files(platform, value))


def _volumes(platform: Platform) -> list[dict[str, Any]]:
    return [
        {
            "name": manifest.CONFIG_VOLUME,
            "hostPath": platform.config,
            "mountPath": platform.config,
            "readOnly": True,
            "pathType": "File",
        },
        {
            "name": manifest.CERTS_VOLUME,
            "hostPath": f"{platform.folder}/certs",
            "mountPath": platform.certs,
            "readOnly": True,
            "pathType": "Directory",
        },
    ]


def _cluster_configuration(platform: Platform, version: str) -> dict[str, Any]:
    args: Any = {"config": platform.config}
    if version == "v1beta4":
        args = [{"name": "config", "value": platform.config}]
    return {
        "apiVersion": f"kubeadm.k8s.io/{version}",
        "kind": "ClusterConfiguration",
        "scheduler": {"extraArgs": args, "extraVolumes": _volumes(platform)},
    }


def _kubeadm(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    found = {NAME: yamltext.dumped(dict(value)), PATCH: _patch()}
    for version in ("v1beta3", "v1beta4"):
        init = {
            "apiVersion": f"kubeadm.k8s.io/{version}",
            "kind": "InitConfiguration",
            "patches": {"directory": _PATCHES},
        }
        texts = [yamltext.dumped(one) for one in (_cluster_configuration(platform, version), init)]
        found[f"kubeadm-{version}.yaml"] = "---\n".join(texts)
    return found


def _patch() -> str:
    return yamltext.dumped({"spec": {"dnsPolicy": manifest.DNS_POLICY}})


def _kind(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    patches = [
        _cluster_configuration(platform, "v1beta3"),
        {"kind": "InitConfiguration", "patches": {"directory": f"{platform.folder}/patches"}},
    ]
    del patches[0]["apiVersion"]
    node = {"role": "control-plane", "extraMounts": [{"hostPath": ".", "containerPath": platform.folder}]}
    cluster = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "kubeadmConfigPatches": [yamltext.dumped(patch) for patch in patches],
        "nodes": [node, {"role": "worker"}],
    }
    return {NAME: yamltext.dumped(dict(value)), PATCH: _patch(), "kind.yaml": yamltext.dumped(cluster)}


def _k3s(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    snippet = {"kube-scheduler-arg+": [f"config={platform.config}"]}
    return {NAME: yamltext.dumped(dict(value)), "config.yaml.d/nodewise.yaml": yamltext.dumped(snippet)}


def _rke2(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    snippet = {
        "kube-scheduler-arg+": [f"config={platform.config}"],
        "kube-scheduler-extra-mount+": [f"{platform.folder}:{platform.folder}:ro"],
    }
    return {NAME: yamltext.dumped(dict(value)), "config.yaml.d/nodewise.yaml": yamltext.dumped(snippet)}


def _microk8s(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    return {NAME: yamltext.dumped(dict(value)), "args/kube-scheduler": f"--config={platform.config}\n"}


def _talos(platform: Platform, value: Mapping[str, Any]) -> dict[str, str]:
    """The whole configuration is part of the machine's; Talos has its own for the connection."""
    config = {name: item for name, item in value.items() if name != "clientConnection"}
    volume = {"hostPath": platform.folder, "mountPath": platform.certs, "readonly": True}
    scheduler = {"config": config, "extraVolumes": [volume]}
    return {"machine-config-patch.yaml": yamltext.dumped({"cluster": {"scheduler": scheduler}})}


PLATFORMS: Final = {
    "kubeadm": Platform(
        "/etc/kubernetes/nodewise",
        manifest.CERTS_MOUNT,
        "/etc/kubernetes/scheduler.conf",
        _kubeadm,
        has_dns=True,
    ),
    "kind": Platform(
        "/nodewise", manifest.CERTS_MOUNT, "/etc/kubernetes/scheduler.conf", _kind, has_dns=True
    ),
    "k3s": Platform(
        "/etc/rancher/k3s/nodewise",
        "/etc/rancher/k3s/nodewise/certs",
        "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig",
        _k3s,
    ),
    "rke2": Platform(
        "/etc/rancher/rke2/nodewise",
        "/etc/rancher/rke2/nodewise/certs",
        "/var/lib/rancher/rke2/server/cred/scheduler.kubeconfig",
        _rke2,
    ),
    "microk8s": Platform(
        "/var/snap/microk8s/current/nodewise",
        "/var/snap/microk8s/current/nodewise/certs",
        "/var/snap/microk8s/current/credentials/scheduler.config",
        _microk8s,
    ),
    "talos": Platform("/var/nodewise/certs", manifest.CERTS_MOUNT, "", _talos),
}
