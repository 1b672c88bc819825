"""Garbage collection: removes ended tasks from a store and finds tasks that run on other CPUs than allocated.

The node agent's collections follow one another, each with the processes that the last one found.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from nodewise.base.errors import NodewiseError
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise_cpu import allocation_store, ended_tasks, procfs
from nodewise_cpu.allocation_store import AllocationStore, StoredAllocations
from nodewise_cpu.ended_tasks import KnownProcesses, ProcessTree, ReclaimedCpuList
from nodewise_cpu.kernel_file_reader import read_text
from nodewise_cpu.node import reconfiguration
from nodewise_cpu.pool_allocations import Allocations, Task


class CollectionRound(NamedTuple):
    """The result of one garbage collection; `known` is for the next one."""

    reclaimed: tuple[ReclaimedCpuList, ...]
    mismatched: Sequence[dict[str, Any]]
    """Tasks whose process may use other CPUs than those of its lists."""
    uncertain: tuple[Task, ...]
    """Tasks whose wrapper has ended, and of which unreadable processes may be alive."""
    known: KnownProcesses
    stored: StoredAllocations
    """The content of the store after the collection."""

    def as_report(self) -> dict[str, Any]:
        """The report that `reconcile` prints."""
        report = ended_tasks.as_report(self.reclaimed)
        return {**report, "mismatchedCpuMasks": self.mismatched} if self.mismatched else report


def collect_garbage(
    store: AllocationStore, proc: Path, known: KnownProcesses | None, wait: Callable[[int], None]
) -> CollectionRound:
    """Remove the tasks that have ended from the store, also during a reconfiguration.

    Raises the errors of the store, and Unavailable if `proc` cannot be read. The result is stored on return.
    """
    boot = procfs.read_boot_id(proc)

    def decide(stored: StoredAllocations) -> tuple[Allocations, CollectionRound]:
        # read after the store, so that the processes of every stored task had been started before
        table = procfs.read_processes(proc)
        result = ended_tasks.remove_ended_tasks(stored.allocations, table.processes, boot, known)
        uncertain = {
            item.task
            for item in result.reclaimed
            if item.task.boot == boot and procfs.unreadable_processes_of(item.task, table, proc)
        }
        reclaimed = tuple(item for item in result.reclaimed if item.task not in uncertain)
        living = {
            (pool.name, cpu_list.text): cpu_list.tasks for pool, cpu_list in result.allocations.cpu_lists
        }
        left = stored.allocations.with_tasks(
            lambda pool, cpu_list: [
                *living[pool.name, cpu_list.text],
                *(task for task in cpu_list.tasks if task in uncertain),
            ]
        )
        allowed = {}
        for pid in {task.pid for task in left.tasks}:
            with suppress(NodewiseError):
                if (cpus := procfs.read_allowed_cpus(proc, pid)) is not None:
                    allowed[pid] = cpus
        mismatched = ended_tasks.tasks_on_wrong_cpus(left, allowed)
        after = stored._replace(allocations=left)
        return left, CollectionRound(reclaimed, mismatched, tuple(sorted(uncertain)), result.known, after)

    return allocation_store.update(store, decide, wait, during_reconfiguration=True)


class CollectionLog:
    """Logs the results of successive collections; a mismatch or uncertain task is logged once while it persists."""

    def __init__(self) -> None:
        self._logged: set[tuple[int, str]] = set()

    def log(self, collection: CollectionRound) -> None:
        for item in collection.reclaimed:
            where = {"pod": item.task.pod, "container": item.task.container}
            logs.emit("cpu_reclaimed", pid=item.task.pid, cpus=item.cpus, pool=item.pool, **where)
        mismatched = {(report["pid"], report["cpus"]): report for report in collection.mismatched}
        uncertain = {(task.pid, ""): task for task in collection.uncertain}
        for key in mismatched.keys() - self._logged:
            logs.emit("cpu_elsewhere", **mismatched[key])
        for key in uncertain.keys() - self._logged:
            task = uncertain[key]
            logs.emit("cpu_doubtful", pid=task.pid, pod=task.pod, container=task.container)
        self._logged = {*mismatched, *uncertain}


_PAUSE_S: Final = 0.02


def pause_before_retry(attempt: int) -> None:
    """Wait before an attempt of `allocation_store.update`: longer each time, with jitter."""
    time.sleep(random.uniform(0.5, 1.5) * _PAUSE_S * attempt)  # noqa: S311 - no secret


class TaskGarbageCollector:
    """Collects garbage in one node's store, and rolls back reconfigurations whose process has ended.

    Its methods may be called from several threads.
    """

    def __init__(self, store: AllocationStore, proc: Path, registry: MetricsRegistry) -> None:
        self._store = store
        self._proc = proc
        self._boot = procfs.read_boot_id(proc)
        self._registry = registry
        self._lock = threading.Lock()
        self._known: KnownProcesses | None = None
        self._log = CollectionLog()

    @property
    def known(self) -> KnownProcesses | None:
        """The processes of each task in the last collection; None before the first one."""
        return self._known

    def living_processes_of_task(self, stored: StoredAllocations, task: Task) -> ProcessTree:
        """All processes of a task that are alive."""
        processes = procfs.read_processes(self._proc).processes
        result = ended_tasks.remove_ended_tasks(stored.allocations, processes, self._boot, self._known)
        return result.known.get(task, frozenset())

    def collect(self) -> CollectionRound:
        """Release the CPUs of tasks that have ended. Raises the error that prevents it."""
        with self._lock:
            collection = collect_garbage(self._store, self._proc, self._known, pause_before_retry)
            self._known = collection.known
            intent = collection.stored.intent
            if intent and reconfiguration.recover(self._store, self._proc, known=collection.known):
                logs.emit("cpu_intent_recovered", pid=intent.by.pid, since=intent.since)
            self._log.log(collection)
        for item in collection.reclaimed:
            self._registry.count("cpu_reclaimed_total", pool=item.pool)
        for pool in collection.stored.allocations.pools.values():
            cpu_lists = list(pool.cpu_lists)
            held = sum(bool(cpu_list.tasks) for cpu_list in cpu_lists)
            self._registry.set("cpu_lists", held, pool=pool.name, state="held")
            self._registry.set("cpu_lists", len(cpu_lists) - held, pool=pool.name, state="free")
            tasks = sum(len(cpu_list.tasks) for cpu_list in cpu_lists)
            self._registry.set("cpu_tasks", tasks, pool=pool.name)
        return collection


def wait_for_wrapper_end(proc: Path, task: Task, patience_s: float) -> None:
    """Wait for the end of a task's wrapper, whose connection the kernel closes first, for at most `patience_s`."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            stat = procfs.parse_stat(read_text(proc / f"{task.pid}/stat"))
        except OSError:
            return
        if stat.start != task.start or stat.process_has_ended:
            return
        time.sleep(_PAUSE_S)
