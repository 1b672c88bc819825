"""The numbered cases of CMK about commands on a node, with real processes."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from tests.cluster import skip_conditions

from cpu_tests.conformance import case_cpu_topologies, case_table_rows
from cpu_tests.conformance.case_table_rows import ContainerRow, DiscoverRow, InitRow, SweepRow, VersionRow
from cpu_tests.conformance.minimal_api_server import MinimalApiServer, RequestRefusal
from cpu_tests.conformance.node_commands import (
    BOOT,
    CONFIG_MAP,
    NODEWISE,
    allocations_of,
    cluster,
    directory_of,
    json_output,
    processes,
    run,
    write,
)
from nodewise.base.errors import BadInput
from nodewise.kube.resource_kinds import NODES
from nodewise_cpu import cmk_names, configmap_store, pool_allocations, procfs
from nodewise_cpu.allocation_store import Intent
from nodewise_cpu.cluster import api_server
from nodewise_cpu.configmap_store import ConfigMapTexts
from nodewise_cpu.directory_store import DirectoryStore
from nodewise_cpu.pool_allocations import Allocations, Task


@pytest.mark.parametrize(
    "row", case_table_rows.read("versions", VersionRow), ids=lambda row: f"{row.id} {row.text}"
)
def test_versions(row: VersionRow) -> None:
    if row.error:
        with pytest.raises(BadInput) as caught:
            api_server.parse_kubernetes_version(row.text)
        assert [part for part in row.error if part not in str(caught.value)] == []
        return
    version = api_server.parse_kubernetes_version(row.text)
    assert not row.same or version == api_server.parse_kubernetes_version(row.same)
    assert not row.older or version > api_server.parse_kubernetes_version(row.older)


@pytest.mark.parametrize("row", case_table_rows.read("init", InitRow), ids=lambda row: row.id)
def test_a_node_that_has_pools(row: InitRow, tmp_path: Path) -> None:
    machine = write(case_cpu_topologies.texts("T8"), tmp_path / "machine")
    options = ["--sysfs", machine, "--num-exclusive-cores", row.asked[0], "--num-shared-cores", row.asked[1]]
    first = _planned(row.before, machine).with_tasks(
        lambda _, cpu_list: [Task(row.held[cpu_list.text], 5, BOOT)] if cpu_list.text in row.held else []
    )
    with cluster("v1.36.3", tmp_path) as (server, leading):
        if row.place == "configmap":
            texts = configmap_store.format_config_map_data(first)
            about = {
                "name": "cmk-config-n1",
                "annotations": {"Owner": "", pool_allocations.IDENTITIES: texts.identities},
            }
            server.put(CONFIG_MAP, {"metadata": about, "data": {"config": texts.config}})
            options += leading
        else:
            options += ["--conf-dir", directory_of(first, tmp_path / "conf")]
        done = run("init", *options)
        description = json_output("describe", *(options[6:]))
        assert row.place != "configmap" or _stored(server) == first
        assert not server.requests
    assert done.returncode == bool(row.error), done.stderr
    assert [part for part in row.error if part not in done.stderr] == []
    assert description["pools"] == pool_allocations.as_describe_output(first)["pools"]


def _planned(cores: Sequence[int], machine: Path) -> Allocations:
    sizes = ("--num-exclusive-cores", cores[0], "--num-shared-cores", cores[1])
    plan = json_output("plan", "--sysfs", machine, *sizes, "-o", "json")
    return pool_allocations.allocations_without_tasks(
        {name: {int(at): texts for at, texts in sockets.items()} for name, sockets in plan["pools"].items()}
    )


def _stored(server: MinimalApiServer) -> Allocations:
    config_map = server.objects[CONFIG_MAP]
    return configmap_store.parse_config_map_data(
        ConfigMapTexts(
            config_map["data"]["config"], config_map["metadata"]["annotations"][pool_allocations.IDENTITIES]
        )
    )


@pytest.mark.parametrize(
    "row", case_table_rows.read("discover", DiscoverRow), ids=lambda row: f"{row.id}-{row.version}"
)
def test_a_node_advertises_its_cores(row: DiscoverRow, tmp_path: Path) -> None:
    conf = directory_of(allocations_of(row.pools), tmp_path / "conf")
    is_old = api_server.parse_kubernetes_version(row.version) < (1, 7)
    with cluster(row.version, tmp_path) as (server, leading):
        node = server.objects[NODES.path(name="n1")]
        if row.taints:
            node["metadata"]["annotations"] = {_TAINTS: json.dumps(row.taints)} if is_old else {}
        if row.answers:
            server.refusals.append(RequestRefusal("PATCH", "/status", row.answers, "the disk is full"))
        done = run("discover", "--conf-dir", conf, *leading, *row.options)
        node = server.objects[NODES.path(name="n1")]
        patched = [request.path.removeprefix("/api/v1/") for request in server.requests]
    assert done.returncode == bool(row.error), done.stderr
    assert [part for part in row.error if part not in done.stderr] == []
    assert patched == row.patches
    assert node.get("status", {}).get("capacity", {}) == row.capacity
    written = json.loads(node["metadata"].get("annotations", {}).get(_TAINTS, "null"))
    assert (written if is_old else node["spec"].get("taints")) == row.tainted
    label = None if row.error else "true"
    assert node["metadata"].get("labels", {}).get(cmk_names.LABEL) == label


_TAINTS = "scheduler.alpha.kubernetes.io/taints"


@pytest.mark.parametrize("row", case_table_rows.read("reconcile", SweepRow), ids=lambda row: row.id)
def test_reconcile(row: SweepRow, tmp_path: Path) -> None:
    allocations = configmap_store.parse_config_map_data(
        ConfigMapTexts(yaml.safe_dump({name: {0: at} for name, at in row.state.items()}))
    )
    conf = directory_of(allocations, tmp_path / "conf")
    proc = processes({pid: row.allowed.get(pid, "0-63") for pid in row.alive}, tmp_path / "proc")
    report = json_output("reconcile", "--conf-dir", conf, "--proc-fs", proc)
    reclaimed = report["reclaimedCpuLists"]
    assert [
        f"{cpu_list['pid']} {cpu_list['cpus']} {cpu_list['pool']}" for cpu_list in reclaimed
    ] == row.reclaims
    elsewhere = [f"{mismatch['pid']} {mismatch['cpus']}" for mismatch in report.get("mismatchedCpuMasks", [])]
    assert not row.allowed or elsewhere == [line.rpartition(" ")[0] for line in row.elsewhere]
    pools = json_output("describe", "--conf-dir", conf)["pools"].values()
    left = {pid for pool in pools for cpu_list in pool["cpuLists"].values() for pid in cpu_list["tasks"]}
    assert left == {str(pid) for pid in row.alive}


def test_a_report_of_nothing(tmp_path: Path) -> None:
    """Case 136, to the byte."""
    conf = directory_of(allocations_of({"exclusive": {0: "0"}}), tmp_path / "conf")
    proc = processes({}, tmp_path / "proc")
    done = run("reconcile", "--conf-dir", conf, environment={"CMK_PROC_FS": str(proc)})
    assert done.stdout == '{\n  "reclaimedCpuLists": []\n}\n'


@pytest.mark.root
def test_abandoned_reconfiguration_is_rolled_back(tmp_path: Path) -> None:
    store = DirectoryStore(directory_of(allocations_of({"exclusive": {0: "0"}}), tmp_path / "conf"))
    target = allocations_of({"exclusive": {0: "0 1"}})
    by = Task(99_999_999, 5, procfs.read_boot_id(Path("/proc")))
    store.replace(store.read().version, store.read().allocations, Intent(target, by, "2026-01-01T00:00:00Z"))
    assert json_output("describe", "--conf-dir", tmp_path / "conf")["reconfiguring"]["by"]["pid"] == by.pid
    done = run("reconcile", "--conf-dir", tmp_path / "conf", "--proc-fs", "/proc")
    assert "cpu_intent_recovered" in done.stderr
    stored = store.read()
    assert (stored.intent, stored.allocations) == (None, allocations_of({"exclusive": {0: "0"}}))


@pytest.mark.parametrize("row", case_table_rows.read("container", ContainerRow), ids=lambda row: row.id)
def test_container_names_the_mount_of_the_hosts_processes(row: ContainerRow, tmp_path: Path) -> None:
    unshare = shutil.which("unshare") or skip_conditions.not_run(
        "there is no program unshare: install util-linux"
    )
    inside = [unshare, "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        skip_conditions.not_run("this machine lets nobody have a PID namespace: run as root")
    allocations = allocations_of({"exclusive": {0: "0"}}).with_tasks(lambda *_: [Task(99_999_999)])
    conf = directory_of(allocations, tmp_path / "conf")
    done = run(row.command, "--conf-dir", conf, before=inside)
    assert done.returncode == row.code
    assert [part for part in row.error if part not in done.stderr] == []
    description = json_output("describe", "--conf-dir", conf)
    assert description["pools"]["exclusive"]["cpuLists"]["0"]["tasks"] == ["99999999"]


def test_rounds_end_at_sigterm(tmp_path: Path) -> None:
    conf = directory_of(allocations_of({"exclusive": {0: "0"}}), tmp_path / "conf")
    proc = processes({}, tmp_path / "proc")
    command = [NODEWISE, "cpu", "reconcile", "--conf-dir", conf, "--proc-fs", proc, "--interval", "3600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert any("cpu_waiting" in line for line in child.stderr)
        child.terminate()
        assert child.wait(60) == 0


def test_people_get_a_table_and_programs_json(tmp_path: Path) -> None:
    conf = directory_of(allocations_of({"exclusive": {0: "1,9"}, "infra": {1: "0,8"}}), tmp_path / "conf")
    reading, terminal = os.openpty()
    subprocess.run(
        [NODEWISE, "cpu", "describe", "--conf-dir", conf], stdout=terminal, timeout=120, check=True
    )
    os.close(terminal)
    shown = os.read(reading, 10_000).decode().splitlines()
    os.close(reading)
    assert [line.split() for line in shown] == [
        ["POOL", "SOCKET", "CPUS", "TASK"],
        ["exclusive", "0", "1,9", "-"],
        ["infra", "1", "0,8", "-"],
    ]
    assert json_output("describe", "--conf-dir", conf)["path"] == str(conf)


def test_the_same_machine_gets_the_same_pools_to_the_letter(tmp_path: Path) -> None:
    """The result does not depend on the order of Python's sets."""
    isolated = write(case_cpu_topologies.texts("D24", "0-4,24-28,12-16,36-40"), tmp_path / "machine")
    options = ["--num-exclusive-cores", 8, "--num-shared-cores", 1, "--exclusive-mode", "spread"]
    made = []
    for seed in ("1", "2", "3"):
        conf = tmp_path / seed
        done = run(
            "init", "--sysfs", isolated, "--conf-dir", conf, *options, environment={"PYTHONHASHSEED": seed}
        )
        assert done.returncode == 0, done.stderr
        files = [path for path in conf.rglob("*") if path.is_file()]
        made.append({str(path.relative_to(conf)): path.read_bytes() for path in files})
    assert made[0] == made[1] == made[2]
    assert any(path.endswith("/tasks") for path in made[0])


