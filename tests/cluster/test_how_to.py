"""How to install on kubeadm, its part for a host of the control plane, followed to the letter.

The Secret is one that `nodewise certs` made on a real API server; the host is this machine with an `/etc` of its own,
in which kubeadm's kube-scheduler.yaml lies. That the kubelet runs what it says is for tests/node/test_static_pod.py.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import pages, reader
from tests.cluster import availability
from tests.cluster.controlplane import ControlPlane
from tests.cluster.served import NODEWISE
from tests.conformance.configure import pods
from tests.reader import Reader

PAGE = pages.HOW_TO / "install-on-kubeadm.md"
NAMESPACE = "nodewise"


@pytest.fixture
def host(plane: ControlPlane, control_plane_programs: Path, tmp_path: Path) -> Iterator[Reader]:
    """Somebody who is root on a host of the control plane."""
    own = ["unshare", "--mount", "--propagation=private"]
    if os.geteuid() or subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        availability.not_run("a host with an /etc of its own: it needs root, and mount namespaces")
    etc = tmp_path / "etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore=_of_a_cluster)
    manifests = etc / "kubernetes/manifests"
    manifests.mkdir(parents=True)
    (manifests / "kube-scheduler.yaml").write_text(pods.text(pods.pod(36, "3")))
    for name in ("admin.conf", "scheduler.conf"):
        shutil.copy(plane.admin.kubeconfig, etc / "kubernetes" / name)
    home = tmp_path / "root"
    home.mkdir()
    plain = reader.plain_environment()
    environment = {**plain, "PATH": f"{control_plane_programs}:{NODEWISE.parent}:{plain['PATH']}"}
    shell = [*own, "sh", "-e", "-c", f"mount --bind {etc} /etc; exec bash"]
    try:
        with reader.reading(home, environment, shell=shell) as typing:
            yield typing
    finally:
        for secret in ("nodewise-tls", "nodewise-scheduler-client"):
            plane.api.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets/{secret}")


def _of_a_cluster(folder: str, _names: list[str]) -> set[str]:
    """What `/etc` has already, where this machine is a host of one."""
    return {"kubernetes", "certs"} if folder == "/etc" else set()


def test_a_host_of_kubeadm_is_configured_and_left(host: Reader, plane: ControlPlane, tmp_path: Path) -> None:
    plane.api.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    (install,) = pages.section(PAGE, "## 1. nodewise in the cluster")
    (certs,) = [line for line in install.text.splitlines() if line.startswith("nodewise certs ")]
    (see,) = pages.section(PAGE, "## See that it works")
    (check,) = [step.typed for step in pages.steps(see) if "--check" in step.typed]
    (undo,) = pages.section(PAGE, "## Undo")
    (uninstall,) = [line for line in undo.text.splitlines() if "--uninstall" in line]
    manifest = tmp_path / "etc/kubernetes/manifests/kube-scheduler.yaml"
    before = manifest.read_text()
    host.types(f"KUBECONFIG=/etc/kubernetes/admin.conf {certs}")
    host.follows(pages.section(PAGE, "## 2. kube-scheduler"))
    assert "--config=/etc/kubernetes/" in manifest.read_text()
    assert sorted(path.name for path in (tmp_path / "etc/certs").iterdir()) == [
        "ca.crt",
        "client.crt",
        "client.key",
    ]
    assert list((tmp_path / "root").iterdir()) == []
    host.types(check)
    host.types(uninstall)
    assert manifest.read_text() == before
