"""Properties of pools, allocations, garbage collection and reconfigurations."""

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable

from hypothesis import given
from hypothesis import strategies as st

from cpu_tests.unit.allocation_factory import create_allocations
from nodewise.base.errors import BadInput, Refused, Unavailable
from nodewise_cpu import (
    allocator,
    configmap_store,
    cpu_set_formats,
    directory_store,
    ended_tasks,
    pool_allocations,
    pool_planning,
    reconfiguration_plan,
    topology,
)
from nodewise_cpu.ended_tasks import NodeProcess
from nodewise_cpu.pool_allocations import Allocations, Task
from nodewise_cpu.pool_planning import PoolOptions, PoolPlan
from nodewise_cpu.topology import Topology

CPUS = st.sets(st.integers(0, 300), max_size=80)
MODES = st.sampled_from(["packed", "spread"])


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Up to three sockets of cores with up to three threads, numbered in any order, some offline or isolated."""
    places = [
        (socket, core)
        for socket in range(draw(st.integers(1, 3)))
        for core in range(draw(st.integers(1, 5)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    at = dict(enumerate(draw(st.permutations(places))))
    online = draw(st.sets(st.sampled_from(sorted(at)), min_size=1)) if draw(st.booleans()) else set(at)
    isolated = draw(st.sets(st.sampled_from(sorted({*at.values()}))))
    texts = {
        f"{topology.CPUS}/present": f"0-{len(at) - 1}",
        f"{topology.CPUS}/online": cpu_set_formats.format_cpu_ranges(online),
        f"{topology.CPUS}/isolated": cpu_set_formats.format_cpu_ranges(
            cpu for cpu in at if at[cpu] in isolated
        ),
    }
    for cpu in online:
        folder = f"{topology.CPUS}/cpu{cpu}/topology"
        texts[f"{folder}/physical_package_id"] = str(at[cpu][0])
        texts[f"{folder}/core_id"] = str(at[cpu][1])
        texts[f"{folder}/thread_siblings_list"] = cpu_set_formats.format_cpu_ranges(
            sibling for sibling in at if at[sibling] == at[cpu]
        )
    return topology.parse(texts)


def asks(machine: Topology) -> st.SearchStrategy[PoolOptions]:
    counts = st.integers(0, len(machine.cores))
    off = st.just(pool_planning.OFF)
    return st.builds(
        PoolOptions,
        exclusive=counts,
        shared=counts,
        exclusive_mode=MODES,
        shared_mode=MODES,
        non_isolcpus=off,
        exclusive_kind=st.just(""),
    )


def planned(machine: Topology, ask: PoolOptions, fast: Collection[int] = ()) -> PoolPlan | None:
    """The plan, or None if the machine cannot be divided with these options."""
    with contextlib.suppress(BadInput):
        return pool_planning.plan(machine, ask, fast)
    return None


@given(machines())
def test_every_online_cpu_is_in_one_core(machine: Topology) -> None:
    cpus = Counter(cpu for core in machine.cores for cpu in core.cpus)
    assert set(cpus) == machine.online
    assert set(cpus.values()) == {1}
    assert [core.core for core in machine.cores] == list(range(len(machine.cores)))


@given(st.data(), machines())
def test_no_core_is_in_two_pools_and_none_is_divided(data: st.DataObject, machine: Topology) -> None:
    ask = data.draw(asks(machine))
    plan = planned(machine, ask, data.draw(st.sets(st.sampled_from(sorted(machine.online)))))
    if plan is None:
        return
    core_of = {cpu: core for core in machine.cores for cpu in core.cpus}
    isolated = {core.core for core in machine.cores if set(core.cpus) <= machine.isolated}
    seen: Counter[int] = Counter()
    sizes: Counter[str] = Counter()
    for pool, sockets in plan.pools.items():
        assert set(sockets) == set(machine.sockets)
        for socket, lists in sockets.items():
            for text in lists:
                cpus = cpu_set_formats.parse_cpu_numbers(text)
                cores = {core_of[cpu] for cpu in cpus}
                assert sorted(cpus) == sorted(cpu for core in cores for cpu in core.cpus)
                assert {core.socket for core in cores} == {socket}
                assert len(cores) == 1 or not pool_planning.IS_EXCLUSIVE[pool]
                assert not isolated or {core.core in isolated for core in cores} == {pool != "infra"}
                seen.update(cpus)
                sizes[pool] += len(cores)
    assert set(seen.values()) <= {1}
    assert (sizes["exclusive"], sizes["shared"]) == (ask.exclusive, ask.shared)
    assert sizes["infra"] == len(machine.cores) - (len(isolated) or ask.exclusive + ask.shared)


@given(st.data(), machines())
def test_cores_that_are_listed_are_a_pool_of_their_own(data: st.DataObject, machine: Topology) -> None:
    isolated = {core.core for core in machine.cores if set(core.cpus) <= machine.isolated}
    listed = data.draw(st.sets(st.sampled_from(range(len(machine.cores))), min_size=1, max_size=3))
    # a plain number may be the kernel's id of another core
    names = ",".join(f"cpu{machine.cores[number].cpus[0]}" for number in listed)
    ask = data.draw(asks(machine))._replace(non_isolcpus=names)
    plan = planned(machine, ask)
    if plan is None:
        return
    assert isolated.isdisjoint(listed)
    listed_cpus = [text for lists in plan.pools[pool_planning.NON_ISOLCPUS].values() for text in lists]
    assert sorted(listed_cpus) == sorted(machine.cores[number].text for number in listed)
    every = [text for sockets in plan.pools.values() for lists in sockets.values() for text in lists]
    cpus = Counter(cpu for text in every for cpu in cpu_set_formats.parse_cpu_numbers(text))
    assert set(cpus.values()) == {1}
    assert any(plan.pools[pool_planning.INFRA].values())


@given(st.data(), machines())
def test_a_machine_is_divided_wherever_the_counts_allow_it(data: st.DataObject, machine: Topology) -> None:
    ask = data.draw(asks(machine))
    isolated = sum(set(core.cpus) <= machine.isolated for core in machine.cores)
    wanted = ask.exclusive + ask.shared
    possible = wanted < len(machine.cores) if not isolated else wanted <= isolated < len(machine.cores)
    assert (planned(machine, ask) is not None) == possible


@given(st.data(), machines())
def test_packed_takes_the_first_cores_and_spread_takes_sockets_in_turn(
    data: st.DataObject, machine: Topology
) -> None:
    ask = data.draw(asks(machine))
    plan = planned(machine, ask)
    isolated = [core for core in machine.cores if set(core.cpus) <= machine.isolated]
    there = Counter(core.socket for core in isolated or machine.cores)
    if plan is None:
        return
    got = {socket: len(lists) for socket, lists in plan.pools["exclusive"].items()}
    if ask.exclusive_mode == "packed":
        first = sorted(isolated or machine.cores, key=lambda core: (core.socket, core.core))[: ask.exclusive]
        taken = [text for _, lists in sorted(plan.pools["exclusive"].items()) for text in lists]
        assert taken == [core.text for core in first]
    else:
        most = max(got.values())
        assert all(got[socket] >= min(most - 1, there[socket]) for socket in there)


@given(st.data(), machines())
def test_faster_cores_are_exclusive_first(data: st.DataObject, machine: Topology) -> None:
    fast = data.draw(st.sets(st.sampled_from(sorted(machine.online))))
    ask = data.draw(asks(machine))
    plan = planned(machine, ask, fast)
    if plan is None:
        return
    among = [core for core in machine.cores if set(core.cpus) <= machine.isolated] or machine.cores
    quick = {core.text for core in among if set(core.cpus) <= fast}
    exclusive = {text for lists in plan.pools["exclusive"].values() for text in lists}
    assert quick <= exclusive or exclusive <= quick
    left = quick - exclusive
    shared = {core.text for core in among if _is_in(plan, "shared", core.cpus)}
    assert left <= shared or shared <= left


def _is_in(plan: PoolPlan, pool: str, cpus: Iterable[int]) -> bool:
    lists = (text for texts in plan.pools[pool].values() for text in texts)
    return any(set(cpus) <= set(cpu_set_formats.parse_cpu_numbers(text)) for text in lists)


@given(CPUS)
def test_cpu_ranges_round_trip(cpus: set[int]) -> None:
    assert cpu_set_formats.parse_cpu_numbers(cpu_set_formats.format_cpu_ranges(cpus)) == tuple(sorted(cpus))


@given(st.lists(st.integers(0, 300), unique=True))
def test_a_list_keeps_its_order(cpus: list[int]) -> None:
    text = cpu_set_formats.format_cpu_list_without_ranges(cpus)
    assert cpu_set_formats.parse_cpu_numbers(text) == tuple(cpus)


@given(CPUS)
def test_cpu_mask_round_trip(cpus: set[int]) -> None:
    assert cpu_set_formats.parse_cpu_mask(cpu_set_formats.format_cpu_mask(cpus)) == cpus


TASKS = st.builds(
    Task,
    pid=st.integers(1, 30),
    start=st.one_of(st.none(), st.integers(0, 9)),
    boot=st.just("now"),
    pod=st.sampled_from(["", "a"]),
    container=st.sampled_from(["", "é: [']"]),
).map(lambda task: task if task.start is not None else Task(task.pid))


@st.composite
def allocated_pools(draw: st.DrawFn) -> Allocations:
    """A machine's pools with tasks on them."""
    machine = draw(machines())
    plan = planned(machine, draw(asks(machine))) or PoolPlan({"infra": {0: ("0",)}})
    # the starts are stored apart from the process ids: of two tasks with one id, the one with a start is read first
    tasks = st.lists(TASKS, max_size=3, unique=True).map(
        lambda tasks: sorted(tasks, key=lambda task: task.start is None)
    )
    held = iter(draw(st.lists(tasks, min_size=64, max_size=64)))
    return pool_allocations.allocations_without_tasks(plan.pools).with_tasks(lambda _, cpu_list: next(held))


