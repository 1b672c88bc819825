"""The numbered cases of CMK about reports and validation, with real processes."""

import json
from pathlib import Path

import pytest

from cpu_tests.conformance import case_cpu_topologies, case_table_rows
from cpu_tests.conformance.case_table_rows import NameRow, PublishRow
from cpu_tests.conformance.minimal_api_server import RequestRefusal, serving
from cpu_tests.conformance.node_commands import allocations_of, cluster, directory_of, json_output, run, write
from nodewise.kube.resource_kinds import NODES
from nodewise_cpu.cluster import report_custom_resources

REPORT = "/apis/intel.com/v1/namespaces/default/cmk-nodereports/n1"


@pytest.mark.parametrize(
    "row", case_table_rows.read("names", NameRow), ids=lambda row: f"{row.id} {row.node}"
)
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


@pytest.mark.parametrize(
    "row", case_table_rows.read("publish", PublishRow), ids=lambda row: f"{row.id}-{row.answers}"
)
def test_reports_are_published(row: PublishRow, tmp_path: Path) -> None:
    conf = directory_of(allocations_of({"exclusive": {0: "0"}}), tmp_path / "conf")
    with cluster("v1.36.3", tmp_path) as (server, leading):
        if row.exists:
            server.put(REPORT, {"metadata": {"name": "n1"}, "spec": {"report": {"old": True}}})
        if row.answers:
            server.refusals += [
                RequestRefusal("POST", "cmk-nodereports", row.answers, "the disk is full"),
                RequestRefusal("POST", "customresourcedefinitions", 403, "no rights"),
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
    assert not row.level or f"nodewise: {row.level.title()}: " in done.stderr
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
            report = json_output("node-report", "--publish", "--conf-dir", tmp_path / "conf", *leading)
        (_, defined, made) = [request.body for request in server.requests]
        stored = server.objects[path]
    assert defined["apiVersion"] == definition
    assert made["metadata"] == {"name": "n1"}
    assert (stored if "last_updated" in stored else stored["spec"])["report"] == report
    assert ("last_updated" in stored) == ("cmk.intel.com" in path)


class TestNodeReport:
    def test_143_lists_that_overlap(self, tmp_path: Path) -> None:
        conf = directory_of(allocations_of({"exclusive": {0: "0"}, "shared": {0: "0"}}), tmp_path / "conf")
        machine = write(case_cpu_topologies.texts("T8"), tmp_path / "m")
        report = json_output("node-report", "--conf-dir", conf, "--sysfs", machine)
        overlap = "exclusive:0 and shared:0 (in both: [0])"
        assert report["checks"]["configDirectory"] == {"errors": [overlap], "ok": False}
        assert report["description"]["pools"].keys() == {"exclusive", "shared"}
        (socket,) = report["topology"]["sockets"].values()
        assert [core["id"] for core in socket["cores"]] == list(range(8))
        assert socket["cores"][1]["cpus"] == [{"id": 1, "isolated": False}, {"id": 9, "isolated": False}]

    def test_145_a_node_without_pools(self, tmp_path: Path) -> None:
        machine = write(case_cpu_topologies.texts("T8"), tmp_path / "m")
        report = json_output("node-report", "--conf-dir", tmp_path / "nothing", "--sysfs", machine)
        (error,) = report["checks"]["configDirectory"]["errors"]
        assert "unable to read" in error
        assert report["checks"]["configDirectory"]["ok"] is False
        assert report["description"] is None
        assert len(report["topology"]["sockets"]["0"]["cores"]) == 8

    def test_lists_whose_cpus_went(self, tmp_path: Path) -> None:
        conf = directory_of(allocations_of({"exclusive": {0: "1,9 63"}}), tmp_path / "conf")
        machine = write(case_cpu_topologies.texts("T8"), tmp_path / "m")
        report = json_output("node-report", "--conf-dir", conf, "--sysfs", machine)
        assert report["checks"]["configDirectory"]["errors"] == ["exclusive:63 (not online: [63])"]

    def test_exclusive_lists_without_all_threads_of_their_cores(self, tmp_path: Path) -> None:
        """A reboot with hyper-threads brings more CPUs than there were when the pools were made."""
        pools = {"exclusive": {0: "1 2,10"}, "infra": {0: "3"}}
        conf = directory_of(allocations_of(pools), tmp_path / "conf")
        machine = write(case_cpu_topologies.texts("T8"), tmp_path / "m")
        report = json_output("node-report", "--conf-dir", conf, "--sysfs", machine)
        (error,) = report["checks"]["cores"]["errors"]
        assert error.startswith("exclusive:1: CPUs 9 of the same core are not in the list; expected ")
        assert report["checks"]["cores"]["ok"] is False
        assert report["checks"]["configDirectory"]["ok"] is True

    def test_a_kubelet_that_gives_cpus_away_itself(self, tmp_path: Path) -> None:
        conf = directory_of(allocations_of({"exclusive": {0: "1,9"}, "infra": {0: "0,8"}}), tmp_path / "conf")
        state = {"policyName": "static", "defaultCpuSet": "0,2-15", "entries": {"pod-1": {"app": "1"}}}
        kubelet = write({"cpu_manager_state": json.dumps({**state, "checksum": 1})}, tmp_path / "kubelet")
        machine = write(case_cpu_topologies.texts("T8"), tmp_path / "m")
        report = json_output("node-report", "--conf-dir", conf, "--sysfs", machine, "--kubelet-dir", kubelet)
        check = report["checks"]["kubelet"]
        assert (check["ok"], check["policy"]) == (False, "static")
        assert "container app of pod pod-1 has CPUs 1" in check["errors"][0]
        assert "full-pcpus-only" in check["instead"]["exclusive"]


@pytest.mark.parametrize("version", ["v1.6.4", "v1.7.3", "v1.15.0"])
def test_an_old_cluster_is_validated_by_its_own_words(version: str, tmp_path: Path) -> None:
    conf = directory_of(allocations_of({"exclusive": {0: "0 1"}}), tmp_path / "conf")
    with cluster(version, tmp_path) as (server, leading):
        at_conf = ["--conf-dir", conf, *leading[:2]]
        before = run("validate", "n1", *at_conf)
        assert run("discover", "--conf-dir", conf, *leading).returncode == 0
        json_output("node-report", "--publish", "--conf-dir", conf, *leading)
        node = server.objects[NODES.path(name="n1")]
        node["status"]["allocatable"] = node["status"]["capacity"]
        after = run("validate", "n1", *at_conf)
    (resource,) = node["status"]["capacity"]
    wrong = [
        {check["name"] for check in json.loads(done.stdout)["checks"] if check["ok"] is False}
        for done in (before, after)
    ]
    assert wrong == [{"label", "taint", resource, "agent", "cmk-nodereport"}, {"agent"}]
    assert (before.returncode, after.returncode) == (3, 3)


def test_kinds_of_reports_have_names_that_kubectl_knows() -> None:
    expected = {"cmk-nodereports", "cmk-reconcilereports"}
    assert {kind.resource.plural for kind in report_custom_resources.KINDS} == expected
