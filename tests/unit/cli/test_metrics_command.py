"""`nodewise metrics`, with and without a replica of a running nodewise."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tools.reference.commands import every

from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise.policies.policy_objects import RESOURCES
from tests.cluster.read_only_commands import run
from tests.unit.cli.running_replica import AT, POLICY, Replica, heat, replica

__all__ = ["replica"]

COMMANDS = every()
FAILURES = {"hot": "prometheus: no series of this name"}


def listed(replica: Replica, *arguments: str, expected: int = 0) -> Any:
    done = run("metrics", f"--kubeconfig={replica.kubeconfig}", *arguments, "-o", "json")
    assert done.returncode == expected, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def serving(replica: Replica) -> Replica:
    part = Series(
        "power", "custom", AT - 9, {"a": Sample(1, None), "gone": Sample(1, None)}, {"b": "not a number"}
    )
    replica.serve(MetricsSnapshot({"heat": heat(90, 70), "power": part}, FAILURES))
    return replica


def test_metrics_have_nodes_ages_policies_and_causes(serving: Replica) -> None:
    document = listed(serving)
    assert document["inputs"].startswith("Pod/nodewise/nw-1, fetched at most 9s ago")
    rows = {row["metric"]: row for row in document["metrics"]}
    assert rows["heat"] == {
        "metric": "heat",
        "source": "prometheus",
        "nodes": 2,
        "age_s": 2.0,
        "policies": ["placement policy web/cool"],
        "cause": "",
    }
    assert (rows["power"]["nodes"], rows["power"]["age_s"], rows["power"]["policies"]) == (1, 9.0, [])
    assert rows["power"]["cause"] == "1 node has no valid value: b: not a number"
    assert (rows["hot"]["nodes"], rows["hot"]["source"], rows["hot"]["cause"]) == (0, None, FAILURES["hot"])


def test_a_policy_with_two_ages_of_one_metric_is_listed_once(serving: Replica) -> None:
    rules = [{"metric": "heat", "above": 80}, {"metric": "heat", "above": 90, "maxAge": "2m"}]
    serving.api.objects.put(
        RESOURCES["PlacementPolicy"], POLICY | {"spec": {"podSelector": {}, "avoid": rules}}
    )
    rows = {row["metric"]: row for row in listed(serving)["metrics"]}
    assert rows["heat"]["policies"] == ["placement policy web/cool"]


def test_the_table_has_the_same(serving: Replica) -> None:
    done = run("metrics", f"--kubeconfig={serving.kubeconfig}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    expected = ["METRIC", "SOURCE", "NODES", "OLDEST", "USED", "BY", "WHY", "VALUES", "ARE", "MISSING"]
    assert lines[0].split() == expected
    expected = ["heat", "prometheus", "2", "2s"]
    assert next(line for line in lines if line.startswith("heat")).split()[:4] == expected
    assert lines[-1] == "with the metric values of Pod/nodewise/nw-1, fetched at most 9s ago"


def test_one_metric_is_selected(serving: Replica) -> None:
    assert [row["metric"] for row in listed(serving, "heat")["metrics"]] == ["heat"]


def test_an_unknown_name_has_similar_names(serving: Replica) -> None:
    document = listed(serving, "haet", expected=3)
    assert document["similar"] == ["heat"]
    assert [(row["metric"], row["nodes"]) for row in document["metrics"]] == [("haet", 0)]
    table = run("metrics", "haet", f"--kubeconfig={serving.kubeconfig}")
    assert "similar to haet: heat" in table.stdout


def test_without_a_replica_the_metrics_of_policies_are_read_with_the_users_rights(replica: Replica) -> None:
    done = run("metrics", f"--kubeconfig={replica.kubeconfig}", "-o", "json")
    assert done.returncode == 0
    assert "metrics are read with your own rights: no replica of nodewise answers" in done.stderr
    row, *others = json.loads(done.stdout)["metrics"]
    assert {other["nodes"] for other in others} == {None}, (
        "the names of metrics.k8s.io, which nobody requests"
    )
    assert (row["metric"], row["nodes"], row["policies"]) == ("heat", 0, ["placement policy web/cool"])
    assert "the custom metrics API is not installed" in row["cause"]


@pytest.fixture
def admin_port(serving: Replica) -> Iterator[str]:
    """The address of a replica that is no pod."""

    class AdminPort(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metric-values" else 404)
            self.end_headers()
            self.wfile.write(serving.pages[""])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), AdminPort) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("command", ["metrics", "decide"])
def test_a_replica_that_is_no_pod_is_named_by_its_admin_port(
    command: str, serving: Replica, admin_port: str
) -> None:
    if command == "decide":
        done = serving.run(f"--server={admin_port}", "-o", "json")
        assert "settings and metrics are those of this command" not in done.stderr
    else:
        document = listed(serving, f"--server={admin_port}/")
        assert document["inputs"].startswith(f"{admin_port}/, fetched at most 9s ago")
        assert {row["metric"] for row in document["metrics"]} == {"heat", "power", "hot"}


def test_an_admin_port_that_does_not_respond_is_named(serving: Replica) -> None:
    done = run("metrics", f"--kubeconfig={serving.kubeconfig}", "--server=http://127.0.0.1:1")
    assert "with your own rights: the admin port: http://127.0.0.1:1: no answer" in done.stderr
    done = run("metrics", f"--kubeconfig={serving.kubeconfig}", "--server=127.0.0.1:9002")
    assert done.returncode == 2
    assert "--server: '127.0.0.1:9002'; expected a URL such as http://127.0.0.1:9002" in done.stderr


def test_replicas_are_searched_in_each_namespace_that_is_named(serving: Replica) -> None:
    namespaces = ("--nodewise-namespace=elsewhere", "--nodewise-namespace=nodewise")
    assert listed(serving, *namespaces)["inputs"].startswith("Pod/nodewise/nw-1, ")


def test_explain_metrics_decide_and_doctor_find_nodewise_by_the_same_options() -> None:
    declared = []
    for typed in ("explain", "metrics", "decide", "doctor"):
        parameters = {each.opts[0]: each for each in COMMANDS[f"nodewise {typed}"].params}
        options = [parameters["--nodewise-namespace"], parameters["--server"]]
        declared.append(
            [(option.help, option.multiple, option.default, option.metavar) for option in options]
        )
    assert declared == [declared[0]] * 4
    older = next(each for each in COMMANDS["nodewise doctor"].params if "--namespace" in each.opts)
    assert older.hidden
