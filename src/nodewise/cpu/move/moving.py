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

from nodewise.cpu import book as books
from nodewise.cpu import procfs
from nodewise.cpu import reconfigure as planning
from nodewise.cpu.book import Book, Intent, Stored
from nodewise.cpu.move.families import Families, Mover
from nodewise.cpu.node import threads
from nodewise.cpu.reconfigure import Cpus, Reconfiguration
from nodewise.cpu.state import State, Task
from nodewise.cpu.sweep import Known
from nodewise.errors import Conflict, NodewiseError, Problem, Refused, Unavailable

Lists = Mapping[str, Mapping[int, Iterable[str]]]
"""Of each pool and socket the CPU lists: `pools.Plan.pools`."""
Widen = Callable[[Mapping[Task, Cpus]], None]
"""Lets the containers of tasks use these CPUs, on which the tasks are, will be, and pass."""

_NOBODY: Final[Known] = {}
_PATIENCE_S: Final = 3.0
"""For wrappers between the answer that they hold CPUs and their being there."""
_AT_IT: Final = threading.Lock()
"""Held by the thread of this program that moves tasks."""


def _nothing(wanted: Mapping[Task, Cpus]) -> None:
    """Where nobody confines containers."""


def reconfigure(
    book: Book,
    lists: Lists,
    proc: Path,
    *,
    known: Known = _NOBODY,
    widen: Widen = _nothing,
    only_check: bool = False,
) -> Reconfiguration:
    """Give the node these lists; what came of it. With `only_check` nothing is touched: what would come of it.

    `known` is that of the last sweep, if there was one. Tasks that are over are forgotten on the way. BadInput or
    Refused say why it cannot be: then all is as it was. Unavailable: somebody else is at it, or the book does not
    answer; one that stops to answer at the very end keeps its intent, and `recover` puts all back.
    """
    if only_check:
        return _tried(book, lists, proc, known, widen, only_check=True)
    threads.check_namespace(proc)
    with _AT_IT:
        _recover(book, proc, known)
        return _tried(book, lists, proc, known, widen)


def _tried(
    book: Book, lists: Lists, proc: Path, known: Known, widen: Widen, *, only_check: bool = False
) -> Reconfiguration:
    """Anew for as long as others write first."""
    for number in range(books.TRIES):
        _pause(number)
        stored = book.read()
        if stored.intent and (not only_check or _is_alive(stored.intent.by, proc)):
            raise books.busy(book.place, stored.intent)
        families = Families(proc, stored.state, known)
        found = planning.plan(families.state, lists)
        if only_check:
            return found
        try:
            _begin(book, stored, families, found, widen)
        except _Overtaken:
            continue
        return found
    raise Unavailable(
        f"cannot write {book.place}", [Problem("", f"others wrote first, {books.TRIES} times", "")]
    )


class _Overtaken(Exception):
    """Somebody wrote before we began."""


def _begin(book: Book, stored: Stored, families: Families, found: Reconfiguration, widen: Widen) -> None:
    """From the intent to the end."""
    by = _self(families.proc)
    families.await_wrappers(found.moves, _PATIENCE_S)
    saved = families.elsewhere(found.moves)
    intent = Intent(found.state, by, datetime.now(UTC).isoformat(), found.moves, saved)
    try:
        if not found.moves:
            book.replace(stored.version, found.state)
            return
        book.replace(stored.version, families.state, intent)
    except Conflict as error:
        raise _Overtaken from error
    mover = Mover(families, intent.moves, saved)
    try:
        widen(mover.wanted())
        mover.forward()
        _commit(book, intent, families.state)
    except _Unsure as error:
        raise error.why from error
    except BaseException as error:
        _undo(book, intent, mover, error)
        raise


class _Unsure(Exception):
    """The book does not say whether the new state was written."""

    def __init__(self, why: Unavailable) -> None:
        super().__init__()
        self.why = why


