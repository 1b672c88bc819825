"""The node agent's socket: lines in, lines out, for many askers of whom some mean harm.

One thread looks after all connections and never waits for one of them; what is asked is answered by others
(`turns.py`). A connection has a deadline whenever something is expected of it, and no tenant has more than its share
of them, so that nobody can keep others out.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from nodewise.clock import SystemClock
from nodewise.cpu import messages
from nodewise.cpu.agent.turns import Turns
from nodewise.cpu.messages import LONGEST_BYTES
from nodewise.cpu.node.peers import Peer
from nodewise.errors import BadInput, NodewiseError, Problem, Unavailable
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve.close_reasons import CloseReasons

REASONS: Final[dict[str, str]] = {
    "peer": "The process that connected cannot be told; it may be over already. With hostPID: true all can be.",
    "too_many": "More connections than --max-connections, or of one pod than --max-per-pod.",
    "line_size": "A line was longer than a message may be.",
    "line_deadline": "A line was not complete in time.",
    "answer_deadline": "The other side did not read its answer in time.",
    "idle": "A connection asked for nothing for a minute, and its process holds nothing.",
}

_LOOK_S: Final = 0.25
"""How often deadlines are looked at."""
_ACCEPTS: Final = 64
"""Connections taken in one go, before those that are open have their turn."""
_PAUSE_S: Final = 0.1
"""Between two tries to accept a connection where there is no file descriptor for it."""


class Limits(NamedTuple):
    """What connections may take."""

    connections: int = 1024
    of_one: int = 64
    """Of one pod, or of one user outside of pods."""
    line_s: float = 5.0
    """From the first byte of a line to its end."""
    answer_s: float = 5.0
    """For the other side to take what it is told."""
    idle_s: float = 60.0
    """Between two lines, where the process holds nothing."""


class Answer(NamedTuple):
    """A line, and whether the connection is to stay for as long as the other side likes: it holds something."""

    line: bytes
    holds: bool = False


class _Connection:
    def __init__(self, link: socket.socket, peer: Peer, deadline_s: float) -> None:
        self.link = link
        self.peer = peer
        self.deadline_s = deadline_s
        self.received = bytearray()
        self.unsent = b""
        self.is_busy = False
        """Somebody makes its answer; until that is sent, nothing is read."""
        self.holds = False

    @property
    def owner(self) -> str:
        return self.peer.task.pod or f"user {self.peer.user}"

    @property
    def reason(self) -> str:
        """What it is that a deadline is missed with."""
        if self.unsent:
            return "answer_deadline"
        return "line_deadline" if self.received else "idle"


class Listener:
    """Serves connections from `run` to `stop`.

    `identify` says who connected; `answer` says what a line gets, in one of the threads of `turns`, and may raise
    `NodewiseError`; `ended` is told when the connection of one that holds something is over.
    """

    def __init__(
        self,
        listening: socket.socket,
        identify: Callable[[socket.socket], Peer],
        answer: Callable[[Peer, bytes], Answer],
        ended: Callable[[Peer], None],
        limits: Limits,
        meters: MetricsRegistry,
    ) -> None:
        self._listening = listening
        self._identify = identify
        self._answer = answer
        self._ended = ended
        self._limits = limits
        self._meters = meters
        self._close_reasons = CloseReasons(meters, SystemClock(), REASONS)
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        self._turns = Turns(4)
        self._answered: list[tuple[_Connection, Answer]] = []
        self._lock = threading.Lock()
        self._awake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ending = False
        self._end_s = 0.0

    def run(self) -> None:
        """Serve until `stop`; then what is under way is answered."""
        self._listening.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._selector.register(self._awake, selectors.EVENT_READ, self._wake)
        look_s = 0.0
        while not (self._ending and self._is_done()):
            for key, _ in self._selector.select(_LOOK_S):
                key.data()
            if time.monotonic() >= look_s:
                self._end_late()
                look_s = time.monotonic() + _LOOK_S
        for connection in list(self._connections):
            self._close(connection)
        self._turns.stop(0.0)
        self._selector.close()
        os.close(self._awake)

    def stop(self, grace_s: float = 10.0) -> None:
        """Accept nobody more, finish what was begun, and let `run` return. May be called from any thread."""
        self._end_s = time.monotonic() + grace_s
        self._ending = True
        self._ring()

    def _is_done(self) -> bool:
        waiting = any(one.is_busy or one.unsent for one in self._connections)
        return not waiting or time.monotonic() >= self._end_s

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._awake, 1)

    def _wake(self) -> None:
        os.eventfd_read(self._awake)
        with self._lock:
            answered, self._answered = self._answered, []
        for connection, answer in answered:
            connection.is_busy = False
            connection.holds = answer.holds
            connection.unsent = answer.line
            connection.deadline_s = time.monotonic() + self._limits.answer_s
            self._send(connection)
        if self._ending:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._listening)

    def _accept(self) -> None:
        """Those that wait, many at once, for others may connect faster than one in each round."""
        for _ in range(_ACCEPTS):
            try:
                link, _address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                logs.emit("accept_failed", error=str(error))
                time.sleep(_PAUSE_S)
                return
            self._admit(link)

    def _admit(self, link: socket.socket) -> None:
        link.setblocking(False)
        try:
            peer = self._identify(link)
        except NodewiseError as error:
            self._refuse(link, "peer", "", error)
            return
        connection = _Connection(link, peer, time.monotonic() + self._limits.idle_s)
        if not self._has_room(connection.owner):
            wanted = f"at most {self._limits.of_one} of one pod, {self._limits.connections} in all"
            problem = Problem("connections", "too many", wanted)
            busy = Unavailable("the node agent is busy", [problem])
            self._refuse(link, "too_many", connection.owner, busy)
            return
        self._connections.add(connection)
        self._meters.set("cpu_connections", len(self._connections))
        self._selector.register(link, selectors.EVENT_READ, partial(self._receive, connection))

    def _refuse(self, link: socket.socket, reason: str, peer: str, error: NodewiseError) -> None:
        """Say why, if it can be said at once."""
        self._close_reasons.record(reason, peer, str(error))
        with link, contextlib.suppress(OSError):
            link.send(messages.failed(error))

    def _has_room(self, owner: str) -> bool:
        """Whether one more of this owner may stay; one of who has more gives way, sooner one that holds nothing.

        Who holds something loses only the connection: its task is swept when its processes are over, and to give it
        back it connects again.
        """
        counts = Counter(one.owner for one in self._connections)
        if counts[owner] >= self._limits.of_one:
            return False
        if len(self._connections) < self._limits.connections:
            return True
        idle = [
            one
            for one in self._connections
            if not (one.is_busy or one.unsent) and counts[one.owner] > counts[owner] + 1
        ]
        if not idle:
            return False
        self._end(max(idle, key=lambda one: (not one.holds, counts[one.owner], -one.deadline_s)), "too_many")
        return True

    def _receive(self, connection: _Connection) -> None:
        try:
            received = connection.link.recv(LONGEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._close(connection)
            return
        if not connection.received:
            connection.deadline_s = time.monotonic() + self._limits.line_s
        connection.received += received
        self._take_line(connection)

    def _take_line(self, connection: _Connection) -> None:
        """Have the next line answered, if it is whole."""
        line, newline, rest = connection.received.partition(b"\n")
        if len(line) > LONGEST_BYTES:
            problem = Problem("line", f"{len(line)} bytes", f"at most {LONGEST_BYTES}")
            connection.unsent = messages.failed(BadInput("cannot read a message", [problem]))
            with contextlib.suppress(OSError):
                connection.link.send(connection.unsent)
            self._end(connection, "line_size")
        elif newline and not self._ending:
            connection.received = rest
            connection.is_busy = True
            self._selector.unregister(connection.link)
            self._turns.add(connection.owner, partial(self._make_answer, connection, bytes(line)))

    def _make_answer(self, connection: _Connection, line: bytes) -> None:
        """In another thread; nothing of the connection is touched here."""
        try:
            answer = self._answer(connection.peer, line)
        except NodewiseError as error:
            answer = Answer(messages.failed(error), connection.holds)
        except Exception:  # noqa: BLE001 - a defect of ours must not end the serving of others
            logs.emit("task_failed", task="cpu agent", exc_info=True)
            failure = Unavailable("the node agent could not answer", [Problem("", "a defect of ours", "")])
            answer = Answer(messages.failed(failure), connection.holds)
        with self._lock:
            self._answered.append((connection, answer))
        self._ring()

    def _send(self, connection: _Connection) -> None:
        try:
            sent = connection.link.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(connection)
            return
        connection.unsent = connection.unsent[sent:]
        key = self._selector.get_map().get(connection.link)
        if connection.unsent:
            if key is None:
                self._selector.register(
                    connection.link, selectors.EVENT_WRITE, partial(self._send, connection)
                )
            return
        if key is not None:
            self._selector.unregister(connection.link)
        self._selector.register(connection.link, selectors.EVENT_READ, partial(self._receive, connection))
        connection.deadline_s = self._next_deadline_s(connection)
        if connection.received:
            self._take_line(connection)

    def _next_deadline_s(self, connection: _Connection) -> float:
        if connection.received:
            return time.monotonic() + self._limits.line_s
        return float("inf") if connection.holds else time.monotonic() + self._limits.idle_s

    def _end_late(self) -> None:
        now_s = time.monotonic()
        for connection in [one for one in self._connections if one.deadline_s < now_s and not one.is_busy]:
            self._end(connection, connection.reason)

    def _end(self, connection: _Connection, reason: str) -> None:
        self._close_reasons.record(reason, connection.owner)
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.link)
        connection.link.close()
        self._connections.discard(connection)
        self._meters.set("cpu_connections", len(self._connections))
        if connection.holds:
            self._ended(connection.peer)
