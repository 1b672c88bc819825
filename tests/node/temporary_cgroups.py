"""Part of the machine's cgroups for a test, and its removal.

A machine has version 2 alone, at `ROOT`, or version 1, perhaps beside a hierarchy of version 2 without controllers.
"""

import contextlib
import functools
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.cluster.namespace_sandboxes import wait

ROOT = Path("/sys/fs/cgroup")
WANTED = {"cpu", "cpuset", "memory", "pids"}
ENABLED = WANTED | {"hugetlb"}
"""The controllers that the kubelet requires in its cgroup of version 2 if the machine has them."""


class Hierarchy(NamedTuple):
    """The mount point of a hierarchy and its mount options, which include the controllers of version 1."""

    place: Path
    version: int
    options: frozenset[str]

    def is_only_one(self) -> bool:
        """Whether programs use version 2, which is at `ROOT` then."""
        return (self.place, self.version) == (ROOT, 2)

    def controllers(self) -> set[str]:
        """The controllers that its cgroups can have."""
        if self.version == 1:
            return set(self.options)
        return set((self.place / "cgroup.controllers").read_text().split())

    def create(self, name: str) -> Path:
        """A new cgroup with the controllers of `ENABLED` that the hierarchy has.

        Version 2 gives a cgroup the controllers that its parent enables. They stay enabled, because other tests may
        use them.
        """
        if self.is_only_one():
            available = sorted(ENABLED & self.controllers())
            enable = " ".join(f"+{controller}" for controller in available)
            (self.place / "cgroup.subtree_control").write_text(enable)
        cgroup = self.place / name
        cgroup.mkdir()
        return cgroup


def hierarchies() -> list[Hierarchy]:
    """All mounted hierarchies, also one of version 2 that systemd mounts, which has no controllers."""
    versions = {"cgroup": 1, "cgroup2": 2}
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [
        Hierarchy(Path(place), versions[kind], frozenset(options.split(",")))
        for _, place, kind, options, *_ in mounts
        if kind in versions
    ]


def lacking() -> set[str]:
    """The controllers that containers need and that the machine does not have."""
    mounted = hierarchies()
    version = 2 if any(hierarchy.is_only_one() for hierarchy in mounted) else 1
    return WANTED.difference(
        *(hierarchy.controllers() for hierarchy in mounted if hierarchy.version == version)
    )


@contextlib.contextmanager
def created(about: str) -> Iterator[str]:
    """A new cgroup in every hierarchy. At the end it is removed with those below it that have no process.

    Its name is unique, because a killed test run leaves its cgroups behind.
    """
    name = f"nodewise-{about}-{secrets.token_hex(4)}"
    places = [hierarchy.create(name) for hierarchy in hierarchies()]
    try:
        yield f"/{name}"
    finally:
        for place in places:
            wait(f"{place} is empty", functools.partial(_removed, place))


def _removed(place: Path) -> bool | None:
    """Remove a cgroup and all below it, the innermost first; None while one of them is in use."""
    inside = sorted((path for path in place.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
    try:
        for path in (*inside, place):
            path.rmdir()
    except OSError:
        return None
    return True
