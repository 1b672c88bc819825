"""Where the threads of a node's processes may run: read from the host's `/proc`, and set.

Standard library only.

A thread is known by its id and its start, for an id is given anew. Ids are those of the host, so who sets an
affinity has to be in the host's namespace of process ids.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nodewise.cpu import cpulist, procfs
from nodewise.cpu.kernel_files import read_text
from nodewise.errors import BadSettings, Problem, Refused


class Thread(NamedTuple):
    """One thread, and where it may run."""

    pid: int
    tid: int
    start: int
    cpus: frozenset[int]

    @property
    def name(self) -> str:
        """What it is known by."""
        return f"{self.tid}-{self.start}"


def check_namespace(proc: Path) -> None:
    """BadSettings if the ids below `proc` are not those that we know processes by."""
    seen = procfs.read_self(proc).pid
    if seen != os.getpid():
        problem = Problem("process ids", f"we are {os.getpid()} here and {seen} in {proc}", "the host's")
        raise BadSettings(
            "cannot move processes from here",
            [problem],
            remedy="run it with hostPID: true, or ask the node agent",
        )


def read(proc: Path, pid: int) -> Iterator[Thread]:
    """The threads of a process; those that end meanwhile are left out."""
    try:
        tids = procfs.numbers(proc / str(pid) / "task")
    except OSError:
        return
    for tid in tids:
        place = proc / str(pid) / "task" / str(tid)
        try:
            stat = procfs.parse_stat(read_text(place / "stat"), str(place / "stat"))
            found = procfs.ALLOWED.search(read_text(place / "status"))
        except OSError:
            continue
        if found and not stat.is_over:
            cpus = frozenset(cpulist.parse_list(found[1], str(place / "status")))
            yield Thread(pid, tid, stat.start, cpus)


def put(thread: Thread, cpus: frozenset[int]) -> None:
    """Let a thread run on exactly these CPUs; nothing happens if it is gone.

    Refused if the kernel does not let it, or on some of them only: then it is where it was.
    """
    try:
        os.sched_setaffinity(thread.tid, cpus)
        seen = frozenset(os.sched_getaffinity(thread.tid))
    except ProcessLookupError:
        return
    except OSError as error:
        why = (
            "none of them is online and in its cpuset" if error.errno == errno.EINVAL else str(error.strerror)
        )
        raise _refused(thread, f"cannot use CPUs {cpulist.format_ranges(cpus)}: {why}", "") from error
    if seen != cpus:
        with suppress(OSError):
            os.sched_setaffinity(thread.tid, thread.cpus)
        seen_text = f"may use CPUs {cpulist.format_ranges(seen) or 'none'} only"
        raise _refused(thread, seen_text, cpulist.format_ranges(cpus))


def _refused(thread: Thread, seen: str, wanted: str) -> Refused:
    problem = Problem(f"process {thread.pid}, thread {thread.tid}", seen, wanted)
    return Refused("cannot move a process", [problem])
