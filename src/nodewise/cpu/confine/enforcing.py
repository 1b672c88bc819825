"""Holds containers to the CPUs that their tasks hold, so that no thread leaves its pool.

A container in which tasks hold CPUs has a cpuset of just these CPUs, and of the NUMA nodes that they are on. One
that holds nothing any more gets back what it had before the first task of it.

The agent asks `admit` when a task was written into the state, before it answers the wrapper, and when a task was
taken out of it; `widen` before tasks are moved to other CPUs; and `check` at each sweep, which is also what puts
things right after the kubelet or the agent was restarted. While a node is being reconfigured a container has both, the
old CPUs and the new ones.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.cpu import procfs, sweep
from nodewise.cpu.book import Stored
from nodewise.cpu.confine import confinement, residents
from nodewise.cpu.confine.confinement import Confinement, Containers, Cpus
from nodewise.cpu.node import threads
from nodewise.cpu.node.threads import Thread
from nodewise.cpu.state import Task
from nodewise.cpu.topology import Topology
from nodewise.errors import NodewiseError, Problem

DEFAULT_MEMORY: Final = Path("/run/nodewise/cpusets.json")
"""Lost when the machine boots, as the containers are of which it tells."""


Read = Callable[[], Stored]
"""The node's book, read when it is an enforcer's turn: what was read before may be older than what another one did."""


class Checked(NamedTuple):
    """What a check came to: containers whose confinement it set, by id, and what it could not do."""

    changed: Mapping[str, Confinement]
    problems: Sequence[Problem]


def held(stored: Stored) -> Mapping[Task, Cpus]:
    """Of each task its CPUs: during a reconfiguration the old ones, the new ones and those that it passes."""
    found: dict[Task, Cpus] = {}
    states = [stored.state, stored.intent.target] if stored.intent else [stored.state]
    for _, slot in (pair for state in states for pair in state.slots):
        for task in slot.tasks:
            found[task] = found.get(task, frozenset()) | frozenset(slot.cpus)
    for move in stored.intent.moves if stored.intent else ():
        found[move.task] = found.get(move.task, frozenset()) | move.before | move.after
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
    """The node as it is at one moment."""

    should: Mapping[str, Confinement]
    """What containers should have."""
    holders: frozenset[str]
    """Containers in which tasks hold CPUs."""
    own: Mapping[int, Cpus]
    """Of each process of a task's family, by id, the task's CPUs."""
    inside: Mapping[str, Sequence[int]]
    """Of each container its processes."""


class Enforcer:
    """Confines the containers of one node. Its methods may be called from several threads.

    `memory` is the file that says what containers had before; it outlives the agent. `proc` is the host's, and the
    agent's process ids have to be the host's as well (`threads.check_namespace`).
    """

    def __init__(
        self, containers: Containers, topology: Topology, proc: Path, memory: Path = DEFAULT_MEMORY
    ) -> None:
        self._containers = containers
        self._topology = topology
        self._proc = proc
        self._memory = memory
        self._turn = threading.Lock()

    def admit(self, read: Read, container: str, known: sweep.Known | None = None) -> bool:
        """Gives one container what it should have by now; whether that is anything new.

        For claims, before the answer, and for releases. Raises what keeps it from that: a claim is then to be taken
        back. `known` are the families of the sweep before, if there was one; they are looked at anew.
        """
        with self._turn:
            stored, before = read(), confinement.recall(self._memory)
            look = self._look(stored, before, self._known(stored, known), [container])
            return any(self._settle(one, look, before) for one in look.should)

    def widen(self, read: Read, tasks: Collection[Task]) -> None:
        """Lets these tasks on all CPUs that the reconfiguration under way needs; raises what keeps it from that."""
        with self._turn:
            stored, before = read(), confinement.recall(self._memory)
            look = self._look(stored, before, self._known(stored, None), [task.container for task in tasks])
            for container in look.should:
                self._settle(container, look, before)

    def check(self, read: Read, known: sweep.Known | None = None) -> Checked:
        """The same for all containers; it goes on where one cannot be confined, and says so.

        `known` are the families as a sweep just found them; without it they are looked for.
        """
        changed: dict[str, Confinement] = {}
        problems = []
        with self._turn:
            stored, before = read(), confinement.recall(self._memory)
            look = self._look(stored, before, self._known(stored, None) if known is None else known)
            for container, to in look.should.items():
                try:
                    if self._settle(container, look, before):
                        changed[container] = to
                except NodewiseError as error:
                    problems.append(Problem(f"container {container}", str(error), str(to)))
        return Checked(changed, problems)

    def _look(
        self,
        stored: Stored,
        before: Mapping[str, Confinement],
        known: sweep.Known,
        containers: Collection[str] | None = None,
    ) -> _Look:
        """At these containers, or at all of which anything is to be said."""
        holding = held(stored)
        should = wanted(holding, self._topology, before)
        if containers is not None:
            should = {container: to for container, to in should.items() if container in containers}
        # a process of two tasks, one of which started the other, is the inner one's
        families = sorted(known.items(), key=lambda pair: len(pair[1]), reverse=True)
        own = {pid: holding[task] for task, family in families if task in holding for pid, _ in family}
        return _Look(
            should, frozenset(task.container for task in holding), own, residents.find(self._proc, should)
        )

    def _known(self, stored: Stored, before: sweep.Known | None) -> sweep.Known:
        """The families as they are now."""
        boot, census = procfs.read_boot(self._proc), procfs.read_processes(self._proc)
        return sweep.sweep(stored.state, census.processes, boot, before).known

    def _settle(self, container: str, look: _Look, before: dict[str, Confinement]) -> bool:
        """Confines one container, if it is not so already, and puts its threads where they belong."""
        found = self._containers.find(container)
        changes = found is not None and self._confine(container, found.now, look, before)
        if container in before and (found is None or container not in look.holders):
            del before[container]
            confinement.remember(self._memory, before)
        return changes

    def _confine(self, container: str, now: Confinement, look: _Look, before: dict[str, Confinement]) -> bool:
        to, pids = look.should[container], look.inside[container]
        masks = {thread.name: thread.cpus for thread in self._threads(pids)}
        strays = any(mask - to.cpus for mask in masks.values())
        changes = strays or now.cpus != to.cpus or (bool(to.mems) and now.mems != to.mems)
        if changes:
            if container not in before:
                before[container] = now
                confinement.remember(self._memory, before)
            self._containers.confine(container, to)
        for thread in self._threads(pids):
            mask = masks.get(thread.name, thread.cpus)
            should = mask_after(mask, now.cpus, to.cpus, look.own.get(thread.pid))
            if thread.cpus != should:
                threads.put(thread, should)
                changes = True
        return changes

    def _threads(self, pids: Iterable[int]) -> Iterator[Thread]:
        return chain.from_iterable(threads.read(self._proc, pid) for pid in pids)
