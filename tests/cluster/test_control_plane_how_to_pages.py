"""Runs the commands for a control-plane host in the pages about kubeadm and migration from TAS literally.

`nodewise certs` creates the Secret on a real API server. The host is this machine with a separate `/etc`, which
contains kubeadm's kube-scheduler.yaml. tests/node/test_configure_static_scheduler.py checks that the kubelet
runs the result.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import docs_page_code_blocks, docs_page_runner
from tests.cluster import skip_conditions
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import NODEWISE
from tests.conformance.configure import scheduler_manifests
from tests.docs_page_runner import PageReader

PAGE = docs_page_code_blocks.HOW_TO / "install-on-kubeadm.md"
FROM_TAS = docs_page_code_blocks.HOW_TO / "migrate-from-tas.md"
TAS = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
extenders:
- urlPrefix: "https://tas-service.telemetry-aware-scheduling.svc.cluster.local:9001"
  prioritizeVerb: "scheduler/prioritize"
  filterVerb: "scheduler/filter"
  weight: 1
  enableHTTPS: true
  managedResources:
  - name: "telemetry/scheduling"
    ignoredByScheduler: true
  ignorable: true
  tlsConfig:
    insecure: false
    certFile: "/host/certs/client.crt"
    keyFile: "/host/certs/client.key"
"""
"""The configuration that the configurator of TAS wrote."""
NAMESPACE = "nodewise"


@pytest.fixture
def host(plane: ControlPlane, control_plane_programs: Path, tmp_path: Path) -> Iterator[PageReader]:
    """A root shell on a control-plane host."""
    own = ["unshare", "--mount", "--propagation=private"]
    if os.geteuid() or subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        skip_conditions.not_run("a host with an /etc of its own: it needs root, and mount namespaces")
    etc = tmp_path / "etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore=_of_a_cluster)
    manifests = etc / "kubernetes/manifests"
    manifests.mkdir(parents=True)
    (manifests / "kube-scheduler.yaml").write_text(
        scheduler_manifests.to_yaml(scheduler_manifests.kubeadm_pod(36, "3"))
    )
    for name in ("admin.conf", "scheduler.conf"):
        shutil.copy(plane.admin.kubeconfig, etc / "kubernetes" / name)
    home = tmp_path / "root"
    home.mkdir()
    plain = docs_page_runner.plain_environment()
    environment = {**plain, "PATH": f"{control_plane_programs}:{NODEWISE.parent}:{plain['PATH']}"}
    shell = [*own, "sh", "-e", "-c", f"mount --bind {etc} /etc; exec bash"]
    try:
        plane.api.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        with docs_page_runner.reading(home, environment, shell=shell) as typing:
            (install,) = docs_page_code_blocks.section(PAGE, "## 1. nodewise in the cluster")
            (certs,) = [line for line in install.text.splitlines() if line.startswith("nodewise certs ")]
            typing.types(f"KUBECONFIG=/etc/kubernetes/admin.conf {certs}")
            yield typing
    finally:
        for secret in ("nodewise-tls", "nodewise-scheduler-client"):
            plane.api.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets/{secret}")


def _of_a_cluster(folder: str, _names: list[str]) -> set[str]:
    """The folders in `/etc` to omit from the copy, in case this machine is a Kubernetes host."""
    return {"kubernetes", "certs"} if folder == "/etc" else set()


def test_a_host_of_kubeadm_is_configured_and_left(host: PageReader, tmp_path: Path) -> None:
    (see,) = docs_page_code_blocks.section(PAGE, "## Verify")
    (check,) = [step.typed for step in docs_page_code_blocks.steps(see) if "--check" in step.typed]
    (undo,) = docs_page_code_blocks.section(PAGE, "## Undo")
    (uninstall,) = [line for line in undo.text.splitlines() if "--uninstall" in line]
    manifest = tmp_path / "etc/kubernetes/manifests/kube-scheduler.yaml"
    before = manifest.read_text()
    host.follows(docs_page_code_blocks.section(PAGE, "## 2. kube-scheduler"))
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


def test_a_host_comes_from_tas_and_goes_back(host: PageReader, tmp_path: Path) -> None:
    kubernetes = tmp_path / "etc/kubernetes"
    manifest, configured = kubernetes / "manifests/kube-scheduler.yaml", kubernetes / "scheduler-config.yaml"
    configured.write_text(TAS)
    command = "    - kube-scheduler\n"
    text = manifest.read_text()
    assert text.count(command) == 1
    before = text.replace(command, f"{command}    - --config=/etc/kubernetes/scheduler-config.yaml\n")
    manifest.write_text(before)
    fetch, _ = docs_page_code_blocks.section(PAGE, "## 2. kube-scheduler")
    host.follows([fetch, *docs_page_code_blocks.section(FROM_TAS, "## 3. The switch")])
    assert "tas-service" not in configured.read_text()
    assert "https://nodewise.nodewise.svc:9001" in configured.read_text()
    (back,) = re.findall(r"`(nodewise configure --restore)`", FROM_TAS.read_text())
    host.types(back)
    assert (manifest.read_text(), configured.read_text()) == (before, TAS)
