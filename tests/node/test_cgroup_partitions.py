"""The installed program on a machine with a cgroup partition: its CPUs are in no pool."""

from collections.abc import Iterator, Mapping

import pytest

from nodewise_cpu import topology
from tests.cluster.debian_packages import MachinePackages
from tests.cluster.virtual_machine import FileEntry
from tests.node import virtual_cpu_machine
from tests.node.virtual_cpu_machine import CMK, VirtualCpuMachine

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def machine(
    machine_packages: MachinePackages,
    machine_files: Mapping[str, FileEntry],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[VirtualCpuMachine]:
    folder = tmp_path_factory.mktemp("partitions")
    with virtual_cpu_machine.running(machine_packages, machine_files, folder) as machine:
        yield machine


@pytest.fixture(params=["isolated", "root"])
def partition(request: pytest.FixtureRequest, machine: VirtualCpuMachine) -> Iterator[str]:
    """A partition with the CPUs 2 and 3, of each kind."""
    folder = "/sys/fs/cgroup/own"
    machine.run(
        f"mkdir {folder}; echo 2-3 > {folder}/cpuset.cpus; echo {request.param} > {folder}/cpuset.cpus.partition"
    )
    assert machine.run(f"cat {folder}/cpuset.cpus.partition").strip() == request.param
    yield folder
    machine.run(f"rmdir {folder}")


def test_cpus_of_a_partition_are_in_no_pool(machine: VirtualCpuMachine, partition: str, place: str) -> None:
    refused = machine.try_run("taskset -c 2 true")
    assert (refused.code, "Invalid argument" in refused.err) == (1, True)
    assert topology.parse(machine.sysfs()).partitions == {2, 3}
    shown = machine.cmk("topology", "-o", "json")["cpus"]
    assert [cpu["cpu"] for cpu in shown if cpu["partition"]] == [2, 3]
    planned = machine.try_run(f"{CMK} init {place} --num-exclusive-cores=1 --num-shared-cores=0")
    assert planned.code == 0
    assert "CPUs 2-3, on which no process of another cgroup may run" in planned.err
    pools = machine.cmk("describe", place)["pools"]
    assert {name: list(pool["cpuLists"]) for name, pool in pools.items()} == {
        "exclusive": ["0,1"], "shared": [], "infra": ["4,5,6,7"],
    }  # fmt: skip
    assert machine.run(f"{CMK} isolate {place} --pool=exclusive -- echo runs").strip() == "runs"


def test_partition_that_takes_cpus_of_a_pool_is_reported(machine: VirtualCpuMachine, place: str) -> None:
    machine.cmk("init", place, "--num-exclusive-cores=1", "--num-shared-cores=0")
    assert machine.try_run(f"{CMK} describe {place}").err == ""
    folder = "/sys/fs/cgroup/late"
    machine.run(
        f"mkdir {folder}; echo 1 > {folder}/cpuset.cpus; echo isolated > {folder}/cpuset.cpus.partition"
    )
    try:
        reported = "exclusive:0,1: CPUs 1 are in a cgroup partition"
        assert reported in machine.try_run(f"{CMK} describe {place}").err
        (error,) = machine.cmk("node-report", place)["checks"]["configDirectory"]["errors"]
        assert error.startswith(reported)
        refused = machine.try_run(f"{CMK} isolate {place} --pool=exclusive true")
        assert refused.code == 125
        assert "affinity" in refused.err
    finally:
        machine.run(f"rmdir {folder}")
    assert machine.run(f"{CMK} isolate {place} --pool=exclusive -- echo runs").strip() == "runs"
