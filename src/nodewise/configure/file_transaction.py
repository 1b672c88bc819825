"""Files changed together: all of them or none, whatever ends the process, and never one half written.

Each file is written under another name beside its place, forced to the disk, and renamed; the last of the list, the
manifest, is renamed last. Before that, a backup folder holds what was there and says how far it came, so that after a
loss of power the next run puts everything back and does it again. Names that begin with a dot are none that a kubelet
reads.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from nodewise import trusted_files
from nodewise.configure import backups, host_files
from nodewise.configure.backups import Backup, BackupIndex
from nodewise.configure.host_files import FileChange, digest, fsync_folder, read_file
from nodewise.errors import BadInput, Conflict, NodewiseError

_LOCK_TIMEOUT_S: Final = 10.0
"""For another run to end."""


class RecoveredBackup(NamedTuple):
    """What was created_folders of a backup whose run did not end."""

    folder: str
    outcome: Literal["undone", "left", "unreadable", "foreign"]
    """`left`: somebody has changed a file since, so that nobody knows what belongs together. `foreign`: it names files
    that this run does not manage.
    """


@contextlib.contextmanager
def lock_folder(folder: str) -> Iterator[None]:
    """Nobody else changes this folder's files by these means meanwhile. `Conflict` if somebody does for long."""
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
    """Make the changes, in this order; on any failure nothing is changed.

    `Conflict` where a file is not any more what it was when the change was computed, `NodewiseError` where the system
    refuses.
    """
    changes = [change for change in changes if not change.is_unchanged]
    for change in changes:
        trusted_files.check_folder(os.path.dirname(change.path))
        _check_unchanged(change)
    created_folders: list[str] = []
    applied: list[FileChange] = []
    staged: dict[str, str] = {}
    try:
        if backup is not None:
            backups.save_backup(changes, backup)
        for change in changes:
            _make_folder(os.path.dirname(change.path), created_folders)
            if change.after is not None:
                staged[change.path] = host_files.write_staged(
                    change.path, change.after, change.mode, change.owner
                )
        for change in changes:
            _check_unchanged(change)
            applied.append(change)
            _put_in_place(staged, change)
        _verify(changes)
    except BaseException as error:
        _undo(applied, list(staged.values()), created_folders, backup)
        if isinstance(error, OSError):
            raise NodewiseError(f"nothing was changed: {error.strerror}: {error.filename}") from error
        raise
    if backup is not None:
        backups.mark_finished(backup.path)


def recover_backups(parent: str, managed: Collection[str]) -> list[RecoveredBackup]:
    """Put back what an unfinished run changed of the files that this one manages.

    `BadInput` where others could have planted a backup.
    """
    trusted_files.check_folder(parent)
    for folder in backups.list_incomplete(parent):
        shutil.rmtree(folder, ignore_errors=True)
    recovered = []
    for folder in backups.list_backups(parent):
        try:
            index = backups.read_index(folder)
        except BadInput:
            recovered.append(RecoveredBackup(folder, "unreadable"))
            continue
        if index is None:
            continue
        host_files.remove_staged([folder])
        if not index.finished and not {entry.path for entry in index.files} <= {*managed}:
            recovered.append(RecoveredBackup(folder, "foreign"))
        elif not index.finished:
            recovered += _recover_backup(folder, index)
            backups.mark_finished(folder)
    return recovered


def _recover_backup(folder: str, index: BackupIndex) -> list[RecoveredBackup]:
    now = [digest(read_file(entry.path)) for entry in index.files]
    if all(seen == entry.after for seen, entry in zip(now, index.files, strict=True)):
        return []
    if any(seen not in {entry.before, entry.after} for seen, entry in zip(now, index.files, strict=True)):
        return [RecoveredBackup(folder, "left")]
    commit_changes([backups.restore_change(folder, entry) for entry in index.files])
    return [RecoveredBackup(folder, "undone")]


def _check_unchanged(change: FileChange) -> None:
    if read_file(change.path) != change.before:
        raise Conflict(f"{change.path} was changed by somebody else meanwhile", remedy="run it again")


def _make_folder(path: str, created_folders: list[str]) -> None:
    """Make a folder with its parents, and note those that were created_folders."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        created_folders.append(folder)
        os.mkdir(folder, 0o700)
        os.chmod(folder, 0o755)  # noqa: S103 - as other folders of /etc, whatever the umask
        fsync_folder(os.path.dirname(folder))


def _put_in_place(staged: dict[str, str], change: FileChange) -> None:
    if change.path in staged:
        os.rename(staged[change.path], change.path)
        del staged[change.path]
    else:
        os.unlink(change.path)
    fsync_folder(os.path.dirname(change.path))


def _verify(changes: Sequence[FileChange]) -> None:
    for change in changes:
        if read_file(change.path) != change.after:
            raise Conflict(
                f"{change.path} is not what was written", remedy="something else writes there; run it again"
            )


def _undo(
    applied: Sequence[FileChange],
    staged: Sequence[str],
    created_folders: Sequence[str],
    backup: Backup | None,
) -> None:
    """As it was, but for what somebody else has written since; what cannot be put back stays in the backup."""
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
        for folder in backups.list_incomplete(backup.parent):
            shutil.rmtree(folder, ignore_errors=True)


def _restore_file(change: FileChange) -> None:
    if change.before is None:
        Path(change.path).unlink(missing_ok=True)
    else:
        os.rename(
            host_files.write_staged(change.path, change.before, change.mode_before, change.owner), change.path
        )
