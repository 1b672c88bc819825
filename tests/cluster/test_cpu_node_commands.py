"""The CPU manager's commands for one node on a real API server: pools, reconciliation and reports."""

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nodewise.base.errors import Conflict
from nodewise_cpu import cmk_names
from nodewise_cpu.cluster import api_server, exclusive_core_advertisement, report_custom_resources
from nodewise_cpu.cluster.report_custom_resources import KINDS, NODE_REPORT, RECONCILE_REPORT
from nodewise_cpu.cmk_names import EXCLUSIVE_CORES, NON_ISOLCPUS_CORES
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.topology import CPUS
from tests.cluster import child_processes
from tests.cluster.api_user_kubeconfigs import User, rule
from tests.cluster.controlplane import ControlPlane
from tests.cluster.cpu_node_commands import GONE, CpuNode, requests
from tests.cluster.namespace_sandboxes import Sandbox, wait

CRDS = Path(__file__).parents[2] / "deploy" / "crds" / "cmk-reports.yaml"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FOREIGN = {"key": "other", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}


@pytest.fixture
def node(sandbox: Sandbox, tmp_path: Path) -> CpuNode:
    return CpuNode(sandbox, tmp_path)


@pytest.fixture
def without_definitions(plane: ControlPlane) -> Iterator[None]:
    def clear() -> None:
        for kind in KINDS:
            path = f"{DEFINITIONS}/{kind.resource.plural}.intel.com"
            plane.api.delete(path)
            wait(
                f"{kind.name} is no longer defined",
                lambda path=path: True if plane.api.find(path) is None else None,
            )

    clear()
    yield
    clear()


def pids(pools: Mapping[str, Any]) -> list[str]:
    return [
        pid for pool in pools.values() for cpu_list in pool["cpuLists"].values() for pid in cpu_list["tasks"]
    ]


class TestPools:
    def test_are_made_once(self, node: CpuNode) -> None:
        assert node.init().returncode == 0
        made = node.sandbox.api.get(node.config_map)
        assert node.init().returncode == 0
        assert node.sandbox.api.get(node.config_map) == made
        other = node.init(3)
        assert other.returncode == 1
        assert "pool exclusive: 2 CPU lists (0,8 1,9); expected 3 CPU lists" in other.stderr
        assert node.sandbox.api.get(node.config_map) == made
        pools = node.answered("describe")["pools"]
        assert list(pools["exclusive"]["cpuLists"]) == ["0,8", "1,9"]

    def test_concurrent_creations_agree(self, node: CpuNode) -> None:
        children = [node.start("init", "--sysfs", node.folder, "--num-exclusive-cores", 2) for _ in range(3)]
        for child in children:
            with child:
                _, err = child.communicate(timeout=120)
            assert child.returncode == 0, err
        assert len(list(node.stored().pools["exclusive"].cpu_lists)) == 2

    def test_label_enables_classes_of_core_power(self, node: CpuNode) -> None:
        """Case 85, with the label that Node Feature Discovery writes."""
        for cpu in range(16):
            folder = node.folder / CPUS / f"cpu{cpu}" / "cpufreq"
            folder.mkdir(parents=True)
            word = {1: "performance", 2: "performance", 3: "balance_performance", 4: "balance_performance"}
            (folder / "energy_performance_preference").write_text(word.get(cpu % 8, "power") + "\n")
        (node.folder / CPUS / "isolated").write_text("1-4,9-12\n")
        node.sandbox.api.patch(node.path, {"metadata": {"labels": {cmk_names.SST_CP: "true"}}})
        done = node.init(2, "--num-shared-cores", 2)
        assert done.returncode == 0, done.stderr
        assert "performance, balance_performance, power" in done.stderr
        lists = {
            pool.name: [cpu_list.text for cpu_list in pool.cpu_lists] for pool in node.stored().pools.values()
        }
        assert lists["exclusive"] == ["1,9", "2,10"]
        assert lists["shared"] == ["3,11,4,12"]
        without_label = CpuNode(node.sandbox, node.folder)
        assert without_label.init(3, "--num-shared-cores", 1).returncode == 0
        lists = {
            pool.name: [cpu_list.text for cpu_list in pool.cpu_lists]
            for pool in without_label.stored().pools.values()
        }
        assert lists["exclusive"] == ["1,9", "2,10", "3,11"]

    def test_impossible_ones_are_not_begun(self, node: CpuNode) -> None:
        done = node.init(40)
        assert done.returncode == 1
        assert "pool exclusive: 8 cores available; expected 40 requested" in done.stderr
        assert node.sandbox.api.find(node.config_map) is None

    def test_table_shows_the_tasks_of_each_list(self, node: CpuNode) -> None:
        node.init()
        node.store(
            node.stored().with_tasks(
                lambda pool, _: [Task(7, 5, "b", "pod-1", "c1")] if pool.is_exclusive else []
            )
        )
        lines = node.run("describe", "-o", "table").stdout.splitlines()
        assert lines[0].split() == ["POOL", "SOCKET", "CPUS", "TASK", "POD", "CONTAINER"]
        assert lines[1].split() == ["exclusive", "0", "0,8", "7", "pod-1", "c1"]

    @pytest.mark.parametrize("command", ["init", "describe", "discover", "reconcile", "node-report"])
    def test_a_corrupt_state_is_named_and_left(self, command: str, node: CpuNode) -> None:
        node.init()
        broken = "exclusive: {0: {'0,8': [x]}}\nfoo: {}\n"
        node.sandbox.api.patch(node.config_map, {"data": {"config": broken}})
        before = node.sandbox.api.get(node.config_map)
        done = node.init() if command == "init" else node.run(command)
        output = done.stdout if command == "node-report" else done.stderr
        assert done.returncode == (command != "node-report")
        assert "pool 'foo'" in output
        assert "config.exclusive.0.0,8" in output
        assert "Traceback" not in done.stderr
        assert node.sandbox.api.get(node.config_map) == before

    @pytest.mark.parametrize("command", ["init", "describe", "discover", "reconcile"])
    def test_rights_that_lack_are_named(self, command: str, node: CpuNode, nobody: User) -> None:
        node.init()
        arguments: Sequence[object] = ["--sysfs", node.folder] if command == "init" else []
        done = node.run(command, *arguments, user=nobody)
        assert done.returncode == 1
        assert "grant this right" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.fixture
