"""Enforcement of allocations by the cpusets of containers, so that no thread leaves its pool.

A container in which tasks hold CPUs gets a cpuset of exactly these CPUs, and of their NUMA nodes. A container without
tasks gets back the cpuset that it had before its first task.

The node agent calls `admit` after it stored an allocation, before it answers the wrapper, and after a release; `widen`
before it moves tasks to other CPUs; and `check` after each garbage collection, which also repairs cpusets after a
restart of the kubelet or the agent. During a reconfiguration a container has both the old and the new CPUs.

With partitions, a container whose tasks hold exclusive CPUs only is an isolated partition with these CPUs. It is none
while its cpuset changes, because a partition limits its processes to its own CPUs.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.base.errors import NodewiseError, Problem
from nodewise_cpu import ended_tasks, procfs
from nodewise_cpu.allocation_store import StoredAllocations
from nodewise_cpu.cpusets import container_cpusets
from nodewise_cpu.cpusets.container_cpusets import CgroupPartitions, Cpus, Cpuset, CpusetRuntime
from nodewise_cpu.ended_tasks import KnownProcesses
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.procfs import Thread
from nodewise_cpu.topology import Topology

DEFAULT_ORIGINALS: Final = Path("/run/nodewise/cpusets.json")
"""The file with the original cpusets. It does not survive a reboot, and neither do the containers in it."""

StoreReader = Callable[[], StoredAllocations]
"""Reads the store. It is called under the enforcer's lock: an earlier result may be older than another thread's."""


class EnforcementResult(NamedTuple):
    """The result of a check: the containers whose cpuset changed, by id, and the failures."""

    changed: Mapping[str, Cpuset]
    problems: Sequence[Problem]


def cpus_of_tasks(stored: StoredAllocations) -> Mapping[Task, Cpus]:
    """The CPUs of each task. During a reconfiguration these are the old, the new and the intermediate ones."""
    cpus: dict[Task, Cpus] = {}
    sources = [stored.allocations, stored.intent.target] if stored.intent else [stored.allocations]
    for _, cpu_list in chain.from_iterable(allocations.cpu_lists for allocations in sources):
        for task in cpu_list.tasks:
            cpus[task] = cpus.get(task, frozenset()) | frozenset(cpu_list.cpus)
    for move in stored.intent.moves if stored.intent else ():
        cpus[move.task] = cpus.get(move.task, frozenset()) | move.before | move.after
    return cpus


def containers_to_isolate(stored: StoredAllocations, topology: Topology) -> Mapping[str, Cpus]:
    """The containers whose tasks hold exclusive CPUs only, and these CPUs; none of which tasks are being moved.

    CPUs of `isolcpus=` are isolated already, and the kernel accepts them in no partition.
    """
    cpus: dict[str, Cpus] = {}
    mixed = {move.task.container for move in stored.intent.moves} if stored.intent else set()
    for pool, cpu_list in stored.allocations.cpu_lists:
        for task in cpu_list.tasks:
            if not pool.is_exclusive:
                mixed.add(task.container)
            cpus[task.container] = cpus.get(task.container, frozenset()) | frozenset(cpu_list.cpus)
    return {
        container: own
        for container, own in cpus.items()
        if container and container not in mixed and not own <= topology.isolated
    }


def target_cpusets(
    task_cpus: Mapping[Task, Cpus], topology: Topology, originals: Mapping[str, Cpuset]
) -> Mapping[str, Cpuset]:
    """The cpuset that each container should have, by id: the CPUs of its tasks, or its original one without tasks.

    Tasks without a known container are left out.
    """
    cpus: dict[str, Cpus] = {}
    for task, own in task_cpus.items():
        if task.container:
            cpus[task.container] = cpus.get(task.container, frozenset()) | own
    return {
        **originals,
        **{container: Cpuset(own, topology.memory_nodes_of(own)) for container, own in cpus.items()},
    }


def affinity_after_cpuset_change(mask: Cpus, old: Cpus, new: Cpus, own: Cpus | None) -> Cpus:
    """The affinity of a thread once its container's cpuset is `new` instead of `old`.

    The thread keeps what is left of its `mask`. A thread of a task stays on the task's `own` CPUs; another thread
    follows the cpuset if it could use all of it. (Cgroups of version 1 do not keep this: there each thread may use the
    whole cpuset after a change.)
    """
    if own is None and mask >= old:
        return new
    within = new if own is None else own
    return (mask & within) or within


class _NodeState(NamedTuple):
    """The node at one moment."""

    targets: Mapping[str, Cpuset]
    """The cpusets that containers should have."""
    with_tasks: frozenset[str]
    """Containers in which tasks hold CPUs."""
    own_cpus: Mapping[int, Cpus]
    """The task's CPUs of each process of a task, by process id."""
    processes: Mapping[str, Sequence[int]]
    """The processes of each container."""
    isolated: Mapping[str, Cpus]
    """The CPUs of each container that should be an isolated partition."""
    cgroup_cpus: Mapping[str, Cpus]
    """The CPUs that the cgroups of containers with tasks allow now, as far as they can be read."""


