"""Holds containers to the CPUs that their tasks hold, so that no thread leaves its pool.

A container in which tasks hold CPUs has a cpuset of just these CPUs, and of the NUMA nodes that they are on. One
that holds nothing any more gets back what it had before the first task of it.

The agent asks `admit` when a task was written into the state, before it answers the wrapper, and when a task was
taken out of it; and `check` at each sweep, which is also what puts things right after the kubelet or the agent was
restarted. While a node is being reconfigured a container has both, the old CPUs and the new ones.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.cpu import procfs, sweep
from nodewise.cpu.book import Stored
from nodewise.cpu.node import confinement, residents
from nodewise.cpu.node.confinement import Confinement, Containers, Cpus
from nodewise.cpu.state import Task
from nodewise.cpu.topology import Topology
from nodewise.errors import NodewiseError, Problem

DEFAULT_MEMORY: Final = Path("/run/nodewise/cpusets.json")
"""Lost when the machine boots, as the containers are of which it tells."""


class Checked(NamedTuple):
    """What a check came to: containers whose confinement it set, by id, and what it could not do."""

    changed: Mapping[str, Confinement]
    problems: Sequence[Problem]


def held(stored: Stored) -> Mapping[Task, Cpus]:
    """Of each task its CPUs: during a reconfiguration the old and the new ones."""
    states = [stored.state, stored.intent.target] if stored.intent else [stored.state]
    found: dict[Task, Cpus] = {}
    for _, slot in (pair for state in states for pair in state.slots):
        for task in slot.tasks:
            found[task] = found.get(task, frozenset()) | frozenset(slot.cpus)
    return found


def wanted(
    holding: Mapping[Task, Cpus], topology: Topology, before: Mapping[str, Confinement]
) -> Mapping[str, Confinement]:
    """What each container should have, by id: the CPUs of its tasks, or, without any, what it had `before`.

    Tasks of which no container is known are left out.
    """
    cpus: dict[str, Cpus] = {}
    for task, own in holding.items():
        if task.container:
            cpus[task.container] = cpus.get(task.container, frozenset()) | own
    numa = {cpu.cpu: cpu.numa for cpu in topology.cpus}
    return {
        **before,
        **{container: Confinement(own, _nodes(own, numa)) for container, own in cpus.items()},
    }


def _nodes(cpus: Cpus, numa: Mapping[int, int | None]) -> Cpus:
    """The NUMA nodes of the CPUs; none where it is not known of all."""
    nodes = {numa.get(cpu) for cpu in cpus}
    return frozenset() if None in nodes else frozenset(node for node in nodes if node is not None)


def mask_after(mask: Cpus, old: Cpus, new: Cpus, own: Cpus | None) -> Cpus:
    """What a thread may use once its container's cpuset is `new` and no longer `old`.

    Of what it could use before it keeps all that is left. A thread of a task stays on the task's `own` CPUs; another
    one follows the cpuset if it had all of it. (The kernel forgets this in version 1 of cgroups: there each thread
    has the whole cpuset after a change.)
    """
    if own is None and mask >= old:
        return new
    within = new if own is None else own
    return (mask & within) or within


class _Look(NamedTuple):
    """The node as it is at one moment: who holds what, whose a process is, and in which container it runs."""

    holding: Mapping[Task, Cpus]
    own: Mapping[int, Cpus]
    """Of each process of a task's family, by id, the task's CPUs."""
    inside: Mapping[str, Sequence[int]]
    """Of each container its processes."""


class Enforcer:
    """Confines the containers of one node. Its methods may be called from several threads.

    `memory` is the file that says what containers had before; it outlives the agent. `proc` is the host's, and the
    agent's process ids have to be the host's as well (`affinity.check_pid_namespace`).
    """

    def __init__(
        self, containers: Containers, topology: Topology, proc: Path, memory: Path = DEFAULT_MEMORY
    ) -> None:
        self._containers = containers
        self._topology = topology
        self._proc = proc
        self._memory = memory
        self._turn = threading.Lock()

    def admit(self, stored: Stored, container: str, known: sweep.Known | None = None) -> bool:
        """Gives one container what it should have by now; whether that is anything new.

        For claims, before the answer, and for releases. Raises what keeps it from that: a claim is then to be taken
        back. `known` are the families of the sweep before, if there was one.
        """
        with self._turn:
            before = confinement.recall(self._memory)
            to = wanted(held(stored), self._topology, before).get(container)
            if to is None:
                return False
            return self._settle(container, to, self._look(stored, [container], known), before)

    def check(self, stored: Stored, known: sweep.Known | None = None) -> Checked:
        """The same for all containers; it goes on where one cannot be confined, and says so."""
        changed: dict[str, Confinement] = {}
        problems = []
        with self._turn:
            before = confinement.recall(self._memory)
            should = wanted(held(stored), self._topology, before)
            look = self._look(stored, should, known) if should else None
            for container, to in should.items():
                try:
                    if look and self._settle(container, to, look, before):
                        changed[container] = to
                except NodewiseError as error:
                    problems.append(Problem(f"container {container}", str(error), str(to)))
        return Checked(changed, problems)

    def _look(self, stored: Stored, containers: Collection[str], known: sweep.Known | None) -> _Look:
        holding = held(stored)
        if known is None:
            boot, census = procfs.read_boot(self._proc), procfs.read_processes(self._proc)
            known = sweep.sweep(stored.state, census.processes, boot).known
        own = {pid: cpus for task, cpus in holding.items() for pid, _ in known.get(task, ())}
        return _Look(holding, own, residents.find(self._proc, containers))

    def _settle(self, container: str, to: Confinement, look: _Look, before: dict[str, Confinement]) -> bool:
        """Confines one container, if it is not so already, and puts its threads where they belong."""
        found = self._containers.find(container)
        is_over = all(task.container != container for task in look.holding)
        changes = found is not None and self._confine(container, found.now, to, look, before)
        if container in before and (is_over or found is None):
            del before[container]
            confinement.remember(self._memory, before)
        return changes

    def _confine(
        self, container: str, now: Confinement, to: Confinement, look: _Look, before: dict[str, Confinement]
    ) -> bool:
        pids = look.inside.get(container, ())
        masks = dict(self._masks(pids))
        strays = any(mask - to.cpus for _, mask in masks.values())
        changes = strays or now.cpus != to.cpus or (bool(to.mems) and now.mems != to.mems)
        if changes:
            if container not in before:
                before[container] = now
                confinement.remember(self._memory, before)
            self._containers.confine(container, to)
        for thread, (pid, mask) in self._masks(pids):
            had = masks.get(thread, (pid, mask))[1]
            should = mask_after(had, now.cpus, to.cpus, look.own.get(pid))
            if mask != should:
                residents.assign(thread, should)
                changes = True
        return changes

    def _masks(self, pids: Iterable[int]) -> Iterator[tuple[int, tuple[int, Cpus]]]:
        """Of each thread its process, and what it may use."""
        for pid in pids:
            for thread, mask in residents.read_masks(self._proc, pid).items():
                yield thread, (pid, mask)
