"""Changes several files of a host together: all of them or none, even if the process is killed, and never one partly.

A run first stores the content of the files in a backup folder, with an index of their paths and the progress.

Each file is written under a temporary name beside its path, synced to disk, and renamed. The last file of the list, the
manifest, is renamed last. Before that, a backup folder stores the previous content and the progress, so that the next
run after a power loss restores all files and starts again. The kubelet ignores the temporary names because they begin
with a dot.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, Conflict, NodewiseError, Problem

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
    old_owner: tuple[int, int] | None = None
    """The owner before the change; None: `owner`."""

    @property
    def is_unchanged(self) -> bool:
        is_same_file = self.old_mode in (None, self.mode) and self.old_owner in (None, self.owner)
        return self.before == self.after and is_same_file

    @property
    def mode_before(self) -> int:
        return self.mode if self.old_mode is None else self.old_mode

    @property
    def owner_before(self) -> tuple[int, int] | None:
        return self.old_owner or self.owner


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
            raise BadInput(path, [Problem("file", "no regular file", "a regular file")])
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
    """Create a file with this content and sync it. On failure no file remains. OSError if the path exists.

    `like`: a file whose preserved extended attributes the new file gets.
    """
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


def _preserved_attributes(path: str) -> list[tuple[str, bytes]]:
    """Names and values; empty without such a file or without support for attributes."""
    try:
        names = os.listxattr(path) if path else []
        return [(name, os.getxattr(path, name)) for name in names if name.startswith(_PRESERVED_ATTRIBUTES)]
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENOTSUP, errno.ENODATA}:
            return []
        raise


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


def fsync_folder(folder: str | Path) -> None:
    """Sync the entries of a folder: only then a rename or removal survives a power loss. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


RecoveryOutcome = Literal["undone", "left", "unreadable", "foreign"]
"""`left`: a file was modified since, so nothing is restored. `foreign`: the backup names files that this run does not
manage."""
INDEX: Final = "nodewise-backup.json"
_PREFIX: Final = "backup_"
_PRIVATE: Final = 0o700


class Backup(NamedTuple):
    parent: str
    name: str
    manifest: str = ""
    """The manifest that the run changed; empty if unknown."""
    cluster: str = ""
    """A digest that identifies the cluster; empty if unknown."""

    @property
    def path(self) -> str:
        return os.path.join(self.parent, self.name)


class SavedFile(msgspec.Struct, frozen=True):
    """A file of a backup."""

    path: str
    name: str | None
    """The name of the copy in the backup folder; None: the file did not exist."""
    mode: int
    owner: tuple[int, int] | None
    before: str | None
    """The digest of the copy; None: the file did not exist."""
    after: str | None
    """The digest of the content after the run; None: the run removed the file."""


class BackupIndex(msgspec.Struct, frozen=True):
    """The index of a backup, stored as JSON in the backup folder."""

    finished: bool
    files: tuple[SavedFile, ...]
    host: str = ""
    manifest: str = ""
    cluster: str = ""


def new_backup_name() -> str:
    return f"{_PREFIX}{time.strftime('%Y-%m-%d')}_{secrets.randbelow(10**10):010}"


def save_backup(changes: Sequence[FileChange], backup: Backup) -> BackupIndex:
    """Copy the current files into a new backup folder. The folder gets its final name only when it is complete."""
    folder = os.path.join(backup.parent, f"{STAGED_PREFIX}{secrets.token_hex(6)}")
    os.mkdir(folder, _PRIVATE)
    names: set[str] = set()
    entries = []
    for change in changes:
        name = None
        if change.before is not None:
            name = os.path.basename(change.path)
            name = name if name not in names | {INDEX} else f"{len(names)}-{name}"
            names.add(name)
            write(os.path.join(folder, name), change.before, change.mode_before, change.owner_before)
        digests = digest(change.before), digest(change.after)
        mode = change.mode_before & PERMISSIONS
        entries.append(SavedFile(change.path, name, mode, change.owner_before, *digests))
    index = BackupIndex(False, tuple(entries), os.uname().nodename, backup.manifest, backup.cluster)
    write(os.path.join(folder, INDEX), _encode_index(index), 0o600, None)
    fsync_folder(folder)
    os.rename(folder, backup.path)
    fsync_folder(backup.parent)
    return index


