"""Which pod and container a process runs in, by the name of its cgroup.

Standard library only.
"""

import re
from typing import Final, NamedTuple

from nodewise.cpu.kernel_files import split_lines

_UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
"""Of a pod: a UUID, which systemd has with `_`, or of a static pod the checksum of its file."""
_POD: Final = re.compile(rf"(?:^|[/-])pod(?P<uid>{_UID})(?:\.slice)?(?=[/:]|\Z)")
_CONTAINER: Final = re.compile(
    r"[/:](?!crio-conmon-)(?:[a-z][a-z-]*[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?(?=[/ ]|\Z)"
)
USERS: Final = "user.slice"
"""Stands for the pod of a process whose cgroup a user has named like a pod's: such a process has no pod's rights, and
not those of processes outside of pods either.
"""
_OF_USERS: Final = re.compile(r"/(?:\.\./)*user\.slice(?=[/ ]|\Z)")


class Place(NamedTuple):
    """The pod, by uid, and the container, by id, that a process runs in; empty for one that runs in none."""

    pod: str = ""
    container: str = ""


def parse_cgroup(text: str) -> Place:
    """Where a process runs, by `/proc/<pid>/cgroup` (cgroups(7)) of either version.

    Paths are those of kubelets with the cgroup driver cgroupfs or systemd, under any root, and of containerd, CRI-O
    and Docker; for a reader in a cgroup namespace of its own they may begin with `/..`. The outermost pod of all lines
    counts, because cgroups below a container can be created and named by the container. systemd delegates cgroups of
    `user.slice` to users without privileges: one that is named like a pod's is in the pod `USERS`, which there is not.
    """
    pods = []
    is_of_users = False
    for line in split_lines(text):
        _, colon, rest = line.partition(":")
        controllers, second_colon, path = rest.partition(":")
        pod = _POD.search(path)
        if pod and _OF_USERS.match(path):
            is_of_users = True
        elif colon and second_colon and pod:
            depth = sum(segment not in ("", "..") for segment in path[: pod.end()].split("/"))
            # version 1 has a line for each controller; between pods of one depth the line of CPUs decides, because a
            # container manager may leave a process where it was in the hierarchies of other controllers
            pods.append((depth, "cpuset" not in controllers.split(","), pod, path))
    if not pods:
        return Place(USERS if is_of_users else "")
    _, _, pod, path = min(pods, key=lambda entry: entry[:2])
    container = _CONTAINER.match(path, pod.end())
    return Place(pod["uid"].replace("_", "-"), container["id"] if container else "")
