"""The shipped manifests for a separate scheduler that scores by load, and the output of `nodewise configure`, with the
real kube-scheduler and API server.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import child_processes, extender_process, kubernetes_objects
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import NODEWISE, ROOT, CertificateFiles
from tests.cluster.namespace_sandboxes import Sandbox, wait

MANIFESTS = ("scoring.yaml", "test-pod.yaml")
LOCAL = "--url=http://127.0.0.1:1"


def rendered(*arguments: str) -> str:
    """The output of `nodewise configure render-scheduler`."""
    command = [NODEWISE, "configure", "render-scheduler", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shipped(kind: str) -> list[Object]:
    return [manifest for manifest in extender_process.manifest("scoring.yaml") if manifest["kind"] == kind]


PRINTED: dict[str, list[str]] = {
    "one entry for all": [LOCAL, "--agents=telemetry,gpu"],
    "an entry for each": [LOCAL, "--agents=telemetry,gpu,safe,congestion", "--one-entry-per-agent"],
    "all pods, whole nodes": [LOCAL, "--agents=safe,congestion", "--filter-all-pods", "--whole-nodes"],
    "scores only, of a second scheduler": [
        LOCAL,
        "--agents=safe",
        "--scheduler-name=mine",
        "--weights=10000",
    ],
    "mutual TLS": ["--agents=telemetry", "--ca={ca}", "--cert={cert}", "--key={key}"],
}


@pytest.mark.parametrize("arguments", PRINTED.values(), ids=PRINTED)
def test_kube_scheduler_accepts_the_printed_configuration(
    plane: ControlPlane, tmp_path: Path, arguments: list[str]
) -> None:
    certificates = CertificateFiles(tmp_path)
    names = {
        "ca": certificates.authority.ca_file,
        "cert": certificates.client.cert,
        "key": certificates.client.key,
    }
    config = yaml.safe_load(rendered(*(argument.format(**names) for argument in arguments)))
    scheduler = plane.start_scheduler(config | {"leaderElection": {"leaderElect": False}})
    scheduler.stop()


@pytest.mark.parametrize("file", MANIFESTS)
def test_the_api_server_takes_the_manifests(plane: ControlPlane, file: str) -> None:
    plane.kubectl("apply", "--dry-run=server", "--validate=strict", f"--filename={ROOT / 'deploy' / file}")


def test_the_pair_places_the_test_pod_where_there_is_no_congestion(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path
) -> None:
    for manifest in extender_process.manifest("scoring.yaml"):
        if manifest["kind"] in {"ServiceAccount", "ClusterRoleBinding", "Role", "RoleBinding"}:
            plane.api.ensure(manifest)
    [config], [deployment] = shipped("ConfigMap"), shipped("Deployment")
    nodes = [kubernetes_objects.node(name) for name in ("busy", "idle")]
    for node, factor in zip(nodes, ("90", "10"), strict=True):
        node["metadata"]["annotations"] = {"congestion-factor": factor}
    sandbox.nodes(*nodes)
    file = tmp_path / "nodewise.yaml"
    file.write_text(config["data"]["nodewise.yaml"])
    with extender_process.started(
        tmp_path, _arguments(deployment, file), CertificateFiles(tmp_path)
    ) as nodewise:
        wait("nodewise is ready", lambda: nodewise.is_ready() or None)
        text = config["data"]["scheduler.yaml"].replace("http://127.0.0.1:9001", nodewise.url)
        account = plane.service_account("my-scheduler", "kube-system")
        scheduler = plane.start_scheduler(text, user=account)
        try:
            [pod] = extender_process.manifest("test-pod.yaml")
            sandbox.pods(pod)
            assert sandbox.expect_bound("test-pod") == "idle"
            assert "Successfully assigned" in sandbox.expect_event("test-pod", "Scheduled")
        finally:
            scheduler.stop()


def _arguments(deployment: Object, file: Path) -> list[str]:
    """The arguments of the nodewise container, with a file and ports of this machine."""
    spec: Any = deployment["spec"]["template"]["spec"]
    command: list[str] = next(
        container for container in spec["containers"] if container["name"] == "nodewise"
    )["command"]
    assert command[:2] == ["nodewise", "extender"]
    arguments = [argument.replace("/etc/my-scheduler/nodewise.yaml", str(file)) for argument in command[2:]]
    local = [argument for argument in arguments if not argument.startswith("--health-address")]
    return [*local, f"--port={child_processes.free_port()}", "--health-port=0"]