def nobody(plane: ControlPlane) -> User:
    return plane.user(f"nobody-{child_processes.number()}")


class TestDiscover:
    def test_node_advertises_its_resources(self, node: CpuNode) -> None:
        node.sandbox.api.patch(node.path, {"spec": {"taints": [FOREIGN]}})
        node.init()
        assert node.run("discover").returncode == 0
        now = node.now()
        assert now["status"]["capacity"][EXCLUSIVE_CORES] == "2"
        assert NON_ISOLCPUS_CORES not in now["status"]["capacity"]
        assert now["metadata"]["labels"][cmk_names.LABEL] == "true"
        assert now["spec"]["taints"] == [FOREIGN, exclusive_core_advertisement.OURS]
        again = node.run("discover")
        assert node.now() == now
        assert "cpu_advertised" in again.stderr

    def test_a_taint_that_is_ours_in_part_is_mended(self, node: CpuNode) -> None:
        wrong = {"key": cmk_names.TAINT, "value": "false", "effect": "NoSchedule"}
        node.sandbox.api.patch(node.path, {"spec": {"taints": [wrong, FOREIGN]}})
        node.init()
        node.run("discover", "--no-taint")
        assert node.now()["spec"]["taints"] == [wrong, FOREIGN]
        node.run("discover")
        assert node.now()["spec"]["taints"] == [FOREIGN, exclusive_core_advertisement.OURS]

    def test_resources_removed_by_a_kubelet_are_advertised_again(self, node: CpuNode) -> None:
        node.init()
        node.run("discover")
        zero = {"capacity": {EXCLUSIVE_CORES: "0"}, "allocatable": {EXCLUSIVE_CORES: "0"}}
        node.sandbox.api.patch(f"{node.path}/status", {"status": zero})
        node.run("discover")
        assert node.now()["status"]["capacity"][EXCLUSIVE_CORES] == "2"

    def test_a_pool_that_is_gone_is_no_longer_said(self, node: CpuNode, plane: ControlPlane) -> None:
        with requests(plane.admin) as client:
            for counts in ({EXCLUSIVE_CORES: 1, NON_ISOLCPUS_CORES: 3}, {EXCLUSIVE_CORES: 0}):
                assert exclusive_core_advertisement.advertise(client, node.name, counts, taint=False)
                assert not exclusive_core_advertisement.advertise(client, node.name, counts, taint=False)
                capacity = node.now()["status"]["capacity"]
                assert {name: int(capacity[name]) for name in capacity if "cmk" in name} == counts

    def test_all_of_it_can_be_taken_back(self, node: CpuNode, plane: ControlPlane) -> None:
        node.sandbox.api.patch(node.path, {"spec": {"taints": [FOREIGN]}})
        before = node.now()
        with requests(plane.admin) as client:
            exclusive_core_advertisement.advertise(
                client, node.name, {EXCLUSIVE_CORES: 1, NON_ISOLCPUS_CORES: 3}, taint=True
            )
            assert exclusive_core_advertisement.withdraw_node_resources(client, node.name)
            assert not exclusive_core_advertisement.withdraw_node_resources(client, node.name)
        after = node.now()
        for part in ("spec", "status"):
            assert after[part] == before[part]
        assert after["metadata"]["labels"] == before["metadata"]["labels"]

    def test_taints_that_others_write_meanwhile_stay(self, node: CpuNode, plane: ControlPlane) -> None:
        """Another controller adds taints while nodewise repeatedly adds and removes its own."""
        theirs = [{"key": f"t{number}", "effect": "NoSchedule"} for number in range(15)]

        def add() -> None:
            with requests(plane.admin) as client:
                for taint in theirs:
                    while True:
                        now = client.get(node.path)
                        version = {"resourceVersion": now["metadata"]["resourceVersion"]}
                        taints = [*(now["spec"].get("taints") or []), taint]
                        try:
                            client.patch(
                                node.path, {"metadata": version, "spec": {"taints": taints}}, "merge"
                            )
                        except Conflict:
                            continue
                        break

        other = threading.Thread(target=add)
        other.start()
        with requests(plane.admin) as client:
            while other.is_alive():
                exclusive_core_advertisement.advertise(client, node.name, {EXCLUSIVE_CORES: 1}, taint=True)
                exclusive_core_advertisement.withdraw_node_resources(client, node.name)
            other.join()
            exclusive_core_advertisement.advertise(client, node.name, {EXCLUSIVE_CORES: 1}, taint=True)
        taints = node.now()["spec"]["taints"]
        assert sorted(taint["key"] for taint in taints) == sorted(
            [cmk_names.TAINT, *(taint["key"] for taint in theirs)]
        )


