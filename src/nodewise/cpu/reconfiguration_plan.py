"""From the pools that a node has to those it should have, under tasks that go on running.

Standard library only.

Tasks whose CPU list survives are never touched; the others get a free list of their pool, on the same socket where
there is one. Processes are moved one task at a time, in an order in which no CPU of an exclusive task is ever another
task's as well: whichever move is the last one, isolation holds. Nothing is planned in part: it can be done whole, or
the error says why not.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nodewise.cpu import cpulist
from nodewise.cpu.pool_allocations import Allocations, CpuListAllocation, Pool, Task, from_lists
from nodewise.cpu.pools import IS_EXCLUSIVE
from nodewise.errors import BadInput, Problem, Refused

Cpus = frozenset[int]


class Move(NamedTuple):
    """All processes of a task go from some CPUs to others."""

    task: Task
    before: Cpus
    after: Cpus


class Reconfiguration(NamedTuple):
    """The state when all is done, and the moves that lead there."""

    allocations: Allocations
    moves: tuple[Move, ...]


def plan(allocations: Allocations, lists: Mapping[str, Mapping[int, Iterable[str]]]) -> Reconfiguration:
    """How the node comes to have these lists (those of a `pools.Plan`).

    BadInput if a pool will have fewer lists than are held, or is none that there can be; Refused if tasks of exclusive
    pools would have to change places with nowhere to go in between.
    """
    target = from_lists(lists)
    _check(allocations, target)
    held: dict[tuple[str, str], list[Task]] = {}
    for name in sorted(allocations.pools):
        if any(cpu_list.tasks for cpu_list in allocations.pools[name].cpu_lists):
            settled = _settled(allocations.pools[name], target.pools[name])
            held.update({(name, text): tasks for text, tasks in settled.items()})
    after = target.mapped(lambda pool, cpu_list: held.get((pool.name, cpu_list.text), ()))
    exclusive = {
        task for pool, cpu_list in allocations.cpu_lists if pool.is_exclusive for task in cpu_list.tasks
    }
    return Reconfiguration(after, tuple(_Moving(allocations, after, exclusive).moves()))


def carried(cpus: Cpus, before: Cpus, after: Cpus) -> Cpus:
    """Where a thread that may use `cpus`, which are among `before`, is to be when its task goes on to `after`.

    A thread that its program put on some of the CPUs goes to those in the same places of the order, so that threads
    which shared no CPU share none afterwards; where the lists are not as long, it stays if it can.
    """
    if cpus == before:
        return after
    if len(before) == len(after):
        places = dict(zip(sorted(before), sorted(after), strict=True))
        return frozenset(places[cpu] for cpu in cpus)
    stays = cpus <= after
    return cpus if stays else after


def _check(allocations: Allocations, target: Allocations) -> None:
    known = ", ".join(IS_EXCLUSIVE)
    problems = [
        Problem(f"pool {name}", "not one of ours", f"one of {known}")
        for name in allocations.pools.keys() - IS_EXCLUSIVE - target.pools.keys()
    ]
    for pool in allocations.pools.values():
        held = sum(bool(cpu_list.tasks) for cpu_list in pool.cpu_lists)
        there = len(list(target.pools[pool.name].cpu_lists)) if pool.name in target.pools else 0
        if held > there and (pool.is_exclusive or not there):
            problems.append(
                Problem(f"pool {pool.name}", f"{held} CPU lists held", f"at most {there}, as there will be")
            )
    if problems:
        raise BadInput("the tasks that run do not fit into the new pools", problems)


def _settled(old: Pool, new: Pool) -> Mapping[str, list[Task]]:
    """Of each new list the tasks: first those whose list survives, then those who stay on their socket."""
    settled: dict[str, list[Task]] = {}
    left = [
        (socket, cpu_list)
        for socket in sorted(old.sockets)
        for cpu_list in old.sockets[socket]
        if cpu_list.tasks
    ]
    rounds: Sequence[bool | None] = (None, True, False)
    for same_socket in rounds:
        waiting, left = left, []
        for socket, cpu_list in waiting:
            among = new.sockets.get(socket, ()) if same_socket else tuple(new.cpu_lists)
            place = _place(cpu_list, among, settled, new, kept=same_socket is None)
            if place is None:
                left.append((socket, cpu_list))
            else:
                here = settled.setdefault(place.text, [])
                here += (task for task in cpu_list.tasks if task not in here)
    return settled


def _place(
    cpu_list: CpuListAllocation,
    among: Iterable[CpuListAllocation],
    settled: Mapping[str, object],
    new: Pool,
    *,
    kept: bool,
) -> CpuListAllocation | None:
    """The same list, if `kept`; else one that is free, or any if several tasks may share it."""
    if kept:
        return next((one for one in among if set(one.cpus) == set(cpu_list.cpus)), None)
    return next((one for one in among if not new.is_exclusive or one.text not in settled), None)


class _Moving:
    """Where tasks are while they are moved."""

    def __init__(self, before: Allocations, after: Allocations, exclusive: set[Task]) -> None:
        self._at = _cpus(before)
        self._to = _cpus(after)
        self._exclusive = exclusive
        self._lists = [
            frozenset(cpu_list.cpus)
            for allocations in (before, after)
            for _, cpu_list in allocations.cpu_lists
        ]
        self._parked: set[Task] = set()

    def moves(self) -> Iterable[Move]:
        order = sorted(self._at, key=lambda task: (task.pid, task.start or 0))
        while waiting := [task for task in order if self._at[task] != self._to[task]]:
            task = next((one for one in waiting if self._is_clear(one, self._to[one])), None)
            yield self._moved(task, self._to[task]) if task else self._aside(waiting)

    def _moved(self, task: Task, cpus: Cpus) -> Move:
        move = Move(task, self._at[task], cpus)
        self._at[task] = cpus
        return move

    def _is_clear(self, task: Task, cpus: Cpus) -> bool:
        """Whether the task may be there now: nobody's exclusive CPUs are shared."""
        others = (other for other in self._at if other != task and {task, other} & self._exclusive)
        return all(cpus.isdisjoint(self._at[other]) for other in others)

    def _aside(self, waiting: Sequence[Task]) -> Move:
        """A move out of the way: of a task that may share CPUs if that is possible, for it fits anywhere."""
        wanted = frozenset(cpu for task in waiting if task in self._exclusive for cpu in self._to[task])
        for task in sorted(waiting, key=lambda one: one in self._exclusive):
            cpus = None if task in self._parked else self._free_place(task, wanted)
            if cpus and cpus != self._at[task]:
                self._parked.add(task)
                return self._moved(task, cpus)
        problems = [
            Problem(
                f"task {task.pid}", f"CPUs {cpulist.format_ranges(self._at[task])}", "others that are free"
            )
            for task in waiting
        ]
        raise Refused(
            "tasks would have to change places, and no CPU is free",
            problems,
            remedy="let one of them end first",
        )

    def _free_place(self, task: Task, wanted: Cpus) -> Cpus | None:
        """A list that nobody uses or waits for; for a task that may share, all CPUs that no exclusive task does."""
        if task in self._exclusive:
            places = (cpus for cpus in self._lists if not cpus & wanted and self._is_clear(task, cpus))
            return next(places, None)
        held = frozenset(cpu for one in self._exclusive for cpu in self._at[one])
        free = frozenset().union(*self._lists) - held - wanted
        return (self._at[task] & free) or free


def _cpus(allocations: Allocations) -> dict[Task, Cpus]:
    """Of each task the CPUs of all its lists."""
    found: dict[Task, Cpus] = {}
    for _, cpu_list in allocations.cpu_lists:
        for task in cpu_list.tasks:
            found[task] = found.get(task, frozenset()) | frozenset(cpu_list.cpus)
    return found
