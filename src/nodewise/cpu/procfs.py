"""Reads what processes there are, for `sweep.py`, and where they may run.

Standard library only.

`proc` is the host's `/proc`, wherever it is mounted: process ids are those of the host then, also from a container.
"""

import errno
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.cpu import cpulist
from nodewise.cpu.cgroups import parse_cgroup
from nodewise.cpu.claims import MARK, parse_wrapper
from nodewise.cpu.kernel_files import WHITE_SPACE, read_text
from nodewise.cpu.sweep import Process
from nodewise.errors import BadInput, Problem, Unavailable, shown

_NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)
ALLOWED: Final = re.compile(r"^Cpus_allowed_list:[ \t]*([^ \t\n]+)", re.MULTILINE)
"""A line of `/proc/<pid>/status`. With re.MULTILINE `^` matches after `\\n` only, so no process's name can hold one."""
_OVER: Final = frozenset("ZXx")
_ROUNDS: Final = 20
_LOOKS: Final = 5
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EIO})
"""The last where a process put a file of its own in the place of its environment."""
_LONGEST_BYTES: Final = 6 * 2**20
"""Of an environment: execve(2), three quarters of 8 MiB, whatever the limit of the stack is."""
_PAUSE_S: Final = 0.002


class Stat(NamedTuple):
    """Of `/proc/<pid>/stat` what matters here."""

    pid: int
    state: str
    parent: int
    start: int
    name: str = ""
    has_memory: bool = True
    """No thread of the kernel, and none that is just ending."""
    threads: int = 1

    @property
    def is_over(self) -> bool:
        """Whether this thread runs no more, and only waits for somebody to hear of it."""
        return self.state in _OVER

    @property
    def is_whole_over(self) -> bool:
        """Whether the process runs no more: its first thread may end before the others do."""
        return self.is_over and self.threads <= 1


class Census(NamedTuple):
    """The processes of a node, by id, and those whose environment may not be read: whose they are is not known."""

    processes: dict[int, Process]
    hidden: frozenset[int]


def parse_stat(text: str, field: str = "stat") -> Stat:
    """The second field is the command's name, in parentheses, and may hold anything, such as `) R 1 (`."""
    pid, _, rest = text.partition(" (")
    name, _, rest = rest.rpartition(") ")
    fields = rest.rstrip(WHITE_SPACE).split(" ")
    numbers = (pid, *fields[1:2], *fields[17:18], *fields[19:20])
    if len(numbers) < 4 or not all(map(_NUMBER.fullmatch, numbers)):  # noqa: PLR2004 - id, parent, threads and start
        raise BadInput("cannot read a process", [Problem(field, shown(text), "proc(5), at least 22 fields")])
    has_memory = fields[20:21] != ["0"]
    return Stat(int(pid), fields[0], int(fields[1]), int(fields[19]), name, has_memory, int(fields[17]))


def read_self(proc: Path) -> Stat:
    """The process that asks, as the host knows it. Unavailable if `proc` is no mount of a `/proc`."""
    return parse_stat(_text(proc / "self/stat"), str(proc / "self/stat"))


def read_boot(proc: Path) -> str:
    """The id of this boot of the kernel. Unavailable if it cannot be read."""
    return _text(proc / "sys/kernel/random/boot_id").strip(WHITE_SPACE)


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise Unavailable("cannot read the host's processes", [Problem(str(path), str(error), "")]) from error


def read_processes(proc: Path) -> Census:
    """All processes that are not over; one that ends meanwhile is left out. Unavailable if `proc` cannot be read.

    A process may start another and end before it is looked at, so new ones are looked for until there are none. Only
    what the kernel says is gone is left out: whatever else keeps us from reading a process, it may live.
    """
    processes: dict[int, Process] = {}
    hidden: set[int] = set()
    seen: set[int] = set()
    for _ in range(_ROUNDS):
        new = [pid for pid in pids(proc) if pid not in seen]
        if not new:
            break
        seen.update(new)
        for look in range(_LOOKS):
            if look:
                time.sleep(_PAUSE_S)
            new = [pid for pid in new if _look_at(proc, pid, processes, hidden)]
            if not new:
                break
    return Census(processes, frozenset(hidden))


