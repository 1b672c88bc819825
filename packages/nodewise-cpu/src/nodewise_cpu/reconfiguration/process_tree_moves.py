"""The process trees of tasks, and the moves of all their threads from CPU list to CPU list and back.

Standard library only.

A process tree changes while it is moved: threads are started, processes fork and end. So it is read again until no
thread is on the wrong CPUs; a new thread inherits its affinity from one that was moved, or is moved in the next round.
A thread whose program gave it some of the task's CPUs gets those at the same positions of the new list. A thread whose
program gave it CPUs of other pools is left alone.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from nodewise.base.errors import Problem, Refused
from nodewise_cpu import ended_tasks, procfs
from nodewise_cpu.ended_tasks import KnownProcesses
from nodewise_cpu.node import thread_affinity
from nodewise_cpu.node.thread_affinity import Thread
from nodewise_cpu.pool_allocations import Allocations, Task
from nodewise_cpu.procfs import ProcessTable
from nodewise_cpu.reconfiguration_plan import Cpus, Move, thread_affinity_after_move

_PAUSE_S: Final = 0.02
_MAX_ROUNDS: Final = 200
"""How often a process tree is read again because it has changed."""


class ProcessTrees:
    """The processes of each task. A process below two tasks, one of which started the other, is the inner one's."""

    def __init__(self, proc: Path, allocations: Allocations, known: KnownProcesses) -> None:
        """`allocations` as stored; `known` from an earlier collection. Refused if a process cannot be assigned."""
        self.proc = proc
        self._boot = procfs.read_boot_id(proc)
        self._wrappers: Mapping[int, int] = {}
        """The wrapper that each process is named after, by process id."""
        self.allocations, self._known = allocations, known
        self.allocations = self._refresh_process_trees()
        """The allocations without tasks that have ended, and with the start of the others."""

    def _refresh_process_trees(self) -> Allocations:
        table = procfs.read_processes(self.proc)
        _check_processes_readable(self.allocations, table, self._boot, self.proc)
        result = ended_tasks.remove_ended_tasks(self.allocations, table.processes, self._boot, self._known)
        self._known = result.known
        self._wrappers = {pid: process.wrapper for pid, process in table.processes.items()}
        return result.allocations

    def threads(self, task: Task) -> Iterator[Thread]:
        """The threads of all processes of the task, as they are now."""
        self._refresh_process_trees()
        for pid in sorted(self._pids().get(task, ())):
            yield from thread_affinity.read(self.proc, pid)

    def _pids(self) -> Mapping[Task, set[int]]:
        owners: dict[int, Task] = {}
        # smaller families last: of two tasks the inner one has fewer processes
        for task in sorted(self._known, key=lambda task: len(self._known[task]), reverse=True):
            owners.update({pid: task for pid, _ in self._known[task]})
        pids: dict[Task, set[int]] = {}
        for pid, task in owners.items():
            pids.setdefault(task, set()).add(pid)
        return pids

    def await_wrappers(self, moves: Iterable[Move], patience_s: float) -> None:
        """Wait for wrappers that have an allocation but not its affinity yet: they would set it after the move.

        A wrapper takes its name after it has set its affinity. If one never does, this returns after `patience_s`.
        """
        paths = _paths(moves)
        deadline = time.monotonic() + patience_s
        while any(self._is_starting(task, path[0]) for task, path in paths.items()):
            if time.monotonic() >= deadline:
                return
            time.sleep(_PAUSE_S)

    def _is_starting(self, task: Task, cpus: Cpus) -> bool:
        """Whether the task is a wrapper without children that has not set its affinity yet."""
        threads = list(self.threads(task))
        if {thread.pid for thread in threads} != {task.pid} or all(thread.cpus == cpus for thread in threads):
            return False
        return self._wrappers.get(task.pid) != task.pid

    def deviating_threads(self, moves: Iterable[Move]) -> Mapping[str, Cpus]:
        """The affinities, by thread name, of threads that are not on their task's CPUs before the first move.

        They have to be recorded, because they cannot be derived afterwards.
        """
        return {
            thread.name: thread.cpus
            for task, path in _paths(moves).items()
            for thread in self.threads(task)
            if thread.cpus != path[0]
        }