@given(allocated_pools())
def test_allocations_round_trip(before: Allocations) -> None:
    texts = configmap_store.format_config_map_data(before)
    assert configmap_store.parse_config_map_data(texts) == before
    assert configmap_store.format_config_map_data(configmap_store.parse_config_map_data(texts)) == texts
    files = directory_store.format_files(before)
    assert directory_store.parse_files(files) == before
    assert directory_store.format_files(directory_store.parse_files(files)) == files


@given(st.data(), machines())
def test_no_cpu_of_an_exclusive_pool_is_given_twice(data: st.DataObject, machine: Topology) -> None:
    plan = planned(machine, data.draw(asks(machine)))
    if plan is None:
        return
    allocations = pool_allocations.allocations_without_tasks(plan.pools)
    holding: dict[Task, tuple[int, ...]] = {}
    for pid in range(1, 12):
        if holding and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(holding)))
            allocations = allocations.without(gone)
            del holding[gone]
        lists, avoid = data.draw(st.integers(1, 3)), data.draw(st.sets(st.integers(0, 8), max_size=1))
        task = Task(pid, start=pid, boot="now")
        held = [cpu for cpus in holding.values() for cpu in cpus]
        free = [
            cpu_list
            for cpu_list in allocations.pools["exclusive"].cpu_lists
            if not cpu_list.tasks and avoid.isdisjoint(cpu_list.cpus)
        ]
        try:
            claim = allocator.allocate(
                allocations, allocator.AllocationRequest("exclusive", lists, avoid=avoid), task, 0.0
            )
        except Unavailable:
            assert len(free) < lists
            continue
        assert len(claim.cpu_lists) == lists <= len(free)
        assert not {*held, *avoid} & {*claim.cpus}
        allocations, holding[task] = claim.allocations, claim.cpus
    assert allocations.tasks == set(holding)


