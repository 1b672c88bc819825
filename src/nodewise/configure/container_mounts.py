"""Which folders of a container are the host's: what is written to another is gone when the container ends.

Paths are written into the manifest as they are here, so the host has to have its folders at the same ones.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from nodewise.errors import Problem

_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class MountPoint(NamedTuple):
    """A line of /proc/self/mountinfo: where it is here, and which folder of its file system that is."""

    point: str
    root: str


def parse_mountinfo(text: str) -> list[MountPoint]:
    """The mounts of proc(5)'s mountinfo; later ones lie over earlier ones.

    Paths may contain whatever `str.splitlines` splits at; the kernel escapes spaces, tabs, `\\n` and `\\` only.
    """
    rows = (line.split(" ") for line in text.split("\n"))
    return [MountPoint(_unescape(row[4]), _unescape(row[3])) for row in rows if len(row) > 4]  # noqa: PLR2004


def _unescape(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def container_folder_problems(folders: Mapping[str, str], mounts: Iterable[MountPoint]) -> list[Problem]:
    """Those folders, by the flags that name them, that are the container's own. They are without links."""
    there = list(mounts)
    wanted = "a folder that is mounted from the host, at the path that it has there"
    return [
        Problem(flag, f"{folder} is not the host's: it is in no mount of this container", wanted)
        for flag, folder in folders.items()
        if _mount_of(folder, there).point == "/"
    ]


def uncertain_mounts(folders: Iterable[str], mounts: Iterable[MountPoint]) -> list[MountPoint]:
    """The mounts of these folders of which it cannot be seen that the host has them at the same path."""
    there = list(mounts)
    containing = dict.fromkeys(_mount_of(folder, there) for folder in folders)
    return [mount for mount in containing if mount.point != "/" and not mount.root.endswith(mount.point)]


def _mount_of(folder: str, mounts: Iterable[MountPoint]) -> MountPoint:
    """The mount that a folder is in."""
    best = MountPoint("/", "/")
    for mount in mounts:
        inside = posixpath.commonpath([mount.point, folder]) == mount.point
        if inside and len(mount.point) >= len(best.point):
            best = mount
    return best
