"""Rounds of a sweep on this machine's own processes."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodewise.cpu import book as books
from nodewise.cpu import procfs, state
from nodewise.cpu.book import Stored
from nodewise.cpu.node import sweeping
from nodewise.cpu.state import State, Task
from nodewise.cpu.store.files import DirectoryBook

PROC = Path("/proc")
GONE = 99_999_999
FREE = state.from_lists({"exclusive": {0: ["0", "1"]}, "shared": {0: ["2,3"]}})


def no_wait(_: int) -> None:
    """Others write in a moment."""


def swept(book: DirectoryBook) -> sweeping.Round:
    return sweeping.carry_out(book, PROC, None, no_wait)


@pytest.fixture
def book(tmp_path: Path) -> DirectoryBook:
    made = DirectoryBook(tmp_path / "conf")
    made.create(FREE)
    return made


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as child:
        yield child
        child.kill()


def held(found: State) -> dict[str, set[int]]:
    return {slot.text: {task.pid for task in slot.tasks} for _, slot in found.slots if slot.tasks}


def hold(book: DirectoryBook, tasks: dict[str, Task]) -> None:
    def decide(stored: Stored) -> tuple[State, None]:
        return stored.state.mapped(
            lambda _, slot: [*slot.tasks, *([tasks[slot.text]] if slot.text in tasks else [])]
        ), None

    books.change(book, decide, no_wait)


def test_what_is_over_goes_and_what_lives_is_known_by_its_start(
    book: DirectoryBook, sleeper: subprocess.Popen[bytes]
) -> None:
    hold(book, {"0": Task(sleeper.pid), "1": Task(GONE)})
    done = swept(book)
    assert [(one.cpus, one.task.pid) for one in done.reclaimed] == [("1", GONE)]
    (task,) = [slot.tasks[0] for _, slot in book.read().state.slots if slot.tasks]
    assert task == Task(sleeper.pid, _start(sleeper.pid), procfs.read_boot(PROC))


def _start(pid: int) -> int:
    return procfs.parse_stat((PROC / f"{pid}/stat").read_text()).start


def test_a_process_that_took_over_an_id_is_another_one(
    book: DirectoryBook, sleeper: subprocess.Popen[bytes]
) -> None:
    hold(book, {"0": Task(sleeper.pid, _start(sleeper.pid) - 1, procfs.read_boot(PROC))})
    assert len(swept(book).reclaimed) == 1
    assert held(book.read().state) == {}


@pytest.mark.root
def test_who_may_not_look_frees_nothing_that_may_live(
    book: DirectoryBook, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """A wrapper is gone, and root runs something that was started after it."""
    boot = procfs.read_boot(PROC)
    begun = _start(sleeper.pid)
    inside = "c" * 64  # no process is in this container
    hold(
        book,
        {"0": Task(GONE, begun, boot), "1": Task(GONE - 1, begun, boot, "p", inside), "2,3": Task(GONE - 2)},
    )
    for path in [tmp_path, *tmp_path.parents]:
        if not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o011)
    for path in (tmp_path / "conf", *(tmp_path / "conf").rglob("*")):
        os.chown(path, 65_534, 65_534)
    program = (
        "import os, sys; from pathlib import Path\n"
        "from nodewise.cpu.node import sweeping; from nodewise.cpu.store.files import DirectoryBook\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "book = DirectoryBook(Path(sys.argv[1]))\n"
        "done = sweeping.carry_out(book, Path('/proc'), None, lambda number: None)\n"
        "print(sorted(one.cpus for one in done.reclaimed), [task.pid for task in done.doubtful])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "conf")], capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == f"['1', '2,3'] [{GONE}]", ran.stderr
    for path in (tmp_path / "conf", *(tmp_path / "conf").rglob("*")):
        os.chown(path, 0, 0)  # root trusts no files of others
    assert held(book.read().state) == {"0": {GONE}}
    swept(book)
    assert held(book.read().state) == {}


def test_nobody_who_just_came_is_taken_for_gone(book: DirectoryBook) -> None:
    """Tasks come while others sweep: a task is alive before it is in the state, so it is found alive."""
    children: list[subprocess.Popen[bytes]] = []
    over = threading.Event()
    failed: list[BaseException] = []

    def sweep() -> None:
        try:
            while not over.is_set():
                swept(book)
        except BaseException as error:
            failed.append(error)

    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    for one in sweepers:
        one.start()
    try:
        for _ in range(25):
            children.append(subprocess.Popen(["sleep", "1000"]))
            pid = children[-1].pid
            hold(book, {"2,3": Task(pid, _start(pid), procfs.read_boot(PROC))})
    finally:
        over.set()
        for one in sweepers:
            one.join()
    living = {child.pid for child in children}
    try:
        assert not failed
        assert held(book.read().state) == {"2,3": living}
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert len(swept(book).reclaimed) == 25
