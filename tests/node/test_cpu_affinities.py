"""The installed program on a machine with two sockets and NUMA nodes: affinities, read from outside."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nodewise_cpu import topology
from nodewise_cpu.cpusets import enforcer
from nodewise_cpu.pool_allocations import Task
from tests.cluster.debian_packages import MachinePackages
from tests.cluster.virtual_machine import FileEntry
from tests.node import virtual_cpu_machine
from tests.node.virtual_cpu_machine import CMK, VirtualCpuMachine

pytestmark = pytest.mark.cluster

S0, S1 = (frozenset({0, 1}), frozenset({2, 3})), (frozenset({4, 5}), frozenset({6, 7}))
"""The cores of each socket."""
SPREAD = {"exclusive": (S0[0], S1[0]), "shared": S0[1]}
COUNTS = ("--num-exclusive-cores=2", "--num-shared-cores=1")


@pytest.fixture(autouse=True)
def _ended_processes(machine: VirtualCpuMachine) -> Iterator[None]:
    """No processes of an earlier test."""
    yield
    machine.everybody_ends()


def init(machine: VirtualCpuMachine, place: str, mode: str = "packed") -> None:
    machine.cmk("init", place, *COUNTS, f"--exclusive-mode={mode}")


def tasks(machine: VirtualCpuMachine, place: str) -> dict[str, set[int]]:
    """The process ids of the tasks of each CPU list that has some."""
    folder = place.partition("=")[2]
    lines = machine.run(
        f"cd {folder}/pools; for at in */*/*; do echo $at $(cat $at/tasks); done"
    ).splitlines()
    held = [line.rpartition("/")[2].split() for line in lines]
    return {words[0]: set(map(int, words[1].split(","))) for words in held if words[1:]}


def test_the_topology_of_the_machine(machine: VirtualCpuMachine) -> None:
    document = machine.cmk("topology", "-o", "json")
    assert (document["sockets"], document["cores"]) == (2, 4)
    assert [(cpu["socket"], cpu["numa"], cpu["siblings"]) for cpu in document["cpus"]] == [
        (0, 0, [0, 1]), (0, 0, [0, 1]), (0, 0, [2, 3]), (0, 0, [2, 3]),
        (1, 1, [4, 5]), (1, 1, [4, 5]), (1, 1, [6, 7]), (1, 1, [6, 7]),
    ]  # fmt: skip


def test_every_task_has_its_own_cores(machine: VirtualCpuMachine, place: str) -> None:
    """In the mode `spread`; the next test begins with `packed`."""
    init(machine, place, "spread")
    for name, pool in (("a", "exclusive"), ("b", "exclusive"), ("c", "shared"), ("d", "shared")):
        machine.start(name, place, f"--pool={pool}", below=2 if name in "bc" else 0)
    assert [len(machine.threads(name)) for name in "ab"] == [4, 10]
    assert [machine.everywhere(name) for name in "ab"] == [{cpus} for cpus in SPREAD["exclusive"]]
    assert [machine.everywhere(name) for name in "cd"] == [{SPREAD["shared"]}] * 2
    pools = machine.cmk("describe", place)["pools"].values()
    lists = {
        at: set(map(int, cpu_list["tasks"])) for pool in pools for at, cpu_list in pool["cpuLists"].items()
    }
    assert {at: pids for at, pids in lists.items() if pids} == tasks(machine, place)
    late = machine.try_run(f"{CMK} isolate {place} --pool=exclusive true")
    assert (late.code, late.out) == (125, "")
    assert "pool exclusive: 0 of 2 CPU lists free, 2 held; expected 1" in late.err
    machine.end("a")
    assert machine.run(
        f"{CMK} isolate {place} --pool=exclusive grep -- Cpus_allowed_list /proc/self/status"
    ) == ("Cpus_allowed_list:\t0-1\n")


def test_tasks_of_both_kinds_move_with_all_their_threads(machine: VirtualCpuMachine, place: str) -> None:
    """From packed to spread an exclusive task and the shared ones change places; the shared ones step aside."""
    init(machine, place)
    machine.start("stays", place, "--pool=exclusive", pinned=1)
    machine.start("moves", place, "--pool=exclusive", pinned=1)
    machine.start("one", place, "--pool=shared")
    machine.start("other", place, "--pool=shared", below=0)
    before = {name: machine.threads(name) for name in ("stays", "moves", "one", "other")}
    cpus = {name: {thread.cpus for thread in threads.values()} for name, threads in before.items()}
    assert cpus == {
        "stays": {S0[0], frozenset({1})},
        "moves": {S0[1], frozenset({3})},
        "one": {S1[0]},
        "other": {S1[0]},
    }
    only = machine.cmk("reconfigure", place, *COUNTS, "--exclusive-mode=spread", "--check")
    assert {name: machine.threads(name) for name in before} == before
    report = machine.cmk("reconfigure", place, *COUNTS, "--exclusive-mode=spread")
    assert (report["moves"], report["done"], only["done"]) == (only["moves"], True, False)
    pids = {name: machine.pid(name) for name in before}
    aside = [(pids["one"], "4-5", "6-7"), (pids["other"], "4-5", "6-7"), (pids["moves"], "2-3", "4-5")]
    there = [(pids["one"], "6-7", "2-3"), (pids["other"], "6-7", "2-3")]
    assert [(move["pid"], move["from"], move["to"]) for move in report["moves"]] == aside + there
    after = {name: machine.threads(name) for name in before}
    assert {name: threads.keys() for name, threads in after.items()} == {
        name: threads.keys() for name, threads in before.items()
    }
    assert after["stays"] == before["stays"]
    assert machine.everywhere("moves") == {S1[0], frozenset({5})}
    assert [machine.everywhere(name) for name in ("one", "other")] == [{S0[1]}] * 2
    assert tasks(machine, place) == {
        "0,1": {pids["stays"]}, "4,5": {pids["moves"]}, "2,3": {pids["one"], pids["other"]},
    }  # fmt: skip
    machine.end("moves")
    assert tasks(machine, place).keys() == {"0,1", "2,3", "4,5"}, (
        "what the wrapper's command started lives on"
    )
    machine.kill("moves")
    reclaimed = machine.cmk("reconcile", place)["reclaimedCpuLists"]
    assert reclaimed == [{"cpus": "4,5", "pid": pids["moves"], "pool": "exclusive"}]


def test_a_cpuset_without_the_pools_cores_is_an_error(machine: VirtualCpuMachine, place: str) -> None:
    """Neither a command runs there, nor is one moved there; where the cpuset has them it runs, in its memory."""
    init(machine, place)
    machine_topology = topology.parse(machine.sysfs())
    for name, cpus in (("near", S0[1]), ("far", S1[0])):
        holding = {Task(1, container=name): cpus}
        confinement = enforcer.target_cpusets(holding, machine_topology, {})[name]
        machine.cgroup(name, confinement.cpus, confinement.mems)
    machine.start("first", place, "--pool=exclusive")
    refused = machine.try_run(
        f"echo $$ > /sys/fs/cgroup/far/cgroup.procs; {CMK} isolate {place} --pool=exclusive true"
    )
    assert refused.code == 125
    assert "affinity: CPUs 2-3 cannot be used here, 4-5 can; expected all of 2-3" in refused.err
    machine.start("near", place, "--pool=exclusive", inside="near")
    machine.start("far", place, "--pool=shared", inside="far")
    where = {
        name: {(thread.cpus, thread.mems) for thread in machine.threads(name).values()}
        for name in ("near", "far")
    }
    assert where == {"near": {(S0[1], frozenset({0}))}, "far": {(S1[0], frozenset({1}))}}
    before = {name: machine.threads(name) for name in ("first", "near", "far")}
    held = tasks(machine, place)
    words = f"reconfigure {place} {' '.join(COUNTS)} --exclusive-mode=spread"
    refused = machine.try_run(f"{CMK} {words}")
    assert refused.code == 1
    assert "cannot use CPUs 6-7: none of them is online and in its cpuset" in refused.err
    assert ({name: machine.threads(name) for name in before}, tasks(machine, place)) == (before, held)


def test_no_task_outlives_a_boot(
    machine: VirtualCpuMachine,
    machine_packages: MachinePackages,
    machine_files: Mapping[str, FileEntry],
    tmp_path: Path,
) -> None:
    """Neither a task nor a reconfiguration that the power ended; on the second boot some cores are isolated."""
    place = f"--conf-dir={virtual_cpu_machine.STATE}/pools"
    init(machine, place)
    for name in "ab":
        machine.start(name, place, "--pool=exclusive")
    machine.start("c", place, "--pool=shared")
    boot, held = machine.boot(), tasks(machine, place)
    pids = {machine.pid(name) for name in "abc"}
    assert set().union(*held.values()) == pids
    state = machine.state()
    with virtual_cpu_machine.running(
        machine_packages, machine_files, tmp_path, state, "isolcpus=2-7"
    ) as second:
        assert second.boot() != boot
        assert tasks(second, place) == held
        reclaimed = second.cmk("reconcile", place)["reclaimedCpuLists"]
        assert {(cpu_list["pid"], cpu_list["cpus"]) for cpu_list in reclaimed} == {
            (pid, cpus) for cpus, pids in held.items() for pid in pids
        }
        assert tasks(second, place) == {}
        second.cmk("reconfigure", place, *COUNTS, "--exclusive-mode=spread")
        for name in "ab":
            second.start(name, place, "--pool=exclusive")
        assert [second.everywhere(name) for name in "ab"] == [{S0[1]}, {S1[0]}]
