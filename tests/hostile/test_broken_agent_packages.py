"""Agents of other packages in the real process: a correct agent beside every kind of broken agent."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import filter_responses
from tests.hostile import broken_agent_packages, three_node_cluster_objects
from tests.hostile.extender_process import AttackedExtender

NODEWISE = Path(sys.executable).with_name("nodewise")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages."""
    site = tmp_path_factory.mktemp("site")
    broken_agent_packages.install(
        site, "good", {broken_agent_packages.SCORE: "return Scores(np.full(len(values), 7))"}, "2.1"
    )
    broken_agent_packages.install(
        site,
        "crashing",
        {broken_agent_packages.FILTER: "raise OSError('disk')", broken_agent_packages.SCORE: "1 / 0"},
    )
    broken_agent_packages.install(
        site, "stateless", {broken_agent_packages.SLOT: "raise OSError('disk'); values = np.zeros(0)"}
    )
    broken_agent_packages.install(site, "odd", {broken_agent_packages.SCORE: "return Scores(values)"})
    broken_agent_packages.install(
        site, "unimportable", {broken_agent_packages.KIND: "import nowhere\nKIND: Final = "}
    )
    broken_agent_packages.install(
        site, "leaving", {broken_agent_packages.KIND: "raise SystemExit(3)\nKIND: Final = "}
    )
    broken_agent_packages.install(site, "shapeless", {broken_agent_packages.KIND: "KIND: Final = 7 #"})
    broken_agent_packages.install(site, "meddling", {"meddling_label": "sync_period_s"})
    broken_agent_packages.install(site, "kube", {"kube_label": "kube_qps"})
    return site


def run(site: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "300"}
    command = [NODEWISE, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


BROKEN = {
    "unimportable": "ModuleNotFoundError: No module named 'nowhere'",
    "leaving": "SystemExit: 3",
    "shapeless": "KIND of type int, expected an AgentKind",
    "meddling": "the option 'sync_period_s', expected a name that begins with 'meddling_'",
    "kube": "its option --kube-qps is one of nodewise's own",
}


def test_broken_ones_are_listed_with_the_reason(site: Path) -> None:
    done = run(site, "agents", "list", "-o", "json")
    assert done.returncode == 0
    rows = {row["name"]: row for row in json.loads(done.stdout)["agents"]}
    assert {name: row["broken"] for name, row in rows.items() if row["broken"]} == BROKEN
    assert (rows["good"]["package"], rows["good"]["version"]) == ("nodewise_good", "2.1")
    assert rows["telemetry"]["package"] == "nodewise"
    table = run(site, "agents", "list").stdout
    assert "nodewise_good 2.1" in table
    assert all(f"broken: {why}" in table for why in BROKEN.values())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["extender", "--help"], ["decide", "--help"], ["agents", "show", "good"]]
)
def test_broken_agents_do_not_affect_other_agents(site: Path, arguments: list[str]) -> None:
    assert run(site, *arguments).returncode == 0


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_that_is_asked_for_is_a_bad_setting(site: Path, name: str) -> None:
    done = run(site, "extender", "--agents", f"telemetry,{name}", "--no-cluster", "--unsafe", "--port", "0")
    assert done.returncode == 2
    assert name in done.stderr
    assert BROKEN[name] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def target(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedExtender]:
    folder = tmp_path_factory.mktemp("packages")
    names = "good,crashing,stateless,odd,telemetry"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(site))
        options = [
            "--objects-from",
            three_node_cluster_objects.write(folder),
            "--agents",
            names,
            "--agent-deadline",
            "1s",
        ]
        with AttackedExtender(folder, options) as made:
            yield made
            assert made.process.is_running
            assert not made.events("request_failed")
            assert not made.events("agent_failed")
            assert not made.events("task_failed")


def ask_agents(target: AttackedExtender, verb: str, *agents: str, policy: str | None = None) -> Any:
    """The response for all nodes and a pod that these agents evaluate."""
    labels = {f"{name}/limit": "5" for name in agents} | ({"telemetry-policy": policy} if policy else {})
    pod = {"metadata": {"name": "p", "namespace": "d", "uid": "u", "labels": labels}}
    body = json.dumps({"Pod": pod, "NodeNames": list(three_node_cluster_objects.NODES)}).encode()
    with target.line() as line:
        answer = line.ask(f"/scheduler/{verb}", body)
    assert answer.status == 200
    return json.loads(answer.body)


def rejected_nodes(target: AttackedExtender, *agents: str, policy: str | None = None) -> dict[str, str]:
    return filter_responses.rejected_nodes(ask_agents(target, "filter", *agents, policy=policy))