class TestFullDisk:
    """A limit of the size of files simulates a full disk."""

    FULL = (shutil.which("prlimit") or "prlimit", "--fsize=0")

    def test_a_full_disk_leaves_no_partial_pools(self, tmp_path: Path) -> None:
        machine = write(case_cpu_topologies.texts("T8"), tmp_path / "m")
        options = ["--conf-dir", tmp_path / "conf", "--sysfs", machine]
        done = run("init", *options, before=self.FULL)
        assert done.returncode == 1
        assert "File too large" in done.stderr
        assert "Traceback" not in done.stderr
        assert run("describe", *options[:2]).returncode == 1
        assert run("init", *options).returncode == 0

    def test_a_full_disk_frees_no_cpu_list(self, tmp_path: Path) -> None:
        allocations = allocations_of({"exclusive": {0: "0"}}).with_tasks(lambda *_: [Task(99_999_999)])
        conf = directory_of(allocations, tmp_path / "conf")
        options = ["--conf-dir", conf, "--proc-fs", processes({}, tmp_path / "proc")]
        done = run("reconcile", *options, before=self.FULL)
        assert (done.returncode, done.stdout) == (1, "")
        assert "File too large" in done.stderr
        assert len(json_output("reconcile", *options)["reclaimedCpuLists"]) == 1

    def test_a_full_stdout_is_an_error(self, tmp_path: Path) -> None:
        conf = directory_of(allocations_of({"exclusive": {0: "0"}}), tmp_path / "conf")
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [NODEWISE, "cpu", "describe", "--conf-dir", conf], stdout=full, stderr=subprocess.PIPE, text=True,
                check=False,
            )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.startswith("nodewise: cannot print: standard output:")