class Kernel:
    """Processes that start and end. New ones get the lowest free id, and orphans get process 1 as their parent."""

    def __init__(self) -> None:
        self.clock = 0
        self.processes: dict[int, NodeProcess] = {1: NodeProcess(0, 0)}
        self.owners: dict[int, Task] = {}
        """The task of each process that a task started directly or indirectly."""

    def fork(self, parent: int, *, keeps_mark: bool) -> int:
        """Start a process. It inherits the mark of its parent; a wrapper passes on its mark without having it."""
        self.clock += 1
        pid = min(set(range(2, 99)) - self.processes.keys())
        owner = self.owners.get(parent)
        self.processes[pid] = NodeProcess(
            self.clock, parent, owner.task_variable_value if owner and keeps_mark else ""
        )
        if owner:
            self.owners[pid] = owner
        return pid

    def begin_task(self, *, keeps_mark: bool) -> Task:
        wrapper = self.fork(1, keeps_mark=False)
        self.owners[wrapper] = Task(wrapper, start=self.clock, boot="now")
        self.fork(wrapper, keeps_mark=keeps_mark)
        return self.owners[wrapper]

    def kill(self, pid: int) -> None:
        del self.processes[pid]
        self.owners.pop(pid, None)
        for number, process in self.processes.items():
            if process.parent == pid:
                self.processes[number] = process._replace(parent=1)


