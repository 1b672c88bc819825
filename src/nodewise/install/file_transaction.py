"""Changes several files together: all of them or none, even if the process is killed, and never one partly.

Each file is written under a temporary name beside its path, synced to disk, and renamed. The last file of the list, the
manifest, is renamed last. Before that, a backup folder stores the previous content and the progress, so that the next
run after a power loss restores all files and starts again. The kubelet ignores the temporary names because they begin
with a dot.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, Conflict, NodewiseError
from nodewise.install import atomic_host_files, backups
from nodewise.install.atomic_host_files import FileChange, digest, fsync_folder, read_file
from nodewise.install.backups import Backup, BackupIndex

_LOCK_TIMEOUT_S: Final = 10.0
"""Timeout for another run to end."""


class RecoveredBackup(NamedTuple):
    """The result for a backup of an interrupted run."""

    folder: str
    outcome: Literal["undone", "left", "unreadable", "foreign"]
    """`left`: a file was modified since, so nothing is restored. `foreign`: the backup names files that this run does
    not manage."""


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
                    raise Conflict(
                        f"another run works on {folder}", remedy="wait until it has ended, and run it again"
                    ) from error
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def commit_changes(changes: Sequence[FileChange], backup: Backup | None = None) -> None:
    """Apply the changes in this order. On any failure nothing is changed.

    `Conflict` if a file differs from the content that the change was computed from, `NodewiseError` for an error of the
    system.
    """
    changes = [change for change in changes if not change.is_unchanged]
    for change in changes:
        trusted_files.check_folder(os.path.dirname(change.path))
        _check_file_unchanged(change)
    created_folders: list[str] = []
    applied: list[FileChange] = []
    staged: dict[str, str] = {}
    try:
        if backup is not None:
            backups.save_backup(changes, backup)
        for change in changes:
            _make_folder(os.path.dirname(change.path), created_folders)
            if change.after is not None:
                staged[change.path] = atomic_host_files.write_staged(
                    change.path, change.after, change.mode, change.owner
                )
        for change in changes:
            _check_file_unchanged(change)
            applied.append(change)
            _move_staged_file_in_place(staged, change)
        _verify_written_files(changes)
    except BaseException as error:
        _undo_applied_changes(applied, list(staged.values()), created_folders, backup)
        if isinstance(error, OSError):
            raise NodewiseError(f"nothing was changed: {error.strerror}: {error.filename}") from error
        raise
    if backup is not None:
        backups.mark_backup_finished(backup.path)


def restore_interrupted_runs(parent: str, managed: Collection[str]) -> list[RecoveredBackup]:
    """Restore the files that interrupted runs changed, if this run manages them.

    `BadInput` if users other than root can write to the folder.
    """
    trusted_files.check_folder(parent)
    for folder in backups.list_incomplete_backups(parent):
        shutil.rmtree(folder, ignore_errors=True)
    recovered = []
    for folder in backups.list_backups(parent):
        try:
            index = backups.read_backup_index(folder)
        except BadInput:
            recovered.append(RecoveredBackup(folder, "unreadable"))
            continue
        if index is None:
            continue
        atomic_host_files.remove_temporary_files([folder])
        if not index.finished and not {entry.path for entry in index.files} <= {*managed}:
            recovered.append(RecoveredBackup(folder, "foreign"))
        elif not index.finished:
            recovered += _restore_interrupted_run(folder, index)
            backups.mark_backup_finished(folder)
    return recovered


def _restore_interrupted_run(folder: str, index: BackupIndex) -> list[RecoveredBackup]:
    now = [digest(read_file(entry.path)) for entry in index.files]
    if all(actual == entry.after for actual, entry in zip(now, index.files, strict=True)):
        return []
    if any(actual not in {entry.before, entry.after} for actual, entry in zip(now, index.files, strict=True)):
        return [RecoveredBackup(folder, "left")]
    commit_changes([backups.plan_file_restore(folder, entry) for entry in index.files])
    return [RecoveredBackup(folder, "undone")]


def _check_file_unchanged(change: FileChange) -> None:
    if read_file(change.path) != change.before:
        raise Conflict(f"{change.path} was changed by another process", remedy="run the command again")


def _make_folder(path: str, created_folders: list[str]) -> None:
    """Create a folder with its parents, and append the created folders to the list."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        created_folders.append(folder)
        os.mkdir(folder, 0o700)
        os.chmod(folder, 0o755)  # noqa: S103 - as other folders of /etc, whatever the umask
        fsync_folder(os.path.dirname(folder))


def _move_staged_file_in_place(staged: dict[str, str], change: FileChange) -> None:
    if change.path in staged:
        os.rename(staged[change.path], change.path)
        del staged[change.path]
    else:
        os.unlink(change.path)
    fsync_folder(os.path.dirname(change.path))


def _verify_written_files(changes: Sequence[FileChange]) -> None:
    for change in changes:
        if read_file(change.path) != change.after:
            raise Conflict(
                f"{change.path} is not what was written",
                remedy="another program writes to it; run the command again",
            )


def _undo_applied_changes(
    applied: Sequence[FileChange],
    staged: Sequence[str],
    created_folders: Sequence[str],
    backup: Backup | None,
) -> None:
    """Restore all files except those that someone else changed since. What cannot be restored stays in the backup."""
    is_complete = True
    for change in reversed(applied):
        try:
            if read_file(change.path) == change.after:
                _restore_file(change)
        except (OSError, BadInput):
            is_complete = False
    for path in staged:
        with contextlib.suppress(OSError):
            os.unlink(path)
    for folder in sorted(created_folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    if is_complete and backup is not None:
        shutil.rmtree(backup.path, ignore_errors=True)
        for folder in backups.list_incomplete_backups(backup.parent):
            shutil.rmtree(folder, ignore_errors=True)


def _restore_file(change: FileChange) -> None:
    if change.before is None:
        Path(change.path).unlink(missing_ok=True)
    else:
        os.rename(
            atomic_host_files.write_staged(change.path, change.before, change.mode_before, change.owner),
            change.path,
        )
