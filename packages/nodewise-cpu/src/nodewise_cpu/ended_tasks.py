"""Detection of tasks that have ended, so that their CPU lists are free again.

Standard library only.

A task ends when its wrapper and all processes that the wrapper started, directly or not, have ended. Process ids are
reused, so a process is identified by its id and its start, on one boot of one kernel. When a wrapper is killed its
descendants get another parent. They are still recognised by a variable in their environment
(`allocator.TASK_VARIABLE`), or because an earlier collection found them below the wrapper.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nodewise_cpu.pool_allocations import Allocations, CpuListAllocation, Pool, Task

ProcessTree = frozenset[tuple[int, int]]
"""The processes of a task: id and start."""
KnownProcesses = Mapping[Task, ProcessTree]
"""The processes that a collection found, by task."""


class NodeProcess(NamedTuple):
    """A process of the node: no thread and no zombie."""

    start: int
    parent: int
    mark: str = ""
    """The value of `allocator.TASK_VARIABLE` in its environment."""
    wrapper: int = 0
    """The process id in its name (`allocator.wrapper_process_name`): it is that wrapper, or about to execute
    the command."""
    container: str | None = None
    """The id of its container, "" outside of containers; None if not read."""


class ReclaimedCpuList(NamedTuple):
    """A task that has ended, and one of its CPU lists."""

    pool: str
    cpus: str
    task: Task


class CollectionResult(NamedTuple):
    """The allocations without the ended tasks, the ended tasks, and the processes of the others."""

    allocations: Allocations
    reclaimed: tuple[ReclaimedCpuList, ...]
    known: KnownProcesses


class _TaskProcesses(NamedTuple):
    """A task, completed with its start if that was unknown, and its processes: none if it has ended."""

    task: Task
    family: ProcessTree


def remove_ended_tasks(
    allocations: Allocations,
    processes: Mapping[int, NodeProcess],
    boot: str,
    known: KnownProcesses | None = None,
) -> CollectionResult:
    """Remove the tasks that have ended, given all processes of the node (by id) and the kernel's boot id.

    `known` is the result of the previous collection, or None for the first one. A task of which only the process id is
    stored is alive while a process has that id, and is identified by that process's start from then on.
    """
    tree = _ProcessTree(processes)
    processes_of = {task: _find_processes(task, tree, boot, known or {}) for task in allocations.tasks}

    def living(_: Pool, cpu_list: CpuListAllocation) -> Iterable[Task]:
        return (processes_of[task].task for task in cpu_list.tasks if processes_of[task].family)

    reclaimed = [
        ReclaimedCpuList(pool.name, cpu_list.text, task)
        for pool, cpu_list in allocations.cpu_lists
        for task in cpu_list.tasks
        if not processes_of[task].family
    ]
    return CollectionResult(
        allocations.with_tasks(living),
        tuple(sorted(reclaimed, key=lambda item: (item.task.pid, item.pool, item.cpus))),
        {item.task: item.family for item in processes_of.values() if item.family},
    )


def _find_processes(task: Task, tree: "_ProcessTree", boot: str, known: KnownProcesses) -> _TaskProcesses:
    if task.start is None:
        # an earlier collection may have found its start without being able to store it
        earlier = {process for other, family in known.items() if other.pid == task.pid for process in family}
        wrapper = tree.processes.get(task.pid)
        if wrapper is None:
            return _TaskProcesses(task, tree.family(earlier))
        return _TaskProcesses(
            task._replace(start=wrapper.start, boot=boot), tree.family({(task.pid, wrapper.start), *earlier})
        )
    if task.boot != boot:
        return _TaskProcesses(task, frozenset())
    return _TaskProcesses(
        task, tree.family({(task.pid, task.start), *known.get(task, ()), *tree.processes_claiming_task(task)})
    )


class _ProcessTree:
    """The processes of a node, by parent, by mark and by wrapper."""

    def __init__(self, processes: Mapping[int, NodeProcess]) -> None:
        self.processes = processes
        self._by_parent: dict[int, list[int]] = {}
        self._by_mark: dict[str, list[tuple[int, int]]] = {}
        self._by_wrapper: dict[int, list[tuple[int, int]]] = {}
        for pid, process in processes.items():
            self._by_parent.setdefault(process.parent, []).append(pid)
            self._by_mark.setdefault(process.mark, []).append((pid, process.start))
            self._by_wrapper.setdefault(process.wrapper, []).append((pid, process.start))

    def processes_claiming_task(self, task: Task) -> Iterable[tuple[int, int]]:
        """The processes that claim to belong to the task, and may: those with its mark, or with its wrapper's name.

        A process has the wrapper's name until it executes the command; only then it has the mark. Any process can make
        this claim, so it is ignored for a process in another container than the task's.
        """
        named = (
            (pid, start) for pid, start in self._by_wrapper.get(task.pid, ()) if start >= (task.start or 0)
        )
        claims = (*self._by_mark.get(task.task_variable_value, ()), *named)
        if not task.container:
            return claims
        return [claim for claim in claims if self.processes[claim[0]].container in (None, task.container)]

    def family(self, roots: Iterable[tuple[int, int]]) -> ProcessTree:
        """Those of the roots that are alive, and all processes below them."""
        family: set[int] = set()
        waiting = [
            pid for pid, start in roots if pid in self.processes and self.processes[pid].start == start
        ]
        while waiting:
            pid = waiting.pop()
            if pid not in family:
                family.add(pid)
                waiting += self._by_parent.get(pid, ())
        return frozenset((pid, self.processes[pid].start) for pid in family)


def as_report(reclaimed: Iterable[ReclaimedCpuList]) -> dict[str, Any]:
    """The report that `reconcile` prints."""
    return {
        "reclaimedCpuLists": [
            {"cpus": item.cpus, "pid": item.task.pid, "pool": item.pool} for item in reclaimed
        ]
    }


def tasks_on_wrong_cpus(
    allocations: Allocations, allowed: Mapping[int, Iterable[int]]
) -> Sequence[dict[str, Any]]:
    """Tasks that may run on other CPUs than allocated, by process id. `allowed` are the CPUs that processes may use.

    A task on several lists may use the CPUs of all of them. A mismatch is no error if the task set no affinity.
    """
    allocated: dict[int, set[int]] = {}
    for _, cpu_list in allocations.cpu_lists:
        for task in cpu_list.tasks:
            allocated.setdefault(task.pid, set()).update(cpu_list.cpus)
    reports = [
        {"actualCpus": sorted(allowed[task.pid]), "cpus": cpu_list.text, "pid": task.pid, "pool": pool.name}
        for pool, cpu_list in allocations.cpu_lists
        for task in cpu_list.tasks
        if task.pid in allowed and set(allowed[task.pid]) != allocated[task.pid]
    ]
    return sorted(reports, key=lambda report: report["pid"])
