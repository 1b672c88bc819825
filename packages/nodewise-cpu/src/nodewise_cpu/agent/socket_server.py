"""The node agent's socket: its file, its server, and the kernel's identification of the process that connected.

Each request and each response is one line, for many clients that can be hostile. One thread handles all connections and
never blocks on one. Worker threads, shared fairly among tenants, compute the responses. A connection has a deadline for
each pending input or output, and the number of connections per tenant is limited, so that a tenant cannot block other
tenants. One agent serves a path, in a folder that only root can change.

A Unix socket has the credentials of the process that connected (SO_PEERCRED, unix(7)). The kernel's files have the
start of that process and its cgroup, which is named after its pod and container. The process cannot change these.
"""

import contextlib
import errno
import fcntl
import os
import select
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.base import trusted_files
from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Refused, Unavailable, shown
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.connection_close_reasons import LOG_EVERY_S, CloseReasons
from nodewise_cpu import agent_messages, procfs
from nodewise_cpu.agent_messages import MAX_LINE_BYTES
from nodewise_cpu.kernel_file_reader import read_text
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.procfs import parse_cgroup

Job = Callable[[], None]


class WorkBudget(NamedTuple):
    """The CPU time that an owner's jobs may use: `burst_s` at once, and the `share` of one CPU in the long run.

    After a long job, such as a reconfiguration, the next one is delayed by at most `max_delay_s`.
    """

    share: float = 0.25
    burst_s: float = 5.0
    max_delay_s: float = 5.0


class FairWorkerPool:
    """Runs jobs: those of one owner one at a time and in order, owners in turn, each within its budget.

    A job must not raise. `stop` waits for running jobs and drops the others.
    """

    def __init__(self, threads: int, budget: WorkBudget = WorkBudget()) -> None:  # noqa: B008 - immutable
        self._budget = budget
        self._changed: Final = threading.Condition()
        self._queues: dict[str, deque[Job]] = {}
        """The jobs of each owner; the first owner is next."""
        self._busy_owners: set[str] = set()
        self._earliest_s: dict[str, float] = {}
        """When each owner's next job may start. It is in the past by what is left of the burst."""
        self._next_log_s = float("-inf")
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run_jobs, name=f"answers-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, owner: str, job: Job) -> None:
        """Queue a job; ignored after `stop`."""
        with self._changed:
            if not self._stopped:
                self._queues.setdefault(owner, deque()).append(job)
                self._changed.notify()

    def stop(self, grace_s: float) -> None:
        """Wait at most `grace_s` for each running job."""
        with self._changed:
            self._stopped = True
            self._queues.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(grace_s)

    def _run_jobs(self) -> None:
        while True:
            with self._changed:
                while (owner := self._next_owner()) is None and not self._stopped:
                    self._changed.wait(self._pause_s())
                if owner is None:
                    return
                jobs = self._queues.pop(owner)
                job = jobs.popleft()
                if jobs:  # an owner with more jobs goes to the end
                    self._queues[owner] = jobs
                self._busy_owners.add(owner)
            begin_s = time.thread_time()
            job()
            used_s = time.thread_time() - begin_s
            with self._changed:
                self._busy_owners.remove(owner)
                self._charge(owner, used_s)
                self._changed.notify()

    def _next_owner(self) -> str | None:
        now_s = time.monotonic()
        return next(
            (owner for owner in self._idle_owners() if self._earliest_s.get(owner, now_s) <= now_s), None
        )

    def _idle_owners(self) -> Iterator[str]:
        return (owner for owner in self._queues if owner not in self._busy_owners)

    def _pause_s(self) -> float | None:
        """The time until the next job may start; None if that is not a matter of time."""
        now_s = time.monotonic()
        pauses = [self._earliest_s.get(owner, now_s) - now_s for owner in self._idle_owners()]
        return max(0.0, min(pauses)) if pauses else None

    def _charge(self, owner: str, used_s: float) -> None:
        """Delay the owner's next job if its burst is used up."""
        now_s = time.monotonic()
        full_burst_s = now_s - self._budget.burst_s / self._budget.share
        earliest_s = (
            max(full_burst_s, self._earliest_s.get(owner, full_burst_s)) + used_s / self._budget.share
        )
        self._earliest_s[owner] = min(earliest_s, now_s + self._budget.max_delay_s)
        self._earliest_s = {other: at_s for other, at_s in self._earliest_s.items() if at_s > full_burst_s}
        delay_s = self._earliest_s.get(owner, now_s) - now_s
        if delay_s > 0 and now_s >= self._next_log_s:
            self._next_log_s = now_s + LOG_EVERY_S
            logs.emit("cpu_requests_delayed", peer=owner, seconds=round(delay_s, 3))


