"""Moves tasks with all that they started, every thread of it, from list to list and back.

Standard library only.

A family changes while it is moved: threads are started, processes fork and end. So all are looked at again until none
is found elsewhere; what is new inherits from one that was moved, or is moved in the next round. A thread that its
program put on one of the task's CPUs gets the one in the same place of the new list; one that its program let run on
CPUs of others is left alone.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from nodewise.cpu import ended_tasks, procfs
from nodewise.cpu.ended_tasks import KnownProcesses
from nodewise.cpu.node import thread_affinity
from nodewise.cpu.node.thread_affinity import Thread
from nodewise.cpu.pool_allocations import Allocations, Task
from nodewise.cpu.procfs import ProcessTable
from nodewise.cpu.reconfiguration_plan import Cpus, Move, carried
from nodewise.errors import Problem, Refused

_PAUSE_S: Final = 0.02
_ROUNDS: Final = 200
"""How often a family is looked at again because there was something new."""


class ProcessTrees:
    """Which processes of a node are whose. A process of two tasks, one started by the other, is the inner one's."""

    def __init__(self, proc: Path, allocations: Allocations, known: KnownProcesses) -> None:
        """`allocations` as it is stored; `known` from an earlier sweep. Refused if not all processes can be seen."""
        self.proc = proc
        self._boot = procfs.read_boot(proc)
        self._names: Mapping[int, int] = {}
        self.allocations, self._known = allocations, known
        self.allocations = self._look()
        """The state without the tasks that are over, and with what the kernel knows of the others."""

    def _look(self) -> Allocations:
        census = procfs.read_processes(self.proc)
        _check_seen(self.allocations, census, self._boot, self.proc)
        swept = ended_tasks.remove_ended_tasks(self.allocations, census.processes, self._boot, self._known)
        self._known = swept.known
        self._names = {pid: one.wrapper for pid, one in census.processes.items()}
        return swept.allocations

    def threads(self, task: Task) -> Iterator[Thread]:
        """Of all that the task started, as it is now."""
        self._look()
        for pid in sorted(self._pids().get(task, ())):
            yield from thread_affinity.read(self.proc, pid)

    def _pids(self) -> Mapping[Task, set[int]]:
        smallest: dict[int, Task] = {}
        for task in sorted(self._known, key=lambda one: len(self._known[one]), reverse=True):
            smallest.update({pid: task for pid, _ in self._known[task]})
        found: dict[Task, set[int]] = {}
        for pid, task in smallest.items():
            found.setdefault(task, set()).add(pid)
        return found

    def await_wrappers(self, moves: Iterable[Move], patience_s: float) -> None:
        """Wait for wrappers that were given CPUs and did not go there yet: they would once the task is elsewhere.

        A wrapper has its name when it is there. Whoever does not take the name is waited for in vain.
        """
        paths = _paths(moves)
        end = time.monotonic() + patience_s
        while any(self._is_coming(task, path[0]) for task, path in paths.items()) and time.monotonic() < end:
            time.sleep(_PAUSE_S)

    def _is_coming(self, task: Task, place: Cpus) -> bool:
        """Whether a wrapper that started nothing yet is elsewhere."""
        found = list(self.threads(task))
        if {thread.pid for thread in found} != {task.pid} or all(thread.cpus == place for thread in found):
            return False
        return self._names.get(task.pid) != task.pid

    def elsewhere(self, moves: Iterable[Move]) -> Mapping[str, Cpus]:
        """The threads of tasks to be moved that are not where their task is, by name: what could not be guessed."""
        paths = _paths(moves)
        return {
            thread.name: thread.cpus
            for task, path in paths.items()
            for thread in self.threads(task)
            if thread.cpus != path[0]
        }


def _check_seen(allocations: Allocations, census: ProcessTable, boot: str, proc: Path) -> None:
    """Refused if a process whose environment cannot be read may be one that a wrapper which is gone left behind."""
    lost = {
        task
        for _, cpu_list in allocations.cpu_lists
        for task in cpu_list.tasks
        if task.boot == boot
        if task.pid not in census.processes or census.processes[task.pid].start != task.start
    }
    found = {pid for task in lost for pid in procfs.unreadable_processes_of(task, census, proc)}
    if found:
        problems = [Problem(f"process {pid}", "its environment cannot be read", "") for pid in sorted(found)]
        remedy = "run it as root with the capability SYS_PTRACE"
        raise Refused("cannot tell whose processes these are", problems, remedy=remedy)


class TaskMover:
    """Carries moves out; `saved` is `Families.elsewhere` of the time before the first one."""

    def __init__(self, families: ProcessTrees, moves: Sequence[Move], saved: Mapping[str, Cpus]) -> None:
        self._families = families
        self._moves = moves
        self._saved = saved
        self._paths = _paths(moves)

    def wanted(self) -> Mapping[Task, Cpus]:
        """All CPUs that each task is on, comes to, or passes."""
        return {task: frozenset().union(*path) for task, path in self._paths.items()}

    def forward(self) -> None:
        """All moves, in order. Refused if the kernel does not let a thread go."""
        for move in self._moves:
            self._settle(move.task, move.after)

    def back(self) -> None:
        """The same in reverse, whichever of the moves were made; tasks that never left are not touched."""
        gone = {task for task, path in self._paths.items() if self._misplaced(task, path[0])}
        for move in reversed(self._moves):
            if move.task in gone:
                self._settle(move.task, move.before)

    def _settle(self, task: Task, place: Cpus) -> None:
        for _ in range(_ROUNDS):
            misplaced = self._misplaced(task, place)
            if not misplaced:
                return
            for thread, cpus in misplaced:
                thread_affinity.set_affinity(thread, cpus)
        problem = Problem(f"task {task.pid}", f"still starts threads elsewhere after {_ROUNDS} rounds", "")
        raise Refused("cannot move a task", [problem])

    def _misplaced(self, task: Task, place: Cpus) -> Sequence[tuple[Thread, Cpus]]:
        """The threads that are not as they should be when the task is there, and how they should be."""
        path = self._paths[task]
        found = [(thread, self._origin(thread, path)) for thread in self._families.threads(task)]
        wanted = [(thread, carried(origin, path[0], place)) for thread, origin in found if origin]
        return [(thread, cpus) for thread, cpus in wanted if cpus != thread.cpus]

    def _origin(self, thread: Thread, path: Sequence[Cpus]) -> Cpus | None:
        """Where the thread was before the first move, or would have been; None if it was never on its task's list."""
        saved = self._saved.get(thread.name)
        if saved is not None:
            return saved if saved <= path[0] else None
        if thread.cpus in path:
            return path[0]
        for place in path:
            if thread.cpus < place:
                return carried(thread.cpus, place, path[0])
        return path[0] if thread.cpus <= frozenset().union(*path) else None


def _paths(moves: Iterable[Move]) -> dict[Task, list[Cpus]]:
    """Where each task is, one place after the other, beginning with that before the first move."""
    paths: dict[Task, list[Cpus]] = {}
    for move in moves:
        paths.setdefault(move.task, [move.before]).append(move.after)
    return paths