def mark_backup_finished(folder: str, index: BackupIndex) -> None:
    """Mark the run of a backup as finished."""
    path = os.path.join(folder, INDEX)
    data = _encode_index(msgspec.structs.replace(index, finished=True))
    os.rename(write_staged(path, data, 0o600, None), path)
    fsync_folder(folder)


def read_backup_index(folder: str) -> BackupIndex | None:
    """The index of a backup; None for a folder without one, as the older configurator left it.

    `BadInput` for an invalid index, and if users other than root could have written it: an index decides which files
    root writes.
    """
    trusted_files.check_folder(folder)
    data = read_file(os.path.join(folder, INDEX))
    if data is None:
        return None
    try:
        index = msgspec.json.decode(data, type=BackupIndex)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _backup_index_error(folder, str(error)) from error
    for file in index.files:
        if not os.path.isabs(file.path) or os.path.normpath(file.path) != file.path:
            raise _backup_index_error(folder, f"the path {file.path!r}")
        if file.owner is not None and file.owner[0] not in (0, os.geteuid()):
            raise _backup_index_error(folder, f"the owner {file.owner[0]} of {file.path!r}")
        if file.name is not None and (
            os.path.basename(file.name) != file.name or file.name in {"", ".", ".."}
        ):
            raise _backup_index_error(folder, f"the name {file.name!r}")
    return index


def _backup_index_error(folder: str, actual: str) -> BadInput:
    remedy = "move the folder elsewhere, or name another backup"
    return BadInput(folder, [Problem(INDEX, actual, "as it was written")], remedy=remedy)


def list_backups(parent: str, prefix: str = _PREFIX) -> list[str]:
    """All backup folders, sorted by name; with the prefix of temporary names those that were not completed."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        return sorted(
            entry.path
            for entry in entries
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)
        )
    return []


def newest_backup(parent: str, names: Sequence[str]) -> str | None:
    """The newest folder with a finished backup, or with one of these file names for a backup of the older configurator;
    None if there is none.
    """

    def is_usable(folder: str) -> bool:
        try:
            index = read_backup_index(folder)
        except BadInput:
            return False
        return index.finished if index else any(os.path.isfile(os.path.join(folder, n)) for n in names)

    return max(
        filter(is_usable, list_backups(parent)), key=lambda folder: os.stat(folder).st_mtime_ns, default=None
    )


def plan_backup_restore(folder: str, places: Sequence[str]) -> list[FileChange]:
    """The changes that restore a backup. `places` are the original paths of the files in a backup without an index."""
    index = read_backup_index(folder)
    if index is None:
        copies = [(place, os.path.join(folder, os.path.basename(place))) for place in places]
        existing = [(place, name) for place, name in copies if os.path.isfile(name)]
        if not existing:
            raise BadInput(
                f"{folder} is no backup", [Problem("--restore", "nothing in it", "a backup folder")]
            )
        return [plan_file_change(place, read_file(name)) for place, name in existing]
    return [plan_file_restore(folder, entry) for entry in index.files]


def read_original_content(folder: str, path: str) -> bytes:
    """The content of a file before the run of a backup. `BadInput` if the backup does not have it."""
    for change in plan_backup_restore(folder, [path]):
        if change.path == path and change.after is not None:
            return change.after
    raise BadInput(folder, [Problem("backup", f"no {path} in it", "the original file")])


def plan_file_restore(folder: str, entry: SavedFile) -> FileChange:
    """The change that restores one file of a backup. `BadInput` if the copy was modified."""
    data = read_file(os.path.join(folder, entry.name)) if entry.name is not None else None
    if digest(data) != entry.before:
        raise BadInput(folder, [Problem(str(entry.name), "not as it was saved", "the backup as it was made")])
    return FileChange(entry.path, read_file(entry.path), data, entry.mode & PERMISSIONS, entry.owner)


def _encode_index(index: BackupIndex) -> bytes:
    return msgspec.json.format(msgspec.json.encode(index), indent=1)


_LOCK_TIMEOUT_S: Final = 10.0  # timeout for another run to end


@contextlib.contextmanager
def lock_folder(folder: str) -> Iterator[None]:
    """Hold an exclusive lock on the folder. `Conflict` if another run holds it for longer than the timeout."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > end:
                    remedy = "wait until it has ended, and run it again"
                    raise Conflict(f"another run works on {folder}", remedy=remedy) from error
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def commit_changes(
    changes: Sequence[FileChange], backup: Backup | None = None
) -> None:  # complexity: stages, moves and reverts together
    """Apply the changes in this order. On any failure nothing is changed.

    `Conflict` if a file differs from the content that the change was computed from, `NodewiseError` for an error of the
    system.
    """
    changes = [change for change in changes if not change.is_unchanged]
    for change in changes:
        trusted_files.check_folder(os.path.dirname(change.path))
        _check_file_unchanged(change)
    index = None
    created_folders: list[str] = []
    staged: dict[str, str] = {}
    applied: list[FileChange] = []
    try:
        if backup is not None:
            index = save_backup(changes, backup)
        for change in changes:
            _make_folder(os.path.dirname(change.path), created_folders)
            if change.after is not None:
                staged[change.path] = write_staged(change.path, change.after, change.mode, change.owner)
        for change in changes:
            _check_file_unchanged(change)
            applied.append(change)
            _move_in_place(staged.get(change.path), change.path)
        _check_files_written(changes)
    except BaseException as error:
        if _revert_changes(applied, [*staged.values()], created_folders) and backup is not None:
            for folder in (backup.path, *list_backups(backup.parent, STAGED_PREFIX)):
                shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise NodewiseError(f"nothing was changed: {error.strerror}: {error.filename}") from error
        raise
    if backup is not None and index is not None:
        mark_backup_finished(backup.path, index)