def _look_at(proc: Path, pid: int, processes: dict[int, Process], hidden: set[int]) -> bool:
    """Take one process in, or out if it is over; whether it is worth another look in a moment."""
    folder = proc / str(pid)
    processes.pop(pid, None)
    hidden.discard(pid)
    try:
        stat = parse_stat(read_text(folder / "stat"))
        if stat.is_whole_over:
            return False
        mark, is_final = _read_mark(folder, stat)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError as error:
        raise Unavailable(
            "cannot read the host's processes", [Problem(str(folder), str(error), "")]
        ) from error
    if mark is None:
        hidden.add(pid)
    found = Process(stat.start, stat.parent, mark or "", parse_wrapper(stat.name))
    processes[pid] = _placed(found, folder)
    return not is_final


def _read_mark(folder: Path, stat: Stat) -> tuple[str | None, bool]:
    """The mark in a process's environment, None if it cannot be told; and whether another look would say the same."""
    try:
        mark, is_empty = _scanned(folder / "environ")
        # while a process executes a program it has neither an environment nor words, and then has both
        if is_empty and stat.has_memory and not _begins(folder / "cmdline"):
            return None, False
    except (FileNotFoundError, ProcessLookupError):
        if stat.threads <= 1:
            raise
        return _read_mark_of_threads(folder)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return None, True
    return mark, True


def _read_mark_of_threads(folder: Path) -> tuple[str | None, bool]:
    """The same where the first thread ended before the others, whose files say it still."""
    for path in sorted((folder / "task").iterdir()):
        try:
            return _scanned(path / "environ")[0], True
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            return None, True
    return None, False


def _begins(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(1) or b""


def _scanned(path: Path) -> tuple[str, bool]:
    """The mark in an environment, and whether there is none at all.

    A process says itself where its environment lies and how long it is, so no more is read than a kernel lets a
    program be started with.
    """
    with path.open("rb", buffering=0) as file:
        pieces = []
        left = _LONGEST_BYTES
        while left > 0 and (piece := file.read(left)):
            pieces.append(piece)
            left -= len(piece)
    environment = b"\0" + b"".join(pieces)
    _, found, rest = environment.rpartition(b"\0" + MARK.encode() + b"=")
    return rest.partition(b"\0")[0].decode("utf-8", "replace") if found else "", not pieces


def _placed(process: Process, folder: Path) -> Process:
    """With its container, where that matters: what a process says of itself counts in its own container only."""
    if not process.mark and not process.wrapper:
        return process
    try:
        text = read_text(folder / "cgroup")
    except OSError:
        return process
    return process._replace(container=parse_cgroup(text).container)


def pids(proc: Path) -> Iterable[int]:
    """Processes only: threads have folders here as well, which are not listed."""
    try:
        return numbers(proc)
    except OSError as error:
        raise Unavailable("cannot read the host's processes", [Problem(str(proc), str(error), "")]) from error


def numbers(folder: Path) -> list[int]:
    """The names of a folder's entries that are numbers, ascending. Raises OSError."""
    names = [path.name for path in folder.iterdir()]
    return sorted(int(name) for name in names if re.fullmatch(r"\d{1,9}", name, re.ASCII))


def read_allowed(proc: Path, pid: int) -> frozenset[int] | None:
    """The CPUs that a process's first thread may use; None if it is gone. BadInput if the kernel does not say."""
    try:
        text = read_text(proc / f"{pid}/status")
    except OSError:
        return None
    found = ALLOWED.search(text)
    field = f"{pid}/status"
    if not found:
        raise BadInput(
            "cannot tell where a process may run", [Problem(field, "no Cpus_allowed_list", "such a line")]
        )
    return frozenset(cpulist.parse_list(found[1], field))
