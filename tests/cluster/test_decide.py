"""`nodewise decide --cluster` on a real API server with read-only rights; a real scheduler decides the same."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests import forked_commands
from tests.cluster import api_user_kubeconfigs, extender_process, kubernetes_objects, read_only_commands
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import rule
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import HOT, pod
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.read_only_commands import parse_report, run, warm

LEAST = [
    rule("list", "nodes"),
    rule("list", "namespaces"),
    rule("list", "pods"),
    rule("list", "taspolicies", "telemetry.intel.com"),
    rule("list", "placementpolicies clusterplacementpolicies", "nodewise.io"),
    rule("get", "*", "custom.metrics.k8s.io"),
    rule("list", "nodes", "metrics.k8s.io"),
]
"""The rights that `decide` needs."""


@pytest.fixture
def cluster(sandbox: Sandbox, metrics: FakeCustomMetricsApi) -> Sandbox:
    warm(sandbox, metrics)
    return sandbox


def decide_command(
    plane: ControlPlane, sandbox: Sandbox, *more: str, rules: list[Object] | None = None
) -> list[str]:
    kubeconfig = read_only_commands.reader(plane, rules or LEAST).kubeconfig
    return ["decide", "--cluster", f"--kubeconfig={kubeconfig}", "-n", sandbox.namespace, *more]


def versions(sandbox: Sandbox) -> dict[str, str]:
    """The resource versions of all objects that could be written."""
    folders = (
        "/api/v1/nodes",
        f"/api/v1/namespaces/{sandbox.namespace}/pods",
        f"/apis/telemetry.intel.com/v1alpha1/namespaces/{sandbox.namespace}/taspolicies",
        f"/apis/events.k8s.io/v1/namespaces/{sandbox.namespace}/events",
        f"/apis/coordination.k8s.io/v1/namespaces/{sandbox.namespace}/leases",
    )
    items = [item for folder in folders for item in sandbox.api.get(folder)["items"]]
    return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in items}


def test_the_rights_that_ship_are_to_look_only() -> None:
    rules = [rule for role in extender_process.manifest("reader.yaml") for rule in role["rules"]]
    others = [rule for rule in rules if rule["resources"] != ["pods/portforward"]]
    assert {verb for rule in others for verb in rule["verbs"]} == {"get", "list"}


def test_waiting_pods_are_decided_as_kube_scheduler_then_places_them(
    plane: ControlPlane, cluster: Sandbox, tmp_path: Path
) -> None:
    cluster.pods(*(pod(f"web-{number}") for number in range(3)))
    before = versions(cluster)
    decisions = parse_report(run(*decide_command(plane, cluster, "-o", "json")))["decisions"]
    assert versions(cluster) == before
    assert [decision["pod"] for decision in decisions] == [
        f"{cluster.namespace}/web-{number}" for number in range(3)
    ]
    members = ["pod", "agents", "feasible", "scores", "rejected", "values", "error", "policies", "changes"]
    assert list(decisions[0]) == members
    assert decisions[0]["feasible"] == ["b", "c"]
    assert decisions[0]["scores"] == {"b": 10, "c": 9}
    with extender_process.extender(plane, tmp_path) as nodewise:
        wait("heat is known", lambda: nodewise.fetched("heat") or None)
        with plane.start_scheduler({"extenders": [nodewise.entry()]}):
            assert {cluster.expect_bound(f"web-{number}") for number in range(3)} == {"b"}


def test_a_policy_to_try_on_running_pods(plane: ControlPlane, cluster: Sandbox, tmp_path: Path) -> None:
    """The command reports which pods run on nodes that the policy would reject, and which nodes would be feasible."""
    cluster.pods(
        kubernetes_objects.running_on("c", pod("warm")),
        kubernetes_objects.running_on("b", pod("cool")),
        kubernetes_objects.pod("plain"),
    )
    stricter = read_only_commands.policy_file(tmp_path, cluster.namespace, HOT | {"target": 50})
    calm = parse_report(run(*decide_command(plane, cluster, "--running", "-o", "json")))["decisions"]
    assert {(decision["pod"].rpartition("/")[2], decision["stays"]) for decision in calm} == {
        ("warm", True),
        ("cool", True),
        ("plain", None),
    }
    tried = parse_report(
        run(*decide_command(plane, cluster, "--running", "--policy", str(stricter), "-o", "json")), 3
    )
    decisions = {decision["pod"].rpartition("/")[2]: decision for decision in tried["decisions"]}
    assert (decisions["warm"]["node"], decisions["warm"]["stays"], decisions["warm"]["feasible"]) == (
        "c",
        False,
        ["b"],
    )
    assert decisions["cool"]["stays"]
    table = run(*decide_command(plane, cluster, "--running", "--policy", str(stricter)))
    assert "1 running where a policy rejects them, 1 where they may stay" in table.stdout


def test_no_pod_waits(plane: ControlPlane, cluster: Sandbox) -> None:
    done = run(*decide_command(plane, cluster))
    assert (done.returncode, done.stdout) == (0, "no pod waits\n")
    assert parse_report(run(*decide_command(plane, cluster, "-o", "json"))) == {"decisions": []}


def test_watch_prints_again_when_a_row_changes_until_it_is_interrupted(
    plane: ControlPlane, cluster: Sandbox
) -> None:
    command = decide_command(plane, cluster, "--watch", "--sync-period=500ms", "-o", "json")
    with subprocess.Popen(
        [forked_commands.NODEWISE, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as watching:
        assert watching.stdout
        assert watching.stderr
        before = json.loads(watching.stdout.readline())
        cluster.pods(pod("web"))
        after = json.loads(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        rest, messages = watching.stdout.read(), watching.stderr.read()
    assert before["decisions"] == []
    assert [decision["feasible"] for decision in after["decisions"]] == [["b", "c"]]
    assert (watching.returncode, rest) == (130, b"")
    assert b"Traceback" not in messages


def test_a_pod_that_fits_nowhere_and_a_metric_that_fails(
    plane: ControlPlane, cluster: Sandbox, metrics: FakeCustomMetricsApi
) -> None:
    cluster.pods(pod("web"))
    metrics.fail("heat")
    done = run(*decide_command(plane, cluster, "-o", "json"))
    (decision,) = parse_report(done, 3)["decisions"]
    never_fetched = f"telemetry policy {cluster.namespace}/pol: metric heat was never fetched"
    assert decision["error"] == f"{never_fetched}: the custom metrics API responds with HTTP status 503"
    assert "told to fail with 503" in done.stderr


def test_files_beside_the_cluster_win(plane: ControlPlane, cluster: Sandbox, tmp_path: Path) -> None:
    cluster.pods(pod("web"))
    table = tmp_path / "heat.csv"
    table.write_text(
        "".join(f"{node},heat,{value}\n" for node, value in zip("abcd", (1, 99, 99, 2), strict=True))
    )
    (decision,) = parse_report(run(*decide_command(plane, cluster, str(table), "-o", "json")))["decisions"]
    assert decision["feasible"] == ["a", "d"]


def test_rights_of_one_namespace_are_enough_for_it(plane: ControlPlane, cluster: Sandbox) -> None:
    cluster.pods(pod("web"))
    inside = [
        rule("list", "pods"),
        rule("list", "taspolicies", "telemetry.intel.com"),
        rule("list", "placementpolicies", "nodewise.io"),
    ]
    user = read_only_commands.reader(plane, inside, cluster.namespace)
    everywhere = [
        rule("list", "nodes namespaces"),
        rule("list", "clusterplacementpolicies", "nodewise.io"),
        rule("get", "*", "custom.metrics.k8s.io"),
    ]
    api_user_kubeconfigs.grant(plane.api, user.name, everywhere)
    command = ["decide", "--cluster", f"--kubeconfig={user.kubeconfig}", "-o", "json"]
    (decision,) = parse_report(run(*command, "-n", cluster.namespace))["decisions"]
    assert decision["feasible"] == ["b", "c"]
    assert run(*command).returncode == 1


def test_a_missing_right_is_named(plane: ControlPlane, cluster: Sandbox) -> None:
    done = run(
        *decide_command(plane, cluster, rules=[rule for rule in LEAST if "pods" not in rule["resources"]])
    )
    assert done.returncode == 1
    assert "cannot list resource" in done.stderr
    assert "grant this right" in done.stderr