def restore_interrupted_runs(parent: str, managed: Collection[str]) -> Iterator[tuple[RecoveryOutcome, str]]:
    """Restore the files that interrupted runs changed, if this run manages them. Yields the outcome and the folder of
    each backup that needs a message.

    `BadInput` if users other than root can write to the folder.
    """
    trusted_files.check_folder(parent)
    for folder in list_backups(parent, STAGED_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in list_backups(parent):
        try:
            index = read_backup_index(folder)
        except BadInput:
            yield "unreadable", folder
            continue
        if index is None:
            continue
        remove_temporary_files([folder])
        if index.finished:
            continue
        if not {entry.path for entry in index.files} <= {*managed}:
            yield "foreign", folder
            continue
        outcome = _restore_interrupted_run(folder, index)
        mark_backup_finished(folder, index)
        if outcome is not None:
            yield outcome, folder


def _restore_interrupted_run(folder: str, index: BackupIndex) -> RecoveryOutcome | None:
    """Restore all files of an interrupted run; None if it had changed all of them."""
    digests = [(digest(read_file(entry.path)), entry) for entry in index.files]
    if all(actual == entry.after for actual, entry in digests):
        return None
    if any(actual not in (entry.before, entry.after) for actual, entry in digests):
        return "left"
    commit_changes([plan_file_restore(folder, entry) for entry in index.files])
    return "undone"


def _check_file_unchanged(change: FileChange) -> None:
    if read_file(change.path) != change.before:
        raise Conflict(f"{change.path} was changed by another process", remedy="run the command again")


def _check_files_written(changes: Sequence[FileChange]) -> None:
    for change in changes:
        if read_file(change.path) != change.after:
            remedy = "another program writes to it; run the command again"
            raise Conflict(f"{change.path} is not what was written", remedy=remedy)


def _make_folder(path: str, created_folders: list[str]) -> None:
    """Create a folder with its parents, and append the created folders to the list."""
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        _make_folder(parent, created_folders)
        created_folders.append(path)
        os.mkdir(path, 0o700)
        os.chmod(path, 0o755)  # noqa: S103 - as other folders of /etc, whatever the umask
        fsync_folder(parent)


def _move_in_place(staged: str | None, path: str) -> None:
    if staged is None:
        os.unlink(path)
    else:
        os.rename(staged, path)
    fsync_folder(os.path.dirname(path))


def _revert_changes(
    applied: Sequence[FileChange], staged: Sequence[str], created_folders: Sequence[str]
) -> bool:
    """Restore all files except those that someone else changed since, and remove staged files and created folders.

    Returns whether all could be restored: otherwise the content stays in the backup.
    """
    is_complete = True
    for change in reversed(applied):
        try:
            if read_file(change.path) != change.after:
                continue
            if change.before is None:
                Path(change.path).unlink(missing_ok=True)
            else:
                data = change.before, change.mode_before, change.owner_before
                os.rename(write_staged(change.path, *data), change.path)
        except (OSError, BadInput):
            is_complete = False
    for remove, paths in ((os.unlink, staged), (os.rmdir, created_folders[::-1])):
        for path in paths:
            with contextlib.suppress(OSError):
                remove(path)
    return is_complete
