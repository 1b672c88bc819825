"""Preparing, reconfiguring and uninstalling nodes on a real API server, with the controllers for DaemonSets."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodewise_cpu import cmk_names, pool_planning, procfs
from nodewise_cpu.cluster import api_server, node_setup_objects
from nodewise_cpu.cluster.node_setup_objects import SetupOptions
from nodewise_cpu.pool_allocations import IDENTITIES
from tests import forked_commands
from tests.cluster import extender_process, fake_kubelets
from tests.cluster import kubernetes_objects as cluster_objects
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_kubelets import FakeKubelets
from tests.cluster.namespace_sandboxes import Sandbox, wait

CONTROLLERS = "daemonset-controller,garbage-collector-controller"
PREPARING = ("init", "install", "discover")
LOOKING = ("reconcile", "nodereport")
FOREIGN = {"key": "other", "value": "b", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}


@pytest.fixture(scope="module")
def controllers(plane: ControlPlane) -> Iterator[None]:
    with plane.start_controller_manager(CONTROLLERS):
        yield


@pytest.fixture
def nodes(sandbox: Sandbox, controllers: None) -> list[str]:
    """Two nodes; the name of the first is a prefix of the second."""
    nodes = [f"{sandbox.namespace}-n1", f"{sandbox.namespace}-n10"]
    sandbox.nodes(*map(cluster_objects.node, nodes))
    return nodes


@pytest.fixture
def account(sandbox: Sandbox) -> None:
    """Creates the service account of the node agent, as in deploy/cpu-agent.yaml."""
    sandbox.put(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": node_setup_objects.AGENT}}
    )


@pytest.fixture
def kubelets(sandbox: Sandbox, nodes: list[str], account: None) -> Iterator[FakeKubelets]:
    with fake_kubelets.running_kubelets(sandbox.api, sandbox.namespace) as playing:
        yield playing
        for kind in ("daemonsets", "deployments"):
            sandbox.api.delete(f"/apis/apps/v1/namespaces/{sandbox.namespace}/{kind}")
        sandbox.api.delete(f"{HOOKS}/cmk-webhook-config")


HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


def run(
    sandbox: Sandbox, *words: str, timeout_s: float = 60, as_users_do: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Runs a command, with short waits and without its imports unless `as_users_do`."""
    place = (f"--namespace={sandbox.namespace}", f"--kubeconfig={sandbox.plane.admin.kubeconfig}")
    arguments = ["cpu", *words, *place, f"--timeout={timeout_s:g}", "-o", "json"]
    environment = {**os.environ, "NODE_NAME": ""}
    if not as_users_do:
        return forked_commands.run(
            [forked_commands.NODEWISE, *arguments],
            env=environment,
            constants=forked_commands.SHORT_WAITS,
            timeout=240,
        )
    return subprocess.run(
        [sys.executable, "-m", "nodewise", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )


def prepare_nodes(sandbox: Sandbox, nodes: list[str], *arguments: str, **more: Any) -> Any:
    """Runs cluster-init and returns its report, after a check that the exit code agrees with it."""
    completed = run(sandbox, "cluster-init", f"--host-list={','.join(nodes)}", *arguments, **more)
    assert "Traceback" not in completed.stderr, completed.stderr
    report = json.loads(completed.stdout)
    ready = all(part["ready"] for part in (*report["nodes"], report["agent"], report["webhook"]))
    assert (completed.returncode == 0) == ready, completed
    return report


def object_versions(sandbox: Sandbox) -> dict[str, tuple[str, str]]:
    """UID and version of each object in the namespace, by kind and name; of pods only the UID, since kubelets write to
    pods.
    """
    folders = ["api/v1/{}/pods", "api/v1/{}/secrets", "api/v1/{}/configmaps", "api/v1/{}/services"]
    folders += ["apis/apps/v1/{}/daemonsets", "apis/apps/v1/{}/deployments"]
    uids = {}
    for folder in folders:
        path = "/" + folder.format(f"namespaces/{sandbox.namespace}")
        for stored in sandbox.api.get(path)["items"]:
            about = stored["metadata"]
            version = about["generation"] if "generation" in about else about["resourceVersion"]
            uids[f"{folder.rpartition('/')[2]} {about['name']}"] = (
                about["uid"],
                "" if folder.endswith("pods") else str(version),
            )
    return uids


def outcomes(report: Any) -> list[str]:
    return [
        step["outcome"]
        for part in (*report["nodes"], report["agent"], report["webhook"])
        for step in part["steps"]
    ]


def test_second_run_changes_nothing(sandbox: Sandbox, nodes: list[str], kubelets: FakeKubelets) -> None:
    report = prepare_nodes(sandbox, nodes, as_users_do=True)
    assert [node_report["node"] for node_report in report["nodes"]] == nodes
    assert set(outcomes(report)) == {"created", "ready"}
    assert sandbox.api.find(f"{HOOKS}/cmk-webhook-config")
    before = object_versions(sandbox)
    assert {
        f"daemonsets {node_setup_objects.daemon_set_name(LOOKING, node)}" for node in nodes
    } <= before.keys()
    assert len([name for name in before if name.startswith(f"pods {node_setup_objects.AGENT}-")]) == len(
        nodes
    )
    again = prepare_nodes(sandbox, nodes)
    assert set(outcomes(again)) == {"unchanged", "ready"}
    assert object_versions(sandbox) == before
    once = [node_setup_objects.pod_name(PREPARING, node) for node in nodes]
    assert sorted(name for name in kubelets.seen if name in once) == sorted(once)


def test_differing_objects_are_replaced(sandbox: Sandbox, nodes: list[str], kubelets: FakeKubelets) -> None:
    first = nodes[:1]
    prepare_nodes(sandbox, first)
    before = object_versions(sandbox)
    report = prepare_nodes(sandbox, first, "--num-exclusive-cores=2")
    assert outcomes(report)[:2] == ["replaced", "unchanged"]
    report = prepare_nodes(sandbox, first, "--num-exclusive-cores=2", "--cmk-img=other:v2")
    assert outcomes(report)[:2] == ["replaced", "replaced"]
    after = object_versions(sandbox)
    pod = f"pods {node_setup_objects.pod_name(PREPARING, first[0])}"
    daemon_set = f"daemonsets {node_setup_objects.daemon_set_name(LOOKING, first[0])}"
    secret = "secrets cmk-webhook-certs"
    assert before[pod] != after[pod]
    assert (before[daemon_set][0], before[secret]) == (after[daemon_set][0], after[secret])
    images = {
        container["image"]
        for pod in sandbox.api.get(f"/api/v1/namespaces/{sandbox.namespace}/pods")["items"]
        for container in pod["spec"]["containers"]
        if not pod["metadata"].get("deletionTimestamp")
    }
    assert images == {"other:v2"}


def test_failed_pod_is_reported_and_replaced(
    sandbox: Sandbox, nodes: list[str], kubelets: FakeKubelets
) -> None:
    ill, well = nodes
    name = node_setup_objects.pod_name(PREPARING, ill)
    kubelets.fates[name] = fake_kubelets.failed("too few cores are isolated", "discover")
    report = prepare_nodes(sandbox, nodes)
    assert [node_report["ready"] for node_report in report["nodes"]] == [False, True]
    [step] = report["nodes"][0]["steps"]
    assert f"pod {name} went into Failed state" in step["error"]
    assert "container discover: exit code 1: too few cores are isolated" in step["error"]
    assert f"daemonsets {node_setup_objects.daemon_set_name(LOOKING, ill)}" not in object_versions(sandbox)
    assert f"daemonsets {node_setup_objects.daemon_set_name(LOOKING, well)}" in object_versions(sandbox)
    kubelets.fates.clear()
    again = prepare_nodes(sandbox, nodes)
    assert [step["outcome"] for step in again["nodes"][0]["steps"]] == ["replaced", "created", "ready"]
    assert {step["outcome"] for step in again["nodes"][1]["steps"]} == {"unchanged", "ready"}


def test_a_pod_that_starts_again_and_again_is_not_ready(
    sandbox: Sandbox, nodes: list[str], kubelets: FakeKubelets
) -> None:
    daemon_set = node_setup_objects.daemon_set_name(("reconcile",), nodes[0])
    wanted = node_setup_objects.daemon_set(("reconcile",), nodes[0], SetupOptions(), api_server.TABLE[-1])
    kubelets.fates[rf"{daemon_set}-.*"] = fake_kubelets.crashing({"spec": wanted["spec"]["template"]["spec"]})
    report = prepare_nodes(sandbox, nodes, "--cmk-cmd-list=reconcile", timeout_s=8)
    first, second = report["nodes"]
    assert "container reconcile: CrashLoopBackOff" in first["steps"][0]["error"]
    assert second["ready"]


def test_agent_that_does_not_run_is_reported_and_shipped_one_replaced(
    sandbox: Sandbox, nodes: list[str], kubelets: FakeKubelets
) -> None:
    """If deploy/cpu-agent.yaml was applied first, cluster-init keeps its DaemonSet and sets the image."""
    [shipped] = [
        manifest
        for manifest in extender_process.manifest("cpu-agent.yaml")
        if manifest["kind"] == "DaemonSet"
    ]
    container = shipped["spec"]["template"]["spec"]["containers"][0]
    container["args"][0] = f"--namespace={sandbox.namespace}"
    shipped["metadata"]["namespace"] = sandbox.namespace
    sandbox.api.create(shipped)
    before = object_versions(sandbox)[f"daemonsets {node_setup_objects.AGENT}"]
    kubelets.fates[rf"{node_setup_objects.AGENT}-.*"] = fake_kubelets.crashing(
        {"spec": shipped["spec"]["template"]["spec"]}
    )
    report = prepare_nodes(sandbox, nodes[:1], timeout_s=8)
    step = report["nodes"][0]["steps"][-1]
    assert step["name"] == f"node agent of DaemonSet {node_setup_objects.AGENT}"
    assert "container agent: CrashLoopBackOff" in step["error"]
    assert report["agent"]["steps"][0]["outcome"] == "replaced"
    assert object_versions(sandbox)[f"daemonsets {node_setup_objects.AGENT}"] == before  # no rollout
    kubelets.fates.clear()
    report = prepare_nodes(sandbox, nodes[:1], "--cmk-img=other:v2")
    assert report["agent"]["steps"][0]["outcome"] == "replaced"
    uid, generation = object_versions(sandbox)[f"daemonsets {node_setup_objects.AGENT}"]
    assert uid == before[0]
    assert generation != before[1]


def test_a_new_certificate_is_trusted_before_it_is_shown(
    sandbox: Sandbox, nodes: list[str], kubelets: FakeKubelets
) -> None:
    report = prepare_nodes(sandbox, nodes[:1], "--no-agent", "--cmk-cmd-list=init")
    first = [step["name"].split()[0] for step in report["webhook"]["steps"]]
    assert (first[0], first[-1]) == ("Secret", "MutatingWebhookConfiguration")
    secret = f"/api/v1/namespaces/{sandbox.namespace}/secrets/cmk-webhook-certs"
    sandbox.api.patch(secret, {"data": {"cert.pem": ""}})
    report = prepare_nodes(sandbox, nodes[:1], "--no-agent", "--cmk-cmd-list=init")
    steps = [(step["name"].split()[0], step["outcome"]) for step in report["webhook"]["steps"]]
    assert steps[:2] == [("MutatingWebhookConfiguration", "replaced"), ("Secret", "replaced")]


def test_without_the_agents_account_nothing_is_made(sandbox: Sandbox, nodes: list[str]) -> None:
    completed = run(sandbox, "cluster-init", f"--host-list={nodes[0]}")
    assert completed.returncode == 1
    assert f"ServiceAccount {sandbox.namespace}/{node_setup_objects.AGENT}: not there" in completed.stderr
    assert node_setup_objects.kubectl_apply_command(sandbox.namespace) in completed.stderr
    assert object_versions(sandbox) == {}


def test_a_host_that_is_not_there_is_named(sandbox: Sandbox, nodes: list[str]) -> None:
    completed = run(sandbox, "cluster-init", f"--host-list={nodes[0]},nobody")
    assert completed.returncode == 2
    assert "nobody" in completed.stderr
    assert object_versions(sandbox) == {}


def test_api_server_knows_all_fields_of_created_objects(sandbox: Sandbox, nodes: list[str]) -> None:
    """The API server accepts the objects with strict field validation, which kubectl requests."""
    wish = SetupOptions(namespace=sandbox.namespace, pull_secret="sec")
    newest = api_server.TABLE[-1]
    some = [
        node_setup_objects.preparation_pod(PREPARING, nodes[0], wish, newest),
        node_setup_objects.daemon_set(LOOKING, nodes[0], wish, newest),
        node_setup_objects.reconfiguration_pod(nodes[0], wish),
        node_setup_objects.reconfiguration_pod(nodes[0], wish, checks=True),
        node_setup_objects.preparation_pod(PREPARING, f"{'n.' * 100}com", wish, newest),
        node_setup_objects.daemon_set(LOOKING, f"{'n.' * 100}com", wish, newest),
    ]
    for manifest in some:
        root = "api" if manifest["kind"] == "Pod" else "apis"
        path = f"/{root}/{manifest['apiVersion']}/namespaces/{sandbox.namespace}"
        strict = {"dryRun": "All", "fieldValidation": "Strict"}
        sandbox.api.request("POST", f"{path}/{manifest['kind'].lower()}s", json=manifest, params=strict)


@pytest.mark.parametrize("name", ["cpu-cluster-init.yaml", "cpu-uninstall.yaml", "cpu-pods.yaml"])
def test_api_server_knows_all_fields_of_shipped_manifests(sandbox: Sandbox, name: str) -> None:
    for manifest in extender_process.manifest(name):
        about = manifest["metadata"] | {"namespace": sandbox.namespace}
        version = manifest["apiVersion"]
        path = f"/{'api' if version == 'v1' else 'apis'}/{version}/namespaces/{sandbox.namespace}"
        strict = {"dryRun": "All", "fieldValidation": "Strict"}
        body = manifest | {"metadata": about}
        sandbox.api.request("POST", f"{path}/{manifest['kind'].lower()}s", json=body, params=strict)


class TestReconfigureSetup:
    """Case 207 and Appendix E 9 for a whole cluster: nothing is changed unless all nodes can be changed."""

    @pytest.fixture
    def labelled(self, sandbox: Sandbox, nodes: list[str]) -> list[str]:
        for node in nodes:
            sandbox.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {cmk_names.LABEL: "true"}}})
        return nodes

    def reconfigured(self, sandbox: Sandbox) -> Any:
        completed = run(sandbox, "reconfigure_setup", "--num-exclusive-cores=2")
        report = json.loads(completed.stdout)
        assert (completed.returncode == 0) == all(
            "error" not in node_report for node_report in report["nodes"]
        ), completed.stderr
        return report["nodes"]

    def test_one_after_the_other_and_again(
        self, sandbox: Sandbox, labelled: list[str], kubelets: FakeKubelets
    ) -> None:
        for _ in range(2):
            kubelets.seen.clear()
            node_reports = self.reconfigured(sandbox)
            assert [node_report["state"] for node_report in node_reports] == ["reconfigured"] * 2
            changing = [node_setup_objects.reconfiguration_pod_name(node) for node in labelled]
            # the fake kubelets note a pod after they have set its status
            wait("four pods have run", lambda: len(kubelets.seen) == 4 or None, show=lambda: kubelets.seen)
            assert [name for name in kubelets.seen if "check" not in name] == changing
            assert object_versions(sandbox) == {}

    def test_nothing_is_changed_unless_every_node_can_be(
        self, sandbox: Sandbox, labelled: list[str], kubelets: FakeKubelets
    ) -> None:
        why = "the tasks that run do not fit into the new pools"
        kubelets.fates[node_setup_objects.reconfiguration_pod_name(labelled[1], checks=True)] = (
            fake_kubelets.failed(why)
        )
        node_reports = self.reconfigured(sandbox)
        assert [node_report["state"] for node_report in node_reports] == ["can be reconfigured", "failed"]
        assert why in node_reports[1]["error"]
        assert [name for name in kubelets.seen if "check" not in name] == []
        kubelets.fates.clear()
        assert [node_report["state"] for node_report in self.reconfigured(sandbox)] == ["reconfigured"] * 2

    def test_reconfiguration_ends_at_the_first_failure(
        self, sandbox: Sandbox, labelled: list[str], kubelets: FakeKubelets
    ) -> None:
        kubelets.fates[node_setup_objects.reconfiguration_pod_name(labelled[0])] = fake_kubelets.failed(
            "moved back"
        )
        node_reports = self.reconfigured(sandbox)
        assert [node_report["state"] for node_report in node_reports] == ["failed", "not touched"]
        assert node_setup_objects.reconfiguration_pod_name(labelled[1]) not in kubelets.seen


