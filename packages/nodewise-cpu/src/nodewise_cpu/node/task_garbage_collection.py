"""One garbage collection: removes ended tasks from a store and finds tasks that run on other CPUs than allocated."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nodewise.base.errors import NodewiseError
from nodewise.observe import logs
from nodewise_cpu import allocation_store, ended_tasks, procfs
from nodewise_cpu.allocation_store import AllocationStore, StoredAllocations
from nodewise_cpu.ended_tasks import CollectionResult, KnownProcesses, ReclaimedCpuList
from nodewise_cpu.pool_allocations import Allocations, CpuListAllocation, Pool, Task


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
        left = stored.allocations.with_tasks(_select_living_or_uncertain_tasks(result, uncertain))
        mismatched = ended_tasks.tasks_on_wrong_cpus(left, _allowed_cpus(left, proc))
        stored_left = stored._replace(allocations=left)
        return left, CollectionRound(
            reclaimed, mismatched, tuple(sorted(uncertain)), result.known, stored_left
        )

    return allocation_store.update(store, decide, wait, during_reconfiguration=True)


def _select_living_or_uncertain_tasks(
    result: CollectionResult, uncertain: Collection[Task]
) -> Callable[[Pool, CpuListAllocation], Iterable[Task]]:
    """The tasks of each list that are alive, and the uncertain ones."""
    living = {(pool.name, cpu_list.text): cpu_list.tasks for pool, cpu_list in result.allocations.cpu_lists}

    def remaining(pool: Pool, cpu_list: CpuListAllocation) -> Iterable[Task]:
        return [*living[pool.name, cpu_list.text], *(task for task in cpu_list.tasks if task in uncertain)]

    return remaining


def _allowed_cpus(allocations: Allocations, proc: Path) -> Mapping[int, frozenset[int]]:
    """The CPUs that each task's process may use, where that can be read."""
    allowed = {}
    for pid in {task.pid for task in allocations.tasks}:
        try:
            cpus = procfs.read_allowed_cpus(proc, pid)
        except NodewiseError:
            continue
        if cpus is not None:
            allowed[pid] = cpus
    return allowed


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
