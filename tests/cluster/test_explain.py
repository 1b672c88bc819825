"""`nodewise explain` on a real API server: several replicas, and decisions for a real scheduler."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import extender_process, fake_port_forward, kubernetes_objects, read_only_commands
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import CertificateFiles, ExtenderProcess, pod
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.read_only_commands import parse_report, run, warm


@pytest.fixture
def cluster(sandbox: Sandbox, metrics: FakeCustomMetricsApi) -> Sandbox:
    warm(sandbox, metrics)
    return sandbox


@pytest.fixture
def certificates(tmp_path: Path) -> CertificateFiles:
    return CertificateFiles(tmp_path)


@contextlib.contextmanager
def replica(plane: ControlPlane, certificates: CertificateFiles, folder: Path) -> Iterator[ExtenderProcess]:
    """Runs a replica and yields it once it is ready."""
    with extender_process.extender(plane, folder, certificates=certificates) as running:
        yield running


def through_the_cluster(plane: ControlPlane, sandbox: Sandbox, name: str, *more: str) -> list[str]:
    user = read_only_commands.reader(plane, nodewise_namespace=sandbox.namespace)
    place = [f"--kubeconfig={user.kubeconfig}", f"--nodewise-namespace={sandbox.namespace}"]
    return ["explain", f"{sandbox.namespace}/{name}", *place, *more]


def test_every_replica_is_asked_and_one_that_is_gone_is_named(
    plane: ControlPlane, cluster: Sandbox, certificates: CertificateFiles, tmp_path: Path
) -> None:
    """One replica gets the filter call and another the prioritize call, as can happen behind a Service."""
    with (
        replica(plane, certificates, tmp_path) as first,
        replica(plane, certificates, tmp_path) as other,
        fake_port_forward.kubelet_of(
            plane.api, "d", plane.authority.issue("kubelet", "127.0.0.1")
        ) as kubelet,
    ):
        for name, running in (("one", first), ("other", other)):
            fake_port_forward.add_replica(plane.api, kubelet, "d", cluster.namespace, name, running.health)
        filters = first.entry(prioritizeVerb="", preemptVerb="")
        scores = other.entry(filterVerb="", preemptVerb="", managedResources=[])
        with plane.start_scheduler({"extenders": [filters, scores]}):
            cluster.pods(pod("web"))
            assert cluster.expect_bound("web") == "b"
        command = through_the_cluster(plane, cluster, "web")
        report = parse_report(run(*command, "-o", "json"))
        names = [f"Pod/{cluster.namespace}/{name}" for name in ("one", "other")]
        assert [(answer["replica"], answer["found"]) for answer in report["replicas"]] == [
            (name, 1) for name in names
        ]
        assert report["attempt"]["calls"] == ["filter", "prioritize"]
        assert report["state"]["node"] == "b"
        nodes = {node["node"]: (node["passes"], node["score"]) for node in report["attempt"]["nodes"]}
        assert nodes == {"b": (True, 10), "c": (True, 9), "d": (False, None), "a": (False, None)}
        other.process.kill()
        late = run(*command)
        assert late.returncode == 0
        assert f"{names[1]} is left out: port-forward: error forwarding port" in late.stderr
        assert "web is on b: 2 of the 4 nodes asked about pass" in late.stdout
        first.process.kill()
        none = run(*command)
        assert none.returncode == 1
        assert none.stderr.count("connection refused") == 2


def test_a_waiting_pod_is_explained_with_the_change_that_would_place_it(
    plane: ControlPlane,
    cluster: Sandbox,
    metrics: FakeCustomMetricsApi,
    certificates: CertificateFiles,
    tmp_path: Path,
) -> None:
    metrics.set("heat", {"a": 90, "b": 82, "c": 85, "d": "84500m"})
    with replica(plane, certificates, tmp_path) as running:
        wait("all are hot", lambda: running.rejects(cluster.namespace, "b") or None)
        with plane.start_scheduler({"extenders": [running.entry(httpTimeout="30s")]}):
            cluster.pods(pod("web"))
            message = cluster.expect_rejected("web")
        command = through_the_cluster(plane, cluster, "web", f"--server={running.health}")
        done = run(*command)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0].endswith("web waits: none of the 4 nodes asked about passes")
        assert f"kube-scheduler: {message}" in lines
        assert "  heat GreaterThan: 1 more node passes at 82 instead of 80, 3 at 85, 4 at 90" in lines
        attempt = parse_report(run(*command, "-o", "json"))["attempt"]
        (group,) = attempt["groups"]
        assert f"{len(group['nodes'])} {group['reason']}" in message
        assert attempt["changes"][0]["more"][-1] == {"target": 90, "nodes": 4}


def test_pods_without_a_decision(
    plane: ControlPlane, cluster: Sandbox, certificates: CertificateFiles, tmp_path: Path
) -> None:
    """One pod requests no managed resource, one requests more cores than exist, and one does not exist."""
    with replica(plane, certificates, tmp_path) as running:
        with plane.start_scheduler({"extenders": [running.entry()]}):
            large = pod("large", cpu="64")
            cluster.pods(kubernetes_objects.pod("plain"), large)
            cluster.expect_bound("plain")
            cluster.expect_rejected("large")
        outputs = {}
        for name in ("plain", "large", "absent"):
            done = run(*through_the_cluster(plane, cluster, name, f"--server={running.health}"))
            assert done.returncode == 3, done.stderr
            outputs[name] = done.stdout
    assert "it requests no extended resource" in outputs["plain"]
    assert "Insufficient cpu" in outputs["large"]
    assert "only about nodes that its own rules leave" in outputs["large"]
    assert " does not exist" in outputs["absent"].splitlines()[0]


def test_pods_that_are_scheduled_without_their_policy(
    plane: ControlPlane, cluster: Sandbox, certificates: CertificateFiles, tmp_path: Path
) -> None:
    """One pod has a misspelt label, and one does not request the resource that nodewise manages."""
    with replica(plane, certificates, tmp_path) as running:
        with plane.start_scheduler({"extenders": [running.entry()]}):
            cluster.pods(
                kubernetes_objects.pod(
                    "misspelt", labels={"telemetry-polcy": "pol"}, limits=extender_process.LIMITS
                ),
                kubernetes_objects.pod("unasked", labels={"telemetry-policy": "pol"}),
            )
            cluster.expect_bound("misspelt")
            cluster.expect_bound("unasked")
        place = [f"--server={running.health}"]
        misspelt = run(*through_the_cluster(plane, cluster, "misspelt", *place))
        unasked = run(*through_the_cluster(plane, cluster, "unasked", *place))
    assert "Warning: it has the label telemetry-polcy and no label telemetry-policy" in misspelt.stdout
    assert unasked.returncode == 3
    assert "it names TASPolicy pol and does not request telemetry/scheduling" in unasked.stdout
    assert "add the limit telemetry/scheduling: 1 to a container" in unasked.stdout


def test_without_a_cluster_a_replica_alone_explains(
    plane: ControlPlane, cluster: Sandbox, certificates: CertificateFiles, tmp_path: Path
) -> None:
    with replica(plane, certificates, tmp_path) as running:
        with plane.start_scheduler({"extenders": [running.entry(httpTimeout="30s")]}):
            cluster.pods(pod("web"))
            cluster.expect_bound("web")
        done = run("explain", f"{cluster.namespace}/web", f"--server={running.health}", "-o", "wide")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "web at its last attempt: 2 of the 4 nodes asked about pass" in done.stdout
    assert "heat GreaterThan 80" in done.stdout


def test_a_namespace_without_replicas(plane: ControlPlane, cluster: Sandbox) -> None:
    command = through_the_cluster(plane, cluster, "web")
    missing = run(*command)
    assert missing.returncode == 3
    assert f"pod {cluster.namespace}/web does not exist" in missing.stdout
    cluster.pods(pod("web"))
    done = run(*command)
    assert done.returncode == 1
    assert f"no running pod of nodewise in namespace {cluster.namespace}" in done.stderr
