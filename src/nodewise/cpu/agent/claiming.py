"""What the node agent answers: who may have which CPUs, written into the node's book before it is said."""

import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from nodewise.cpu import book as books
from nodewise.cpu import claims, cpulist, messages
from nodewise.cpu import state as states
from nodewise.cpu.agent.listening import Answer
from nodewise.cpu.agent.reclaiming import Sweeper, pause
from nodewise.cpu.book import Book, Stored
from nodewise.cpu.claims import Claim, Wish
from nodewise.cpu.kernel_files import read_text
from nodewise.cpu.messages import ClaimAnswer, ClaimRequest
from nodewise.cpu.node import peers
from nodewise.cpu.node.peers import Peer
from nodewise.cpu.state import State, Task
from nodewise.cpu.sweep import Known
from nodewise.cpu.topology import CPUS
from nodewise.errors import BadInput, Conflict, NodewiseError, Problem, Refused, Unavailable, shown
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve.close_reasons import LOG_EVERY_S

WHAT: Final = "cannot choose CPUs"

Read = Callable[[], Stored]


class Requested(Protocol):
    """What pods asked of the cluster, by which they may have exclusive CPUs (`requested.PodRequests`)."""

    def allowed(self, pool: str, task: Task, wanted: int) -> int:
        """How many lists of a pool the task's container asked for, or `wanted` if it surely is that many. Refused if
        it has no pod; Unavailable if it cannot be told.
        """
        ...


class Containers(Protocol):
    """What holds containers to the CPUs of their tasks (`enforcing.Enforcer`)."""

    def admit(self, read: Read, container: str, known: Known | None = None) -> bool: ...


class Node(NamedTuple):
    """One node, and what is to be heeded on it."""

    book: Book
    proc: Path
    boot: str
    sysfs: Path
    """What holds `sys`."""
    fast: frozenset[int] = frozenset()
    """CPUs of a higher base frequency, whose lists come first."""
    most_tasks: int = 64
    """Of one pod, or of all processes outside of pods: the book has to stay small."""


