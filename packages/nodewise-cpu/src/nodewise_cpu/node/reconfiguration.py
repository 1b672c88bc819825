"""The execution of a reconfiguration: a node gets other pools while its tasks run. Recovery of an interrupted one.

Standard library only.

A task's process tree is found, and every thread of it moved, from CPU list to CPU list and back. First an intent is
stored beside the allocations, with all that is needed to undo the moves: from then on no CPUs are allocated. Then all
threads of the tasks are moved, one task after the other; then the new allocations are stored. After an error the moves
are undone in reverse and the intent is removed. A process that is killed leaves the intent, and `recover` does the same
for it. If that fails too the intent stays, and no CPUs are allocated until a later recovery.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from nodewise.base.errors import Conflict, NodewiseError, Problem, Refused, Unavailable
from nodewise_cpu import allocation_store, ended_tasks, procfs, reconfiguration_plan
from nodewise_cpu.allocation_store import AllocationStore, Intent, StoredAllocations
from nodewise_cpu.ended_tasks import KnownProcesses
from nodewise_cpu.pool_allocations import Allocations, Task
from nodewise_cpu.procfs import Thread
from nodewise_cpu.reconfiguration_plan import Cpus, Move, Reconfiguration, thread_affinity_after_move

_PAUSE_S: Final = 0.02
_MAX_ROUNDS: Final = 200  # how often a process tree is read again because it has changed


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
        # refused if an unreadable process may belong to a task whose wrapper has ended
        processes = table.processes
        without_wrapper = {
            task
            for task in self.allocations.tasks
            if task.boot == self._boot
            if task.pid not in processes or processes[task.pid].start != task.start
        }
        pids = {
            pid for task in without_wrapper for pid in procfs.unreadable_processes_of(task, table, self.proc)
        }
        if pids:
            problems = [
                Problem(f"process {pid}", "its environment cannot be read", "") for pid in sorted(pids)
            ]
            remedy = "run it as root with the capability SYS_PTRACE"
            raise Refused("cannot assign processes to tasks", problems, remedy=remedy)
        result = ended_tasks.remove_ended_tasks(self.allocations, table.processes, self._boot, self._known)
        self._known = result.known
        self._wrappers = {pid: process.wrapper for pid, process in table.processes.items()}
        return result.allocations

    def threads(self, task: Task) -> Iterator[Thread]:
        """The threads of all processes of the task, as they are now."""
        self._refresh_process_trees()
        owners: dict[int, Task] = {}
        # smaller families last: of two tasks the inner one has fewer processes
        for owner in sorted(self._known, key=lambda owner: len(self._known[owner]), reverse=True):
            owners.update({pid: owner for pid, _ in self._known[owner]})
        for pid in sorted(pid for pid, owner in owners.items() if owner == task):
            yield from procfs.read_threads(self.proc, pid)

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
                procfs.set_thread_affinity(thread, affinity)
        seen = f"still starts threads elsewhere after {_MAX_ROUNDS} rounds"
        raise Refused.of("cannot move a task", f"task {task.pid}", seen)

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
    paths: dict[Task, list[Cpus]] = {}
    for move in moves:
        paths.setdefault(move.task, [move.before]).append(move.after)
    return paths


Lists = Mapping[str, Mapping[int, Iterable[str]]]
"""The CPU lists of each pool and socket: `pools.PoolPlan.pools`."""
Widen = Callable[[Mapping[Task, Cpus]], None]
"""Widens the cpusets of the tasks' containers to these CPUs: the old, the intermediate and the new ones."""

_NONE_KNOWN: Final[KnownProcesses] = {}
_WRAPPER_PATIENCE_S: Final = 3.0
"""How long to wait for wrappers that have not set the affinity of their allocation yet."""
_LOCK: Final = threading.Lock()  # held by the thread of this process that moves tasks


def reconfigure(
    store: AllocationStore,
    lists: Lists,
    proc: Path,
    *,
    known: KnownProcesses = _NONE_KNOWN,
    widen: Widen | None = None,
    only_check: bool = False,
) -> Reconfiguration:
    """Give the node these lists; returns the executed plan. With `only_check` the plan is returned and nothing changed.

    `known` is the result of the last garbage collection, if there was one. Ended tasks are removed. BadInput or Refused
    if it is not possible: then nothing has changed. Unavailable if another process is reconfiguring the node, or the
    store does not respond; if it stops responding at the end, the intent stays and `recover` rolls back.
    """
    if only_check:
        return _try_reconfigure(store, lists, proc, known, widen, only_check=True)
    procfs.check_pid_namespace(proc)
    with _LOCK:
        _recover(store, proc, known)
        return _try_reconfigure(store, lists, proc, known, widen)


def _try_reconfigure(
    store: AllocationStore,
    lists: Lists,
    proc: Path,
    known: KnownProcesses,
    widen: Widen | None,
    *,
    only_check: bool = False,
) -> Reconfiguration:
    for attempt in range(allocation_store.MAX_ATTEMPTS):
        _pause_before_attempt(attempt)
        stored = store.read()
        if stored.intent and (not only_check or _is_owner_alive(stored.intent.by, proc)):
            raise allocation_store.under_reconfiguration_error(store.location, stored.intent)
        trees = ProcessTrees(proc, stored.allocations, known)
        plan = reconfiguration_plan.plan(trees.allocations, lists)
        if only_check:
            return plan
        try:
            _execute(store, stored, trees, plan, widen)
        except _StoreChanged:
            continue
        return plan
    raise allocation_store.conflict_error(store.location)


class _StoreChanged(Exception):
    pass


