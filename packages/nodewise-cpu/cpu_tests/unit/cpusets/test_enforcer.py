"""The target cpusets of containers, and the affinities of their threads."""

from pathlib import Path

import pytest

from nodewise.base.errors import BadInput, Refused
from nodewise_cpu import cpu_set_formats, pool_allocations
from nodewise_cpu.allocation_store import Intent, StoredAllocations
from nodewise_cpu.cpusets import container_cpusets
from nodewise_cpu.cpusets.container_cpusets import CgroupPartitions, ContainerCpuset, Cpuset
from nodewise_cpu.cpusets.enforcer import (
    CpusetEnforcer,
    affinity_after_cpuset_change,
    containers_to_isolate,
    cpus_of_tasks,
    target_cpusets,
)
from nodewise_cpu.pool_allocations import Allocations, Task
from nodewise_cpu.reconfiguration_plan import Move
from nodewise_cpu.topology import Cpu, Topology

A, B = "a" * 64, "b" * 64
ONE = Task(11, 100, "boot", "pod", A)
TWO = Task(12, 100, "boot", "pod", A)
OTHER = Task(13, 100, "boot", "pod", B)
MACHINE = Topology(tuple(Cpu(cpu, numa=cpu // 4) for cpu in range(8)), ())
UNKNOWN = Topology(tuple(Cpu(cpu) for cpu in range(8)), ())


def cpus(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


def stored(*cpu_lists: tuple[str, str, list[Task]], target: Allocations | None = None) -> StoredAllocations:
    """Allocations on socket 0: pool, CPU list, tasks."""
    pools: dict[str, list[pool_allocations.CpuListAllocation]] = {}
    for pool, text, tasks in cpu_lists:
        pools.setdefault(pool, []).append(pool_allocations.parse_cpu_list(text, tasks=tasks))
    allocations = Allocations({name: pool_allocations.pool(name, {0: of}) for name, of in pools.items()})
    return StoredAllocations(allocations, "1", Intent(target, ONE, "") if target else None)


def test_a_container_gets_the_cpus_and_the_numa_nodes_of_all_its_tasks() -> None:
    holding = cpus_of_tasks(
        stored(("exclusive", "1,5", [ONE]), ("exclusive", "2", [OTHER]), ("shared", "0", [TWO]))
    )
    actual = target_cpusets(holding, MACHINE, {})
    assert actual == {A: Cpuset(cpus(0, 1, 5), cpus(0, 1)), B: Cpuset(cpus(2), cpus(0))}


def test_memory_is_left_alone_where_nodes_are_not_known() -> None:
    assert target_cpusets(cpus_of_tasks(stored(("exclusive", "1", [ONE]))), UNKNOWN, {}) == {
        A: Cpuset(cpus(1))
    }


def test_container_without_allocation_gets_its_cpuset_back() -> None:
    before = {A: Cpuset(cpus(0, 1)), B: Cpuset(cpus(0, 1, 2))}
    targets = target_cpusets(
        cpus_of_tasks(stored(("exclusive", "1", [ONE]), ("exclusive", "2", []))), UNKNOWN, before
    )
    assert targets == {A: Cpuset(cpus(1)), B: Cpuset(cpus(0, 1, 2))}


def test_a_task_of_no_known_container_confines_none() -> None:
    assert target_cpusets(cpus_of_tasks(stored(("exclusive", "1", [Task(11)]))), UNKNOWN, {}) == {}


def test_during_a_reconfiguration_a_container_has_the_old_and_the_new_cpus() -> None:
    target = stored(("exclusive", "3", [ONE])).allocations
    assert cpus_of_tasks(stored(("exclusive", "1", [ONE]), target=target)) == {ONE: cpus(1, 3)}


@pytest.mark.parametrize(
    ("mask", "old", "new", "own", "after"),
    [
        pytest.param({0, 1}, {0, 1}, {1}, {1}, {1}, id="the wrapper that just claimed"),
        pytest.param({1}, {1}, {0, 1}, {1}, {1}, id="a task stays when another one comes"),
        pytest.param({1, 2, 3}, {0, 1, 2, 3}, {2, 3}, {2, 3}, {2, 3}, id="what is left of its own"),
        pytest.param({2}, {0, 1, 2, 3}, {2, 3}, {2, 3}, {2}, id="a thread that chose one of its CPUs keeps it"),
        pytest.param({0}, {0, 1}, {1}, {1}, {1}, id="a thread that chose what it must not have"),
        pytest.param({1}, {1}, {0, 1}, None, {0, 1}, id="another thread follows when it widens"),
        pytest.param({0, 1}, {0, 1}, {1}, None, {1}, id="another thread follows when it narrows"),
        pytest.param({1}, {0, 1}, {1, 2}, None, {1}, id="another thread that chose keeps it"),
        pytest.param({0}, {0, 1}, {2}, None, {2}, id="another thread whose choice is gone"),
    ],
)  # fmt: skip
def test_affinity_after_a_change_of_the_cpuset(
    mask: set[int], old: set[int], new: set[int], own: set[int] | None, after: set[int]
) -> None:
    masks = [frozenset(cpu_ids) for cpu_ids in (mask, old, new)]
    assert affinity_after_cpuset_change(*masks, None if own is None else frozenset(own)) == frozenset(after)


class FakeCpusetRuntime:
    """A container runtime that only has records of cpusets."""

    def __init__(self, **cpusets: Cpuset) -> None:
        self.cpusets = {{"a": A, "b": B}[name]: cpuset for name, cpuset in cpusets.items()}
        self.sets: list[tuple[str, Cpuset]] = []
        self.refuses = ""

    def find(self, container: str) -> ContainerCpuset | None:
        inherited = Cpuset(cpus(*range(8)), cpus(0, 1))
        return ContainerCpuset(self.cpusets[container], inherited) if container in self.cpusets else None

    def confine(self, container: str, to: Cpuset) -> None:
        if container == self.refuses:
            raise Refused("cannot confine a container")
        self.sets.append((container, to))
        self.cpusets[container] = to


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "run/cpusets.json"


def enforcer(runtime: FakeCpusetRuntime, memory: Path) -> CpusetEnforcer:
    return CpusetEnforcer(runtime, MACHINE, Path("/proc"), memory)


def test_original_cpusets_survive_the_agent(memory: Path) -> None:
    runtime = FakeCpusetRuntime(a=Cpuset(), b=Cpuset(cpus(2, 3), cpus(0)))
    both = stored(("exclusive", "5", [ONE]), ("exclusive", "2", [OTHER]))
    changed, problems = enforcer(runtime, memory).check(lambda: both, {})
    assert (changed, problems) == (
        {A: Cpuset(cpus(5), cpus(1)), B: Cpuset(cpus(2), cpus(0))}, [],
    )  # fmt: skip
    assert enforcer(runtime, memory).check(lambda: both, {}).changed == {}
    changed, _ = enforcer(runtime, memory).check(
        lambda: stored(("exclusive", "5", []), ("exclusive", "2", [])), {}
    )
    assert changed == {A: Cpuset(cpus(*range(8)), cpus(0, 1)), B: Cpuset(cpus(2, 3), cpus(0))}
    assert container_cpusets.load_original_cpusets(memory) == {}


def test_cpusets_that_others_changed_are_set_again(memory: Path) -> None:
    runtime = FakeCpusetRuntime(a=Cpuset())
    state = stored(("exclusive", "5", [ONE]))
    assert enforcer(runtime, memory).admit(lambda: state, A, {})
    assert not enforcer(runtime, memory).admit(lambda: state, A, {})
    runtime.cpusets[A] = Cpuset(cpus(0, 1))
    assert enforcer(runtime, memory).check(lambda: state, {}).changed == {A: Cpuset(cpus(5), cpus(1))}


def test_a_container_that_is_gone_is_forgotten(memory: Path) -> None:
    runtime = FakeCpusetRuntime(a=Cpuset())
    enforcer(runtime, memory).admit(lambda: stored(("exclusive", "5", [ONE])), A, {})
    del runtime.cpusets[A]
    assert enforcer(runtime, memory).check(lambda: stored(("exclusive", "5", [ONE])), {}) == ({}, [])
    assert container_cpusets.load_original_cpusets(memory) == {}


def test_a_check_goes_on_after_one_that_cannot_be_confined_and_says_so(memory: Path) -> None:
    runtime = FakeCpusetRuntime(a=Cpuset(), b=Cpuset())
    runtime.refuses = A
    both = stored(("exclusive", "5", [ONE]), ("exclusive", "2", [OTHER]))
    changed, (problem,) = enforcer(runtime, memory).check(lambda: both, {})
    assert list(changed) == [B]
    assert problem == (f"container {A}", "cannot confine a container", "CPUs 5, NUMA nodes 1")
    with pytest.raises(Refused):
        enforcer(runtime, memory).admit(lambda: both, A, {})


def test_a_container_that_holds_nothing_and_never_did_is_left_alone(memory: Path) -> None:
    runtime = FakeCpusetRuntime(a=Cpuset())
    assert not enforcer(runtime, memory).admit(lambda: stored(("exclusive", "5", [])), A, {})
    assert runtime.sets == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [('{"x": {"cpus": "one"}}', "mems"), ("[]", "'list' object"), ("{", "Expecting property name")],
)
def test_a_memory_that_cannot_be_read_is_named(memory: Path, text: str, seen: str) -> None:
    memory.parent.mkdir()
    memory.write_text(text)
    with pytest.raises(BadInput, match=f"cannot read the original cpusets.*{seen}"):
        enforcer(FakeCpusetRuntime(), memory).check(stored, {})


def test_a_task_may_pass_cpus_while_the_node_is_being_reconfigured_and_no_longer(memory: Path) -> None:
    runtime = FakeCpusetRuntime(a=Cpuset(cpus(1)), b=Cpuset())
    target = stored(("exclusive", "3", [ONE])).allocations
    moves = (Move(ONE, cpus(1), cpus(2)), Move(ONE, cpus(2), cpus(3)))
    first = stored(("exclusive", "1", [ONE]), ("exclusive", "5", [OTHER]), target=target)
    assert first.intent
    now = [first._replace(intent=first.intent._replace(moves=moves))]
    under_test = enforcer(runtime, memory)
    under_test.widen(lambda: now[0], [ONE])
    assert [container for container, _ in runtime.sets] == [A]
    assert runtime.cpusets[A].cpus == cpus(1, 2, 3)
    assert list(under_test.check(lambda: now[0], {}).changed) == [B]
    now[0] = StoredAllocations(target, "2")
    assert under_test.check(lambda: now[0], {}).changed[A] == Cpuset(cpus(3), cpus(0))


@pytest.mark.parametrize(
    ("memory_nodes", "cpu", "mems"),
    [
        pytest.param({0, 1}, 5, {1}, id="nodes with memory"),
        pytest.param({0}, 5, set(), id="the node of the task has no memory"),
        pytest.param({0, 1, 3}, 5, {1, 3}, id="a node with memory and no CPUs"),
        pytest.param({0, 1, 7}, 2, {0}, id="a node without CPUs that the container did not have"),
    ],
)
def test_memory_of_a_confined_container(
    memory_nodes: set[int], cpu: int, mems: set[int], memory: Path
) -> None:
    runtime = FakeCpusetRuntime(a=Cpuset(cpus(*range(8)), cpus(0, 1, 3)))
    machine = MACHINE._replace(memory_nodes=frozenset(memory_nodes))
    confining = CpusetEnforcer(runtime, machine, Path("/proc"), memory)
    held = stored(("exclusive", str(cpu), [ONE]))
    assert confining.check(lambda: held, {}).changed == {A: Cpuset(cpus(cpu), frozenset(mems))}
    assert confining.check(lambda: held, {}).changed == {}
    confining.check(lambda: stored(("exclusive", str(cpu), [])), {})
    assert runtime.cpusets == {A: Cpuset(cpus(*range(8)), cpus(0, 1, 3))}


class FakeCgroupRuntime(FakeCpusetRuntime):
    """A container runtime that also writes `cpuset.cpus` of the containers' cgroups below `root`."""

    def __init__(self, root: Path, **cpusets: Cpuset) -> None:
        super().__init__(**cpusets)
        self.root = root

    def folder(self, container: str) -> Path:
        return self.root / f"kubepods/pod0f5b2c66-1f1e-4b55-8f6b-0d3c5a9be001/{container}"

    def confine(self, container: str, to: Cpuset) -> None:
        super().confine(container, to)
        self.folder(container).mkdir(parents=True, exist_ok=True)
        for path in (self.folder(container), self.folder(container).parent, self.root / "kubepods"):
            for name in ("cpuset.cpus.exclusive", "cpuset.cpus.partition"):
                if not (path / name).exists():
                    (path / name).write_text("\n")
        (self.folder(container) / "cpuset.cpus").write_text(f"{cpu_set_formats.format_cpu_ranges(to.cpus)}\n")


@pytest.mark.parametrize("undone", ["\n", "0-7\n"])
def test_cpuset_that_systemd_undid_is_restored_by_the_next_check(
    undone: str, memory: Path, tmp_path: Path
) -> None:
    """systemd replaces the cpuset of the cgroup at the next change of a property; the runtime does not notice it."""
    runtime = FakeCgroupRuntime(tmp_path / "cgroup", a=Cpuset())
    cgroups = (tmp_path / "none", tmp_path / "cgroup")
    checking = CpusetEnforcer(runtime, MACHINE, Path("/proc"), memory, cgroups)
    held = stored(("exclusive", "2,5", [ONE]))
    checking.check(lambda: held, {})
    assert checking.check(lambda: held, {}).changed == {}
    (runtime.folder(A) / "cpuset.cpus").write_text(undone)
    assert checking.check(lambda: held, {}).changed == {A: Cpuset(cpus(2, 5), cpus(0, 1))}
    assert (runtime.folder(A) / "cpuset.cpus").read_text() == "2,5\n"
    assert checking.check(lambda: held, {}).changed == {}


def test_containers_with_exclusive_cpus_only_are_isolated() -> None:
    held = stored(("exclusive", "1,5", [ONE]), ("exclusive", "2", [TWO]), ("shared", "0", [OTHER]))
    assert containers_to_isolate(held, MACHINE) == {A: cpus(1, 2, 5)}
    mixed = stored(("exclusive", "1,5", [ONE]), ("shared", "0", [TWO]), ("exclusive", "2", [Task(14)]))
    assert containers_to_isolate(mixed, MACHINE) == {}
    move = Move(ONE, cpus(1), cpus(3))
    moving = held._replace(intent=Intent(held.allocations, ONE, "", (move,)))
    assert containers_to_isolate(moving, MACHINE) == {}
    booted = Topology(tuple(Cpu(cpu, isolated=cpu != 0) for cpu in range(8)), ())
    assert containers_to_isolate(held, booted) == {}


def test_partition_follows_the_tasks_of_its_container(memory: Path, tmp_path: Path) -> None:
    runtime = FakeCgroupRuntime(tmp_path / "cgroup", a=Cpuset())
    memory.parent.mkdir(mode=0o755)
    partitions = CgroupPartitions(tmp_path / "cgroup", memory.with_name("partitions.json"))
    checking = CpusetEnforcer(runtime, MACHINE, Path("/proc"), memory, [tmp_path / "cgroup"], partitions)

    def state() -> tuple[str, str]:
        names = ("cpuset.cpus.partition", "cpuset.cpus.exclusive")
        partition, exclusive = ((runtime.folder(A) / name).read_text().strip() for name in names)
        return partition, exclusive

    assert checking.admit(lambda: stored(("exclusive", "2,5", [ONE])), A, {})
    assert state() == ("isolated", "2,5")
    assert not checking.admit(lambda: stored(("exclusive", "2,5", [ONE])), A, {})
    checking.admit(lambda: stored(("exclusive", "2,5", [ONE]), ("exclusive", "3", [TWO])), A, {})
    assert state() == ("isolated", "2-3,5")
    checking.check(lambda: stored(("exclusive", "2,5", []), ("exclusive", "3", [])), {})
    assert state() == ("member", "")
    assert runtime.cpusets[A].cpus == cpus(*range(8))
