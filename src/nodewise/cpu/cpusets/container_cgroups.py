"""The cgroups of containers, found by their names below the cgroup of all pods.

Standard library only.

The container runtime reports the cpuset that it configured. The cgroup has the one that applies, which another program
may have changed: systemd replaces `cpuset.cpus` when a property of the container's unit changes.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nodewise.cpu import cpu_set_formats
from nodewise.cpu.cgroup_owners import parse_cgroup
from nodewise.cpu.kernel_file_reader import read_text
from nodewise.errors import BadInput

Cpus = frozenset[int]

_PODS: Final = ("kubepods", "kubepods.slice")
_MAX_DEPTH: Final = 6


def find_cgroup(root: Path, container: str) -> str | None:
    """The path of the container's cgroup below the root cgroup; None if there is none.

    A container can create cgroups below its own only, which are not searched.
    """
    for pods in _PODS:
        for path in _walk(root / pods, 0):
            cgroup = str(path.relative_to(root))
            if parse_cgroup(f"0::/{cgroup}").container == container:
                return cgroup
    return None


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """The cgroups below a cgroup, without those inside of containers."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in names:
        path = folder / name
        yield path
        if depth < _MAX_DEPTH and not parse_cgroup(f"0::{path}").container:
            yield from _walk(path, depth + 1)


class ContainerCgroups:
    """Reads the cpusets of containers below the first of these root cgroups that has the container.

    The roots are those of version 2 and of the controller `cpuset` of version 1.
    """

    def __init__(self, *roots: Path) -> None:
        self._roots = roots

    def read_cpus(self, container: str) -> Cpus | None:
        """`cpuset.cpus` of the container's cgroup, empty without a limit; None if it cannot be read."""
        for root in self._roots:
            cgroup = find_cgroup(root, container)
            if cgroup is not None:
                try:
                    text = read_text(root / cgroup / "cpuset.cpus")
                    return frozenset(cpu_set_formats.parse_cpu_numbers(text))
                except (BadInput, OSError):
                    return None
        return None
