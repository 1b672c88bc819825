"""The plan of a reconfiguration: the moves of running tasks from a node's current pools to other ones.

Standard library only.

Tasks whose CPU list survives are not moved; the others get a free list of their pool, on the same socket if possible.
Tasks are moved one at a time, in an order in which no CPU of an exclusive task ever belongs to another task as well:
isolation holds after each move. A plan is complete, or an error tells why there is none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nodewise.base.errors import BadInput, Problem, Refused
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.pool_allocations import (
    Allocations,
    Pool,
    Task,
    allocations_without_tasks,
)
from nodewise_cpu.pool_planning import IS_EXCLUSIVE

Cpus = frozenset[int]


class Move(NamedTuple):
    """All processes of a task move from the CPUs `before` to the CPUs `after`."""

    task: Task
    before: Cpus
    after: Cpus


class Reconfiguration(NamedTuple):
    """The allocations after all moves, and the moves."""

    allocations: Allocations
    moves: tuple[Move, ...]


def plan(allocations: Allocations, lists: Mapping[str, Mapping[int, Iterable[str]]]) -> Reconfiguration:
    """The plan for these lists (those of a `pool_planning.PoolPlan`).

    BadInput if a pool will have fewer lists than are held, or is unknown; Refused if tasks of exclusive pools would
    have to swap lists without a free list in between.
    """
    target = allocations_without_tasks(lists)
    _check_target_pools(allocations, target)
    held: dict[tuple[str, str], list[Task]] = {}
    for name in sorted(allocations.pools):
        if any(cpu_list.tasks for cpu_list in allocations.pools[name].cpu_lists):
            assigned = _assign_tasks(allocations.pools[name], target.pools[name])
            held.update({(name, text): tasks for text, tasks in assigned.items()})
    after = target.with_tasks(lambda pool, cpu_list: held.get((pool.name, cpu_list.text), ()))
    exclusive = {
        task for pool, cpu_list in allocations.cpu_lists if pool.is_exclusive for task in cpu_list.tasks
    }
    return Reconfiguration(after, tuple(_MovePlanner(allocations, after, exclusive).moves()))


def thread_affinity_after_move(cpus: Cpus, before: Cpus, after: Cpus) -> Cpus:
    """The affinity of a thread, `cpus` within `before`, when its task moves to `after`.

    A thread with an affinity of its own gets the CPUs at the same positions, so that threads that shared no CPU share
    none afterwards. If the lists differ in length it keeps its affinity if that lies within `after`.
    """
    if cpus == before:
        return after
    if len(before) == len(after):
        counterparts = dict(zip(sorted(before), sorted(after), strict=True))
        return frozenset(counterparts[cpu] for cpu in cpus)
    # CPUs are sets: "<=" is the subset relation, not an order that min() could use
    lies_within = cpus <= after
    return cpus if lies_within else after


def _check_target_pools(allocations: Allocations, target: Allocations) -> None:
    known = ", ".join(IS_EXCLUSIVE)
    problems = [
        Problem(f"pool {name}", "not one of ours", f"one of {known}")
        for name in allocations.pools.keys() - IS_EXCLUSIVE - target.pools.keys()
    ]
    for pool in allocations.pools.values():
        held = sum(bool(cpu_list.tasks) for cpu_list in pool.cpu_lists)
        available = len(list(target.pools[pool.name].cpu_lists)) if pool.name in target.pools else 0
        if held > available and (pool.is_exclusive or not available):
            expected = f"at most {available}, as there will be"
            problems.append(Problem(f"pool {pool.name}", f"{held} CPU lists held", expected))
    if problems:
        raise BadInput("the tasks that run do not fit into the new pools", problems)


def _assign_tasks(  # complexity: three rounds with a rule each
    old: Pool, new: Pool
) -> Mapping[str, list[Task]]:
    """The tasks of each new list: first those whose list survives, then those that stay on their socket."""
    assigned: dict[str, list[Task]] = {}
    left = [
        (socket, cpu_list)
        for socket in sorted(old.sockets)
        for cpu_list in old.sockets[socket]
        if cpu_list.tasks
    ]
    for same_list, same_socket in ((True, False), (False, True), (False, False)):
        waiting, left = left, []
        for socket, cpu_list in waiting:
            successors = (
                candidate
                for candidate in (new.sockets.get(socket, ()) if same_socket else new.cpu_lists)
                if (
                    set(candidate.cpus) == set(cpu_list.cpus)
                    if same_list
                    else not new.is_exclusive or candidate.text not in assigned
                )
            )
            if successor := next(successors, None):
                tasks = assigned.setdefault(successor.text, [])
                tasks += (task for task in cpu_list.tasks if task not in tasks)
            else:
                left.append((socket, cpu_list))
    return assigned


class _MovePlanner:
    """Orders moves by simulating them."""

    def __init__(self, before: Allocations, after: Allocations, exclusive: set[Task]) -> None:
        self._current = _cpus_by_task(before)
        self._target = _cpus_by_task(after)
        self._exclusive = exclusive
        self._lists = [
            frozenset(cpu_list.cpus)
            for allocations in (before, after)
            for _, cpu_list in allocations.cpu_lists
        ]
        self._parked: set[Task] = set()

    def moves(self) -> Iterable[Move]:
        order = sorted(self._current, key=lambda task: (task.pid, task.start or 0))
        while waiting := [task for task in order if self._current[task] != self._target[task]]:
            movable = next((task for task in waiting if self._is_free_for(task, self._target[task])), None)
            yield (
                self._move(movable, self._target[movable])
                if movable
                else self._move_task_to_unneeded_cpus(waiting)
            )

    def _move(self, task: Task, cpus: Cpus) -> Move:
        move = Move(task, self._current[task], cpus)
        self._current[task] = cpus
        return move

    def _is_free_for(self, task: Task, cpus: Cpus) -> bool:
        """Whether the task may use these CPUs now without sharing CPUs of an exclusive task."""
        others = (other for other in self._current if other != task and {task, other} & self._exclusive)
        return all(cpus.isdisjoint(self._current[other]) for other in others)

    def _move_task_to_unneeded_cpus(self, waiting: Sequence[Task]) -> Move:
        """A move to CPUs that no task needs; preferably of a task that may share CPUs, as it has more choice."""
        wanted = frozenset(cpu for task in waiting if task in self._exclusive for cpu in self._target[task])
        for task in sorted(waiting, key=lambda task: task in self._exclusive):
            cpus = None if task in self._parked else self._free_cpus(task, wanted)
            if cpus and cpus != self._current[task]:
                self._parked.add(task)
                return self._move(task, cpus)
        problems = []
        for task in waiting:
            cpus_now = cpu_set_formats.format_cpu_ranges(self._current[task])
            problems.append(Problem(f"task {task.pid}", f"CPUs {cpus_now}", "others that are free"))
        what = "tasks would have to change places, and no CPU is free"
        raise Refused(what, problems, remedy="let one of them end first")

    def _free_cpus(self, task: Task, wanted: Cpus) -> Cpus | None:
        """A list that no task uses or waits for. For a task that may share: all CPUs that no exclusive task uses."""
        if task in self._exclusive:
            free_lists = (cpus for cpus in self._lists if not cpus & wanted and self._is_free_for(task, cpus))
            return next(free_lists, None)
        held = frozenset(cpu for other in self._exclusive for cpu in self._current[other])
        free = frozenset().union(*self._lists) - held - wanted
        return (self._current[task] & free) or free


def _cpus_by_task(allocations: Allocations) -> dict[Task, Cpus]:
    cpus: dict[Task, Cpus] = {}
    for _, cpu_list in allocations.cpu_lists:
        for task in cpu_list.tasks:
            cpus[task] = cpus.get(task, frozenset()) | frozenset(cpu_list.cpus)
    return cpus
