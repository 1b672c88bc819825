"""Real process trees with several threads, children and grandchildren, for tests that move them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from nodewise_cpu import procfs
from nodewise_cpu.pool_allocations import Task

PROC = Path("/proc")
_PROGRAM = """
import os, sys, threading, time
depth, count, cpus, pinned, forks = map(int, sys.argv[1:6])
os.sched_setaffinity(0, {cpu for cpu in range(8) if cpus >> cpu & 1})
while depth and not os.fork():
    depth -= 1

def wait(ready, cpus):
    if cpus:
        os.sched_setaffinity(0, {cpu for cpu in range(8) if cpus >> cpu & 1})
    ready.wait()
    time.sleep(1000)

ready = threading.Barrier(count + 1)
for number in range(count):
    threading.Thread(target=wait, args=(ready, 0 if number else pinned), daemon=True).start()
ready.wait()
os.write(1, b"%d\\n" % os.getpid())
while forks and not depth:
    if not os.fork():
        time.sleep(0.05)
        os._exit(0)
    time.sleep(0.005)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
time.sleep(1000)
"""
"""A chain of processes, each with `count` additional threads. If `pinned` is not 0, the first additional thread of each
process has this affinity. If `forks` is set, the last process forks all the time."""


class RunningProcessTree:
    """A wrapper and its descendants."""

    def __init__(self, process: subprocess.Popen[bytes], pids: tuple[int, ...]) -> None:
        self.process = process
        self.pids = pids
        """The process ids, the wrapper's first, then those of its descendants."""
        stat = procfs.parse_stat((PROC / str(process.pid) / "stat").read_text())
        self.task = Task(process.pid, stat.start, procfs.read_boot_id(PROC), "pod", "container")

    @property
    def affinities(self) -> Mapping[int, frozenset[int]]:
        """The current affinity of every thread, by thread id."""
        return {
            int(path.name): frozenset(os.sched_getaffinity(int(path.name)))
            for pid in self.pids
            for path in (PROC / str(pid) / "task").iterdir()
        }

    @property
    def thread_affinities(self) -> set[frozenset[int]]:
        """The distinct affinities of all threads."""
        return set(self.affinities.values())


def mask(cpus: set[int]) -> str:
    return str(sum(1 << cpu for cpu in cpus))


@contextlib.contextmanager
def running(
    cpus: set[int],
    *,
    below: int = 2,
    threads: int = 2,
    pinned: frozenset[int] = frozenset(),
    forks: bool = False,
) -> Iterator[RunningProcessTree]:
    """A process tree on these CPUs, which is killed when the block ends."""
    arguments = [str(below), str(threads), mask(cpus), mask(set(pinned)), str(int(forks))]
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _PROGRAM, *arguments], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout
    try:
        pids = {int(process.stdout.readline()) for _ in range(below + 1)}
        yield RunningProcessTree(process, (process.pid, *sorted(pids - {process.pid})))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()
