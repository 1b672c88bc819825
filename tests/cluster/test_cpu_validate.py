"""`nodewise cpu validate` on a real API server, on correctly and incorrectly set up nodes."""

import json
from pathlib import Path
from typing import Any

import pytest

from nodewise_cpu import cmk_names
from nodewise_cpu.cmk_names import EXCLUSIVE_CORES
from nodewise_cpu.pool_allocations import Task
from tests.cluster import kubernetes_objects, test_cpu_webhook
from tests.cluster.api_client import Object
from tests.cluster.cpu_node_commands import CpuNode
from tests.cluster.namespace_sandboxes import Sandbox


@pytest.fixture
def node(sandbox: Sandbox, tmp_path: Path) -> CpuNode:
    return CpuNode(sandbox, tmp_path)


@pytest.fixture
def prepared(node: CpuNode) -> CpuNode:
    """A correctly prepared node, except that the webhook is missing."""
    node.init()
    node.run("discover")
    gives = node.now()["status"]["capacity"][EXCLUSIVE_CORES]
    node.sandbox.api.patch(f"{node.path}/status", {"status": {"allocatable": {EXCLUSIVE_CORES: gives}}})
    node.run("node-report", "--publish", "--sysfs", node.folder)
    agent(node)
    return node


def agent(node: CpuNode) -> Object:
    """Creates a ready pod with the arguments of the node agent."""
    pod = kubernetes_objects.running_on(node.name, kubernetes_objects.pod("agent"))
    pod["spec"]["containers"][0]["args"] = ["nodewise cpu agent"]
    made = node.sandbox.put(pod)
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    path = f"/api/v1/namespaces/{node.sandbox.namespace}/pods/agent/status"
    node.sandbox.api.patch(path, {"status": status})
    return made


def checks(node: CpuNode, *options: object, code: int = 0) -> dict[str, dict[str, Any]]:
    child = node.start_of("validate", node.name, *options, "-o", "json")
    out, err = child.communicate(timeout=120)
    assert child.returncode == code, err + out
    report = json.loads(out)
    assert (report["node"], report["ok"]) == (node.name, code == 0)
    return {check["name"]: check for check in report["checks"]}


def wrong(checks_by_name: dict[str, dict[str, Any]]) -> set[str]:
    assert all(check["remedy"] for check in checks_by_name.values() if check["ok"] is False)
    return {name for name, check in checks_by_name.items() if check["ok"] is False}


def test_a_node_as_it_should_be(prepared: CpuNode) -> None:
    results = checks(prepared)
    assert wrong(results) == set()
    assert {name for name, check in results.items() if check["ok"] is None} == {"webhook", "program"}
    assert results[EXCLUSIVE_CORES]["seen"] == "capacity 2, allocatable 2; the pool has 2"


def test_unprepared_node(node: CpuNode) -> None:
    results = checks(node, code=3)
    assert wrong(results) == {"label", "taint", "pools", "agent", "cmk-nodereport"}
    assert f"discover --node-name {node.name}" in results["label"]["remedy"]
    assert "cluster-init" in results["pools"]["remedy"]


def test_a_node_that_is_none(node: CpuNode) -> None:
    node.name = "no-such-node"
    assert wrong(checks(node, code=3)) == {"node"}


def test_resources_removed_by_a_kubelet(prepared: CpuNode) -> None:
    zero = {"capacity": {EXCLUSIVE_CORES: "0"}, "allocatable": {EXCLUSIVE_CORES: "0"}}
    prepared.sandbox.api.patch(f"{prepared.path}/status", {"status": zero})
    assert wrong(checks(prepared, code=3)) == {EXCLUSIVE_CORES}


def test_unexpected_taint(prepared: CpuNode) -> None:
    prepared.sandbox.api.patch(prepared.path, {"spec": {"taints": None}})
    assert wrong(checks(prepared, code=3)) == {"taint"}
    assert wrong(checks(prepared, "--no-taint")) == set()


def test_tasks_of_pods_that_are_gone(prepared: CpuNode) -> None:
    tasks = [Task(7, 5, "b", "no-such-pod", "c")]
    prepared.store(prepared.stored().with_tasks(lambda pool, _: tasks if pool.is_exclusive else []))
    results = checks(prepared, code=3)
    assert wrong(results) == {"tasks"}
    assert "processes 7 hold cores" in results["tasks"]["seen"]


def test_tasks_of_pods_that_run(prepared: CpuNode) -> None:
    pod = prepared.sandbox.api.get(f"/api/v1/namespaces/{prepared.sandbox.namespace}/pods/agent")
    tasks = [Task(7, 5, "b", pod["metadata"]["uid"], "c")]
    prepared.store(prepared.stored().with_tasks(lambda pool, _: tasks if pool.name == "infra" else []))
    assert checks(prepared)["tasks"]["seen"] == "1 running"


def test_a_corrupt_state(prepared: CpuNode) -> None:
    prepared.sandbox.api.patch(prepared.config_map, {"data": {"config": "foo: {}"}})
    results = checks(prepared, code=3)
    assert wrong(results) == {"pools"}
    assert "pool 'foo'" in results["pools"]["seen"]


def test_a_report_of_other_pools(prepared: CpuNode) -> None:
    prepared.sandbox.api.delete(prepared.config_map)
    prepared.init(3)
    assert wrong(checks(prepared, code=3)) == {EXCLUSIVE_CORES, "cmk-nodereport"}


def test_a_webhook_that_works(prepared: CpuNode, tmp_path: Path) -> None:
    space = prepared.sandbox.namespace
    with test_cpu_webhook.running(prepared.sandbox, tmp_path, "--insecure=True") as running:
        assert checks(prepared, "--pod-namespace", space)["webhook"]["ok"] is True
        assert prepared.sandbox.api.get(f"/api/v1/namespaces/{space}/pods")["items"][1:] == []
        running.process.stop()
        results = checks(prepared, "--pod-namespace", space, code=3)
        assert wrong(results) == {"webhook"}
        assert "logs" in results["webhook"]["remedy"]


def test_a_webhook_that_does_not_see_the_pod(prepared: CpuNode, tmp_path: Path) -> None:
    with test_cpu_webhook.running(prepared.sandbox, tmp_path, "--insecure=True"):
        results = checks(prepared, code=3)
    assert wrong(results) == {"webhook"}
    assert cmk_names.INJECTED in results["webhook"]["seen"]


def test_a_table_for_people(prepared: CpuNode) -> None:
    child = prepared.start_of("validate", prepared.name, "-o", "table")
    lines = child.communicate(timeout=120)[0].splitlines()
    assert lines[1].split()[:2] == ["label", "ok"]
