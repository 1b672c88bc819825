"""The node agent's sweeps: one after the other, each with what the one before knew, told in the log and as metrics."""

import random
import threading
import time
from pathlib import Path
from typing import Final, Protocol

from nodewise.cpu import procfs, sweep
from nodewise.cpu.agent.telling import Told
from nodewise.cpu.book import Book, Stored
from nodewise.cpu.kernel_files import read_text
from nodewise.cpu.node import sweeping
from nodewise.cpu.node.sweeping import Round
from nodewise.cpu.state import State, Task
from nodewise.cpu.sweep import Known
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_PAUSE_S: Final = 0.02


def pause(number: int) -> None:
    """Between the tries of `book.change`: longer with each, and never as long as somebody else's."""
    time.sleep(random.uniform(0.5, 1.5) * _PAUSE_S * number)  # noqa: S311 - no secret


class Recover(Protocol):
    """`moving.recover` of one node: `known` tells of processes that nothing but earlier sweeps tell of."""

    def __call__(self, *, known: Known) -> bool: ...


class Sweeper:
    """Sweeps one node's book. Its methods may be called from several threads.

    `recover` takes back what a reconfiguration left that nobody carries out any more; whether it did.
    """

    def __init__(self, book: Book, proc: Path, meters: MetricsRegistry, recover: Recover) -> None:
        self._book = book
        self._proc = proc
        self._boot = procfs.read_boot(proc)
        self._meters = meters
        self._recover = recover
        self._turn = threading.Lock()
        self._known: Known | None = None
        self._told = Told()

    @property
    def known(self) -> Known | None:
        """Of each task its processes, as the last sweep saw them; None before the first."""
        return self._known

    def family(self, stored: Stored, task: Task) -> frozenset[tuple[int, int]]:
        """All processes of a task that live, by id and start."""
        processes = procfs.read_processes(self._proc).processes
        return sweep.sweep(stored.state, processes, self._boot, self._known).known.get(task, frozenset())

    def sweep(self) -> Round:
        """Frees what is over; raises whatever keeps it from that."""
        with self._turn:
            done = sweeping.carry_out(self._book, self._proc, self._known, pause)
            self._known = done.known
            intent = done.stored.intent
            if intent and self._recover(known=done.known):
                logs.emit("cpu_intent_recovered", pid=intent.by.pid, since=intent.since)
            self._told.tell(done)
        for one in done.reclaimed:
            self._meters.count("cpu_reclaimed_total", pool=one.pool)
        self._count(done.stored.state)
        return done

    def _count(self, state: State) -> None:
        for pool in state.pools.values():
            slots = list(pool.slots)
            held = sum(bool(slot.tasks) for slot in slots)
            self._meters.set("cpu_lists", held, pool=pool.name, state="held")
            self._meters.set("cpu_lists", len(slots) - held, pool=pool.name, state="free")
            self._meters.set("cpu_tasks", sum(len(slot.tasks) for slot in slots), pool=pool.name)


def wait_for_end(proc: Path, task: Task, patience_s: float) -> bool:
    """Whether a task's wrapper is over: the kernel closes what a process has open a moment before it is."""
    end = time.monotonic() + patience_s
    while _runs(proc, task):
        if time.monotonic() >= end:
            return False
        time.sleep(_PAUSE_S)
    return True


def _runs(proc: Path, task: Task) -> bool:
    path = proc / f"{task.pid}/stat"
    try:
        stat = procfs.parse_stat(read_text(path))
    except OSError:
        return False
    return stat.start == task.start and not stat.is_whole_over