@given(st.data(), st.booleans())
def test_garbage_collection_releases_tasks_without_processes(data: st.DataObject, keeps_mark: bool) -> None:
    """With marks, a sweep may run at any time. Without marks, a sweep runs after each step."""
    kernel, known = Kernel(), None
    allocations = create_allocations({"shared": {"0": ()}})
    steps = data.draw(st.lists(st.sampled_from(["begin", "fork", "kill", "kill", "sweep"]), max_size=40))
    for step in [*steps, "sweep"]:
        others = sorted(kernel.processes.keys() - {1})
        if step == "begin":
            task = kernel.begin_task(keeps_mark=keeps_mark)
            allocations = allocator.allocate(
                allocations, allocator.AllocationRequest("shared"), task, 0.0
            ).allocations
        elif step == "fork":
            kernel.fork(data.draw(st.sampled_from([1, *others])), keeps_mark=keeps_mark)
        elif step == "kill" and others:
            kernel.kill(data.draw(st.sampled_from(others)))
        if step == "sweep" or not keeps_mark:
            before = allocations.tasks
            swept = ended_tasks.remove_ended_tasks(allocations, kernel.processes, "now", known)
            allocations, known = swept.allocations, None if keeps_mark else swept.known
            left = allocations.tasks
            assert left == before & set(kernel.owners.values())
            assert {reclaimed.task for reclaimed in swept.reclaimed} == before - left
            again = ended_tasks.remove_ended_tasks(allocations, kernel.processes, "now", known)
            assert again.allocations == allocations


def places(allocations: Allocations) -> dict[Task, set[int]]:
    """The CPUs of each task's lists."""
    cpus: dict[Task, set[int]] = {}
    for _, cpu_list in allocations.cpu_lists:
        for task in cpu_list.tasks:
            cpus.setdefault(task).update(cpu_list.cpus)
    return cpus


@st.composite
def occupied(draw: st.DrawFn, plan: PoolPlan) -> Allocations:
    """The allocations with tasks on lists of these pools."""
    allocations = pool_allocations.allocations_without_tasks(plan.pools)
    for pid in range(1, draw(st.integers(1, 9))):
        pool, lists = draw(st.sampled_from(sorted(plan.pools))), draw(st.integers(1, 2))
        with contextlib.suppress(Unavailable):
            allocations = allocator.allocate(
                allocations,
                allocator.AllocationRequest(pool, lists),
                Task(pid, pid, "now"),
                draw(st.floats(0, 0.99)),
            ).allocations
    return allocations


