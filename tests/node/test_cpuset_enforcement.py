"""No thread leaves its pool: real cpusets, and programs and kubelets that change them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpu_tests.conformance import case_cpu_topologies
from cpu_tests.conformance.test_node_commands import write
from nodewise_cpu import cmk_names
from tests.cluster import debian_packages
from tests.cluster.api_client import Object
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.node import cpu_manager_on_real_node, script_pods
from tests.node import kubelet as kubelets
from tests.node.cpu_manager_on_real_node import EXCLUSIVE, ISOLATE, CpuManagerOnNode
from tests.node.kubelet import Kubelet

pytestmark = pytest.mark.cluster

ENFORCED = ("--no-publish", "--enforce=cgroup")
CPUS = frozenset(range(os.cpu_count() or 1))
PREPARED = "echo 'until [ -e /go ]; do sleep 1; done' > /until; sleep 1000 &"
ESCAPES = "taskset 2 true; echo other=$?; taskset 3 sh /until & sh /until; wait"
"""Programs that use CPU 1, alone or with others."""


STATIC = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "1", "cpuManagerReconcilePeriod": "1s"}


@pytest.fixture(scope="module")
def static(
    plane: ControlPlane,
    kubelet_program: Path,
    container_programs: debian_packages.ContainerPrograms,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Kubelet]:
    """A node whose kubelet has the static CPU manager policy, and writes all cpusets."""
    folder = tmp_path_factory.mktemp("static")
    with kubelets.running(plane, kubelet_program, container_programs, folder, "static", STATIC) as running:
        yield running


def wait_masks(manager: CpuManagerOnNode, pod: Object, cpus: frozenset[int]) -> None:
    """Wait until all threads of a pod may use exactly these CPUs."""

    def all_of_them() -> bool | None:
        return True if set(manager.masks(pod).values()) == {cpus} else None

    wait(f"all threads are on {sorted(cpus)}", all_of_them, show=lambda: manager.masks(pod))


def wait_output(node: Kubelet, pod: Object, *words: str) -> list[str]:
    """The output of a container, once it contains all of these words."""

    def seen() -> list[str] | None:
        lines = node.log(pod, "main")
        return lines if set(words) <= set(lines) else None

    return wait(f"the container says {words}", seen, show=lambda: node.log(pod, "main"))


def test_a_child_cannot_leave_the_cpuset_until_the_task_ends(
    sandbox: Sandbox, node: Kubelet, manager: CpuManagerOnNode
) -> None:
    script = f"{PREPARED} {ISOLATE} -- sh -c '{ESCAPES}'; echo over; sleep 1000"
    with manager.agent(*ENFORCED):
        sandbox.pods(cpu_manager_on_real_node.pod("escaping", script, node.name))
        pod = script_pods.running(sandbox, "escaping")
        wrapper = manager.wait_held(pod)
        lines = wait_output(node, pod, "other=1")
        assert any("Invalid argument" in line for line in lines)
        wait("all of it runs", lambda: True if len(manager.masks(pod)) >= 5 else None)
        wait_masks(manager, pod, EXCLUSIVE)
    with manager.agent(*ENFORCED):
        manager.wait_sweep()
        assert set(manager.masks(pod).values()) == {EXCLUSIVE}
        (node.runtime.inside("/proc") / wrapper / "root/go").touch()
        wait_output(node, pod, "over")
        manager.wait_free()
        wait_masks(manager, pod, CPUS)


def test_a_confined_pod_is_moved_to_another_core_with_its_cpuset(
    sandbox: Sandbox, node: Kubelet, manager: CpuManagerOnNode, tmp_path: Path
) -> None:
    other = write(case_cpu_topologies.texts("B2", "1"), tmp_path / "machine")
    with manager.agent(*ENFORCED, f"--sysfs={other}"):
        sandbox.pods(
            cpu_manager_on_real_node.pod(
                "moved", f"{ISOLATE} -- sh -c 'sleep 1000 & sleep 1000; true'; true", node.name
            )
        )
        pod = script_pods.running(sandbox, "moved")
        manager.wait_held(pod)
        wait("all of it runs", lambda: True if len(manager.masks(pod)) == 5 else None)
        wait_masks(manager, pod, EXCLUSIVE)
        pools = ("--num-exclusive-cores=1", "--num-shared-cores=0")
        report = json.loads(manager.run("reconfigure", f"--agent={cmk_names.DEFAULT_SOCKET}", *pools))
        assert [(move["from"], move["to"]) for move in report["moves"]] == [("0", "1")]
        wait_masks(manager, pod, frozenset({1}))


def test_a_restarted_kubelet_that_widens_cpusets_and_forgets_resources_is_put_right(
    plane: ControlPlane, sandbox: Sandbox, static: Kubelet, program: Path, tmp_path: Path
) -> None:
    with (
        cpu_manager_on_real_node.node_with_cpu_manager(
            sandbox, static, program, tmp_path, plane.admin
        ) as manager,
        manager.agent(*ENFORCED) as agent,
    ):
        sandbox.pods(
            cpu_manager_on_real_node.pod("held", f"sleep 1000 & {ISOLATE} -- busybox sleep 1000", static.name)
        )
        pod = script_pods.running(sandbox, "held")
        manager.wait_held(pod)
        wait_masks(manager, pod, EXCLUSIVE)
        before = enforced(agent)
        static.restart()
        wait("the cpuset was narrowed again", lambda: True if enforced(agent) > before else None)
        # it admits anew what it finds, the oldest pods first, and by what the node offers then
        sandbox.pods(cpu_manager_on_real_node.pod("later", "exec busybox sleep 1000", static.name, cores=0))
        script_pods.running(sandbox, "later")
        # what a kubelet does that finds no checkpoint of devices; one of 1.36 finds its socket in their place
        none = {cmk_names.EXCLUSIVE_CORES: "0"}
        patched = sandbox.api.patch(
            f"{static.path}/status", {"status": {"capacity": none, "allocatable": none}}
        )
        # not a wait for this state, which may end at any moment
        assert patched["status"]["allocatable"][cmk_names.EXCLUSIVE_CORES] == "0"
        wait(
            "the cores are offered again", lambda: True if manager.exclusive_cores_offered() == "1" else None
        )
        wait_masks(manager, pod, EXCLUSIVE)
        manager.wait_sweep()
        assert set(manager.masks(pod).values()) == {EXCLUSIVE}


def test_conflicts_with_the_kubelet_are_reported(
    plane: ControlPlane, sandbox: Sandbox, static: Kubelet, program: Path, tmp_path: Path
) -> None:
    guaranteed = script_pods.pod("guaranteed", "sleep 1000", on=static.name)
    guaranteed["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1", "memory": "64Mi"}}
    sandbox.pods(guaranteed)
    uid = script_pods.running(sandbox, "guaranteed")["metadata"]["uid"]
    with (
        cpu_manager_on_real_node.node_with_cpu_manager(
            sandbox, static, program, tmp_path, plane.admin
        ) as manager,
        manager.agent("--no-publish") as agent,
    ):
        manager.wait_sweep()
        log = agent.log.read_text()
    assert f"container main of pod {uid} has CPUs 0" in log
    assert "CPUs 0 are in the node's pools" in log
    assert "full-pcpus-only" in log


def enforced(agent: Process) -> int:
    """How often the agent corrected a container."""
    return agent.log.read_text().count("cpu_enforced")
