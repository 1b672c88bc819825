"""Faults of CMK without a numbered case, by their own numbers."""

import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from cpu_tests.conformance import isolate_process
from cpu_tests.conformance.isolate_process import DirectoryNode
from cpu_tests.conformance.node_commands import (
    CONFIG_MAP,
    allocations_of,
    cluster,
    directory_of,
    json_output,
    run,
    write,
)
from nodewise_cpu import cmk_names, configmap_store, procfs
from nodewise_cpu.cluster import api_server, node_setup_objects
from nodewise_cpu.cluster.node_setup_objects import SetupOptions
from nodewise_cpu.node import machine_features
from nodewise_cpu.pool_allocations import IDENTITIES, Task
from nodewise_cpu.pool_planning import cpus_above_base_frequency, energy_preferences
from nodewise_cpu.topology import CPUS
from nodewise_cpu.webhook import manifests

CMK = Path(sys.executable).parent / "cmk"
PROC = Path("/proc")
NEWEST = api_server.TABLE[-1]


@pytest.mark.parametrize("is_whole", [False, True], ids=["as CMK writes tasks", "with its start"])
def test_b19_the_id_of_a_thread_holds_nothing(is_whole: bool, tmp_path: Path) -> None:
    """A thread has a folder in /proc as well, but a listing of /proc does not contain it."""
    over, began = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        over.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        began.wait()
        pid = thread.native_id or 0
        stat = procfs.parse_stat((PROC / f"{pid}/stat").read_text())
        task = Task(pid, stat.start, procfs.read_boot_id(PROC)) if is_whole else Task(pid)
        held = allocations_of({"exclusive": {0: "0"}}).with_tasks(lambda *_: [task])
        conf = directory_of(held, tmp_path / "conf")
        report = json_output("reconcile", "--conf-dir", conf, "--proc-fs", PROC)
    finally:
        over.set()
        thread.join()
    assert [cpu_list["pid"] for cpu_list in report["reclaimedCpuLists"]] == [pid]


def test_b37_isolate_asks_for_one_configmap_and_no_pod(two_cpu_node: DirectoryNode, tmp_path: Path) -> None:
    with cluster("v1.36.3", tmp_path) as (server, leading):
        texts = configmap_store.format_config_map_data(two_cpu_node.store.read().allocations)
        about = {"name": "cmk-config-n1", "annotations": {cmk_names.OWNER: "", IDENTITIES: texts.identities}}
        server.put(CONFIG_MAP, {"metadata": about, "data": {"config": texts.config}})
        words = [CMK, "isolate", "--direct", *leading, "--pool=exclusive", "true"]
        done = isolate_process.run([str(word) for word in words])
        requests = [(request.verb, request.path) for request in server.requests]
        assert done.returncode == 0, done.stderr
    assert requests == [("PATCH", CONFIG_MAP)] * 2
    assert server.looks == 0


@pytest.mark.parametrize(
    ("command", "plural"), [("node-report", "cmk-nodereports"), ("reconcile", "cmk-reconcilereports")]
)
def test_b44_reports_are_in_the_namespace_of_all_else(command: str, plural: str, tmp_path: Path) -> None:
    conf = directory_of(allocations_of({"exclusive": {0: "0"}}), tmp_path / "conf")
    with cluster("v1.36.3", tmp_path) as (server, leading):
        done = run(command, "--publish", "--namespace=ours", "--conf-dir", conf, *leading)
        made = [path for path in server.objects if path.startswith("/apis/intel.com/")]
    assert done.returncode == 0, done.stderr
    assert made == [f"/apis/intel.com/v1/namespaces/ours/{plural}/n1"]


