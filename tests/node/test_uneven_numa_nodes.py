"""The installed program on a machine with a NUMA node without memory, and one without CPUs."""

from collections.abc import Iterator, Mapping

import pytest

from nodewise_cpu import topology
from nodewise_cpu.cpusets import enforcer
from nodewise_cpu.pool_allocations import Task
from tests.cluster.debian_packages import MachinePackages
from tests.cluster.virtual_machine import FileEntry
from tests.node import virtual_cpu_machine
from tests.node.virtual_cpu_machine import VirtualCpuMachine

pytestmark = pytest.mark.cluster

WITHOUT_MEMORY, WITHOUT_CPUS = 1, 2
PLACE = f"--conf-dir={virtual_cpu_machine.STATE}/pools"
HARDWARE = virtual_cpu_machine.HARDWARE._replace(
    options=(
        *("-cpu", "Nehalem"),
        *("-object", "memory-backend-ram,id=m0,size=768M", "-object", "memory-backend-ram,id=m2,size=256M"),
        *("-numa", "node,nodeid=0,cpus=0-3,memdev=m0", "-numa", f"node,nodeid={WITHOUT_MEMORY},cpus=4-7"),
        *("-numa", f"node,nodeid={WITHOUT_CPUS},memdev=m2"),
    )
)


@pytest.fixture(scope="module")
def machine(
    machine_packages: MachinePackages,
    machine_files: Mapping[str, FileEntry],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[VirtualCpuMachine]:
    folder = tmp_path_factory.mktemp("uneven")
    with virtual_cpu_machine.running(machine_packages, machine_files, folder, hardware=HARDWARE) as machine:
        machine.cmk("init", PLACE, "--num-exclusive-cores=0", "--num-shared-cores=3", "--shared-mode=spread")
        yield machine


def test_cpus_are_in_their_node_and_nodes_without_memory_are_known(machine: VirtualCpuMachine) -> None:
    described = machine.cmk("topology", "-o", "json")
    assert [cpu["numa"] for cpu in described["cpus"]] == [0] * 4 + [WITHOUT_MEMORY] * 4
    parsed = topology.parse(machine.sysfs())
    assert (parsed.memory_nodes, parsed.memory_only_nodes) == ({0, WITHOUT_CPUS}, {WITHOUT_CPUS})


@pytest.mark.parametrize(
    ("name", "cpus", "mems"),
    [("near", {2, 3}, {0}), ("bare", {6, 7}, {0, WITHOUT_CPUS}), ("both", {2, 3, 6, 7}, {0})],
)
def test_tasks_run_in_the_cpuset_that_enforcement_sets(
    machine: VirtualCpuMachine, name: str, cpus: set[int], mems: set[int]
) -> None:
    """The kernel would ignore a node without memory; the task on CPUs of such a node may use all memory."""
    target = enforcer.target_cpusets(
        {Task(1, container=name): frozenset(cpus)}, topology.parse(machine.sysfs()), {}
    )[name]
    machine.cgroup(name, target.cpus, target.mems)
    machine.start(name, PLACE, "--pool=infra", "--no-affinity", inside=name)
    where = {(thread.cpus, thread.mems) for thread in machine.threads(name).values()}
    assert where == {(frozenset(cpus), frozenset(mems))}
    machine.everybody_ends()


def test_a_node_without_memory_is_ignored_in_a_cpuset(machine: VirtualCpuMachine) -> None:
    """Measured: Linux 6.12 accepts the node, and the cgroup keeps its parent's nodes."""
    machine.cgroup("ignored", {6, 7}, {WITHOUT_MEMORY})
    folder = "/sys/fs/cgroup/ignored"
    written, effective = machine.run(f"cat {folder}/cpuset.mems {folder}/cpuset.mems.effective").split()
    assert (written, effective) == (str(WITHOUT_MEMORY), f"0,{WITHOUT_CPUS}")