def _commit(book: Book, intent: Intent, before: State) -> None:
    """Write the new state, with what became of tasks meanwhile. Conflict if somebody took the intent back."""
    moved = _tasks(before)

    def ended(stored: Stored) -> State:
        living = _tasks(stored.state)
        if strange := living - moved:
            pids = ", ".join(str(task.pid) for task in sorted(strange))
            raise Conflict(
                "somebody gave cores away meanwhile", [Problem(book.place, f"tasks {pids}", "no new ones")]
            )
        return intent.target.mapped(lambda _, slot: (task for task in slot.tasks if task in living))

    try:
        stored = _end(book, intent, ended)
    except Unavailable as error:
        raise _Unsure(error) from error
    if stored and _lists(stored.state) != _lists(intent.target):
        raise Conflict("somebody took the reconfiguration back", [Problem(book.place, "other pools", "ours")])


def _undo(book: Book, intent: Intent, mover: Mover, why: BaseException) -> None:
    """All as it was; an error if that cannot be, and then the intent stays for `recover`."""
    try:
        mover.back()
        _end(book, intent, lambda stored: stored.state)
    except NodewiseError as error:
        remedy = "nobody gets a core until a later try undoes it: nodewise cpu reconfigure, or the node agent"
        problems = [Problem("", str(why), ""), Problem("", str(error), "")]
        raise Refused(
            "cannot reconfigure the node, nor undo what was done", problems, remedy=remedy
        ) from error


def recover(book: Book, proc: Path, *, known: Known = _NOBODY) -> bool:
    """Undo what a program began that is gone, or what this one could not end; whether there was something to undo."""
    if not _AT_IT.acquire(blocking=False):
        return False
    try:
        return _recover(book, proc, known)
    finally:
        _AT_IT.release()


def _recover(book: Book, proc: Path, known: Known) -> bool:
    stored = book.read()
    intent = stored.intent
    if intent is None or _is_alive(intent.by, proc):
        return False
    if intent.by.boot == procfs.read_boot(proc):
        threads.check_namespace(proc)
    ours = intent._replace(by=_self(proc))
    try:
        book.replace(stored.version, stored.state, ours)
    except Conflict:
        return False
    if intent.by.boot == ours.by.boot:
        Mover(Families(proc, stored.state, known), intent.moves, intent.threads).back()
    _end(book, ours, lambda stored: stored.state)
    return True


def _end(book: Book, intent: Intent, decide: Callable[[Stored], State]) -> Stored | None:
    """Write a state without the intent; what is stored if the intent is ours no longer. Tries long."""
    why: NodewiseError | None = None
    for number in range(books.TRIES):
        _pause(number)
        try:
            stored = book.read()
            if stored.intent is None or (stored.intent.by, stored.intent.since) != (intent.by, intent.since):
                return stored
        except Unavailable as error:
            why = error
            continue
        new = decide(stored)
        try:
            book.replace(stored.version, new)
        except (Conflict, Unavailable) as error:
            why = error
        else:
            return None
    raise Unavailable(f"cannot write {book.place}", [Problem("", str(why), "")])


def _self(proc: Path) -> Task:
    stat = procfs.read_self(proc)
    return Task(stat.pid, stat.start, procfs.read_boot(proc))


def _is_alive(by: Task, proc: Path) -> bool:
    """Whether somebody else still carries it out."""
    process = procfs.read_processes(proc).processes.get(by.pid)
    is_there = process is not None and process.start == by.start and by.boot == procfs.read_boot(proc)
    return is_there and by.pid != procfs.read_self(proc).pid


def _tasks(state: State) -> frozenset[Task]:
    return frozenset(task for _, slot in state.slots for task in slot.tasks)


def _lists(state: State) -> frozenset[tuple[str, str]]:
    return frozenset((pool.name, slot.text) for pool, slot in state.slots)


def _pause(number: int) -> None:
    """Before the try of this number, from 0."""
    time.sleep(min(0.05 * number, 1.0))
