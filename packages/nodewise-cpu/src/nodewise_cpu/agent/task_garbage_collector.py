"""The node agent's garbage collector: successive collections, each with the processes that the last one found."""

import random
import threading
import time
from pathlib import Path
from typing import Final, Protocol

from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise_cpu import ended_tasks, procfs
from nodewise_cpu.allocation_store import AllocationStore, StoredAllocations
from nodewise_cpu.ended_tasks import KnownProcesses, ProcessTree
from nodewise_cpu.kernel_file_reader import read_text
from nodewise_cpu.node import task_garbage_collection
from nodewise_cpu.node.task_garbage_collection import CollectionLog, CollectionRound
from nodewise_cpu.pool_allocations import Allocations, Task

_PAUSE_S: Final = 0.02


def pause_before_retry(attempt: int) -> None:
    """Wait before an attempt of `allocation_store.update`: longer each time, with jitter."""
    time.sleep(random.uniform(0.5, 1.5) * _PAUSE_S * attempt)  # noqa: S311 - no secret


class ReconfigurationRecovery(Protocol):
    """`execution.recover` of one node. `known` has processes that only earlier collections could identify."""

    def __call__(self, *, known: KnownProcesses) -> bool: ...


class TaskGarbageCollector:
    """Collects garbage in one node's store. Its methods may be called from several threads.

    `recover` rolls back a reconfiguration whose process has ended, and returns whether there was one.
    """

    def __init__(
        self, store: AllocationStore, proc: Path, registry: MetricsRegistry, recover: ReconfigurationRecovery
    ) -> None:
        self._store = store
        self._proc = proc
        self._boot = procfs.read_boot_id(proc)
        self._registry = registry
        self._recover = recover
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
            collection = task_garbage_collection.collect_garbage(
                self._store, self._proc, self._known, pause_before_retry
            )
            self._known = collection.known
            intent = collection.stored.intent
            if intent and self._recover(known=collection.known):
                logs.emit("cpu_intent_recovered", pid=intent.by.pid, since=intent.since)
            self._log.log(collection)
        for item in collection.reclaimed:
            self._registry.count("cpu_reclaimed_total", pool=item.pool)
        self._set_gauges(collection.stored.allocations)
        return collection

    def _set_gauges(self, allocations: Allocations) -> None:
        for pool in allocations.pools.values():
            cpu_lists = list(pool.cpu_lists)
            held = sum(bool(cpu_list.tasks) for cpu_list in cpu_lists)
            self._registry.set("cpu_lists", held, pool=pool.name, state="held")
            self._registry.set("cpu_lists", len(cpu_lists) - held, pool=pool.name, state="free")
            tasks = sum(len(cpu_list.tasks) for cpu_list in cpu_lists)
            self._registry.set("cpu_tasks", tasks, pool=pool.name)


def wait_for_wrapper_end(proc: Path, task: Task, patience_s: float) -> None:
    """Wait for the end of a task's wrapper, whose connection the kernel closes first, for at most `patience_s`."""
    deadline = time.monotonic() + patience_s
    while _is_running(proc, task) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)


def _is_running(proc: Path, task: Task) -> bool:
    try:
        stat = procfs.parse_stat(read_text(proc / f"{task.pid}/stat"))
    except OSError:
        return False
    return stat.start == task.start and not stat.process_has_ended