class Desk:
    """Answers claims and releases. Its methods are called from several threads.

    `requested` None: nobody is checked. `reconfigure` answers the other message, or refuses it.
    """

    def __init__(
        self,
        node: Node,
        sweeper: Sweeper,
        meters: MetricsRegistry,
        requested: Requested | None = None,
        containers: Containers | None = None,
        reconfigure: Callable[[Peer, Mapping[str, Any]], bytes] | None = None,
    ) -> None:
        self.node = node
        self.sweeper = sweeper
        self._meters = meters
        self._requested = requested
        self._containers = containers
        self._reconfigure = reconfigure
        self._writing = threading.Lock()
        self._telling = threading.Lock()
        self._next_s = float("-inf")
        self._unlogged = 0

    def answer(self, peer: Peer, line: bytes) -> Answer:
        """The answer to a line of `messages.py`; `NodewiseError` says why there is none."""
        fields = messages.decode(line)
        peer = self._still_there(peer)
        match fields.get("do"):
            case messages.CLAIM:
                return self._claim(peer, messages.parse_claim(fields))
            case messages.RELEASE:
                return self._release(peer, states.parse_task(fields.get("task"), "task"))
            case messages.RECONFIGURE if self._reconfigure:
                return Answer(self._reconfigure(peer, fields))
        wanted = f"{messages.CLAIM}, {messages.RELEASE} or {messages.RECONFIGURE}"
        raise BadInput("cannot read a message", [Problem("do", shown(fields.get("do")), wanted)])

    def _still_there(self, peer: Peer) -> Peer:
        """A process may connect, hand its connection on and end; another may then have its id."""
        task = peers.read_task(self.node.proc, peer.task.pid, self.node.boot)
        if task.start != peer.task.start:
            raise Refused(
                "cannot tell who asks", [Problem(f"process {task.pid}", "is another one by now", "")]
            )
        return Peer(task, peer.user)

    def _claim(self, peer: Peer, request: ClaimRequest) -> Answer:
        """Counted by what came of it."""
        try:
            answer = self._claimed(peer, request)
        except Unavailable:
            self._meters.count("cpu_claims_total", outcome="unavailable")
            raise
        except NodewiseError as error:
            self._meters.count("cpu_claims_total", outcome="refused")
            self._tell_refusal(peer.task, error)
            raise
        self._meters.count("cpu_claims_total", outcome="given")
        return Answer(messages.claimed(answer), holds=True)

    def _tell_refusal(self, task: Task, error: NodewiseError) -> None:
        """One line now and then: a tenant may ask as often as it likes."""
        with self._telling:
            self._unlogged += 1
            now_s = time.monotonic()
            if now_s < self._next_s:
                return
            self._next_s, unlogged, self._unlogged = now_s + LOG_EVERY_S, self._unlogged - 1, 0
        where = {"pid": task.pid, "pod": task.pod, "container": task.container}
        logs.emit("cpu_claim_refused", **where, error=str(error), unlogged=unlogged)

    def _claimed(self, peer: Peer, request: ClaimRequest) -> ClaimAnswer:
        task = peer.task
        state = self.node.book.read().state
        wish = self._wish(state, request)
        allowed = self._allowed(state, wish, task)
        try:
            claim = self._write(wish, task, allowed)
        except Unavailable:
            # somebody who is over may hold what is wanted, or a sweep freed it just now
            self.sweeper.sweep()
            claim = self._write(wish, task, allowed)
        self._confine(task)
        return ClaimAnswer(claim.cpus, claims.environment(claim.state, claim.slots, task), task)

    def _wish(self, state: State, request: ClaimRequest) -> Wish:
        offline = frozenset[int]()
        if request.affinity:
            offline = frozenset(cpu for _, slot in state.slots for cpu in slot.cpus) - online(self.node.sysfs)
        return Wish(request.pool, request.lists, request.socket, avoid=offline, prefer=self.node.fast)

    def _allowed(self, state: State, wish: Wish, task: Task) -> int | None:
        """How many lists of the pool the task's container may hold; None: any number."""
        pool = state.pools.get(wish.pool)
        if pool is None or not pool.is_exclusive or self._requested is None or again(state, wish, task):
            return None
        return self._requested.allowed(wish.pool, task, _held(state, wish, task) + wish.lists)

    def _write(self, wish: Wish, task: Task, allowed: int | None) -> Claim:
        draw = random.random()  # noqa: S311 - which of several lists is no secret

        def decide(stored: Stored) -> tuple[State, Claim]:
            claim = again(stored.state, wish, task)
            if claim is None:
                self._check_count(stored.state, task)
                _check_held(stored.state, wish, task, allowed)
                claim = claims.claim(stored.state, wish, task, draw)
            return claim.state, claim

        with self._writing:
            return books.change(self.node.book, decide, pause)

    def _check_count(self, state: State, task: Task) -> None:
        tasks = {one for _, slot in state.slots for one in slot.tasks}
        count = sum(one.pod == task.pod for one in tasks)
        if count >= self.node.most_tasks:
            who = f"pod {task.pod}" if task.pod else "processes outside of pods"
            raise Refused(WHAT, [Problem(who, f"{count} tasks", f"at most {self.node.most_tasks} at a time")])

    def _confine(self, task: Task) -> None:
        """The container gets the CPUs; where that fails the claim is taken back."""
        if self._containers is None or not task.container:
            return
        try:
            self._containers.admit(self.node.book.read, task.container, self.sweeper.known)
        except NodewiseError:
            self._take_back(task)
            raise

    def _take_back(self, task: Task) -> None:
        with self._writing:
            books.change(
                self.node.book,
                lambda stored: (claims.release(stored.state, task), None),
                pause,
                whatever=True,
            )

    def _release(self, peer: Peer, task: Task) -> Answer:
        if task != peer.task:
            seen = f"that of process {task.pid}, asked by process {peer.task.pid}"
            raise Refused("cannot give CPUs back", [Problem("task", seen, "the task of who asks")])
        stored = self.node.book.read()
        others = {pid for pid, _ in self.sweeper.family(stored, task)} - {task.pid}
        if others:
            self.sweeper.sweep()  # while the wrapper lives they are known as its children, and from then on
            return Answer(messages.encode({"released": False, "processes": sorted(others)[:10]}), holds=True)
        self._take_back(task)
        if self._containers is not None and task.container:
            try:
                self._containers.admit(self.node.book.read, task.container, self.sweeper.known)
            except NodewiseError as error:
                logs.emit("cpu_enforcing_failed", container=task.container, error=str(error))
        return Answer(messages.encode({"released": True}))


def _held(state: State, wish: Wish, task: Task) -> int:
    """How many lists of the pool the task's container holds."""
    return sum(
        (one.pod, one.container) == (task.pod, task.container)
        for slot in state.pools[wish.pool].slots
        for one in slot.tasks
    )


def _check_held(state: State, wish: Wish, task: Task, allowed: int | None) -> None:
    if allowed is None:
        return
    held = _held(state, wish, task)
    if held + wish.lists > allowed:
        seen = f"{held} held and {wish.lists} more wanted" if held else f"{wish.lists} wanted"
        problem = Problem(
            f"CPU lists of pool {wish.pool}", seen, f"at most {allowed}, which its container requests"
        )
        raise Refused(WHAT, [problem], remedy="request more of the pool's extended resource in the pod")


def again(state: State, wish: Wish, task: Task) -> Claim | None:
    """What the task holds already, if it is what it wishes for: somebody who got no answer asks once more.

    None if it holds nothing; Conflict if it holds something else.
    """
    held = [(pool, slot) for pool, slot in state.slots if task in slot.tasks]
    if not held:
        return None
    wanted = wish.lists if held[0][0].is_exclusive else 1
    if {pool.name for pool, _ in held} != {wish.pool} or len(held) != wanted:
        seen = ", ".join(f"{pool.name} {slot.text}" for pool, slot in held)
        raise Conflict(
            WHAT, [Problem(f"process {task.pid}", f"holds {seen} already", "a process that holds nothing")]
        )
    return Claim(state, tuple(slot for _, slot in held))


def online(root: Path) -> frozenset[int]:
    """The CPUs that are online. Unavailable if the kernel's file cannot be read."""
    path = root / CPUS / "online"
    try:
        return frozenset(cpulist.parse_list(read_text(path), str(path)))
    except OSError as error:
        problem = Problem(str(path), str(error), "the kernel's list of CPUs")
        raise Unavailable("cannot tell which CPUs are online", [problem]) from error
