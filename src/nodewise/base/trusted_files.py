"""Checks that only root can write or replace a file, before root reads, writes or executes it.

This module uses only the standard library.

A path is trusted if every folder from `/` down, every symbolic link on the way and the file itself belong to root (or
to the effective user, for a run without root on files of one's own) and nobody else may write to them. A folder with
the sticky bit, such as `/tmp`, is trusted on the way to an entry that is trusted itself, because only the owner of an
entry may replace it there; it is never trusted as the folder in which files are created or listed.

Paths are checked from the top. Once a folder is known to be closed to others, none of them can exchange its entries
afterwards, so what was checked is what is opened; files are checked once more by their descriptor
(`check_open_file_trust`).
"""

import os
import stat
from collections import deque
from typing import Final

from nodewise.base.errors import BadInput, Problem

_MOST_LINKS: Final = 40  # as many as the kernel follows
_ROOT: Final = 0


class Untrusted(BadInput):
    """A file or folder that users other than root can write to."""


def resolve(path: str | os.PathLike[str]) -> str:
    """The path without symbolic links; it need not exist. Untrusted if another user can change its target."""
    return _resolve_trusted(os.fspath(path), is_folder=False)


def check_folder(path: str | os.PathLike[str]) -> str:
    """The same for a folder in which files are created or listed: other users must not be able to create files in it.
    It need not exist.
    """
    return _resolve_trusted(os.fspath(path), is_folder=True)


def check_open_file_trust(descriptor: int, path: str | os.PathLike[str]) -> os.stat_result:
    """The status of an open file or folder. Untrusted if another user owns it or may write to it."""
    status = os.fstat(descriptor)
    _check_owner_and_mode(os.fspath(path), status)
    return status


def check_folder_entry_trust(path: str | os.PathLike[str]) -> os.stat_result:
    """The status of an entry of a folder that was checked. Untrusted as above, OSError if it is not there."""
    status = os.lstat(path)
    _check_owner_and_mode(os.fspath(path), status)
    return status


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a regular file in a folder that was checked. Untrusted as above, OSError if it is not there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        check_open_file_trust(descriptor, path)
        return file.read()


def check_folder_tree_trust(path: str | os.PathLike[str]) -> None:
    """Untrusted unless a folder and all of its content are trusted. Links are checked themselves, not their targets."""
    check_folder(path)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            check_folder_entry_trust(os.path.join(folder, name))


def _resolve_trusted(path: str, *, is_folder: bool) -> str:
    """The path without symbolic links; the part that does not exist stays as it is."""
    todo = deque(os.path.join(os.getcwd(), path).split(os.sep)[1:])
    current = os.sep
    links = 0
    _check_owner_and_mode(current, os.lstat(current), is_sticky_enough=any(todo))
    while todo:
        name = todo.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            current = os.path.dirname(current)
            continue
        place = os.path.join(current, name)
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return os.path.normpath(os.path.join(place, *todo))
        if stat.S_ISLNK(status.st_mode):
            _check_owner_and_mode(place, status)
            links += 1
            if links > _MOST_LINKS:
                raise Untrusted(
                    "cannot trust a path", [Problem(place, f"more than {_MOST_LINKS} links", "fewer")]
                )
            target = os.readlink(place)
            todo.extendleft(reversed(target.split(os.sep)))
            current = os.sep if os.path.isabs(target) else current
            continue
        is_last = not any(part not in ("", ".") for part in todo)
        _check_owner_and_mode(place, status, is_sticky_enough=not (is_last and is_folder))
        current = place
    return current


def _check_owner_and_mode(path: str, status: os.stat_result, *, is_sticky_enough: bool = False) -> None:
    """Untrusted unless root or the effective user owns it and no other user may write to it."""
    user = os.geteuid()
    mode = stat.S_IMODE(status.st_mode)
    is_folder = stat.S_ISDIR(status.st_mode)
    is_own_group = user != _ROOT and status.st_gid == os.getegid()
    writers = mode & (stat.S_IWOTH if is_own_group else stat.S_IWOTH | stat.S_IWGRP)
    is_closed = (
        not writers
        or not (is_folder or stat.S_ISREG(status.st_mode))  # the mode of a socket says who may connect
        or (is_folder and is_sticky_enough and bool(mode & stat.S_ISVTX))
    )
    if status.st_uid in (_ROOT, user) and is_closed:
        return
    owners = "root" if user == _ROOT else f"root or user {user}"
    problem = Problem(
        path, f"owner {status.st_uid}, mode {mode:04o}", f"owner {owners}, writable by no one else"
    )
    raise Untrusted(
        "cannot trust a path",
        [problem],
        remedy=f"chown root {path} && chmod go-w {path} after a look at what is there, or use another path",
    )