def _check_processes_readable(allocations: Allocations, table: ProcessTable, boot: str, proc: Path) -> None:
    """Refused if an unreadable process may belong to a task whose wrapper has ended."""
    processes = table.processes
    without_wrapper = {
        task
        for task in allocations.tasks
        if task.boot == boot
        if task.pid not in processes or processes[task.pid].start != task.start
    }
    pids = {pid for task in without_wrapper for pid in procfs.unreadable_processes_of(task, table, proc)}
    if pids:
        problems = [Problem(f"process {pid}", "its environment cannot be read", "") for pid in sorted(pids)]
        remedy = "run it as root with the capability SYS_PTRACE"
        raise Refused("cannot assign processes to tasks", problems, remedy=remedy)


class TaskMover:
    """Executes moves. `deviating` is `ProcessTrees.deviating_threads` from before the first move."""

    def __init__(self, trees: ProcessTrees, moves: Sequence[Move], deviating: Mapping[str, Cpus]) -> None:
        self._trees = trees
        self._moves = moves
        self._deviating = deviating
        self._paths = _paths(moves)

    def cpus_before_to_after_moves(self) -> Mapping[Task, Cpus]:
        """The CPUs of each task before, between and after its moves."""
        return {task: frozenset().union(*path) for task, path in self._paths.items()}

    def move_forward(self) -> None:
        """Execute all moves, in order. Refused if the kernel does not allow an affinity."""
        for move in self._moves:
            self._set_task_affinity(move.task, move.after)

    def move_back(self) -> None:
        """Undo all moves in reverse order, whichever were executed. Tasks that were not moved are not touched."""
        moved = {task for task, path in self._paths.items() if self._misplaced_threads(task, path[0])}
        for move in reversed(self._moves):
            if move.task in moved:
                self._set_task_affinity(move.task, move.before)

    def _set_task_affinity(self, task: Task, cpus: Cpus) -> None:
        for _ in range(_MAX_ROUNDS):
            misplaced = self._misplaced_threads(task, cpus)
            if not misplaced:
                return
            for thread, affinity in misplaced:
                thread_affinity.set_thread_affinity(thread, affinity)
        seen = f"still starts threads elsewhere after {_MAX_ROUNDS} rounds"
        raise Refused("cannot move a task", [Problem(f"task {task.pid}", seen, "")])

    def _misplaced_threads(self, task: Task, cpus: Cpus) -> Sequence[tuple[Thread, Cpus]]:
        """The threads with another affinity than they should have when the task is on `cpus`, and that affinity."""
        path = self._paths[task]
        misplaced = []
        for thread in self._trees.threads(task):
            original = self._original_affinity(thread, path)
            affinity = thread_affinity_after_move(original, path[0], cpus) if original else thread.cpus
            if affinity != thread.cpus:
                misplaced.append((thread, affinity))
        return misplaced

    def _original_affinity(self, thread: Thread, path: Sequence[Cpus]) -> Cpus | None:
        """The affinity before the first move, or that of a thread started since; None if outside the task's list."""
        deviating = self._deviating.get(thread.name)
        if deviating is not None:
            return deviating if deviating <= path[0] else None
        if thread.cpus in path:
            return path[0]
        for cpus in path:
            if thread.cpus < cpus:
                return thread_affinity_after_move(thread.cpus, cpus, path[0])
        return path[0] if thread.cpus <= frozenset().union(*path) else None


def _paths(moves: Iterable[Move]) -> dict[Task, list[Cpus]]:
    """The successive CPUs of each task, beginning with those before its first move."""
    paths: dict[Task, list[Cpus]] = {}
    for move in moves:
        paths.setdefault(move.task, [move.before]).append(move.after)
    return paths