class TestReconcile:
    def test_concurrent_collections_release_ended_tasks_only(self, node: CpuNode) -> None:
        node.init(4)
        me = os.getpid()
        tasks = {
            "0,8": Task(GONE),
            "1,9": Task(me),
            "2,10": Task(GONE - 1),
            "3,11": Task(GONE - 2, 5, "no such boot"),
        }
        node.store(
            node.stored().with_tasks(
                lambda _, cpu_list: [tasks[cpu_list.text]] if cpu_list.text in tasks else []
            )
        )
        children = [node.start("reconcile", "--proc-fs", "/proc") for _ in range(3)]
        freed = []
        for child in children:
            with child:
                out, err = child.communicate(timeout=120)
            assert child.returncode == 0, err
            freed += [cpu_list["cpus"] for cpu_list in json.loads(out)["reclaimedCpuLists"]]
        assert sorted(freed) == ["0,8", "2,10", "3,11"]
        assert pids(node.answered("describe")["pools"]) == [str(me)]
        (mine,) = [cpu_list.tasks[0] for _, cpu_list in node.stored().cpu_lists if cpu_list.tasks]
        assert mine.start is not None

    def test_no_write_without_ended_tasks(self, node: CpuNode) -> None:
        node.init()
        before = node.sandbox.api.get(node.config_map)
        assert node.answered("reconcile", "--proc-fs", "/proc") == {"reclaimedCpuLists": []}
        assert node.sandbox.api.get(node.config_map) == before

    def test_rounds_go_on_after_one_that_failed(self, node: CpuNode) -> None:
        """`reconcile` reclaims tasks in later rounds too."""
        node.init()
        with node.start("reconcile", "--proc-fs", "/proc", "--interval", 1) as child:
            try:
                assert child.stdout is not None
                first = [child.stdout.readline() for _ in range(3)]
                node.store(
                    node.stored().with_tasks(lambda pool, _: [Task(GONE)] if pool.is_exclusive else [])
                )
                wait(
                    "the tasks are gone",
                    lambda: True if not pids(node.answered("describe")["pools"]) else None,
                )
            finally:
                child.terminate()
        assert json.loads("".join(first)) == {"reclaimedCpuLists": []}


