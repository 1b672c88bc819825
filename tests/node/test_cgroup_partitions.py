"""The installed program on a machine with a cgroup partition: its CPUs are in no pool."""

import contextlib
from collections.abc import Iterator

import pytest

from nodewise_cpu import topology
from tests.node.virtual_cpu_machine import CMK, VirtualCpuMachine

pytestmark = pytest.mark.cluster


@contextlib.contextmanager
def partition(machine: VirtualCpuMachine, cpus: str, kind: str = "isolated") -> Iterator[None]:
    """A partition of the host with these CPUs."""
    folder = "/sys/fs/cgroup/own"
    machine.run(
        f"mkdir {folder}; echo {cpus} > {folder}/cpuset.cpus; echo {kind} > {folder}/cpuset.cpus.partition"
    )
    try:
        assert machine.run(f"cat {folder}/cpuset.cpus.partition").strip() == kind
        yield
    finally:
        machine.run(f"rmdir {folder}")


@pytest.mark.parametrize("kind", ["isolated", "root"])
def test_partitions_of_each_kind_are_found(machine: VirtualCpuMachine, kind: str) -> None:
    with partition(machine, "2-3", kind):
        refused = machine.try_run("taskset -c 2 true")
        assert (refused.code, "Invalid argument" in refused.err) == (1, True)
        assert topology.parse(machine.sysfs()).partitions == {2, 3}


def test_cpus_of_a_partition_are_in_no_pool(machine: VirtualCpuMachine, place: str) -> None:
    with partition(machine, "2-3"):
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
    with partition(machine, "1"):
        reported = "exclusive:0,1: CPUs 1 are in a cgroup partition"
        assert reported in machine.try_run(f"{CMK} describe {place}").err
        (error,) = machine.cmk("node-report", place)["checks"]["configDirectory"]["errors"]
        assert error.startswith(reported)
        refused = machine.try_run(f"{CMK} isolate {place} --pool=exclusive true")
        assert refused.code == 125
        assert "affinity" in refused.err
    assert machine.run(f"{CMK} isolate {place} --pool=exclusive -- echo runs").strip() == "runs"
