"""Which tasks are over, so that what they held is free again.

Standard library only.

A task is over when its wrapper and everything that the wrapper started, directly or not, are gone. A process id is
not enough to see that, for it is given anew: a process is known by its id and its start, on one boot of one kernel.
When a wrapper is killed its descendants become children of somebody else, so they are known by what they carry in
their environment (`claims.MARK`), or because an earlier sweep saw them below it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nodewise.cpu.state import Pool, Slot, State, Task

Known = Mapping[Task, frozenset[tuple[int, int]]]
"""Of each task the processes that a sweep saw of it: id and start."""


class Process(NamedTuple):
    """One process of the node, no thread and no zombie."""

    start: int
    parent: int
    mark: str = ""
    """The value of `claims.MARK` in its environment."""
    wrapper: int = 0
    """The process id in its name (`claims.wrapper_name`): it is that wrapper, or about to become its command."""
    container: str | None = None
    """The id of the container that it runs in, "" for none; None if nobody looked."""


class Reclaimed(NamedTuple):
    """A task that is over, and a list that it held."""

    pool: str
    cpus: str
    task: Task


class Swept(NamedTuple):
    """The state without the tasks that are over, these, and what the next sweep should know."""

    state: State
    reclaimed: tuple[Reclaimed, ...]
    known: Known


class _Life(NamedTuple):
    """A task with all that is known of it now, and its processes: none if it is over."""

    task: Task
    family: frozenset[tuple[int, int]]


def sweep(state: State, processes: Mapping[int, Process], boot: str, known: Known | None = None) -> Swept:
    """What is over, given all processes of the node (by id) and the boot id of its kernel.

    `known` is that of the sweep before, or None for a first one. A task of which only the process id was written
    lives while there is a process of that id, and from then on is known by that process's start as well.
    """
    tree = _Tree(processes)
    tasks = {task for _, slot in state.slots for task in slot.tasks}
    lives = {task: _life(task, tree, boot, known or {}) for task in tasks}

    def living(_: Pool, slot: Slot) -> Iterable[Task]:
        return (lives[task].task for task in slot.tasks if lives[task].family)

    reclaimed = [
        Reclaimed(pool.name, slot.text, task)
        for pool, slot in state.slots
        for task in slot.tasks
        if not lives[task].family
    ]
    return Swept(
        state.mapped(living),
        tuple(sorted(reclaimed, key=lambda one: (one.task.pid, one.pool, one.cpus))),
        {life.task: life.family for life in lives.values() if life.family},
    )


def _life(task: Task, tree: "_Tree", boot: str, known: Known) -> _Life:
    if task.start is None:
        # the sweep before may have learned its start, and not been able to write it
        before = {one for other, family in known.items() if other.pid == task.pid for one in family}
        process = tree.processes.get(task.pid)
        if process is None:
            return _Life(task, tree.family(before))
        return _Life(
            task._replace(start=process.start, boot=boot), tree.family({(task.pid, process.start), *before})
        )
    if task.boot != boot:
        return _Life(task, frozenset())
    return _Life(task, tree.family({(task.pid, task.start), *known.get(task, ()), *tree.carriers(task)}))


class _Tree:
    """The processes of a node, by parent and by mark."""

    def __init__(self, processes: Mapping[int, Process]) -> None:
        self.processes = processes
        self._children: dict[int, list[int]] = {}
        self._carriers: dict[str, list[tuple[int, int]]] = {}
        self._named: dict[int, list[tuple[int, int]]] = {}
        for pid, process in processes.items():
            self._children.setdefault(process.parent, []).append(pid)
            self._carriers.setdefault(process.mark, []).append((pid, process.start))
            self._named.setdefault(process.wrapper, []).append((pid, process.start))

    def carriers(self, task: Task) -> Iterable[tuple[int, int]]:
        """What says of itself that it is of the task, and can be. A command has its mark only once it is executed.

        Anybody may say so: what runs in another container than the task is not of it.
        """
        named = self._named.get(task.pid, ())
        says = [*self._carriers.get(task.mark, ()), *(one for one in named if one[1] >= (task.start or 0))]
        return [one for one in says if self._may_be_in(one[0], task.container)]

    def _may_be_in(self, pid: int, container: str) -> bool:
        return not container or self.processes[pid].container in (None, container)

    def family(self, roots: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        """Those of these processes that live, and all below them."""
        found: set[int] = set()
        waiting = [
            pid for pid, start in roots if pid in self.processes and self.processes[pid].start == start
        ]
        while waiting:
            pid = waiting.pop()
            if pid not in found:
                found.add(pid)
                waiting += self._children.get(pid, ())
        return frozenset((pid, self.processes[pid].start) for pid in found)


def as_report(reclaimed: Iterable[Reclaimed]) -> dict[str, Any]:
    """What `reconcile` prints."""
    return {
        "reclaimedCpuLists": [{"cpus": one.cpus, "pid": one.task.pid, "pool": one.pool} for one in reclaimed]
    }


def mismatches(state: State, allowed: Mapping[int, Iterable[int]]) -> Sequence[dict[str, Any]]:
    """Tasks that do not run where they should, by process id: `allowed` are the CPUs that processes may use.

    A task on several lists may use the CPUs of all of them. It is no fault where the task set no affinity.
    """
    held: dict[int, set[int]] = {}
    for _, slot in state.slots:
        for task in slot.tasks:
            held.setdefault(task.pid, set()).update(slot.cpus)
    found = [
        {"actualCpus": sorted(allowed[task.pid]), "cpus": slot.text, "pid": task.pid, "pool": pool.name}
        for pool, slot in state.slots
        for task in slot.tasks
        if task.pid in allowed and set(allowed[task.pid]) != held[task.pid]
    ]
    return sorted(found, key=lambda one: one["pid"])