class TestReports:
    def test_kinds_that_are_missing_are_defined(self, node: CpuNode, without_definitions: None) -> None:
        node.init()
        report = node.answered("node-report", "--publish", "--sysfs", node.folder)
        reconcile_report = node.answered("reconcile", "--publish", "--proc-fs", "/proc")
        namespace = node.sandbox.namespace
        objects_by_kind = {
            kind.name: node.sandbox.api.get(kind.resource.path(namespace, node.name)) for kind in KINDS
        }
        assert objects_by_kind[NODE_REPORT.name]["spec"]["report"] == report
        assert objects_by_kind[RECONCILE_REPORT.name]["spec"]["report"] == reconcile_report
        shown = node.sandbox.plane.kubectl("get", "cmk-nr", node.name, "-n", namespace)
        assert shown.split()[-3:-1] == [node.name, "true"]
        for kind in KINDS:
            path = f"{DEFINITIONS}/{kind.resource.plural}.intel.com"
            conditions = {
                condition["type"]: condition["status"]
                for condition in node.sandbox.api.get(path)["status"]["conditions"]
            }
            assert conditions.get("NonStructuralSchema", "False") == "False"
            assert conditions["Established"] == "True"

    def test_a_node_without_pools_is_reported_too(self, node: CpuNode, without_definitions: None) -> None:
        report = node.answered("node-report", "--publish", "--sysfs", node.folder)
        report_object = node.sandbox.api.get(NODE_REPORT.resource.path(node.sandbox.namespace, node.name))
        assert report_object["spec"]["report"] == report
        assert report_object["spec"]["report"]["description"] is None

    def test_the_definitions_may_be_applied_before(self, node: CpuNode, without_definitions: None) -> None:
        plane = node.sandbox.plane
        plane.kubectl("apply", "-f", str(CRDS))
        writer = plane.user(
            f"reporter-{child_processes.number()}",
            [
                rule("get create update", "cmk-nodereports", "intel.com"),
                rule("get", "configmaps nodes"),
            ],
        )
        node.init()
        plane.kubectl("wait", "--for=condition=established", "-f", str(CRDS))
        done = node.run("node-report", "--publish", "--sysfs", node.folder, user=writer)
        assert (done.returncode, "cpu_report" in done.stderr) == (0, False), done.stderr
        assert node.sandbox.api.get(NODE_REPORT.resource.path(node.sandbox.namespace, node.name))

    def test_missing_right_to_define_report_kinds_is_reported(
        self, node: CpuNode, without_definitions: None
    ) -> None:
        plane = node.sandbox.plane
        reader = plane.user(
            f"reporter-{child_processes.number()}",
            [rule("get create update", "cmk-nodereports", "intel.com"), rule("get", "configmaps nodes")],
        )
        node.init()
        done = node.run("node-report", "--publish", "--sysfs", node.folder, user=reader)
        assert done.returncode == 0
        assert "cpu_report_undefined" in done.stderr
        assert "cpu_report_skipped" in done.stderr

    def test_invalid_report_is_refused(self, node: CpuNode, without_definitions: None) -> None:
        plane = node.sandbox.plane
        with requests(plane.admin) as client:
            dialect = api_server.TABLE[-1]
            assert report_custom_resources.create_report_crd(client, NODE_REPORT, dialect)
            with pytest.raises(Exception, match=r"spec.report.checks"):
                report_custom_resources.publish(
                    client, NODE_REPORT, node.name, node.sandbox.namespace, {"checks": 5, "topology": {}}
                )
