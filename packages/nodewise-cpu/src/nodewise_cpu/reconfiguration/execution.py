"""The execution of a reconfiguration: a node gets other pools while its tasks run. Recovery of an interrupted one.

Standard library only.

First an intent is stored beside the allocations, with all that is needed to undo the moves: from then on no CPUs are
allocated. Then all threads of the tasks are moved, one task after the other; then the new allocations are stored. After
an error the moves are undone in reverse and the intent is removed. A process that is killed leaves the intent, and
`recover` does the same for it. If that fails too the intent stays, and no CPUs are allocated until a later recovery.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from nodewise.base.errors import Conflict, NodewiseError, Problem, Refused, Unavailable
from nodewise_cpu import allocation_store, procfs, reconfiguration_plan
from nodewise_cpu.allocation_store import AllocationStore, Intent, StoredAllocations
from nodewise_cpu.ended_tasks import KnownProcesses
from nodewise_cpu.node import thread_affinity
from nodewise_cpu.pool_allocations import Allocations, Task
from nodewise_cpu.reconfiguration.process_tree_moves import ProcessTrees, TaskMover
from nodewise_cpu.reconfiguration_plan import Cpus, Reconfiguration

Lists = Mapping[str, Mapping[int, Iterable[str]]]
"""The CPU lists of each pool and socket: `pools.PoolPlan.pools`."""
Widen = Callable[[Mapping[Task, Cpus]], None]
"""Widens the cpusets of the tasks' containers to these CPUs: the old, the intermediate and the new ones."""

_NONE_KNOWN: Final[KnownProcesses] = {}
_WRAPPER_PATIENCE_S: Final = 3.0
"""How long to wait for wrappers that have not set the affinity of their allocation yet."""
_LOCK: Final = threading.Lock()
"""Held by the thread of this process that moves tasks."""


def _skip_cpuset_widening(cpus: Mapping[Task, Cpus]) -> None:
    """The `Widen` without enforcement."""


def reconfigure(
    store: AllocationStore,
    lists: Lists,
    proc: Path,
    *,
    known: KnownProcesses = _NONE_KNOWN,
    widen: Widen = _skip_cpuset_widening,
    only_check: bool = False,
) -> Reconfiguration:
    """Give the node these lists; returns the executed plan. With `only_check` the plan is returned and nothing changed.

    `known` is the result of the last garbage collection, if there was one. Ended tasks are removed. BadInput or Refused
    if it is not possible: then nothing has changed. Unavailable if another process is reconfiguring the node, or the
    store does not respond; if it stops responding at the end, the intent stays and `recover` rolls back.
    """
    if only_check:
        return _try_reconfigure(store, lists, proc, known, widen, only_check=True)
    thread_affinity.check_pid_namespace(proc)
    with _LOCK:
        _recover(store, proc, known)
        return _try_reconfigure(store, lists, proc, known, widen)


def _try_reconfigure(
    store: AllocationStore,
    lists: Lists,
    proc: Path,
    known: KnownProcesses,
    widen: Widen,
    *,
    only_check: bool = False,
) -> Reconfiguration:
    """Plan and execute, again if the store changed meanwhile."""
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
    """The store changed before the intent was stored."""


def _execute(
    store: AllocationStore,
    stored: StoredAllocations,
    trees: ProcessTrees,
    plan: Reconfiguration,
    widen: Widen,
) -> None:
    """Store the intent, move all tasks, and store the new allocations."""
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
            raise Conflict(
                "CPUs were allocated meanwhile",
                [Problem(store.location, f"tasks {pids}", "no new ones")],
            )
        return intent.target.with_tasks(
            lambda _, cpu_list: (task for task in cpu_list.tasks if task in living)
        )

    try:
        stored = _store_without_intent(store, intent, without_ended)
    except Unavailable as error:
        raise _UnknownOutcome(error) from error
    if stored and _cpu_lists_by_pool(stored.allocations) != _cpu_lists_by_pool(intent.target):
        raise Conflict(
            "another process rolled the reconfiguration back",
            [Problem(store.location, "other pools", "ours")],
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
        thread_affinity.check_pid_namespace(proc)
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
    raise Unavailable(f"cannot write {store.location}", [Problem("", str(why), "")])


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
    """Wait before an attempt; not before the first one, which is 0."""
    time.sleep(min(0.05 * attempt, 1.0))