def test_b47_a_name_of_a_node_that_looks_like_another_s(tmp_path: Path) -> None:
    """Left is `a-ds-b`, not `a`, and `ds` in its name says nothing of what an object is."""
    mine, other = "a-ds-b", "a"
    with cluster("v1.36.3", tmp_path) as (server, leading):
        for node in (mine, other):
            server.node(node)
            for kind, path in (("Pod", "/api/v1/namespaces/default/pods"),
                               ("DaemonSet", "/apis/apps/v1/namespaces/default/daemonsets")):  # fmt: skip
                name = f"cmk-init-{'pod' if kind == 'Pod' else 'ds'}-{node}"
                spec = {"containers": []}
                spec = spec if kind == "Pod" else {"template": {"metadata": {}, "spec": spec}}
                server.put(f"{path}/{name}", {"kind": kind, "metadata": {"name": name}, "spec": spec})
        conf = directory_of(allocations_of({"infra": {0: "0"}}), tmp_path / "conf")
        place = ["--conf-dir", conf, *leading[:2], "--install-dir", tmp_path]
        done = run("uninstall", "--scope=node", "--node-name", mine, *place)
        left = {path.rpartition("/")[2] for path in (*server.folder("pods"), *server.folder("daemonsets"))}
    assert done.returncode == 0, done.stderr
    assert {name for name in left if name.startswith("cmk-init-")} >= {"cmk-init-pod-a", "cmk-init-ds-a"}
    assert not [name for name in left if mine in name]


def test_b49_a_certificate_is_valid_east_of_greenwich_too() -> None:
    now = datetime.now(UTC)
    leaf = x509.load_pem_x509_certificate(manifests.create_certificate("default", now).cert)
    assert leaf.not_valid_before_utc < now


@pytest.mark.parametrize(("word", "is_on"), [("true", True), ("True", True), ("false", False), ("", False)])
def test_b67_a_label_that_says_false_means_false(word: str, is_on: bool) -> None:
    assert machine_features.is_feature_enabled({cmk_names.SST_BF: word}, cmk_names.SST_BF) == is_on
    assert not machine_features.is_feature_enabled({}, cmk_names.SST_BF)


@pytest.mark.parametrize("option", ["--version", "--help", "-h"])
@pytest.mark.parametrize("between", [(), ("--",)], ids=["plain", "after --"])
def test_b68_an_option_behind_the_command_is_the_command_s(
    option: str, between: tuple[str, ...], two_cpu_node: DirectoryNode
) -> None:
    done = isolate_process.run(two_cpu_node.words("--pool", "exclusive", sys.executable, *between, option))
    python = isolate_process.run([sys.executable, option])
    assert (done.returncode, done.stdout) == (python.returncode, python.stdout)


@pytest.mark.parametrize("word", ["debug", "Debug", "DEBUG", "warning", "nonsense", ""])
def test_b70_any_word_is_a_level_of_the_log(word: str, two_cpu_node: DirectoryNode) -> None:
    level = {cmk_names.LOG_LEVEL: word}
    assert isolate_process.run(two_cpu_node.words("--pool=exclusive", "true"), level).returncode == 0
    done = run("describe", "--conf-dir", two_cpu_node.root, environment=level)
    assert done.returncode == 0
    assert ("variable_ignored" in done.stderr) == (word == "nonsense")


def test_b72_pods_that_run_once_are_not_evicted() -> None:
    made = node_setup_objects.daemon_set(node_setup_objects.ALWAYS, "n1", SetupOptions(), NEWEST)
    for pod in (
        node_setup_objects.preparation_pod(node_setup_objects.ONCE, "n1", SetupOptions(), NEWEST),
        node_setup_objects.reconfiguration_pod("n1", SetupOptions()),
        made["spec"]["template"],
    ):
        assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]


def test_b73_the_register_is_not_needed_where_there_are_two_frequencies(tmp_path: Path) -> None:
    """Which is what SST-BF makes: some cores above the processor's own base frequency, the others below."""
    texts = {
        f"{CPUS}/cpu{cpu}/cpufreq/base_frequency": "2700000" if cpu < 2 else "2100000" for cpu in range(8)
    }
    assert machine_features.read_base_mhz(tmp_path) is None
    assert cpus_above_base_frequency(texts, None) == cpus_above_base_frequency(texts, 2300) == {0, 1}


def test_b74_a_preference_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    files = {0: "power", 1: "performance", 2: None}
    for cpu, word in files.items():
        path = f"{CPUS}/cpu{cpu}/cpufreq/energy_performance_preference"
        # a folder in its place cannot be read as a file
        write({path: f"{word}\n"} if word else {path: None}, tmp_path / "machine")
    result = energy_preferences(machine_features.read_sysfs_files(tmp_path / "machine"))
    assert result == {0: "power", 1: "performance"}
    features = tmp_path / "features.d"
    write({"cpu": "other=true\n"}, features)
    assert machine_features.write_feature_file(features, result.values())
    assert (features / "cpu").read_text() == "other=true\n"
