"""Who is at the other end of the node agent's socket: as the kernel says it, never as the peer does.

A Unix socket knows the process that connected (SO_PEERCRED, unix(7)); of that process the kernel's files say since when
it runs, and in which cgroup, which is named after its pod and container. No process can change these by itself.
"""

import errno
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.cpu import procfs
from nodewise.cpu.cgroups import parse_cgroup
from nodewise.cpu.kernel_files import read_text
from nodewise.cpu.state import Task
from nodewise.errors import Problem, Refused, Unavailable

_CREDENTIALS: Final = struct.Struct("3i")
_NUMBER: Final = struct.Struct("i")
_PEER_PIDFD: Final = 77
"""SO_PEERPIDFD of unix(7)."""
_NOT_TOLD: Final = frozenset({errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENODATA})
"""By older kernels, and for sockets that were connected otherwise."""
_LONGEST_BYTES: Final = 65_536


class Peer(NamedTuple):
    """A process that connected: all that a task is known by, and the user that it had then."""

    task: Task
    user: int


def identify(connected: socket.socket, proc: Path, boot: str) -> Peer:
    """The process that opened a connection. Refused if this process cannot see it, Unavailable if it is gone."""
    pid, user, _ = _CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if pid <= 0:
        seen = "the kernel names no process that the node agent can see"
        raise Refused(
            "cannot tell who asks",
            [Problem("peer", seen, "")],
            remedy="run the node agent with hostPID: true",
        )
    with _held(connected, pid) as is_there:
        task = read_task(proc, pid, boot)
        if not is_there():
            raise _gone(pid, "is over")
    return Peer(task, user)


@contextmanager
def _held(connected: socket.socket, pid: int) -> Iterator[Callable[[], bool]]:
    """Whether the process that connected is still there, and its id so no other's: as far as the kernel tells.

    It does since Linux 6.5, by a descriptor of the process.
    """
    try:
        answer = connected.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD, _NUMBER.size)
    except OSError as error:
        if error.errno not in _NOT_TOLD:
            raise _gone(pid, error.strerror or str(error)) from error
        yield lambda: True
        return
    (descriptor,) = _NUMBER.unpack(answer)
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        yield lambda: not waiting.poll(0)
    finally:
        os.close(descriptor)


def _gone(pid: int, seen: str) -> Unavailable:
    return Unavailable("cannot tell who asks", [Problem(f"process {pid}", seen, "one that runs")])


def read_task(proc: Path, pid: int, boot: str) -> Task:
    """What a process is known by. Unavailable if it is gone."""
    folder = proc / str(pid)
    try:
        stat = procfs.parse_stat(read_text(folder / "stat"))
        place = parse_cgroup(read_text(folder / "cgroup", _LONGEST_BYTES))
    except OSError as error:
        raise Unavailable("cannot tell who asks", [Problem(f"process {pid}", str(error), "")]) from error
    if stat.is_whole_over:
        raise _gone(pid, "is over")
    return Task(pid, stat.start, boot, place.pod, place.container)
