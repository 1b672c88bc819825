"""Pods of a real kubelet that run on exclusive cores, read from outside."""

from collections.abc import Iterator

import pytest

from tests.cluster.child_processes import Process
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.node import cpu_manager_on_real_node, script_pods
from tests.node.cpu_manager_on_real_node import EXCLUSIVE, ISOLATE, CpuManagerOnNode
from tests.node.kubelet import Kubelet

pytestmark = pytest.mark.cluster

THREADS = cpu_manager_on_real_node.python(
    "import threading, time",
    "[threading.Thread(target=time.sleep, args=(1000,)).start() for _ in range(4)]",
)


@pytest.fixture
def agent(manager: CpuManagerOnNode) -> Iterator[Process]:
    with manager.agent("--no-publish", "--allow-unrequested") as running:
        yield running


def test_a_pod_runs_pinned_with_every_thread(
    sandbox: Sandbox, node: Kubelet, manager: CpuManagerOnNode, agent: Process
) -> None:
    script = f'exec {ISOLATE} -- sh -c "sleep 1000 & {THREADS}"'
    sandbox.pods(
        cpu_manager_on_real_node.with_python(cpu_manager_on_real_node.pod("pinned", script, node.name))
    )
    pod = script_pods.running(sandbox, "pinned")
    masks = wait(
        "all of it runs",
        lambda: masks if len(masks := manager.masks(pod)) == 7 else None,
        show=lambda: (manager.masks(pod), node.log(pod, "main")),
    )
    assert set(masks.values()) == {EXCLUSIVE}, masks
    assert len(manager.tasks()) == 1


def test_a_second_one_fails_with_the_reason_and_runs_after_the_first_ended(
    sandbox: Sandbox, node: Kubelet, manager: CpuManagerOnNode, agent: Process
) -> None:
    sandbox.pods(cpu_manager_on_real_node.pod("first", f"exec {ISOLATE} -- busybox sleep 1000", node.name))
    manager.wait_held(script_pods.running(sandbox, "first"))
    sandbox.pods(
        cpu_manager_on_real_node.pod("second", f"exec {ISOLATE} -- busybox echo ran", node.name, cores=0)
    )
    second = script_pods.ended(sandbox, "second")
    assert script_pods.exit_code(second) == 125
    (reason,) = node.log(second, "main")
    assert "pool exclusive: 0 of 1 CPU lists free, 1 held; expected 1" in reason
    sandbox.pods(
        cpu_manager_on_real_node.pod(
            "third", f"exec {ISOLATE} --wait 5m -- busybox echo ran", node.name, cores=0
        )
    )
    third = script_pods.running(sandbox, "third")
    manager.wait_sweep()
    assert node.log(third, "main") == []
    sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/first")
    third = script_pods.ended(sandbox, "third")
    assert (script_pods.exit_code(third), node.log(third, "main")) == (0, ["ran"])


def test_a_pod_without_a_request_gets_no_core(
    sandbox: Sandbox, node: Kubelet, manager: CpuManagerOnNode
) -> None:
    with manager.agent("--no-publish"):
        sandbox.pods(
            cpu_manager_on_real_node.pod("plain", f"exec {ISOLATE} -- busybox echo ran", node.name, cores=0)
        )
        plain = script_pods.ended(sandbox, "plain")
        assert script_pods.exit_code(plain) == 125
        assert "at most 0, which its container requests" in "".join(node.log(plain, "main"))
        sandbox.pods(cpu_manager_on_real_node.pod("asking", f"exec {ISOLATE} -- busybox echo ran", node.name))
        assert script_pods.exit_code(script_pods.ended(sandbox, "asking")) == 0


def test_the_core_of_a_killed_pod_is_free_after_one_collection(
    sandbox: Sandbox, node: Kubelet, manager: CpuManagerOnNode, agent: Process
) -> None:
    sandbox.pods(cpu_manager_on_real_node.pod("killed", f"exec {ISOLATE} -- busybox sleep 1000", node.name))
    pod = script_pods.running(sandbox, "killed")
    manager.wait_held(pod)
    sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/killed")
    manager.wait_gone(pod)
    manager.wait_sweep()
    assert manager.tasks() == []


def test_a_killed_wrapper_s_core_is_held_until_all_that_it_started_has_ended(
    sandbox: Sandbox, node: Kubelet, manager: CpuManagerOnNode, agent: Process
) -> None:
    sandbox.pods(
        cpu_manager_on_real_node.pod("left", f"{ISOLATE} -- busybox sleep 1000; sleep 1000", node.name)
    )
    pod = script_pods.running(sandbox, "left")
    wrapper = manager.wait_held(pod)
    wait(
        "its command runs",
        lambda: True if any(name.startswith("busybox") for name in manager.masks(pod)) else None,
    )
    manager.kill(wrapper)
    manager.wait_sweep()
    assert manager.tasks() == [wrapper]
    child = next(name for name, cpus in manager.masks(pod).items() if cpus == EXCLUSIVE)
    manager.kill(child.split()[1])
    wait("it ended", lambda: True if child not in manager.masks(pod) else None)
    manager.wait_sweep()
    assert manager.tasks() == []
