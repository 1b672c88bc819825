"""The manifests of `nodewise configure --mode second-scheduler` on a real control plane.

A pod of this scheduler is placed by a policy, with the rights of the service account that both containers share.
"""

import subprocess
from pathlib import Path

import yaml

from tests.cluster import child_processes, extender_process
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import NODEWISE, CertificateFiles
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait

NAME, NAMESPACE = "nodewise-scheduler", "nodewise"
LOOPBACK = "http://127.0.0.1:9001"


def printed(plane: ControlPlane, *flags: str) -> str:
    """The manifests that the command prints. The Kubernetes version comes from the cluster."""
    done = subprocess.run(
        [NODEWISE, "configure", "--mode", "second-scheduler", *flags],
        env={"KUBECONFIG": str(plane.admin.kubeconfig), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_pod_is_placed_by_a_policy(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    text = printed(plane)
    file = tmp_path / "second.yaml"
    file.write_text(text)
    plane.api.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    plane.kubectl("apply", "--dry-run=server", "--validate=strict", f"--filename={file}")
    manifests: dict[str, Object] = {}
    for manifest in yaml.safe_load_all(text):
        manifests[manifest["kind"]] = manifest
        if manifest["kind"] not in {"Deployment", "Namespace"}:
            plane.api.ensure(manifest)
    account = plane.service_account(NAME, NAMESPACE)
    extender_process.heated(sandbox, metrics, {"hot": 90, "cool": 10})
    _, own = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    local = [word for word in own["command"][2:] if not word.startswith("--health-address")]
    ports = [f"--port={child_processes.free_port()}", "--health-port=0", "--sync-period=500ms"]
    arguments = [*local, *ports, f"--kubeconfig={account.kubeconfig}", f"--namespace={NAMESPACE}"]
    with extender_process.started(tmp_path, arguments, CertificateFiles(tmp_path)) as nodewise:
        wait("nodewise is ready", lambda: nodewise.is_ready() or None)
        config = manifests["ConfigMap"]["data"]["scheduler.yaml"]
        assert LOOPBACK in config
        scheduler = plane.start_scheduler(config.replace(LOOPBACK, nodewise.url), user=account)
        try:
            pod = extender_process.pod("web")
            pod["spec"]["schedulerName"] = NAME
            sandbox.pods(pod)
            assert sandbox.expect_bound("web") == "cool"
        finally:
            scheduler.stop()
        assert "forbidden" not in nodewise.process.log.read_text().lower()
