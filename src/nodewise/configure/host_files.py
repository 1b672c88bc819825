"""Files of a host: what is read of them, and how one is written so that nobody sees half of it."""

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nodewise import trusted_files
from nodewise.errors import BadInput, Problem

PERMISSIONS: Final = 0o777
"""All of a mode that is ever written: never setuid, setgid or the sticky bit, whatever was there or is in a backup."""
STAGED_PREFIX: Final = ".nodewise-"
"""What our names begin with that are not for others; a kubelet reads none that begins with a dot."""
_MAX_BYTES: Final = 2**24
_PRESERVED_ATTRIBUTES: Final = ("user.", "security.selinux", "system.posix_acl_access")
"""Extended attributes that belong to a place, and not to the content as a signature does."""


class FileChange(NamedTuple):
    """A file, by its real path, before and after; None: not there."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int
    owner: tuple[int, int] | None = None
    """User and group; None: whoever runs this."""
    old_mode: int | None = None
    """None: as `mode`."""

    @property
    def is_unchanged(self) -> bool:
        return self.before == self.after and self.old_mode in (None, self.mode)

    @property
    def mode_before(self) -> int:
        return self.mode if self.old_mode is None else self.old_mode


def read_file(path: str, *, is_trusted: bool = True) -> bytes | None:
    """A regular file's bytes; None where there is none. `BadInput` for anything else, OSError as the system says.

    `BadInput` also for a file that others than root may write to or replace, unless `is_trusted` is False: then its
    content may only ever be a reason to refuse something.
    """
    try:
        real = trusted_files.resolve(path) if is_trusted else path
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | (os.O_NOFOLLOW if is_trusted else 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = trusted_files.check_open(descriptor, real) if is_trusted else os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(path, [Problem("file", "no regular file", "one")])
        if status.st_size > _MAX_BYTES:
            raise BadInput(path, [Problem("file", f"{status.st_size} bytes", f"at most {_MAX_BYTES}")])
        return file.read(_MAX_BYTES + 1)


def digest(data: bytes | None) -> str | None:
    return hashlib.sha256(data).hexdigest() if data is not None else None


def replace_change(path: str, after: bytes | None) -> FileChange:
    """With the mode and owner that the file has."""
    try:
        now = os.stat(path)
        return FileChange(path, read_file(path), after, stat.S_IMODE(now.st_mode), (now.st_uid, now.st_gid))
    except FileNotFoundError:
        return FileChange(path, None, after, 0o600)


def write_staged(path: str, data: bytes, mode: int, owner: tuple[int, int] | None) -> str:
    """A new file beside a place, whole and on the disk, with what the file in that place carries besides; its name."""
    name = os.path.join(os.path.dirname(path), f"{STAGED_PREFIX}{secrets.token_hex(6)}")
    write(name, data, mode, owner, like=path)
    return name


def write(path: str, data: bytes, mode: int, owner: tuple[int, int] | None, *, like: str = "") -> None:
    """A file that was not there, or none."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if owner is not None and owner != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, *owner)
        os.fchmod(descriptor, mode & PERMISSIONS)
        for name, value in _preserved_attributes(like):
            os.setxattr(descriptor, name, value)
        os.fsync(descriptor)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def remove_staged(folders: Sequence[str]) -> None:
    """Remove files that a run which was ended left beside their places."""
    for folder in folders:
        with (
            contextlib.suppress(OSError, BadInput),
            os.scandir(trusted_files.check_folder(folder)) as entries,
        ):
            for entry in entries:
                if entry.name.startswith(STAGED_PREFIX) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)


def _preserved_attributes(path: str) -> list[tuple[str, bytes]]:
    """What is kept of a file's extended attributes; none where there is no such file, or no such thing."""
    try:
        names = os.listxattr(path) if path else []
        return [(name, os.getxattr(path, name)) for name in names if name.startswith(_PRESERVED_ATTRIBUTES)]
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENOTSUP, errno.ENODATA}:
            return []
        raise


def fsync_folder(folder: str | Path) -> None:
    """Force a folder's names to the disk: only then a rename or a removal survives a loss of power. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
