"""The effect of cpusets on real containers, read from the kernel."""

from collections.abc import Iterator

import pytest

from nodewise.base.errors import Refused
from nodewise_cpu import procfs
from nodewise_cpu.cpusets import container_cpusets
from nodewise_cpu.cpusets.container_cpusets import Cpuset
from nodewise_cpu.cpusets.container_runtime_client import ContainerRuntime
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.node import containerd_runtime, script_pods
from tests.node.kubelet import Kubelet

pytestmark = pytest.mark.cluster

ONE = frozenset({1})


@pytest.fixture
def runtime_client(node: Kubelet) -> Iterator[ContainerRuntime]:
    """A client of the node's container runtime."""
    made = ContainerRuntime(node.runtime.inside(containerd_runtime.SOCKET), node.runtime.inside("/proc"))
    yield made
    made.close()


def masks(node: Kubelet, container: str) -> list[frozenset[int]]:
    """The affinities of the threads of a container."""
    proc = node.runtime.inside("/proc")
    (pids,) = container_cpusets.list_container_processes(proc, [container]).values()
    return [thread.cpus for pid in pids for thread in procfs.read_threads(proc, pid)]


def test_a_running_container_is_held_to_its_cpus_and_let_go(
    sandbox: Sandbox, node: Kubelet, runtime_client: ContainerRuntime
) -> None:
    sandbox.pods(script_pods.pod("held", "sleep 1000 & sleep 1000; true", on=node.name))
    container = script_pods.container_of(script_pods.running(sandbox, "held"))
    assert runtime_client.version().startswith("containerd ")
    before = runtime_client.find(container)
    assert before is not None
    assert before.configured == Cpuset()
    assert before.effective.cpus >= {0, 1}
    wait("the shell and what it starts run", lambda: len(masks(node, container)) == 3 or None)
    assert masks(node, container) == [before.effective.cpus] * 3
    runtime_client.confine(container, Cpuset(ONE, before.effective.mems))
    after = runtime_client.find(container)
    assert after is not None
    assert after.effective == Cpuset(ONE, before.effective.mems)
    assert after.inherited == before.inherited
    assert masks(node, container) == [ONE] * 3
    runtime_client.confine(container, before.effective)
    assert masks(node, container) == [before.effective.cpus] * 3


def test_cpus_that_are_not_there_are_refused_in_the_runtime_s_words(
    sandbox: Sandbox, node: Kubelet, runtime_client: ContainerRuntime
) -> None:
    sandbox.pods(script_pods.pod("held", "sleep 1000", on=node.name))
    container = script_pods.container_of(script_pods.running(sandbox, "held"))
    with pytest.raises(Refused, match=r"cpuset\.cpus"):
        runtime_client.confine(container, Cpuset(frozenset({4000})))


def test_a_container_that_ended_is_none(
    sandbox: Sandbox, node: Kubelet, runtime_client: ContainerRuntime
) -> None:
    sandbox.pods(script_pods.pod("short", "exit 0", on=node.name))
    container = script_pods.container_of(script_pods.ended(sandbox, "short"))
    assert runtime_client.find(container) is None
    runtime_client.confine(container, Cpuset(ONE))
    assert runtime_client.find("d" * 64) is None
