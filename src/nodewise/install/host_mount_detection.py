"""Distinguishes folders that a container mounts from the host from its own, which are lost when it ends.

Paths are written to the manifest as the container sees them, so the host must have its folders at the same paths.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from nodewise.base.errors import Problem

_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class MountPoint(NamedTuple):
    """A line of /proc/self/mountinfo: the mount point in the container, and the mounted folder of the file system."""

    point: str
    root: str


def parse_mountinfo(text: str) -> list[MountPoint]:
    """The mounts of /proc/self/mountinfo (proc(5)) in order; later mounts cover earlier ones.

    Paths may contain characters at which `str.splitlines` splits; the kernel escapes only spaces, tabs, `\\n` and `\\`.
    """
    rows = (line.split(" ") for line in text.split("\n"))
    return [
        MountPoint(_unescape_mountinfo_field(row[4]), _unescape_mountinfo_field(row[3]))
        for row in rows
        if len(row) > 4  # noqa: PLR2004 - the fields up to the mount point
    ]


def _unescape_mountinfo_field(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def container_folder_problems(folders: Mapping[str, str], mounts: Iterable[MountPoint]) -> list[Problem]:
    """A problem for each folder, by flag, that is not mounted from the host. The folders are real paths."""
    there = list(mounts)
    expected = "a folder that is mounted from the host, at the path that it has there"
    return [
        Problem(flag, f"{folder} is not the host's: it is in no mount of this container", expected)
        for flag, folder in folders.items()
        if _find_mount_of_folder(folder, there).point == "/"
    ]


def mounts_with_uncertain_host_path(folders: Iterable[str], mounts: Iterable[MountPoint]) -> list[MountPoint]:
    """The mounts of these folders whose path on the host may differ from the path in the container."""
    there = list(mounts)
    containing = dict.fromkeys(_find_mount_of_folder(folder, there) for folder in folders)
    return [mount for mount in containing if mount.point != "/" and not mount.root.endswith(mount.point)]


def _find_mount_of_folder(folder: str, mounts: Iterable[MountPoint]) -> MountPoint:
    """The mount that contains a folder."""
    best = MountPoint("/", "/")
    for mount in mounts:
        inside = posixpath.commonpath([mount.point, folder]) == mount.point
        if inside and len(mount.point) >= len(best.point):
            best = mount
    return best
