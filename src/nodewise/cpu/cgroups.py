"""Which pod and container a process runs in, by the name of its cgroup.

Standard library only.
"""

import re
from typing import Final, NamedTuple

_UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
"""Of a pod: a UUID, which systemd has with `_`, or of a static pod the checksum of its file."""
_POD: Final = re.compile(rf"(?:^|[/-])pod(?P<uid>{_UID})(?:\.slice)?(?=[/:]|$)")
_CONTAINER: Final = re.compile(
    r"[/:](?!crio-conmon-)(?:[a-z][a-z-]*[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?(?=[/ ]|$)"
)


class Place(NamedTuple):
    """The pod, by uid, and the container, by id, that a process runs in; empty for one that runs in none."""

    pod: str = ""
    container: str = ""


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