def all_for(why: str) -> dict[str, str]:
    return dict.fromkeys(three_node_cluster_objects.NODES, f"nodewise: agent {why}")


def test_the_good_and_our_own_decide_whatever_the_others_do(target: AttackedExtender) -> None:
    assert rejected_nodes(target, "good", policy="demo") == {
        three_node_cluster_objects.HOT: three_node_cluster_objects.WHY
    }
    assert [priority["Score"] for priority in ask_agents(target, "prioritize", "good")] == [7, 7, 7]


def failures(target: AttackedExtender, agent: str) -> list[dict[str, Any]]:
    """The logged failures of an agent."""
    return [line for line in target.events("outside_agent_failed") if line["agent"] == agent]


def test_a_crash_rejects_the_pods_that_it_concerns(target: AttackedExtender) -> None:
    assert rejected_nodes(target, "crashing", "good") == all_for("crashing failed: OSError")
    actual = [priority["Score"] for priority in ask_agents(target, "prioritize", "crashing", "good")]
    assert actual == [7, 7, 7]
    assert rejected_nodes(target, "good") == {}


def test_failures_are_counted_and_logged_once_a_minute(target: AttackedExtender) -> None:
    for _ in range(20):
        rejected_nodes(target, "crashing")
    with target.admin() as line:
        text = line.ask("/metrics", b"", "GET", {}).body.decode()
    [count] = re.findall(r'nodewise_agent_failures_total{agent="crashing",kind="exception"} (\S+)', text)
    assert float(count) >= 20
    logged = target.until("it is logged", lambda: failures(target, "crashing"))
    assert [line["failure"] for line in logged] == ["exception"]


def test_an_agent_whose_state_fails_rejects_its_own_pods_only(target: AttackedExtender) -> None:
    assert rejected_nodes(target, "stateless") == all_for("stateless failed: OSError")
    assert rejected_nodes(target, "good", policy="demo") == {
        three_node_cluster_objects.HOT: three_node_cluster_objects.WHY
    }


def test_the_option_that_has_no_effect_is_accepted_with_a_warning(target: AttackedExtender) -> None:
    [event] = target.until("it is logged", lambda: target.events("option_deprecated"))
    assert event["option"] == "--agent-deadline"


def test_scores_that_are_none_are_left_out(target: AttackedExtender) -> None:
    assert [priority["Score"] for priority in ask_agents(target, "prioritize", "odd", "good")] == [7, 7, 7]
    [event] = target.until("it is logged", lambda: failures(target, "odd"))
    assert event["why"] == "scores of type float64, expected whole numbers"
    assert (event["package"], event["version"]) == ("nodewise_odd", "1.0")


def test_decisions_name_the_failed_agent(target: AttackedExtender) -> None:
    rejected_nodes(target, "crashing")
    ask_agents(target, "prioritize", "odd")
    with target.line() as line:
        text = line.ask("/decisions", b"", "GET", {}).body.decode()
    assert "nodewise: agent crashing failed: OSError" in text
    assert "no scores of odd: scores of type float64, expected whole numbers" in text


def test_without_a_cluster_each_request_is_answered(site: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(site))
        options = ["--no-cluster", "--agents", "good,stateless,crashing"]
        with AttackedExtender(tmp_path, options) as alone:
            for _ in range(20):
                assert whole(alone, "stateless") == all_for("stateless failed: OSError")
                assert whole(alone, "good") == {}
            assert whole(alone, "crashing") == all_for("crashing failed: OSError")
            assert not alone.events("request_failed")


def whole(target: AttackedExtender, agent: str) -> dict[str, str]:
    """The nodes that an agent rejects in a call with whole nodes, with the reasons."""
    pod = {"metadata": {"name": "p", "namespace": "d", "uid": "u", "labels": {f"{agent}/limit": "5"}}}
    nodes = {"items": [{"metadata": {"name": name}} for name in three_node_cluster_objects.NODES]}
    with target.line() as line:
        answer = line.ask("/scheduler/filter", json.dumps({"Pod": pod, "Nodes": nodes}).encode())
    assert answer.status == 200
    return filter_responses.rejected_nodes(json.loads(answer.body))


def test_decide_asks_it_by_name(site: Path, tmp_path: Path) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"crashing/limit": "1"}}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [node, pod]}
    (tmp_path / "objects.json").write_text(json.dumps(listed))
    done = run(site, "decide", str(tmp_path), "--agents", "good,crashing")
    assert done.returncode == 3
    assert "agent crashing failed: OSError" in done.stdout
    assert run(site, "decide", str(tmp_path), "--agents", "good").returncode == 0
