"""CPU affinities of the threads of a node's processes, read from the host's `/proc` and set.

Standard library only.

A thread is identified by its id and its start, because ids are reused. Ids are those of the host, so a process that
sets affinities has to be in the host's namespace of process ids.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nodewise.base.errors import BadSettings, Problem, Refused
from nodewise_cpu import cpu_set_formats, procfs
from nodewise_cpu.kernel_file_reader import read_text


class Thread(NamedTuple):
    """A thread and the CPUs that it may use."""

    pid: int
    tid: int
    start: int
    cpus: frozenset[int]

    @property
    def name(self) -> str:
        """The thread's identity: `<id>-<start>`."""
        return f"{self.tid}-{self.start}"


def check_pid_namespace(proc: Path) -> None:
    """BadSettings if the process ids below `proc` are not those of this process's namespace."""
    pid_in_proc = procfs.read_own_process(proc).pid
    if pid_in_proc != os.getpid():
        seen = f"we are {os.getpid()} here and {pid_in_proc} in {proc}"
        raise BadSettings(
            "cannot move processes from here",
            [Problem("process ids", seen, "the host's")],
            remedy="run it with hostPID: true, or ask the node agent",
        )


def read(proc: Path, pid: int) -> Iterator[Thread]:
    """The threads of a process; those that end meanwhile are left out."""
    try:
        tids = procfs.numbers(proc / str(pid) / "task")
    except OSError:
        return
    for tid in tids:
        folder = proc / str(pid) / "task" / str(tid)
        try:
            stat = procfs.parse_stat(read_text(folder / "stat"), str(folder / "stat"))
            allowed = procfs.ALLOWED.search(read_text(folder / "status"))
        except OSError:
            continue
        if allowed and not stat.has_ended:
            cpus = frozenset(cpu_set_formats.parse_cpu_numbers(allowed[1], str(folder / "status")))
            yield Thread(pid, tid, stat.start, cpus)


def set_thread_affinity(thread: Thread, cpus: frozenset[int]) -> None:
    """Let a thread run on exactly these CPUs. A thread that has ended is no error.

    Refused if the kernel does not allow all of them: then the affinity is unchanged.
    """
    try:
        os.sched_setaffinity(thread.tid, cpus)
        # the kernel drops CPUs outside of the cpuset without an error, as long as one is left
        actual = frozenset(os.sched_getaffinity(thread.tid))
    except ProcessLookupError:
        return
    except OSError as error:
        why = (
            "none of them is online and in its cpuset" if error.errno == errno.EINVAL else str(error.strerror)
        )
        raise _affinity_refused_error(
            thread, f"cannot use CPUs {cpu_set_formats.format_cpu_ranges(cpus)}: {why}", ""
        ) from error
    if actual != cpus:
        with suppress(OSError):
            os.sched_setaffinity(thread.tid, thread.cpus)
        seen = f"may use CPUs {cpu_set_formats.format_cpu_ranges(actual) or 'none'} only"
        raise _affinity_refused_error(thread, seen, cpu_set_formats.format_cpu_ranges(cpus))


def _affinity_refused_error(thread: Thread, seen: str, wanted: str) -> Refused:
    problem = Problem(f"process {thread.pid}, thread {thread.tid}", seen, wanted)
    return Refused("cannot move a process", [problem])
