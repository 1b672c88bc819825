"""Who is at the other end of the node agent's socket: as the kernel says it, never as the peer does.

A Unix socket knows the process that connected (SO_PEERCRED, unix(7)); of that process the kernel's files say since when
it runs, and in which cgroup, which is named after its pod and container. No process can change these by itself.
"""

import re
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.cpu import procfs
from nodewise.cpu.state import Task
from nodewise.errors import Problem, Refused, Unavailable

_CREDENTIALS: Final = struct.Struct("3i")
_UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
"""Of a pod: a UUID, which systemd has with `_`, or of a static pod the checksum of its file."""
_POD: Final = re.compile(rf"(?:^|[/-])pod(?P<uid>{_UID})(?:\.slice)?(?=[/:]|$)")
_CONTAINER: Final = re.compile(
    r"[/:](?!crio-conmon-)(?:[a-z][a-z-]*[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?(?=[/ ]|$)"
)
_LONGEST_BYTES: Final = 65_536


class Place(NamedTuple):
    """The pod, by uid, and the container, by id, that a process runs in; empty for one that runs in none."""

    pod: str = ""
    container: str = ""


class Peer(NamedTuple):
    """A process that connected: all that a task is known by, and the user that it had then."""

    task: Task
    user: int


def parse_cgroup(text: str) -> Place:
    """Where a process runs, by `/proc/<pid>/cgroup` (cgroups(7)) of either version.

    Paths are those of kubelets with the cgroup driver cgroupfs or systemd, under any root, and of containerd, CRI-O
    and Docker; for a reader in a cgroup namespace of its own they may begin with `/..`. The outermost pod counts:
    what is below may have been made in the container.
    """
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") > 1]
    # version 1 has a line a controller; that of CPUs first, for a manager may leave some where they were
    lines.sort(key=lambda line: "cpuset" not in line[1].split(","))
    for _, _, path in lines:
        found = _POD.search(path)
        if found:
            inside = _CONTAINER.match(path, found.end())
            return Place(found["uid"].replace("_", "-"), inside["id"] if inside else "")
    return Place()


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
    if stat.is_over:
        raise Unavailable("cannot tell who asks", [Problem(f"process {pid}", "is over", "one that runs")])
    return Task(pid, stat.start, boot, place.pod, place.container)
