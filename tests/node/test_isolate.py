"""Pods on a real kubelet that run on a core of their own, read from outside."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.cluster.processes import Process
from tests.cluster.sandbox import Sandbox, wait
from tests.node import managed, workloads
from tests.node.kubelet import Kubelet
from tests.node.managed import EXCLUSIVE, ISOLATE, Manager

pytestmark = pytest.mark.cluster

THREADS = managed.python(
    "import threading, time",
    "[threading.Thread(target=time.sleep, args=(1000,)).start() for _ in range(4)]",
)


@pytest.fixture
def manager(
    plane: ControlPlane, corner: Sandbox, node: Kubelet, program: Path, tmp_path: Path
) -> Iterator[Manager]:
    with managed.managed(corner, node, program, tmp_path, plane.admin) as made:
        yield made


@pytest.fixture
def agent(manager: Manager) -> Iterator[Process]:
    with manager.agent("--no-publish", "--allow-unrequested") as running:
        yield running


def test_a_pod_runs_pinned_with_every_thread(
    corner: Sandbox, node: Kubelet, manager: Manager, agent: Process
) -> None:
    script = f'exec {ISOLATE} -- sh -c "sleep 1000 & {THREADS}"'
    corner.pods(managed.with_python(managed.pod("pinned", script, node.name)))
    pod = workloads.running(corner, "pinned")
    masks = wait(
        "all of it runs",
        lambda: found if len(found := manager.masks(pod)) == 7 else None,
        show=lambda: (manager.masks(pod), node.log(pod, "main")),
    )
    assert set(masks.values()) == {EXCLUSIVE}, masks
    assert len(manager.tasks()) == 1


def test_a_second_one_fails_with_the_reason_and_runs_after_the_first_ended(
    corner: Sandbox, node: Kubelet, manager: Manager, agent: Process
) -> None:
    corner.pods(managed.pod("first", f"exec {ISOLATE} -- busybox sleep 1000", node.name))
    manager.wait_held(workloads.running(corner, "first"))
    corner.pods(managed.pod("second", f"exec {ISOLATE} -- busybox echo ran", node.name, cores=0))
    second = workloads.ended(corner, "second")
    assert workloads.exit_code(second) == 125
    (reason,) = node.log(second, "main")
    assert "pool exclusive: 0 of 1 CPU lists free, 1 held; wanted 1" in reason
    corner.pods(managed.pod("third", f"exec {ISOLATE} --wait 5m -- busybox echo ran", node.name, cores=0))
    third = workloads.running(corner, "third")
    manager.wait_sweep()
    assert node.log(third, "main") == []
    corner.api.delete(f"/api/v1/namespaces/{corner.namespace}/pods/first")
    third = workloads.ended(corner, "third")
    assert (workloads.exit_code(third), node.log(third, "main")) == (0, ["ran"])


def test_who_did_not_request_a_core_gets_none(corner: Sandbox, node: Kubelet, manager: Manager) -> None:
    with manager.agent("--no-publish"):
        corner.pods(managed.pod("plain", f"exec {ISOLATE} -- busybox echo ran", node.name, cores=0))
        plain = workloads.ended(corner, "plain")
        assert workloads.exit_code(plain) == 125
        assert "at most 0, which its container requests" in "".join(node.log(plain, "main"))
        corner.pods(managed.pod("asking", f"exec {ISOLATE} -- busybox echo ran", node.name))
        assert workloads.exit_code(workloads.ended(corner, "asking")) == 0


def test_the_core_of_a_killed_pod_is_free_after_one_sweep(
    corner: Sandbox, node: Kubelet, manager: Manager, agent: Process
) -> None:
    corner.pods(managed.pod("killed", f"exec {ISOLATE} -- busybox sleep 1000", node.name))
    pod = workloads.running(corner, "killed")
    manager.wait_held(pod)
    corner.api.delete(f"/api/v1/namespaces/{corner.namespace}/pods/killed")
    manager.wait_gone(pod)
    manager.wait_sweep()
    assert manager.tasks() == []


def test_a_killed_wrapper_s_core_is_held_until_all_that_it_started_has_ended(
    corner: Sandbox, node: Kubelet, manager: Manager, agent: Process
) -> None:
    corner.pods(managed.pod("left", f"{ISOLATE} -- busybox sleep 1000; sleep 1000", node.name))
    pod = workloads.running(corner, "left")
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