def _execute(
    store: AllocationStore,
    stored: StoredAllocations,
    trees: ProcessTrees,
    plan: Reconfiguration,
    widen: Widen | None,
) -> None:
    by = _read_own_process(trees.proc)
    trees.await_wrappers(plan.moves, _WRAPPER_PATIENCE_S)
    deviating = trees.deviating_threads(plan.moves)
    intent = Intent(plan.allocations, by, datetime.now(UTC).isoformat(), plan.moves, deviating)
    try:
        if not plan.moves:
            store.replace(stored.version, plan.allocations)
            return
        store.replace(stored.version, trees.allocations, intent)
    except Conflict as error:
        raise _StoreChanged from error
    mover = TaskMover(trees, intent.moves, deviating)
    try:
        if widen:
            widen(mover.cpus_before_to_after_moves())
        mover.move_forward()
        _store_new_allocations(store, intent, trees.allocations)
    except _UnknownOutcome as error:
        raise error.cause from error
    except BaseException as error:
        _undo_moves(store, intent, mover, error)
        raise


class _UnknownOutcome(Exception):
    """The store does not respond, so it is unknown whether the new allocations were stored."""

    def __init__(self, cause: Unavailable) -> None:
        super().__init__()
        self.cause = cause


def _store_new_allocations(store: AllocationStore, intent: Intent, before: Allocations) -> None:
    """Store the new allocations, without tasks that ended meanwhile. Conflict if the intent was removed."""
    moved = before.tasks

    def without_ended(stored: StoredAllocations) -> Allocations:
        living = stored.allocations.tasks
        if unmoved := living - moved:
            pids = ", ".join(str(task.pid) for task in sorted(unmoved))
            raise Conflict.of(
                "CPUs were allocated meanwhile", store.location, f"tasks {pids}", "no new tasks"
            )
        return intent.target.with_tasks(
            lambda _, cpu_list: (task for task in cpu_list.tasks if task in living)
        )

    try:
        stored = _store_without_intent(store, intent, without_ended)
    except Unavailable as error:
        raise _UnknownOutcome(error) from error
    if stored and _cpu_lists_by_pool(stored.allocations) != _cpu_lists_by_pool(intent.target):
        raise Conflict.of(
            "another process rolled the reconfiguration back", store.location, "other pools", "ours"
        )


def _undo_moves(store: AllocationStore, intent: Intent, mover: TaskMover, why: BaseException) -> None:
    """Undo the moves and remove the intent. Refused if that fails: then the intent stays for `recover`."""
    try:
        mover.move_back()
        _store_without_intent(store, intent, lambda stored: stored.allocations)
    except NodewiseError as error:
        remedy = "no CPUs are allocated until nodewise cpu reconfigure or the node agent rolls it back"
        problems = [Problem("", str(why), ""), Problem("", str(error), "")]
        raise Refused("cannot reconfigure the node, nor roll back", problems, remedy=remedy) from error


def recover(store: AllocationStore, proc: Path, *, known: KnownProcesses = _NONE_KNOWN) -> bool:
    """Roll back a reconfiguration whose process has ended, or that this process could not finish.

    Returns whether there was one.
    """
    if not _LOCK.acquire(blocking=False):
        return False
    try:
        return _recover(store, proc, known)
    finally:
        _LOCK.release()


def _recover(store: AllocationStore, proc: Path, known: KnownProcesses) -> bool:
    stored = store.read()
    intent = stored.intent
    if intent is None or _is_owner_alive(intent.by, proc):
        return False
    if intent.by.boot == procfs.read_boot_id(proc):
        procfs.check_pid_namespace(proc)
    taken_over = intent._replace(by=_read_own_process(proc))
    try:
        store.replace(stored.version, stored.allocations, taken_over)
    except Conflict:
        return False
    if intent.by.boot == taken_over.by.boot:
        trees = ProcessTrees(proc, stored.allocations, known)
        TaskMover(trees, intent.moves, intent.threads).move_back()
    _store_without_intent(store, taken_over, lambda stored: stored.allocations)
    return True


def _store_without_intent(
    store: AllocationStore, intent: Intent, decide: Callable[[StoredAllocations], Allocations]
) -> StoredAllocations | None:
    """Store allocations without the intent. Returns the content if it no longer has this intent."""
    why: NodewiseError | None = None
    for attempt in range(allocation_store.MAX_ATTEMPTS):
        _pause_before_attempt(attempt)
        try:
            stored = store.read()
            if stored.intent is None or (stored.intent.by, stored.intent.since) != (intent.by, intent.since):
                return stored
        except Unavailable as error:
            why = error
            continue
        new = decide(stored)
        try:
            store.replace(stored.version, new)
        except (Conflict, Unavailable) as error:
            why = error
        else:
            return None
    raise Unavailable.of(f"cannot write {store.location}", "", str(why))


def _read_own_process(proc: Path) -> Task:
    stat = procfs.read_own_process(proc)
    return Task(stat.pid, stat.start, procfs.read_boot_id(proc))


def _is_owner_alive(by: Task, proc: Path) -> bool:
    """Whether the process that carries out the reconfiguration is another one that is alive."""
    process = procfs.read_processes(proc).processes.get(by.pid)
    is_running = process is not None and process.start == by.start and by.boot == procfs.read_boot_id(proc)
    return is_running and by.pid != procfs.read_own_process(proc).pid


def _cpu_lists_by_pool(allocations: Allocations) -> frozenset[tuple[str, str]]:
    return frozenset((pool.name, cpu_list.text) for pool, cpu_list in allocations.cpu_lists)


def _pause_before_attempt(attempt: int) -> None:
    time.sleep(min(0.05 * attempt, 1.0))
