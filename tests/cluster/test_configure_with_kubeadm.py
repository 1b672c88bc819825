"""The real kubeadm reads the output of `nodewise configure` for kubeadm and kind, and nodewise edits kubeadm's
manifest.

kubeadm writes the manifest of kube-scheduler below a folder of the test. Nothing is started.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import program_cache
from tests.cluster.conftest import get_or_skip
from tests.cluster.extender_process import NODEWISE
from tests.conformance.configure import scheduler_manifests
from tests.conformance.configure.control_plane_hosts import ControlPlaneHost

pytestmark = pytest.mark.cluster

VERSIONS = {"v1beta3": "1.36", "v1beta4": program_cache.DEFAULT}
"""The newest kubeadm that reads a version of its configuration."""
DNS = "ClusterFirstWithHostNet"


class KubeadmHost:
    """The files of a host as kubeadm reads and writes them."""

    def __init__(self, kubeadm: Path, kubernetes: str, folder: Path) -> None:
        self._kubeadm = kubeadm
        self._kubernetes = kubernetes
        self.folder = folder
        self.manifest = folder / "etc/kubernetes/manifests/kube-scheduler.yaml"
        for name in ("etc/kubernetes/manifests", "var/lib/kubelet", "tmp"):
            (folder / name).mkdir(parents=True)

    def run(self, *words: str) -> None:
        command = [self._kubeadm, *words, "--config=/kubeadm.yaml", f"--rootfs={self.folder}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "unknown field" not in done.stderr

    def write(self, documents: list[dict[str, Any]]) -> None:
        """Writes the kubeadm configuration, with values that kubeadm would otherwise get from the network."""
        for document in documents:
            if document["kind"] == "ClusterConfiguration":
                document["kubernetesVersion"] = self._kubernetes
            if document["kind"] == "InitConfiguration":
                document["localAPIEndpoint"] = {"advertiseAddress": "10.0.0.1"}
                document["nodeRegistration"] = {
                    "name": "n1",
                    "criSocket": "unix:///run/containerd/containerd.sock",
                }
        (self.folder / "kubeadm.yaml").write_text(yaml.safe_dump_all(documents))

    def scheduler(self) -> dict[str, Any]:
        self.run("init", "phase", "control-plane", "scheduler")
        pod: dict[str, Any] = yaml.safe_load(self.manifest.read_text())
        return pod


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> KubeadmHost:
    """A host with the newest kubeadm, or with the one for the test's parameter `version`."""
    if os.geteuid() != 0:
        pytest.skip("needs root: kubeadm changes its root")
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    release = VERSIONS[parameters.get("version", "v1beta4")]
    kubeadm = get_or_skip(request, lambda: program_cache.kubeadm(release))
    return KubeadmHost(kubeadm, program_cache.RELEASES[release].version, tmp_path / "root")


def printed(mode: str, into: Path) -> Path:
    subprocess.run([NODEWISE, "configure", "--mode", mode, f"--into={into}"], check=True, timeout=60)
    return into


def documents(text: str) -> Iterator[dict[str, Any]]:
    return (document for document in yaml.safe_load_all(text) if document)


def check(pod: dict[str, Any], config: str, certs: str) -> None:
    """Checks that kube-scheduler's pod has the configuration, the certificates, and the DNS policy for Services."""
    [container] = pod["spec"]["containers"]
    assert f"--config={config}" in container["command"]
    mounts = {mount["name"]: (mount["mountPath"], mount["readOnly"]) for mount in container["volumeMounts"]}
    assert mounts["schedulerconfig"] == (config, True)
    assert mounts["certdir"] == ("/host/certs", True)
    volumes = {volume["name"]: volume["hostPath"] for volume in pod["spec"]["volumes"]}
    assert volumes["schedulerconfig"] == {"path": config, "type": "File"}
    assert volumes["certdir"] == {"path": certs, "type": "Directory"}
    assert pod["spec"]["dnsPolicy"] == DNS


@pytest.mark.parametrize("version", VERSIONS)
def test_kubeadm_writes_the_manifest_that_asks_nodewise(root: KubeadmHost, version: str) -> None:
    folder = printed("kubeadm", root.folder / "etc/kubernetes/nodewise")
    root.write(list(documents((folder / f"kubeadm-{version}.yaml").read_text())))
    root.run("config", "validate")
    check(
        root.scheduler(), "/etc/kubernetes/nodewise/scheduler-config.yaml", "/etc/kubernetes/nodewise/certs"
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_kubeadm_reads_the_patches_for_kind(root: KubeadmHost, version: str) -> None:
    """kind merges the patches of its own configuration version."""
    folder = printed("kind", root.folder / "nodewise")
    cluster = yaml.safe_load((folder / "kind.yaml").read_text())
    patches = [yaml.safe_load(text) for text in cluster["kubeadmConfigPatches"]]
    root.write([patch for patch in patches if patch["apiVersion"].endswith(version)])
    root.run("config", "validate")
    check(root.scheduler(), "/nodewise/scheduler-config.yaml", "/nodewise/certs")


def test_the_manifest_that_tests_start_from_is_kubeadms(root: KubeadmHost, tmp_path: Path) -> None:
    """`nodewise configure` also edits kubeadm's manifest, and `--uninstall` restores it exactly."""
    kinds = ("ClusterConfiguration", "InitConfiguration")
    root.write([{"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": kind} for kind in kinds])
    assert root.scheduler() == scheduler_manifests.kubeadm_pod(
        program_cache.MINOR, image=f"registry.k8s.io/kube-scheduler:{program_cache.VERSION}"
    )
    text = root.manifest.read_text()
    host = ControlPlaneHost(tmp_path / "host")
    host.write(text)
    assert host.run().code == 0
    assert host.pod["spec"]["dnsPolicy"] == DNS
    assert host.run("--uninstall").code == 0
    assert host.manifest.read_text() == text
