"""Who is at the other end of the node agent's socket: as the kernel says it, never as the peer does.

A Unix socket knows the process that connected (SO_PEERCRED, unix(7)); of that process the kernel's files say since when
it runs, and in which cgroup, which is named after its pod and container. No process can change these by itself.
"""

import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.cpu import procfs
from nodewise.cpu.cgroups import parse_cgroup
from nodewise.cpu.state import Task
from nodewise.errors import Problem, Refused, Unavailable

_CREDENTIALS: Final = struct.Struct("3i")
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
    return Peer(read_task(proc, pid, boot), user)


def read_task(proc: Path, pid: int, boot: str) -> Task:
    """What a process is known by. Unavailable if it is gone."""
    folder = proc / str(pid)
    try:
        stat = procfs.parse_stat((folder / "stat").read_text(encoding="utf-8", errors="surrogateescape"))
        with (folder / "cgroup").open("rb") as file:
            place = parse_cgroup(file.read(_LONGEST_BYTES).decode("utf-8", "replace"))
    except OSError as error:
        raise Unavailable("cannot tell who asks", [Problem(f"process {pid}", str(error), "")]) from error
    if stat.is_whole_over:
        raise Unavailable("cannot tell who asks", [Problem(f"process {pid}", "is over", "one that runs")])
    return Task(pid, stat.start, boot, place.pod, place.container)
