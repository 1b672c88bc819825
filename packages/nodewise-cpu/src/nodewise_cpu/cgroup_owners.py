"""The pod and container of a process, from the name of its cgroup.

Standard library only.
"""

import re
from typing import Final, NamedTuple

from nodewise_cpu.kernel_file_reader import split_lines

_UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
"""Of a pod: a UUID, which systemd has with `_`, or of a static pod the checksum of its file."""
_POD: Final = re.compile(rf"(?:^|[/-])pod(?P<uid>{_UID})(?:\.slice)?(?=[/:]|\Z)")
_CONTAINER: Final = re.compile(
    r"[/:](?!crio-conmon-)(?:[a-z][a-z-]*[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?(?=[/ ]|\Z)"
)
USER_SLICE: Final = "user.slice"
"""The pod of a process whose cgroup was named like a pod's by a user. Such a process has neither the rights of a pod
nor those of processes outside of pods.
"""
_IN_USER_SLICE: Final = re.compile(r"/(?:\.\./)*user\.slice(?=[/ ]|\Z)")


class CgroupOwner(NamedTuple):
    """The uid of the pod and the id of the container that a process runs in; empty outside of pods."""

    pod: str = ""
    container: str = ""


def parse_cgroup(text: str) -> CgroupOwner:
    """The pod and container in `/proc/<pid>/cgroup` (cgroups(7)) of version 1 or 2.

    Recognises the paths of kubelets with the cgroup driver cgroupfs or systemd, under any root, and of containerd,
    CRI-O and Docker. In a cgroup namespace of the reader they may begin with `/..`. The outermost pod of all lines
    counts, because a container can create and name cgroups below its own. systemd delegates cgroups of `user.slice` to
    users without privileges: one that is named like a pod's yields the pod `USER_SLICE`, which does not exist.
    """
    pods = []
    in_user_slice = False
    for line in split_lines(text):
        _, colon, rest = line.partition(":")
        controllers, second_colon, path = rest.partition(":")
        pod = _POD.search(path)
        if pod and _IN_USER_SLICE.match(path):
            in_user_slice = True
        elif colon and second_colon and pod:
            depth = sum(segment not in ("", "..") for segment in path[: pod.end()].split("/"))
            # version 1 has a line for each controller; between pods of one depth the line of CPUs decides, because a
            # container manager may leave a process where it was in the hierarchies of other controllers
            pods.append((depth, "cpuset" not in controllers.split(","), pod, path))
    if not pods:
        return CgroupOwner(USER_SLICE if in_user_slice else "")
    _, _, pod, path = min(pods, key=lambda entry: entry[:2])
    container = _CONTAINER.match(path, pod.end())
    return CgroupOwner(pod["uid"].replace("_", "-"), container["id"] if container else "")
