"""Part of the machine's cgroups (version 1) for a test, and its removal."""

import contextlib
import functools
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.cluster.namespace_sandboxes import wait

WANTED = {"cpu", "cpuset", "memory", "pids"}


class Hierarchy(NamedTuple):
    """The mount point of a hierarchy and its mount options, which include the controllers of version 1."""

    place: Path
    version: int
    options: frozenset[str]


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
    """The controllers that containers need and that are not mounted as version 1."""
    return WANTED.difference(*(hierarchy.options for hierarchy in hierarchies() if hierarchy.version == 1))


@contextlib.contextmanager
def created(about: str) -> Iterator[str]:
    """A new cgroup in every hierarchy. At the end it is removed with those below it that have no process.

    Its name is unique, because a killed test run leaves its cgroups behind.
    """
    name = f"nodewise-{about}-{secrets.token_hex(4)}"
    places = [hierarchy.place / name for hierarchy in hierarchies()]
    for place in places:
        place.mkdir()
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
