"""Gives a node other pools under tasks that go on running, and takes back what somebody could not end.

Standard library only.

First the intent is written beside the state, with all that is needed to undo it: from then on nobody gets a core.
Then every thread of every family goes where the plan has it, one task after the other; then the new state is written.
Whatever fails, the moves are undone in reverse and the intent is taken back; whoever dies leaves the intent, and
`recover` does the same in his place. Where even that fails the intent stays: no core is given away until it is done.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from nodewise.cpu import allocation_store, procfs
from nodewise.cpu import reconfiguration_plan as planning
from nodewise.cpu.allocation_store import AllocationStore, Intent, StoredAllocations
from nodewise.cpu.ended_tasks import KnownProcesses
from nodewise.cpu.node import thread_affinity
from nodewise.cpu.pool_allocations import Allocations, Task
from nodewise.cpu.reconfiguration.process_trees import ProcessTrees, TaskMover
from nodewise.cpu.reconfiguration_plan import Cpus, Reconfiguration
from nodewise.errors import Conflict, NodewiseError, Problem, Refused, Unavailable

Lists = Mapping[str, Mapping[int, Iterable[str]]]
"""Of each pool and socket the CPU lists: `pools.Plan.pools`."""
Widen = Callable[[Mapping[Task, Cpus]], None]
"""Lets the containers of tasks use these CPUs, on which the tasks are, will be, and pass."""

_NOBODY: Final[KnownProcesses] = {}
_PATIENCE_S: Final = 3.0
"""For wrappers between the answer that they hold CPUs and their being there."""
_AT_IT: Final = threading.Lock()
"""Held by the thread of this program that moves tasks."""


def _nothing(wanted: Mapping[Task, Cpus]) -> None:
    """Where nobody confines containers."""


def reconfigure(
    store: AllocationStore,
    lists: Lists,
    proc: Path,
    *,
    known: KnownProcesses = _NOBODY,
    widen: Widen = _nothing,
    only_check: bool = False,
) -> Reconfiguration:
    """Give the node these lists; what came of it. With `only_check` nothing is touched: what would come of it.

    `known` is that of the last sweep, if there was one. Tasks that are over are forgotten on the way. BadInput or
    Refused say why it cannot be: then all is as it was. Unavailable: somebody else is at it, or the book does not
    answer; one that stops to answer at the very end keeps its intent, and `recover` puts all back.
    """
    if only_check:
        return _tried(store, lists, proc, known, widen, only_check=True)
    thread_affinity.check_namespace(proc)
    with _AT_IT:
        _recover(store, proc, known)
        return _tried(store, lists, proc, known, widen)


def _tried(
    store: AllocationStore,
    lists: Lists,
    proc: Path,
    known: KnownProcesses,
    widen: Widen,
    *,
    only_check: bool = False,
) -> Reconfiguration:
    """Anew for as long as others write first."""
    for number in range(allocation_store.MAX_ATTEMPTS):
        _pause(number)
        stored = store.read()
        if stored.intent and (not only_check or _is_alive(stored.intent.by, proc)):
            raise allocation_store.under_reconfiguration(store.place, stored.intent)
        families = ProcessTrees(proc, stored.allocations, known)
        found = planning.plan(families.allocations, lists)
        if only_check:
            return found
        try:
            _begin(store, stored, families, found, widen)
        except _Overtaken:
            continue
        return found
    raise Unavailable(
        f"cannot write {store.place}",
        [Problem("", f"others wrote first, {allocation_store.MAX_ATTEMPTS} times", "")],
    )


class _Overtaken(Exception):
    """Somebody wrote before we began."""


def _begin(
    store: AllocationStore,
    stored: StoredAllocations,
    families: ProcessTrees,
    found: Reconfiguration,
    widen: Widen,
) -> None:
    """From the intent to the end."""
    by = _self(families.proc)
    families.await_wrappers(found.moves, _PATIENCE_S)
    saved = families.elsewhere(found.moves)
    intent = Intent(found.allocations, by, datetime.now(UTC).isoformat(), found.moves, saved)
    try:
        if not found.moves:
            store.replace(stored.version, found.allocations)
            return
        store.replace(stored.version, families.allocations, intent)
    except Conflict as error:
        raise _Overtaken from error
    mover = TaskMover(families, intent.moves, saved)
    try:
        widen(mover.wanted())
        mover.forward()
        _commit(store, intent, families.allocations)
    except _Unsure as error:
        raise error.why from error
    except BaseException as error:
        _undo(store, intent, mover, error)
        raise


class _Unsure(Exception):
    """The book does not say whether the new state was written."""

    def __init__(self, why: Unavailable) -> None:
        super().__init__()
        self.why = why


def _commit(store: AllocationStore, intent: Intent, before: Allocations) -> None:
    """Write the new state, with what became of tasks meanwhile. Conflict if somebody took the intent back."""
    moved = _tasks(before)

    def ended(stored: StoredAllocations) -> Allocations:
        living = _tasks(stored.allocations)
        if strange := living - moved:
            pids = ", ".join(str(task.pid) for task in sorted(strange))
            raise Conflict(
                "somebody gave cores away meanwhile", [Problem(store.place, f"tasks {pids}", "no new ones")]
            )
        return intent.target.mapped(lambda _, cpu_list: (task for task in cpu_list.tasks if task in living))

    try:
        stored = _end(store, intent, ended)
    except Unavailable as error:
        raise _Unsure(error) from error
    if stored and _lists(stored.allocations) != _lists(intent.target):
        raise Conflict(
            "somebody took the reconfiguration back", [Problem(store.place, "other pools", "ours")]
        )


def _undo(store: AllocationStore, intent: Intent, mover: TaskMover, why: BaseException) -> None:
    """All as it was; an error if that cannot be, and then the intent stays for `recover`."""
    try:
        mover.back()
        _end(store, intent, lambda stored: stored.allocations)
    except NodewiseError as error:
        remedy = "nobody gets a core until a later try undoes it: nodewise cpu reconfigure, or the node agent"
        problems = [Problem("", str(why), ""), Problem("", str(error), "")]
        raise Refused(
            "cannot reconfigure the node, nor undo what was done", problems, remedy=remedy
        ) from error


def recover(store: AllocationStore, proc: Path, *, known: KnownProcesses = _NOBODY) -> bool:
    """Undo what a program began that is gone, or what this one could not end; whether there was something to undo."""
    if not _AT_IT.acquire(blocking=False):
        return False
    try:
        return _recover(store, proc, known)
    finally:
        _AT_IT.release()


def _recover(store: AllocationStore, proc: Path, known: KnownProcesses) -> bool:
    stored = store.read()
    intent = stored.intent
    if intent is None or _is_alive(intent.by, proc):
        return False
    if intent.by.boot == procfs.read_boot(proc):
        thread_affinity.check_namespace(proc)
    ours = intent._replace(by=_self(proc))
    try:
        store.replace(stored.version, stored.allocations, ours)
    except Conflict:
        return False
    if intent.by.boot == ours.by.boot:
        TaskMover(ProcessTrees(proc, stored.allocations, known), intent.moves, intent.threads).back()
    _end(store, ours, lambda stored: stored.allocations)
    return True


def _end(
    store: AllocationStore, intent: Intent, decide: Callable[[StoredAllocations], Allocations]
) -> StoredAllocations | None:
    """Write a state without the intent; what is stored if the intent is ours no longer. Tries long."""
    why: NodewiseError | None = None
    for number in range(allocation_store.MAX_ATTEMPTS):
        _pause(number)
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
    raise Unavailable(f"cannot write {store.place}", [Problem("", str(why), "")])


def _self(proc: Path) -> Task:
    stat = procfs.read_self(proc)
    return Task(stat.pid, stat.start, procfs.read_boot(proc))


def _is_alive(by: Task, proc: Path) -> bool:
    """Whether somebody else still carries it out."""
    process = procfs.read_processes(proc).processes.get(by.pid)
    is_there = process is not None and process.start == by.start and by.boot == procfs.read_boot(proc)
    return is_there and by.pid != procfs.read_self(proc).pid


def _tasks(allocations: Allocations) -> frozenset[Task]:
    return frozenset(task for _, cpu_list in allocations.cpu_lists for task in cpu_list.tasks)


def _lists(allocations: Allocations) -> frozenset[tuple[str, str]]:
    return frozenset((pool.name, cpu_list.text) for pool, cpu_list in allocations.cpu_lists)


def _pause(number: int) -> None:
    """Before the try of this number, from 0."""
    time.sleep(min(0.05 * number, 1.0))
