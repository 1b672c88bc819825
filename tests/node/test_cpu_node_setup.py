"""Preparation and removal of nodes with a real kubelet: pods, rights, and messages of failed pods.

The commands in the pods are simulated, because pods cannot reach the API server here.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodewise_cpu import cmk_names
from nodewise_cpu.cluster import node_setup_objects
from nodewise_cpu.cluster.exclusive_core_advertisement import OURS
from tests import forked_commands
from tests.cluster.controlplane import ControlPlane
from tests.cluster.debian_packages import ContainerPrograms
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.node import busybox_image, cpu_manager_on_real_node, script_pods
from tests.node.cpu_manager_on_real_node import ISOLATE, CpuManagerOnNode
from tests.node.kubelet import Kubelet

pytestmark = pytest.mark.cluster

PLAYED = "nodewise.test/played:1"
PROGRAM = r"""
echo "$(id -u) $*" >&2
case "$1" in
  isolate) exec busybox sleep 100000 ;;
  init) busybox test -r /host/proc/self/stat || exit 3 ;;
  install) echo a program > /opt/bin/cmk || exit 4 ;;
  discover) ;;
  reconfigure) busybox test -d /run/nodewise && busybox test -r /host/proc/1/environ || exit 5 ;;
esac
"""
PREPARING = ("init", "install", "discover")
LOOKING = ("reconcile", "nodereport")


@pytest.fixture(scope="module")
def simulated_commands(
    node: Kubelet, container_programs: ContainerPrograms, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """An image with simulated commands for the pods of `cluster-init`."""
    archive = tmp_path_factory.mktemp("played") / "image.tar"
    scripts = {"/bin/bash": 'exec /bin/sh "$@"', "/cmk/cmk.py": PROGRAM}
    busybox_image.write(archive, container_programs.busybox, PLAYED, scripts)
    node.runtime.load(archive)
    return PLAYED


@pytest.fixture
def controllers(plane: ControlPlane, sandbox: Sandbox) -> Iterator[None]:
    with plane.start_controller_manager("daemonset-controller,garbage-collector-controller"):
        yield
        for kind in ("daemonsets", "deployments"):
            sandbox.api.delete(f"/apis/apps/v1/namespaces/{sandbox.namespace}/{kind}")
        sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods")
        wait("its pods are gone", lambda: True if not pods(sandbox) else None, show=lambda: pods(sandbox))


def pods(sandbox: Sandbox) -> dict[str, Any]:
    items = sandbox.api.get(f"/api/v1/namespaces/{sandbox.namespace}/pods")["items"]
    return {pod["metadata"]["name"]: pod for pod in items}


def run(sandbox: Sandbox, *words: str, timeout_s: float = 60) -> "subprocess.CompletedProcess[str]":
    place = [f"--namespace={sandbox.namespace}", f"--kubeconfig={sandbox.plane.admin.kubeconfig}"]
    arguments = ["cpu", *words, *place, f"--timeout={timeout_s:g}", "-o", "json"]
    return forked_commands.run(
        [forked_commands.NODEWISE, *arguments], constants=forked_commands.SHORT_WAITS, timeout=180
    )


def prepared(sandbox: Sandbox, node: Kubelet, *more: str, timeout_s: float = 60) -> Any:
    # the agent's probes would have to reach a network that is the runtime's own
    options = (f"--host-list={node.name}", "--cmk-img-pol=Never", "--no-agent", *more)
    return json.loads(run(sandbox, "cluster-init", *options, timeout_s=timeout_s).stdout)["nodes"][0]


def test_pods_do_their_work_one_after_the_other(
    sandbox: Sandbox, node: Kubelet, controllers: None, simulated_commands: str
) -> None:
    report = prepared(sandbox, node, f"--cmk-img={simulated_commands}")
    assert report["ready"], report
    remaining = pods(sandbox)
    once = remaining.pop(node_setup_objects.pod_name(PREPARING, node.name))
    logs = {name: node.log(once, name) for name in PREPARING}
    assert [line.split()[:2] for lines in logs.values() for line in lines] == [
        ["1000", "init"],
        ["0", "install"],
        ["1000", "discover"],
    ]
    assert node.runtime.inside("/opt/bin/cmk").read_text() == "a program\n"
    (daemon,) = remaining.values()
    started = {
        name: wait(f"{name} has started", lambda name=name: node.log(daemon, name) or None)
        for name in (container["name"] for container in daemon["spec"]["containers"])
    }
    assert [lines[0].split()[:2] for lines in started.values()] == [["0", "isolate"], ["1000", "isolate"]]
    before = {name: pod["metadata"]["uid"] for name, pod in pods(sandbox).items()}
    assert prepared(sandbox, node, f"--cmk-img={simulated_commands}")["ready"]
    assert {name: pod["metadata"]["uid"] for name, pod in pods(sandbox).items()} == before


def wait_error(sandbox: Sandbox, node: Kubelet, error: str, *more: str, timeout_s: float) -> None:
    """Repeats `cluster-init` with a short timeout until it reports an error of the kubelet, which may be slow."""
    errors: list[str] = []

    def is_reported() -> bool | None:
        report = prepared(sandbox, node, *more, timeout_s=timeout_s)
        assert not report["ready"]
        errors.append(report["steps"][0]["error"])
        return error in errors[-1] or None

    wait(f"{error} is reported", is_reported, show=lambda: errors)


def test_errors_of_the_kubelet_are_reported(sandbox: Sandbox, node: Kubelet, controllers: None) -> None:
    missing = ("--cmk-img=nodewise.test/nothing:1", "--cmk-cmd-list=init")
    wait_error(sandbox, node, "container init: ErrImageNeverPull", *missing, timeout_s=8)
    without = prepared(sandbox, node, f"--cmk-img={busybox_image.NAME}", "--cmk-cmd-list=init")
    assert "went into Failed state" in without["steps"][0]["error"]
    assert "/bin/bash" in without["steps"][0]["error"]
    again = (f"--cmk-img={busybox_image.NAME}", "--cmk-cmd-list=reconcile")
    wait_error(sandbox, node, "container reconcile: ", *again, timeout_s=12)


def test_a_node_is_reconfigured_by_pods_that_see_its_processes(
    sandbox: Sandbox, node: Kubelet, simulated_commands: str
) -> None:
    node.label({cmk_names.LABEL: "true"})
    try:
        completed = run(
            sandbox, "reconfigure_setup", f"--cmk-img={simulated_commands}", "--cmk-img-pol=Never"
        )
    finally:
        sandbox.api.patch(node.path, {"metadata": {"labels": {cmk_names.LABEL: None}}})
    assert json.loads(completed.stdout)["nodes"] == [{"node": node.name, "state": "reconfigured"}], completed
    assert pods(sandbox) == {}


class TestLeaving:
    @pytest.fixture
    def manager(
        self, plane: ControlPlane, sandbox: Sandbox, node: Kubelet, program: Path, tmp_path: Path
    ) -> Iterator[CpuManagerOnNode]:
        (node.runtime.inside("/opt/bin/cmk")).unlink(missing_ok=True)
        with cpu_manager_on_real_node.node_with_cpu_manager(
            sandbox, node, program, tmp_path, plane.admin
        ) as made:
            yield made

    def test_uninstall_removes_everything(
        self, sandbox: Sandbox, node: Kubelet, manager: CpuManagerOnNode
    ) -> None:
        """While a pod runs on the core nothing is touched."""
        with manager.agent("--no-publish"):
            sandbox.pods(
                cpu_manager_on_real_node.pod("held", f"exec {ISOLATE} -- busybox sleep 1000", node.name)
            )
            pod = script_pods.running(sandbox, "held")
            manager.wait_held(pod)
            completed = manager.try_run("uninstall", *manager.place, "--proc-fs=/proc")
            assert completed.returncode == 1
            assert "running tasks" in completed.stderr
            assert pod["metadata"]["uid"] in completed.stderr
            assert manager.exclusive_cores_offered() == "1"
            assert len(manager.tasks()) == 1
            sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/held")
            manager.wait_gone(pod)
        manager.run("uninstall", *manager.place, "--proc-fs=/proc")
        wait(
            "the kubelet offers no cores",
            lambda: None if manager.exclusive_cores_offered() else True,
            show=manager.exclusive_cores_offered,
        )
        node_object = sandbox.api.get(node.path)
        assert cmk_names.EXCLUSIVE_CORES not in node_object["status"]["capacity"]
        assert OURS not in node_object["spec"].get("taints", [])
        assert cmk_names.LABEL not in node_object["metadata"]["labels"]
        maps = f"/api/v1/namespaces/{sandbox.namespace}/configmaps/{cmk_names.config_map(node.name)}"
        assert sandbox.api.find(maps) is None
        assert list(node.runtime.inside(cmk_names.DEFAULT_INSTALL_DIR).iterdir()) == []
        manager.run("uninstall", *manager.place, "--proc-fs=/proc")