_CREDENTIALS: Final = struct.Struct("3i")
_NUMBER: Final = struct.Struct("i")
_PEER_PIDFD: Final = 77  # SO_PEERPIDFD of unix(7), since Linux 6.5
_UNSUPPORTED: Final = frozenset({errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENODATA})
"""Errors of older kernels, and of sockets that were connected in another way."""
_MAX_BYTES: Final = 65_536


class PeerProcess(NamedTuple):
    """A process that connected: its identity as a task, and its user at that time."""

    task: Task
    user: int


def identify_peer(connected: socket.socket, proc: Path, boot: str) -> PeerProcess:
    """The process that opened a connection. Refused if this process cannot see it, Unavailable if it is gone."""
    pid, user, _ = _CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if pid <= 0:
        seen = "the kernel names no process that the node agent can see"
        raise Refused.of(
            "cannot identify the peer", "peer", seen, remedy="run the node agent with hostPID: true"
        )
    try:
        # a descriptor of the process that connected: its id may be another process's by now
        answer = connected.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD, _NUMBER.size)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise _process_gone_error(pid, error.strerror or str(error)) from error
        return PeerProcess(read_process_as_task(proc, pid, boot), user)
    (descriptor,) = _NUMBER.unpack(answer)
    try:
        task = read_process_as_task(proc, pid, boot)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if poller.poll(0):  # it is readable when the process has ended
            raise _process_gone_error(pid, "is over")
    finally:
        os.close(descriptor)
    return PeerProcess(task, user)


def _process_gone_error(pid: int, seen: str) -> Unavailable:
    return Unavailable.of("cannot identify the peer", f"process {pid}", seen, "one that runs")


def read_process_as_task(proc: Path, pid: int, boot: str) -> Task:
    """The identity of a process as a task. Unavailable if it has ended."""
    folder = proc / str(pid)
    try:
        stat = procfs.parse_stat(read_text(folder / "stat"))
        owner = parse_cgroup(read_text(folder / "cgroup", _MAX_BYTES))
    except OSError as error:
        raise Unavailable.of("cannot identify the peer", f"process {pid}", str(error)) from error
    if stat.process_has_ended:
        raise _process_gone_error(pid, "is over")
    return Task(pid, stat.start, boot, owner.pod, owner.container)


REASONS: Final[dict[str, str]] = {
    "peer": "The process that connected cannot be identified. It may have ended; otherwise set hostPID: true.",
    "too_many": "More connections than --max-connections, or of one pod than --max-per-pod.",
    "line_size": "A line was longer than a message may be.",
    "line_deadline": "A line was not complete in time.",
    "answer_deadline": "The client did not read its response in time.",
    "idle": "A connection had no request for a minute, and its process has no allocation.",
}

_CHECK_S: Final = 0.25  # how often deadlines are checked
_ACCEPTS: Final = 64  # connections accepted at once, before open ones are handled again
_PAUSE_S: Final = 0.1  # the pause after a failed accept, for example without a free file descriptor


class ConnectionLimits(NamedTuple):
    """Limits of number and time."""

    connections: int = 1024
    of_one: int = 64
    """Of one pod, or of one user outside of pods."""
    line_s: float = 5.0
    """The time from the first byte of a line to its end."""
    answer_s: float = 5.0
    """The time until the client has read a response."""
    idle_s: float = 60.0
    """The time between two lines, if the process has no allocation."""


class SocketResponse(NamedTuple):
    """A line. With `holds` the client has an allocation, so its connection has no idle deadline."""

    line: bytes
    holds: bool = False


class _Connection:
    def __init__(self, socket: socket.socket, peer: PeerProcess, deadline_s: float) -> None:
        self.socket = socket
        self.peer = peer
        self.deadline_s = deadline_s
        self.received = bytearray()
        self.unsent = b""
        self.is_busy = False
        """A worker makes its response; until that is sent nothing is read."""
        self.holds = False

    @property
    def owner(self) -> str:
        return self.peer.task.pod or f"user {self.peer.user}"