class CpusetEnforcer:
    """Sets the cpusets of one node's containers. Its methods may be called from several threads.

    `originals` is the file with the original cpusets; it outlives the agent. `proc` is the host's, and the agent has to
    be in the host's namespace of process ids (`procfs.check_pid_namespace`).
    """

    def __init__(
        self,
        containers: CpusetRuntime,
        topology: Topology,
        proc: Path,
        originals: Path = DEFAULT_ORIGINALS,
        cgroup_roots: Sequence[Path] = (),
        partitions: CgroupPartitions | None = None,
    ) -> None:
        self._containers = containers
        self._topology = topology
        self._proc = proc
        self._originals = originals
        self._cgroup_roots = cgroup_roots
        self._partitions = partitions
        self._lock = threading.Lock()

    def admit(self, read: StoreReader, container: str, known: KnownProcesses | None = None) -> bool:
        """Set one container's cpuset after an allocation or a release. Returns whether anything changed.

        Raises the error that prevents it: an allocation has to be taken back then. `known` is the result of the last
        garbage collection, if there was one; processes are read anew.
        """
        with self._lock:
            stored, originals = read(), container_cpusets.load_original_cpusets(self._originals)
            node = self._read_node_state(stored, originals, self._find_processes(stored, known), [container])
            return any(self._enforce_container(target, node, originals) for target in node.targets)

    def widen(self, read: StoreReader, tasks: Collection[Task]) -> None:
        """Allow these tasks all CPUs that the reconfiguration in progress needs. Raises the error that prevents it."""
        with self._lock:
            stored, originals = read(), container_cpusets.load_original_cpusets(self._originals)
            known, containers = self._find_processes(stored, None), [task.container for task in tasks]
            node = self._read_node_state(stored, originals, known, containers)
            for container in node.targets:
                self._enforce_container(container, node, originals)

    def check(self, read: StoreReader, known: KnownProcesses | None = None) -> EnforcementResult:
        """Set the cpusets of all containers. A failure is reported and does not stop the others.

        `known` is the result of a garbage collection just now; without it the processes are read.
        """
        changed: dict[str, Cpuset] = {}
        problems = []
        with self._lock:
            if self._partitions:
                self._partitions.release_ended()
            stored, originals = read(), container_cpusets.load_original_cpusets(self._originals)
            if known is None:
                known = self._find_processes(stored, None)
            node = self._read_node_state(stored, originals, known)
            for container, target in node.targets.items():
                try:
                    if cpuset := self._enforce_container(container, node, originals):
                        changed[container] = cpuset
                except NodewiseError as error:
                    problems.append(Problem(f"container {container}", str(error), str(target)))
        return EnforcementResult(changed, problems)

    def _read_node_state(
        self,
        stored: StoredAllocations,
        originals: Mapping[str, Cpuset],
        known: KnownProcesses,
        containers: Collection[str] | None = None,
    ) -> _NodeState:
        """The state of these containers, or of all that need a cpuset."""
        task_cpus = cpus_of_tasks(stored)
        targets = target_cpusets(task_cpus, self._topology, originals)
        if containers is not None:
            targets = {container: target for container, target in targets.items() if container in containers}
        # a process below two tasks, one of which started the other, belongs to the inner one: the smaller family wins
        families = sorted(known.items(), key=lambda item: len(item[1]), reverse=True)
        own_cpus = {
            pid: task_cpus[task] for task, family in families if task in task_cpus for pid, _ in family
        }
        with_tasks = frozenset(task.container for task in task_cpus)
        return _NodeState(
            targets,
            with_tasks,
            own_cpus,
            container_cpusets.list_container_processes(self._proc, targets),
            containers_to_isolate(stored, self._topology) if self._partitions else {},
            container_cpusets.read_cgroup_cpus(self._cgroup_roots, with_tasks & targets.keys()),
        )

    def _find_processes(self, stored: StoredAllocations, earlier: KnownProcesses | None) -> KnownProcesses:
        boot, table = procfs.read_boot_id(self._proc), procfs.read_processes(self._proc)
        return ended_tasks.remove_ended_tasks(stored.allocations, table.processes, boot, earlier).known

    def _enforce_container(
        self, container: str, node: _NodeState, originals: dict[str, Cpuset]
    ) -> Cpuset | None:
        """Set one container's cpuset and the affinities of its threads. Returns the cpuset if anything differed."""
        current = self._containers.find(container)
        changes = None
        if current is not None:
            if self._partitions:
                self._partitions.release_unless(container, node.isolated.get(container))
            changes = self._confine(container, current.effective, node, originals)
            if self._partitions and container in node.isolated:
                is_new = self._partitions.isolate(container, node.isolated[container])
                changes = changes or (node.targets[container] if is_new else None)
        if container in originals and (current is None or container not in node.with_tasks):
            del originals[container]
            container_cpusets.save_original_cpusets(self._originals, originals)
        return changes

    def _confine(  # complexity: the cpuset first, then the threads that it changes
        self, container: str, current: Cpuset, node: _NodeState, originals: dict[str, Cpuset]
    ) -> Cpuset | None:
        target, pids = node.targets[container], node.processes[container]
        if target.mems and container in node.with_tasks:
            # NUMA nodes without CPUs belong to no task: the container keeps those that it had
            original = originals.get(container, current)
            target = target._replace(mems=target.mems | (self._topology.memory_only_nodes & original.mems))
        masks = {thread.name: thread.cpus for thread in self._read_threads(pids)}
        has_strays = any(mask - target.cpus for mask in masks.values())
        differs = current.cpus != target.cpus or (bool(target.mems) and current.mems != target.mems)
        # threads that chose their affinities keep them when another program widens the cpuset: they do not show it
        is_undone = node.cgroup_cpus.get(container, target.cpus) != target.cpus
        changes = has_strays or differs or is_undone
        if changes:
            # saved first: if the agent is killed after the next line, its successor can restore the container
            if container not in originals:
                originals[container] = current
                container_cpusets.save_original_cpusets(self._originals, originals)
            self._containers.confine(container, target)
        for thread in self._read_threads(pids):
            mask = masks.get(thread.name, thread.cpus)
            cpus = affinity_after_cpuset_change(
                mask, current.cpus, target.cpus, node.own_cpus.get(thread.pid)
            )
            if thread.cpus != cpus:
                procfs.set_thread_affinity(thread, cpus)
                changes = True
        return target if changes else None

    def _read_threads(self, pids: Iterable[int]) -> Iterator[Thread]:
        return chain.from_iterable(procfs.read_threads(self._proc, pid) for pid in pids)
