"""Reads and writes files of a host. A reader never sees a partly written file."""

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, Problem

PERMISSIONS: Final = 0o777
"""The permission bits that are written, whatever a file or backup has: no setuid, setgid or sticky bit."""
STAGED_PREFIX: Final = ".nodewise-"
"""Prefix of temporary names. The kubelet ignores names that begin with a dot."""
_MAX_BYTES: Final = 2**24
_PRESERVED_ATTRIBUTES: Final = ("user.", "security.selinux", "system.posix_acl_access")
"""Extended attributes that belong to the path, unlike a signature, which belongs to the content."""


class FileChange(NamedTuple):
    """A file, by its real path, before and after a change; None: the file does not exist."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int
    owner: tuple[int, int] | None = None
    """User and group; None: those of the process."""
    old_mode: int | None = None
    """The mode before the change; None: `mode`."""

    @property
    def is_unchanged(self) -> bool:
        return self.before == self.after and self.old_mode in (None, self.mode)

    @property
    def mode_before(self) -> int:
        return self.mode if self.old_mode is None else self.old_mode


def read_file(path: str, *, is_trusted: bool = True) -> bytes | None:
    """The content of a regular file; None if it does not exist. `BadInput` for other kinds of files, OSError from the
    system.

    `BadInput` also for a file that users other than root can write or replace, unless `is_trusted` is False. Untrusted
    content may only be used to refuse a run.
    """
    try:
        real = trusted_files.resolve(path) if is_trusted else path
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | (os.O_NOFOLLOW if is_trusted else 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    with os.fdopen(descriptor, "rb") as file:
        status = trusted_files.check_open_file_trust(descriptor, real) if is_trusted else os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(path, [Problem("file", "no regular file", "one")])
        if status.st_size > _MAX_BYTES:
            raise BadInput(path, [Problem("file", f"{status.st_size} bytes", f"at most {_MAX_BYTES}")])
        return file.read(_MAX_BYTES + 1)


def digest(data: bytes | None) -> str | None:
    return hashlib.sha256(data).hexdigest() if data is not None else None


def plan_file_change(path: str, after: bytes | None, mode: int = 0o600) -> FileChange:
    """A change that keeps the mode and owner of the file; a new file gets `mode`."""
    before = read_file(path)
    if before is None:
        return FileChange(path, None, after, mode)
    status = os.stat(path)
    return FileChange(path, before, after, stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))


def write_staged(path: str, data: bytes, mode: int, owner: tuple[int, int] | None) -> str:
    """Write a complete, synced temporary file beside a path, with the extended attributes of the file there. Returns
    its path.
    """
    name = os.path.join(os.path.dirname(path), f"{STAGED_PREFIX}{secrets.token_hex(6)}")
    write(name, data, mode, owner, like=path)
    return name


def write(path: str, data: bytes, mode: int, owner: tuple[int, int] | None, *, like: str = "") -> None:
    """Create a file with this content and sync it. On failure no file remains. OSError if the path exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if owner is not None and owner != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, *owner)
        os.fchmod(descriptor, mode & PERMISSIONS)
        for name, value in _read_extended_attributes(like):
            os.setxattr(descriptor, name, value)
        os.fsync(descriptor)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def remove_temporary_files(folders: Sequence[str]) -> None:
    """Remove the temporary files that an interrupted run left in these folders."""
    for folder in folders:
        with (
            contextlib.suppress(OSError, BadInput),
            os.scandir(trusted_files.check_folder(folder)) as entries,
        ):
            for entry in entries:
                if entry.name.startswith(STAGED_PREFIX) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)


def _read_extended_attributes(path: str) -> list[tuple[str, bytes]]:
    """Names and values of the preserved extended attributes; empty without such a file or without support for
    attributes.
    """
    try:
        names = os.listxattr(path) if path else []
        return [(name, os.getxattr(path, name)) for name in names if name.startswith(_PRESERVED_ATTRIBUTES)]
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENOTSUP, errno.ENODATA}:
            return []
        raise


def fsync_folder(folder: str | Path) -> None:
    """Sync the entries of a folder: only then a rename or removal survives a power loss. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
