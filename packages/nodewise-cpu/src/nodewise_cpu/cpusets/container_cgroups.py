"""The cgroups of containers, found by their names below the cgroup of all pods.

Standard library only.

The container runtime reports the cpuset that it configured. The cgroup has the one that applies, which another program
may have changed: systemd replaces `cpuset.cpus` when a property of the container's unit changes.
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

from nodewise.base.errors import BadInput
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.cgroup_owners import parse_cgroup
from nodewise_cpu.kernel_file_reader import read_text

Cpus = frozenset[int]

_PODS: Final = ("kubepods", "kubepods.slice")
_MAX_DEPTH: Final = 6


def find_cgroups(root: Path) -> Mapping[str, str]:
    """The path of each container's cgroup below the root cgroup, by container id.

    A container can create cgroups below its own only, which are not searched.
    """
    cgroups: dict[str, str] = {}
    for path in chain.from_iterable(_walk(root / pods, 0) for pods in _PODS):
        cgroup = str(path.relative_to(root))
        if container := parse_cgroup(f"0::/{cgroup}").container:
            cgroups.setdefault(container, cgroup)
    return cgroups


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

    def read_cpus(self, containers: Collection[str]) -> Mapping[str, Cpus]:
        """`cpuset.cpus` of the cgroups of these containers, empty without a limit, as far as they can be read."""
        cpus: dict[str, Cpus] = {}
        for root in self._roots:
            for container, cgroup in find_cgroups(root).items():
                if container in containers and container not in cpus:
                    with contextlib.suppress(BadInput, OSError):
                        text = read_text(root / cgroup / "cpuset.cpus")
                        cpus[container] = frozenset(cpu_set_formats.parse_cpu_numbers(text))
        return cpus