@given(st.data(), machines())
def test_no_exclusive_cpu_is_shared_after_any_move(data: st.DataObject, machine: Topology) -> None:
    old, new = (planned(machine, data.draw(asks(machine))) for _ in range(2))
    if old is None or new is None:
        return
    before = data.draw(occupied(old))
    held = {
        name: sum(bool(cpu_list.tasks) for cpu_list in pool.cpu_lists) for name, pool in before.pools.items()
    }
    there = {name: sum(map(len, sockets.values())) for name, sockets in new.pools.items()}
    fits = held["exclusive"] <= there["exclusive"] and all(there[name] for name in held if held[name])
    try:
        reconfiguration = reconfiguration_plan.plan(before, new.pools)
    except BadInput:
        assert not fits
        return
    except Refused:
        return
    assert fits
    exclusive = {task for task, cpus in places(before).items() if _is_exclusive(before, task)}
    at = places(before)
    for move in reconfiguration.moves:
        assert at[move.task] == move.before != move.after
        at[move.task] = set(move.after)
        for task in exclusive:
            assert not any(at[task] & cpus for other, cpus in at.items() if other != task)
    assert at == places(reconfiguration.allocations)
    assert {move.task for move in reconfiguration.moves} >= {
        task for task, cpus in places(before).items() if places(reconfiguration.allocations)[task] != cpus
    }
    assert sorted(_pools_of(reconfiguration.allocations)) == sorted(_pools_of(before))


@given(st.data(), machines())
def test_a_list_that_survives_keeps_its_tasks(data: st.DataObject, machine: Topology) -> None:
    old, new = (planned(machine, data.draw(asks(machine))) for _ in range(2))
    if old is None or new is None:
        return
    before = data.draw(occupied(old))
    try:
        reconfiguration = reconfiguration_plan.plan(before, new.pools)
    except (BadInput, Refused):
        return
    after = {
        (pool.name, cpu_list.text): set(cpu_list.tasks)
        for pool, cpu_list in reconfiguration.allocations.cpu_lists
    }
    for pool, cpu_list in before.cpu_lists:
        assert set(cpu_list.tasks) <= after.get((pool.name, cpu_list.text), set(cpu_list.tasks))
    assert reconfiguration.moves or places(reconfiguration.allocations) == places(before)
    again = reconfiguration_plan.plan(reconfiguration.allocations, new.pools)
    assert (again.allocations, again.moves) == (reconfiguration.allocations, ())


ON_TWO_SOCKETS = st.sets(st.integers(0, 9), min_size=1)
"""Sets of CPU lists of one CPU each. The first five are on socket 0."""


@given(ON_TWO_SOCKETS, ON_TWO_SOCKETS, st.sets(st.integers(0, 9)))
def test_a_task_leaves_its_socket_only_where_no_list_is_free(
    old: set[int], new: set[int], holding: set[int]
) -> None:
    pools_of = [
        {"exclusive": {at: [str(cpu) for cpu in sorted(cpus) if cpu // 5 == at] for at in (0, 1)}}
        for cpus in (old, new)
    ]
    before = pool_allocations.allocations_without_tasks(pools_of[0]).with_tasks(
        lambda _, cpu_list: (Task(1 + cpu_list.cpus[0]) for cpu in cpu_list.cpus if cpu in holding)
    )
    try:
        after = reconfiguration_plan.plan(before, pools_of[1]).allocations.pools["exclusive"].sockets
    except BadInput:
        assert len(old & holding) > len(new)
        return
    except Refused:
        return
    for socket, cpu_lists in after.items():
        for other in {0, 1} - {socket}:
            came = [task for cpu_list in cpu_lists for task in cpu_list.tasks if (task.pid - 1) // 5 == other]
            assert not came or all(cpu_list.tasks for cpu_list in after[other])


def _is_exclusive(allocations: Allocations, task: Task) -> bool:
    return any(pool.is_exclusive and task in cpu_list.tasks for pool, cpu_list in allocations.cpu_lists)


def _pools_of(allocations: Allocations) -> list[tuple[Task, str]]:
    return [(task, pool.name) for pool, cpu_list in allocations.cpu_lists for task in cpu_list.tasks]