class TestUninstall:
    """Appendix E 11: cluster-init then uninstall restores labels, taints, capacity and objects."""

    @pytest.fixture
    def node(self, sandbox: Sandbox, nodes: list[str]) -> str:
        """A node with pools, in the state after `init` and `discover`, and with foreign taints."""
        path = f"/api/v1/nodes/{nodes[0]}"
        boot = procfs.read_boot_id(Path("/proc"))
        info = sandbox.api.get(path)["status"].get("nodeInfo", {}) | {"bootID": boot}
        cores = {cmk_names.EXCLUSIVE_CORES: "2", cmk_names.NON_ISOLCPUS_CORES: "1"}
        status = {"status": {"nodeInfo": info, "capacity": cores, "allocatable": cores}}
        sandbox.api.patch(f"{path}/status", status)
        cmk = {"key": "cmk", "value": "true", "effect": "NoSchedule"}
        taints = {"spec": {"taints": [FOREIGN, cmk]}, "metadata": {"labels": {cmk_names.LABEL: "true"}}}
        sandbox.api.patch(path, taints)
        return nodes[0]

    def state(self, sandbox: Sandbox, node: str, pool: str = "", boot: str = "") -> None:
        """Writes the node's ConfigMap; if a pool is named, with a task of this process in it."""
        me = procfs.read_own_process(Path("/proc"))
        task = {
            "pid": me.pid,
            "start": me.start,
            "boot": boot or procfs.read_boot_id(Path("/proc")),
            "pod": "p1",
            "container": "",
        }
        texts = {pool_planning.EXCLUSIVE: "0", pool_planning.SHARED: "1", pool_planning.INFRA: "2"}
        config = {name: {0: {text: [str(me.pid)] if name == pool else []}} for name, text in texts.items()}
        known = {pool: {texts[pool]: [task]}} if pool else {}
        annotations = {"Owner": "", IDENTITIES: json.dumps(known)}
        metadata = {"name": cmk_names.config_map(node), "annotations": annotations}
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"config": yaml.safe_dump(config)},
        }
        sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/configmaps/{cmk_names.config_map(node)}")
        sandbox.put(config_map)

    def left(
        self, sandbox: Sandbox, node: str, folder: Path, *arguments: str, **more: Any
    ) -> "subprocess.CompletedProcess[str]":
        place = (f"--node-name={node}", f"--install-dir={folder}", "--proc-fs=/proc")
        return run(sandbox, "uninstall", *place, *arguments, **more)

    def test_nothing_is_left(
        self, sandbox: Sandbox, nodes: list[str], node: str, kubelets: FakeKubelets, tmp_path: Path
    ) -> None:
        prepare_nodes(sandbox, nodes)
        self.state(sandbox, node, pool_planning.EXCLUSIVE, boot="another")
        completed = self.left(sandbox, node, tmp_path)
        assert completed.returncode == 0, completed.stderr
        self.is_left(sandbox, node)
        assert {
            f"daemonsets {node_setup_objects.AGENT}",  # the other node has pools
            f"daemonsets {node_setup_objects.daemon_set_name(LOOKING, nodes[1])}",
            f"pods {node_setup_objects.pod_name(PREPARING, nodes[1])}",
        } <= object_versions(sandbox).keys()
        assert sandbox.api.find(f"{HOOKS}/cmk-webhook-config") is None
        again = self.left(sandbox, node, tmp_path)
        assert again.returncode == 0, again.stderr
        assert {step["outcome"] for step in json.loads(again.stdout)["steps"]} == {
            "not there",
            f"left: node {nodes[1]} has pools",
        }

    def is_left(self, sandbox: Sandbox, node: str) -> None:
        node_object = sandbox.api.get(f"/api/v1/nodes/{node}")
        assert node_object["spec"]["taints"] == [FOREIGN]
        assert cmk_names.LABEL not in node_object["metadata"]["labels"]
        for part in ("capacity", "allocatable"):
            assert not [name for name in node_object["status"][part] if name.startswith("cmk.")]
        own = {
            node_setup_objects.pod_name(PREPARING, node),
            node_setup_objects.daemon_set_name(LOOKING, node),
            cmk_names.config_map(node),
        }
        assert not [line for line in object_versions(sandbox) if line.split(maxsplit=1)[1] in own]

    @pytest.mark.parametrize("pool", [pool_planning.EXCLUSIVE, pool_planning.SHARED, pool_planning.INFRA])
    def test_a_running_task_keeps_all_as_it_is(
        self, sandbox: Sandbox, node: str, kubelets: FakeKubelets, tmp_path: Path, pool: str
    ) -> None:
        prepare_nodes(sandbox, [node], "--cmk-cmd-list=init")
        self.state(sandbox, node, pool)
        before = object_versions(sandbox), sandbox.api.get(f"/api/v1/nodes/{node}")
        completed = self.left(sandbox, node, tmp_path)
        assert completed.returncode == 1
        assert "running tasks" in completed.stderr
        assert f"process {os.getpid()} of pod p1" in completed.stderr
        assert (object_versions(sandbox), sandbox.api.get(f"/api/v1/nodes/{node}")) == before

    def test_all_tasks_count_as_running_on_another_node(
        self, sandbox: Sandbox, node: str, kubelets: FakeKubelets, tmp_path: Path
    ) -> None:
        info = sandbox.api.get(f"/api/v1/nodes/{node}")["status"]["nodeInfo"] | {"bootID": "of-the-node"}
        sandbox.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"nodeInfo": info}})
        self.state(sandbox, node, pool_planning.SHARED, boot="of-the-node")
        completed = self.left(sandbox, node, tmp_path, as_users_do=True)
        assert completed.returncode == 1
        assert "running tasks" in completed.stderr
        assert "not on node" in completed.stderr

    def test_in_two_parts(self, sandbox: Sandbox, node: str, kubelets: FakeKubelets, tmp_path: Path) -> None:
        prepare_nodes(sandbox, [node])
        (tmp_path / ".cmk-1").mkdir()
        (tmp_path / ".cmk-1" / "cmk").write_text("a program")
        (tmp_path / "cmk").symlink_to(".cmk-1/cmk")
        (tmp_path / "other").write_text("somebody's")
        completed = self.left(sandbox, node, tmp_path, "--scope=node")
        assert completed.returncode == 0, completed.stderr
        self.is_left(sandbox, node)
        assert [path.name for path in tmp_path.iterdir()] == ["other"]
        assert sandbox.api.find(f"{HOOKS}/cmk-webhook-config")
        completed = run(sandbox, "uninstall", "--scope=cluster")
        assert completed.returncode == 0, completed.stderr
        assert sandbox.api.find(f"{HOOKS}/cmk-webhook-config") is None
        wait("all objects are deleted", lambda: None if object_versions(sandbox) else True)
