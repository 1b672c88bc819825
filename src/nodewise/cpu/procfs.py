"""Reads what processes there are, for `sweep.py`, and where they may run.

Standard library only.

`proc` is the host's `/proc`, wherever it is mounted: process ids are those of the host then, also from a container.
"""

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.cpu import cpulist
from nodewise.cpu.claims import MARK, parse_wrapper
from nodewise.cpu.sweep import Process
from nodewise.errors import BadInput, Problem, Unavailable, shown

_NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)
_OVER: Final = frozenset("ZXx")
_ROUNDS: Final = 20
_LOOKS: Final = 5
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

    @property
    def is_over(self) -> bool:
        """Whether it runs no more, and only waits for somebody to hear of it."""
        return self.state in _OVER


class Census(NamedTuple):
    """The processes of a node, by id, and those whose environment may not be read: whose they are is not known."""

    processes: dict[int, Process]
    hidden: frozenset[int]


def parse_stat(text: str, field: str = "stat") -> Stat:
    """The second field is the command's name, in parentheses, and may hold anything, such as `) R 1 (`."""
    pid, _, rest = text.partition(" (")
    name, _, rest = rest.rpartition(") ")
    fields = rest.split()
    numbers = (pid, *fields[1:2], *fields[19:20])
    if len(numbers) < 3 or not all(map(_NUMBER.fullmatch, numbers)):  # noqa: PLR2004 - id, parent and start
        raise BadInput("cannot read a process", [Problem(field, shown(text), "proc(5), at least 22 fields")])
    return Stat(int(pid), fields[0], int(fields[1]), int(fields[19]), name, fields[20:21] != ["0"])


def read_self(proc: Path) -> Stat:
    """The process that asks, as the host knows it. Unavailable if `proc` is no mount of a `/proc`."""
    return parse_stat(_text(proc / "self/stat"), str(proc / "self/stat"))


def read_boot(proc: Path) -> str:
    """The id of this boot of the kernel. Unavailable if it cannot be read."""
    return _text(proc / "sys/kernel/random/boot_id").strip()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise Unavailable("cannot read the host's processes", [Problem(str(path), str(error), "")]) from error


def read_processes(proc: Path) -> Census:
    """All processes that are not over; one that ends meanwhile is left out. Unavailable if `proc` cannot be read.

    A process may start another and end before it is looked at, so new ones are looked for until there are none.
    """
    processes: dict[int, Process] = {}
    hidden: set[int] = set()
    seen: set[int] = set()
    for _ in range(_ROUNDS):
        new = [pid for pid in pids(proc) if pid not in seen]
        if not new:
            break
        seen.update(new)
        for pid in new:
            try:
                processes[pid], is_seen = _read_process(proc / str(pid))
            except (_Over, OSError):
                continue
            if not is_seen:
                hidden.add(pid)
    return Census(processes, frozenset(hidden))


class _Over(Exception):
    """A process that runs no more."""


def _read_process(folder: Path) -> tuple[Process, bool]:
    """A process, and whether its environment was to be seen. Some kind of error if it is over."""
    for look in range(_LOOKS):
        if look:
            time.sleep(_PAUSE_S)
        stat = parse_stat((folder / "stat").read_text(encoding="utf-8", errors="surrogateescape"))
        if stat.is_over:
            raise _Over
        process = Process(stat.start, stat.parent, wrapper=parse_wrapper(stat.name))
        try:
            environment = (folder / "environ").read_bytes()
        except PermissionError:
            return process, False
        # while a process executes a program it has neither an environment nor words, and then has both
        if environment or not stat.has_memory or (folder / "cmdline").read_bytes():
            return process._replace(mark=_mark(environment)), True
    return process, False


def pids(proc: Path) -> Iterable[int]:
    """Processes only: threads have folders here as well, which are not listed."""
    try:
        names = [path.name for path in proc.iterdir()]
    except OSError as error:
        raise Unavailable("cannot read the host's processes", [Problem(str(proc), str(error), "")]) from error
    return sorted(int(name) for name in names if re.fullmatch(r"\d{1,9}", name, re.ASCII))


def _mark(environment: bytes) -> str:
    name = MARK.encode() + b"="
    values = [one[len(name) :] for one in environment.split(b"\0") if one.startswith(name)]
    return values[-1].decode("utf-8", "replace") if values else ""


def read_allowed(proc: Path, pid: int) -> frozenset[int] | None:
    """The CPUs that a process's first thread may use; None if it is gone. BadInput if the kernel does not say."""
    try:
        text = (proc / f"{pid}/status").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", text, re.MULTILINE)
    field = f"{pid}/status"
    if not found:
        raise BadInput(
            "cannot tell where a process may run", [Problem(field, "no Cpus_allowed_list", "such a line")]
        )
    return frozenset(cpulist.parse_list(found[1], field))
