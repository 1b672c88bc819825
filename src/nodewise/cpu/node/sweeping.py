"""One round of a sweep: which tasks are over, taken out of the book, and which run elsewhere than they should."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nodewise.cpu import book as books
from nodewise.cpu import procfs, sweep
from nodewise.cpu.book import Book, Stored
from nodewise.cpu.node import hidden
from nodewise.cpu.state import Pool, Slot, State, Task
from nodewise.cpu.sweep import Known, Reclaimed, Swept
from nodewise.errors import NodewiseError


class Round(NamedTuple):
    """What came of it; `known` is for the next one."""

    reclaimed: tuple[Reclaimed, ...]
    elsewhere: Sequence[dict[str, Any]]
    """Tasks whose process may run on other CPUs than those of its lists."""
    doubtful: tuple[Task, ...]
    """Tasks whose wrapper is gone, of which processes may live that we may not look at."""
    known: Known
    stored: Stored
    """The book as it is left."""

    def as_report(self) -> dict[str, Any]:
        """As `reconcile` prints it."""
        report = sweep.as_report(self.reclaimed)
        return {**report, "mismatchedCpuMasks": self.elsewhere} if self.elsewhere else report


def carry_out(book: Book, proc: Path, known: Known | None, wait: Callable[[int], None]) -> Round:
    """Take the tasks that are over out of the book, also while the node is being reconfigured.

    The processes are read after the state, so that a task of which the state tells was alive before. Raises what the
    book does, and Unavailable if `proc` cannot be read. When it returns, it is written.
    """
    boot = procfs.read_boot(proc)

    def decide(stored: Stored) -> tuple[State, Round]:
        census = procfs.read_processes(proc)
        swept = sweep.sweep(stored.state, census.processes, boot, known)
        doubtful = {
            one.task for one in swept.reclaimed if one.task.boot == boot and hidden.of(one.task, census, proc)
        }
        over = tuple(one for one in swept.reclaimed if one.task not in doubtful)
        left = stored.state.mapped(_living(swept, doubtful))
        elsewhere = sweep.mismatches(left, _allowed(left, proc))
        book_left = stored._replace(state=left)
        return left, Round(over, elsewhere, tuple(sorted(doubtful)), swept.known, book_left)

    return books.change(book, decide, wait, whatever=True)


def _living(swept: Swept, doubtful: Iterable[Task]) -> Callable[[Pool, Slot], Iterable[Task]]:
    """Of each slot those that live, and those of which nobody knows."""
    tasks = {(pool.name, slot.text): slot.tasks for pool, slot in swept.state.slots}

    def living(pool: Pool, slot: Slot) -> Iterable[Task]:
        return [*tasks[pool.name, slot.text], *(task for task in slot.tasks if task in doubtful)]

    return living


def _allowed(state: State, proc: Path) -> Mapping[int, frozenset[int]]:
    """Of each task's process the CPUs that it may use, as far as that can be read."""
    found = {}
    for pid in {task.pid for _, slot in state.slots for task in slot.tasks}:
        try:
            cpus = procfs.read_allowed(proc, pid)
        except NodewiseError:
            continue
        if cpus is not None:
            found[pid] = cpus
    return found
