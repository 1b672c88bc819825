"""The numbered cases of CMK that are about a node's own commands, asked of the real process."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodewise.cpu import configmap, directory, names, procfs, state
from nodewise.cpu.book import Intent
from nodewise.cpu.cluster import reports, versions
from nodewise.cpu.configmap import Texts
from nodewise.cpu.node.files import DirectoryBook
from nodewise.cpu.state import State, Task
from nodewise.errors import BadInput
from nodewise.kube.resources import NODES
from tests.cluster import availability
from tests.conformance.cmk import machines, rows
from tests.conformance.cmk.rows import (
    ContainerRow,
    DiscoverRow,
    InitRow,
    NameRow,
    PublishRow,
    SweepRow,
    VersionRow,
)
from tests.conformance.cmk.server import Refusal, Server, serving

NODEWISE = Path(sys.executable).parent / "nodewise"
CONFIG_MAP = "/api/v1/namespaces/default/configmaps/cmk-config-n1"
REPORT = "/apis/intel.com/v1/namespaces/default/cmk-nodereports/n1"
BOOT = "one"


def run(
    *arguments: object, before: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, NODEWISE, "cpu", *map(str, arguments)],
        env={"PATH": "/usr/bin:/bin", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def answered(*arguments: object) -> Any:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write(files: Mapping[str, str | None], at: Path) -> Path:
    """Files below a folder, None being a folder."""
    for path, text in files.items():
        whole = at / path
        (whole if text is None else whole.parent).mkdir(parents=True, exist_ok=True)
        if text is not None:
            whole.write_text(text)
    return at


def lists(pools: rows.Pools) -> State:
    """A node with these CPU lists, and no task."""
    return state.from_lists(
        {name: {at: text.split() for at, text in pool.items()} for name, pool in pools.items()}
    )


def directory_of(found: State, at: Path) -> Path:
    return write(directory.format_files(found), at)


def processes(alive: Mapping[int, str], at: Path) -> Path:
    """A `/proc` with these processes, and the CPUs that they may use."""
    files: dict[str, str | None] = {"sys/kernel/random/boot_id": f"{BOOT}\n"}
    for pid, cpus in alive.items():
        fields = ["S", "0", *["0"] * 17, "5", *["0"] * 30]
        files[f"{pid}/stat"] = f"{pid} (sleep) {' '.join(fields)}\n"
        files[f"{pid}/environ"] = ""
        files[f"{pid}/status"] = f"Name:\tsleep\nCpus_allowed_list:\t{cpus}\n"
    return write(files, at)


@contextmanager
def cluster(version: str, folder: Path) -> Iterator[tuple[Server, list[str]]]:
    """An API server with one node, and the options that lead to it."""
    with serving(version) as server:
        server.node("n1")
        yield server, ["--kubeconfig", str(server.kubeconfig(folder)), "--node-name", "n1"]


@pytest.mark.parametrize("row", rows.read("versions", VersionRow), ids=lambda row: row.text)
def test_versions(row: VersionRow) -> None:
    if row.error:
        with pytest.raises(BadInput) as caught:
            versions.parse(row.text)
        assert [part for part in row.error if part not in str(caught.value)] == []
        return
    found = versions.parse(row.text)
    assert not row.same or found == versions.parse(row.same)
    assert not row.older or found > versions.parse(row.older)


@pytest.mark.parametrize("row", rows.read("names", NameRow), ids=lambda row: row.node)
def test_names_of_reports(row: NameRow, tmp_path: Path) -> None:
    """By the report that `--publish` makes."""
    write({"conf": None}, tmp_path)
    with serving("v1.36.3") as server:
        done = run(
            "node-report", "--publish", "--conf-dir", tmp_path / "conf",
            "--kubeconfig", server.kubeconfig(tmp_path), "--node-name", row.node,
        )  # fmt: skip
        assert [part for part in row.error if part not in done.stderr] == []
        assert done.returncode == bool(row.error)
        made = [body["metadata"]["name"] for body in server.folder("cmk-nodereports").values()]
    assert made == ([row.name] if row.name else [])


@pytest.mark.parametrize("row", rows.read("init", InitRow), ids=lambda row: row.id)
def test_a_node_that_has_pools(row: InitRow, tmp_path: Path) -> None:
    machine = write(machines.texts("T8"), tmp_path / "machine")
    options = ["--sysfs", machine, "--num-exclusive-cores", row.asked[0], "--num-shared-cores", row.asked[1]]
    first = _planned(row.before, machine).mapped(
        lambda _, slot: [Task(row.held[slot.text], 5, BOOT)] if slot.text in row.held else []
    )
    with cluster("v1.36.3", tmp_path) as (server, leading):
        if row.place == "configmap":
            texts = configmap.format_texts(first)
            about = {
                "name": "cmk-config-n1",
                "annotations": {"Owner": "", state.IDENTITIES: texts.identities},
            }
            server.put(CONFIG_MAP, {"metadata": about, "data": {"config": texts.config}})
            options += leading
        else:
            options += ["--conf-dir", directory_of(first, tmp_path / "conf")]
        done = run("init", *options)
        told = answered("describe", *(options[6:]))
        assert row.place != "configmap" or _stored(server) == first
        assert not server.requests
    assert done.returncode == bool(row.error), done.stderr
    assert [part for part in row.error if part not in done.stderr] == []
    assert told["pools"] == state.as_description(first)["pools"]


def _planned(cores: Sequence[int], machine: Path) -> State:
    told = answered(
        "plan",
        "--sysfs",
        machine,
        "--num-exclusive-cores",
        cores[0],
        "--num-shared-cores",
        cores[1],
        "-o",
        "json",
    )
    return state.from_lists(
        {name: {int(at): texts for at, texts in sockets.items()} for name, sockets in told["pools"].items()}
    )


def _stored(server: Server) -> State:
    found = server.objects[CONFIG_MAP]
    return configmap.parse(Texts(found["data"]["config"], found["metadata"]["annotations"][state.IDENTITIES]))


@pytest.mark.parametrize("row", rows.read("discover", DiscoverRow), ids=lambda row: f"{row.id}-{row.version}")
def test_what_a_node_says_of_itself(row: DiscoverRow, tmp_path: Path) -> None:
    conf = directory_of(lists(row.pools), tmp_path / "conf")
    is_old = versions.parse(row.version) < (1, 7)
    with cluster(row.version, tmp_path) as (server, leading):
        node = server.objects[NODES.path(name="n1")]
        if row.taints:
            node["metadata"]["annotations"] = {_TAINTS: json.dumps(row.taints)} if is_old else {}
        if row.answers:
            server.refusals.append(Refusal("PATCH", "/status", row.answers, "the disk is full"))
        done = run("discover", "--conf-dir", conf, *leading, *row.options)
        node = server.objects[NODES.path(name="n1")]
        patched = [one.path.removeprefix("/api/v1/") for one in server.requests]
    assert done.returncode == bool(row.error), done.stderr
    assert [part for part in row.error if part not in done.stderr] == []
    assert patched == row.patches
    assert node.get("status", {}).get("capacity", {}) == row.capacity
    written = json.loads(node["metadata"].get("annotations", {}).get(_TAINTS, "null"))
    assert (written if is_old else node["spec"].get("taints")) == row.tainted
    label = None if row.error else "true"
    assert node["metadata"].get("labels", {}).get(names.LABEL) == label


_TAINTS = "scheduler.alpha.kubernetes.io/taints"


@pytest.mark.parametrize("row", rows.read("publish", PublishRow), ids=lambda row: f"{row.id}-{row.answers}")
def test_reports_are_published(row: PublishRow, tmp_path: Path) -> None:
    conf = directory_of(lists({"exclusive": {0: "0"}}), tmp_path / "conf")
    with cluster("v1.36.3", tmp_path) as (server, leading):
        if row.exists:
            server.put(REPORT, {"metadata": {"name": "n1"}, "spec": {"report": {"old": True}}})
        if row.answers:
            server.refusals += [
                Refusal("POST", "cmk-nodereports", row.answers, "the disk is full"),
                Refusal("POST", "customresourcedefinitions", 403, "no rights"),
            ]
        command = ("node-report", "--publish", "--conf-dir", conf, *leading)
        done = run(*command)
        published = server.objects.get(REPORT)
        writes = len(server.requests)
        if not (row.answers or row.error):
            assert run(*command).returncode == 0
            assert len(server.requests) == writes  # nothing is written where nothing changed
    assert done.returncode == bool(row.error), done.stderr
    assert [part for part in row.error if part not in done.stderr] == []
    assert not row.level or f"[{row.level}" in done.stderr
    if not row.answers:
        assert published is not None
        assert published["spec"]["report"] == json.loads(done.stdout)
    assert published is None or published["apiVersion"] == "intel.com/v1"


@pytest.mark.parametrize(
    ("version", "path", "definition"),
    [
        ("v1.6.4", "/apis/cmk.intel.com/v1/namespaces/default/nodereports/n1", "extensions/v1beta1"),
        ("v1.7.0", REPORT, "apiextensions.k8s.io/v1beta1"),
        ("v1.15.12", REPORT, "apiextensions.k8s.io/v1beta1"),
        ("v1.16.0", REPORT, "apiextensions.k8s.io/v1"),
    ],
)
def test_reports_in_the_form_of_the_version(version: str, path: str, definition: str, tmp_path: Path) -> None:
    with cluster(version, tmp_path) as (server, leading):
        for _ in range(2):
            report = answered("node-report", "--publish", "--conf-dir", tmp_path / "conf", *leading)
        (_, defined, made) = [one.body for one in server.requests]
        found = server.objects[path]
    assert defined["apiVersion"] == definition
    assert made["metadata"] == {"name": "n1"}
    assert (found if "last_updated" in found else found["spec"])["report"] == report
    assert ("last_updated" in found) == ("cmk.intel.com" in path)


@pytest.mark.parametrize("row", rows.read("reconcile", SweepRow), ids=lambda row: row.id)
def test_reconcile(row: SweepRow, tmp_path: Path) -> None:
    found = configmap.parse(Texts(yaml.safe_dump({name: {0: at} for name, at in row.state.items()})))
    conf = directory_of(found, tmp_path / "conf")
    proc = processes({pid: row.allowed.get(pid, "0-63") for pid in row.alive}, tmp_path / "proc")
    report = answered("reconcile", "--conf-dir", conf, "--proc-fs", proc)
    reclaimed = report["reclaimedCpuLists"]
    assert [f"{one['pid']} {one['cpus']} {one['pool']}" for one in reclaimed] == row.reclaims
    elsewhere = [f"{one['pid']} {one['cpus']}" for one in report.get("mismatchedCpuMasks", [])]
    assert not row.allowed or elsewhere == [one.rpartition(" ")[0] for one in row.elsewhere]
    pools = answered("describe", "--conf-dir", conf)["pools"].values()
    left = {pid for pool in pools for one in pool["cpuLists"].values() for pid in one["tasks"]}
    assert left == {str(pid) for pid in row.alive}


def test_a_report_of_nothing(tmp_path: Path) -> None:
    """Case 136, to the byte."""
    conf = directory_of(lists({"exclusive": {0: "0"}}), tmp_path / "conf")
    proc = processes({}, tmp_path / "proc")
    done = run("reconcile", "--conf-dir", conf, environment={"CMK_PROC_FS": str(proc)})
    assert done.stdout == '{\n  "reclaimedCpuLists": []\n}\n'


def test_a_reconfiguration_whose_process_is_gone_is_taken_back(tmp_path: Path) -> None:
    if os.geteuid():
        availability.not_run("only root may tell whose processes there are: run as root")
    book = DirectoryBook(directory_of(lists({"exclusive": {0: "0"}}), tmp_path / "conf"))
    target = lists({"exclusive": {0: "0 1"}})
    by = Task(99_999_999, 5, procfs.read_boot(Path("/proc")))
    book.replace(book.read().version, book.read().state, Intent(target, by, "2026-01-01T00:00:00Z"))
    assert answered("describe", "--conf-dir", tmp_path / "conf")["reconfiguring"]["by"]["pid"] == by.pid
    done = run("reconcile", "--conf-dir", tmp_path / "conf", "--proc-fs", "/proc")
    assert "cpu_intent_recovered" in done.stderr
    stored = book.read()
    assert (stored.intent, stored.state) == (None, lists({"exclusive": {0: "0"}}))


@pytest.mark.parametrize("row", rows.read("container", ContainerRow), ids=lambda row: row.id)
def test_a_container_says_where_the_hosts_processes_are(row: ContainerRow, tmp_path: Path) -> None:
    unshare = shutil.which("unshare") or availability.not_run(
        "there is no program unshare: install util-linux"
    )
    inside = [unshare, "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        availability.not_run("this machine lets nobody have a PID namespace: run as root")
    found = lists({"exclusive": {0: "0"}}).mapped(lambda *_: [Task(99_999_999)])
    conf = directory_of(found, tmp_path / "conf")
    done = run(row.command, "--conf-dir", conf, before=inside)
    assert done.returncode == row.code
    assert [part for part in row.error if part not in done.stderr] == []
    told = answered("describe", "--conf-dir", conf)
    assert told["pools"]["exclusive"]["cpuLists"]["0"]["tasks"] == ["99999999"]


class TestNodeReport:
    def test_lists_that_overlap(self, tmp_path: Path) -> None:
        """Case 143."""
        conf = directory_of(lists({"exclusive": {0: "0"}, "shared": {0: "0"}}), tmp_path / "conf")
        told = answered(
            "node-report", "--conf-dir", conf, "--sysfs", write(machines.texts("T8"), tmp_path / "m")
        )
        overlap = "exclusive:0 and shared:0 (in both: [0])"
        assert told["checks"]["configDirectory"] == {"errors": [overlap], "ok": False}
        assert told["description"]["pools"].keys() == {"exclusive", "shared"}
        (socket,) = told["topology"]["sockets"].values()
        assert [core["id"] for core in socket["cores"]] == list(range(8))
        assert socket["cores"][1]["cpus"] == [{"id": 1, "isolated": False}, {"id": 9, "isolated": False}]

    def test_a_node_without_pools(self, tmp_path: Path) -> None:
        """Case 145."""
        machine = write(machines.texts("T8"), tmp_path / "m")
        told = answered("node-report", "--conf-dir", tmp_path / "nothing", "--sysfs", machine)
        (error,) = told["checks"]["configDirectory"]["errors"]
        assert "unable to read" in error
        assert told["checks"]["configDirectory"]["ok"] is False
        assert told["description"] is None
        assert len(told["topology"]["sockets"]["0"]["cores"]) == 8

    def test_lists_whose_cpus_went(self, tmp_path: Path) -> None:
        conf = directory_of(lists({"exclusive": {0: "1,9 63"}}), tmp_path / "conf")
        told = answered(
            "node-report", "--conf-dir", conf, "--sysfs", write(machines.texts("T8"), tmp_path / "m")
        )
        assert told["checks"]["configDirectory"]["errors"] == ["exclusive:63 (not online: [63])"]

    def test_a_kubelet_that_gives_cpus_away_itself(self, tmp_path: Path) -> None:
        conf = directory_of(lists({"exclusive": {0: "1,9"}, "infra": {0: "0,8"}}), tmp_path / "conf")
        state_file = {
            "policyName": "static",
            "defaultCpuSet": "0,2-15",
            "entries": {"pod-1": {"app": "1"}},
            "checksum": 1,
        }
        kubelet = write({"cpu_manager_state": json.dumps(state_file)}, tmp_path / "kubelet")
        machine = write(machines.texts("T8"), tmp_path / "m")
        told = answered("node-report", "--conf-dir", conf, "--sysfs", machine, "--kubelet-dir", kubelet)
        check = told["checks"]["kubelet"]
        assert (check["ok"], check["policy"]) == (False, "static")
        assert "container app of pod pod-1 has CPUs 1" in check["errors"][0]
        assert "full-pcpus-only" in check["instead"]["exclusive"]


class TestFullDisk:
    """A limit of the size of files stands for it."""

    FULL = (shutil.which("prlimit") or "prlimit", "--fsize=0")

    def test_no_pools_are_half_made(self, tmp_path: Path) -> None:
        options = ["--conf-dir", tmp_path / "conf", "--sysfs", write(machines.texts("T8"), tmp_path / "m")]
        done = run("init", *options, before=self.FULL)
        assert done.returncode == 1
        assert "File too large" in done.stderr
        assert "Traceback" not in done.stderr
        assert run("describe", *options[:2]).returncode == 1
        assert run("init", *options).returncode == 0

    def test_nothing_is_said_to_be_free_that_is_not(self, tmp_path: Path) -> None:
        found = lists({"exclusive": {0: "0"}}).mapped(lambda *_: [Task(99_999_999)])
        conf = directory_of(found, tmp_path / "conf")
        options = ["--conf-dir", conf, "--proc-fs", processes({}, tmp_path / "proc")]
        done = run("reconcile", *options, before=self.FULL)
        assert (done.returncode, done.stdout) == (1, "")
        assert "File too large" in done.stderr
        assert len(answered("reconcile", *options)["reclaimedCpuLists"]) == 1

    def test_what_cannot_be_printed_is_told(self, tmp_path: Path) -> None:
        conf = directory_of(lists({"exclusive": {0: "0"}}), tmp_path / "conf")
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [NODEWISE, "cpu", "describe", "--conf-dir", conf], stdout=full, stderr=subprocess.PIPE, text=True,
                check=False,
            )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.startswith("nodewise: cannot print: standard output:")


def test_kinds_of_reports_have_names_that_kubectl_knows() -> None:
    assert {kind.resource.plural for kind in reports.KINDS} == {"cmk-nodereports", "cmk-reconcilereports"}