class SocketServer:
    """Serves connections from `run` to `stop`.

    `identify` returns the process that connected. `answer` returns the response to a line; it runs in a worker thread
    and may raise `NodewiseError`. `on_disconnect` is called at the end of a connection whose process has an allocation.
    """

    def __init__(
        self,
        listening: socket.socket,
        identify: Callable[[socket.socket], PeerProcess],
        answer: Callable[[PeerProcess, bytes], SocketResponse],
        on_disconnect: Callable[[PeerProcess], None],
        limits: ConnectionLimits,
        registry: MetricsRegistry,
    ) -> None:
        self._listening = listening
        self._identify = identify
        self._answer = answer
        self._on_disconnect = on_disconnect
        self._limits = limits
        self._registry = registry
        self._close_reasons = CloseReasons(registry, SystemClock(), REASONS)
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        self._workers = FairWorkerPool(4)
        self._responses: list[tuple[_Connection, SocketResponse]] = []
        """Responses that worker threads have made, to be sent."""
        self._lock = threading.Lock()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ending = False
        self._end_s = 0.0

    def run(self) -> None:
        """Serve until `stop`; then send the responses to requests in progress."""
        self._listening.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept_connections)
        self._selector.register(self._wake_fd, selectors.EVENT_READ, self._send_responses)
        check_s = 0.0
        while not self._ending or (
            time.monotonic() < self._end_s
            and any(connection.is_busy or connection.unsent for connection in self._connections)
        ):
            for key, _ in self._selector.select(_CHECK_S):
                key.data()
            if time.monotonic() >= check_s:
                self._close_overdue()
                check_s = time.monotonic() + _CHECK_S
        for connection in list(self._connections):
            self._close_connection(connection)
        self._workers.stop(0.0)
        self._selector.close()
        os.close(self._wake_fd)

    def stop(self, grace_s: float = 10.0) -> None:
        """Accept no more connections, finish requests in progress, and let `run` return. Callable from any thread."""
        self._end_s = time.monotonic() + grace_s
        self._ending = True
        self._wake_up_server_loop()

    def _wake_up_server_loop(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)

    def _send_responses(self) -> None:
        os.eventfd_read(self._wake_fd)
        with self._lock:
            responses, self._responses = self._responses, []
        for connection, response in responses:
            connection.is_busy = False
            connection.holds = response.holds
            connection.unsent = response.line
            connection.deadline_s = time.monotonic() + self._limits.answer_s
            self._send(connection)
        if self._ending:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._listening)

    def _accept_connections(self) -> None:
        """Accept many connections at once: clients may connect faster than once per round."""
        for _ in range(_ACCEPTS):
            try:
                socket, _address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                logs.emit("accept_failed", error=str(error))
                time.sleep(_PAUSE_S)
                return
            self._register_connection(socket)

    def _register_connection(self, socket: socket.socket) -> None:
        """Register a connection, or close it with an error, which is sent if that does not block."""
        socket.setblocking(False)
        reason, owner = "peer", ""
        try:
            connection = _Connection(socket, self._identify(socket), time.monotonic() + self._limits.idle_s)
            reason, owner = "too_many", connection.owner
            if not self._make_room_for_connection(owner):
                wanted = f"at most {self._limits.of_one} of one pod, {self._limits.connections} in all"
                raise Unavailable.of("the node agent is busy", "connections", "too many", wanted)
        except NodewiseError as error:
            self._close_reasons.record(reason, owner, str(error))
            with socket, contextlib.suppress(OSError):
                socket.send(agent_messages.encode_error(error))
            return
        self._connections.add(connection)
        self._registry.set("cpu_connections", len(self._connections))
        self._selector.register(socket, selectors.EVENT_READ, partial(self._receive, connection))

    def _make_room_for_connection(self, owner: str) -> bool:
        """Whether there is room for one more connection of this owner.

        If there is none, a connection of an owner with more connections is closed, preferably one without an
        allocation. A client with an allocation keeps it without a connection: it ends with its processes, and the
        client connects again to release it.
        """
        counts = Counter(connection.owner for connection in self._connections)
        if counts[owner] >= self._limits.of_one:
            return False
        if len(self._connections) < self._limits.connections:
            return True
        idle = [item for item in self._connections if not (item.is_busy or item.unsent)]
        others = [item for item in idle if counts[item.owner] > counts[owner] + 1]
        if others:
            last = max(others, key=lambda item: (not item.holds, counts[item.owner], -item.deadline_s))
            self._end_connection(last, "too_many")
        return bool(others)

    def _receive(self, connection: _Connection) -> None:
        try:
            received = connection.socket.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._close_connection(connection)
            return
        if not connection.received:
            connection.deadline_s = time.monotonic() + self._limits.line_s
        connection.received += received
        self._dispatch_line(connection)

    def _dispatch_line(self, connection: _Connection) -> None:
        line, newline, rest = connection.received.partition(b"\n")
        if len(line) > MAX_LINE_BYTES:
            seen, expected = f"{len(line)} bytes", f"at most {MAX_LINE_BYTES}"
            error = BadInput.of("cannot read a message", "line", seen, expected)
            with contextlib.suppress(OSError):
                connection.socket.send(agent_messages.encode_error(error))
            self._end_connection(connection, "line_size")
        elif newline and not self._ending:
            connection.received = rest
            connection.is_busy = True
            self._selector.unregister(connection.socket)
            self._workers.add(connection.owner, partial(self._make_response, connection, bytes(line)))

    def _make_response(self, connection: _Connection, line: bytes) -> None:
        """Runs in a worker thread, so it changes nothing of the connection."""
        try:
            response = self._answer(connection.peer, line)
        except NodewiseError as error:
            response = SocketResponse(agent_messages.encode_error(error), connection.holds)
        except Exception:  # noqa: BLE001 - a defect in one response must not stop the server
            logs.emit("task_failed", task="cpu agent", exc_info=True)
            failure = Unavailable.of("the node agent could not answer", "", "a defect of ours")
            response = SocketResponse(agent_messages.encode_error(failure), connection.holds)
        with self._lock:
            self._responses.append((connection, response))
        self._wake_up_server_loop()

    def _send(self, connection: _Connection) -> None:
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close_connection(connection)
            return
        connection.unsent = connection.unsent[sent:]
        key = self._selector.get_map().get(connection.socket)
        if connection.unsent:
            if key is None:
                self._selector.register(
                    connection.socket, selectors.EVENT_WRITE, partial(self._send, connection)
                )
            return
        if key is not None:
            self._selector.unregister(connection.socket)
        self._selector.register(connection.socket, selectors.EVENT_READ, partial(self._receive, connection))
        if connection.received:
            connection.deadline_s = time.monotonic() + self._limits.line_s
            self._dispatch_line(connection)
        else:
            idle_s = float("inf") if connection.holds else self._limits.idle_s
            connection.deadline_s = time.monotonic() + idle_s

    def _close_overdue(self) -> None:
        now_s = time.monotonic()
        for connection in list(self._connections):
            if connection.deadline_s < now_s and not connection.is_busy:
                reason = "line_deadline" if connection.received else "idle"
                self._end_connection(connection, "answer_deadline" if connection.unsent else reason)

    def _end_connection(self, connection: _Connection, reason: str) -> None:
        self._close_reasons.record(reason, connection.owner)
        self._close_connection(connection)

    def _close_connection(self, connection: _Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()
        self._connections.discard(connection)
        self._registry.set("cpu_connections", len(self._connections))
        if connection.holds:
            self._on_disconnect(connection.peer)


_BACKLOG: Final = 4096
"""The kernel rejects clients when the backlog is full, so one that connects very often must not fill it."""
_CANNOT_LISTEN: Final = "the node agent cannot listen"
_POLL_S: Final = 0.1
_PATIENCE_S: Final = 10.0  # how long an agent that ends may still serve the path


@contextlib.contextmanager
def opened_socket(path: Path, patience_s: float = _PATIENCE_S) -> Iterator[socket.socket]:
    """A socket that listens at `path`; the file is removed at the end. A file that a killed agent left is replaced.

    BadSettings if there can be no socket, or others may write to the folder; Unavailable if another agent still serves
    the path after `patience_s`.
    """
    _make_socket_folder(path.parent)
    with _hold_path_lock(path, patience_s), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            path.unlink(missing_ok=True)
            listening.bind(str(path))
            path.chmod(0o666)  # requests are authorized by the peer's credentials
            listening.listen(_BACKLOG)
        except OSError as error:
            expected = f"a path for a Unix socket ({error})"
            raise BadSettings.of(_CANNOT_LISTEN, "--socket", str(path), expected) from error
        try:
            yield listening
        finally:
            path.unlink(missing_ok=True)


def remove_socket_files(path: Path, *others: Path) -> bool:
    """Remove the files of agents at `path`, and these `others`. Returns whether there were any.

    Unavailable if an agent still serves the path after some seconds: then nothing is removed.
    """
    trusted_files.check_folder(path.parent)
    files = (path, _lock_file_path(path), *others)
    if not any(file.exists() for file in files):
        return False
    with _hold_path_lock(path, _PATIENCE_S):
        for file in files:
            file.unlink(missing_ok=True)
    return True


def _lock_file_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _make_socket_folder(folder: Path) -> None:
    try:
        trusted_files.check_folder(folder)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        trusted_files.check_folder(folder)
    except OSError as error:
        raise BadSettings.of(_CANNOT_LISTEN, "--socket", shown(str(folder)), f"a folder ({error})") from error
    except BadInput as error:
        raise BadSettings(_CANNOT_LISTEN, error.problems, remedy=error.remedy) from error


@contextlib.contextmanager
def _hold_path_lock(path: Path, patience_s: float) -> Iterator[None]:
    """Hold the lock of a path. The kernel releases it when the process ends."""
    deadline = time.monotonic() + patience_s
    try:
        lock = os.open(_lock_file_path(path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        expected = f"a folder that can be written to ({error})"
        raise BadSettings.of(_CANNOT_LISTEN, "--socket", str(path), expected) from error
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    expected = "a path that no other agent serves"
                    raise Unavailable.of(_CANNOT_LISTEN, "--socket", str(path), expected) from error
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(lock)
