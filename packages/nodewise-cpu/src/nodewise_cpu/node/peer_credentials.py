"""The process at the other end of a connection to the node agent, identified by the kernel.

A Unix socket has the credentials of the process that connected (SO_PEERCRED, unix(7)). The kernel's files have the
start of that process and its cgroup, which is named after its pod and container. The process cannot change these.
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

from nodewise.base.errors import Problem, Refused, Unavailable
from nodewise_cpu import procfs
from nodewise_cpu.cgroup_owners import parse_cgroup
from nodewise_cpu.kernel_file_reader import read_text
from nodewise_cpu.pool_allocations import Task

_CREDENTIALS: Final = struct.Struct("3i")
_NUMBER: Final = struct.Struct("i")
_PEER_PIDFD: Final = 77
"""SO_PEERPIDFD of unix(7)."""
_UNSUPPORTED: Final = frozenset({errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENODATA})
"""Errors of older kernels, and of sockets that were connected in another way."""
_MAX_BYTES: Final = 65_536


class PeerProcess(NamedTuple):
    """A process that connected: its identity as a task, and its user at that time."""

    task: Task
    user: int


def identify(connected: socket.socket, proc: Path, boot: str) -> PeerProcess:
    """The process that opened a connection. Refused if this process cannot see it, Unavailable if it is gone."""
    pid, user, _ = _CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if pid <= 0:
        seen = "the kernel names no process that the node agent can see"
        raise Refused(
            "cannot identify the peer",
            [Problem("peer", seen, "")],
            remedy="run the node agent with hostPID: true",
        )
    with _make_liveness_check(connected, pid) as is_alive:
        task = read_process_as_task(proc, pid, boot)
        if not is_alive():
            raise _process_gone_error(pid, "is over")
    return PeerProcess(task, user)


@contextmanager
def _make_liveness_check(connected: socket.socket, pid: int) -> Iterator[Callable[[], bool]]:
    """A check whether the process that connected is still alive, so that its id is not another process's.

    It needs a descriptor of the process, which the kernel has since Linux 6.5; before, it is always true.
    """
    try:
        answer = connected.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD, _NUMBER.size)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise _process_gone_error(pid, error.strerror or str(error)) from error
        yield lambda: True
        return
    (descriptor,) = _NUMBER.unpack(answer)
    try:
        poller = select.poll()
        # the descriptor of a process becomes readable when the process ends
        poller.register(descriptor, select.POLLIN)
        yield lambda: not poller.poll(0)
    finally:
        os.close(descriptor)


def _process_gone_error(pid: int, seen: str) -> Unavailable:
    return Unavailable("cannot identify the peer", [Problem(f"process {pid}", seen, "one that runs")])


def read_process_as_task(proc: Path, pid: int, boot: str) -> Task:
    """The identity of a process as a task. Unavailable if it has ended."""
    folder = proc / str(pid)
    try:
        stat = procfs.parse_stat(read_text(folder / "stat"))
        owner = parse_cgroup(read_text(folder / "cgroup", _MAX_BYTES))
    except OSError as error:
        raise Unavailable("cannot identify the peer", [Problem(f"process {pid}", str(error), "")]) from error
    if stat.process_has_ended:
        raise _process_gone_error(pid, "is over")
    return Task(pid, stat.start, boot, owner.pod, owner.container)
