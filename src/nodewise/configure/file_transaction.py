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
from nodewise.configure.backups import Backup, Index
from nodewise.configure.host_files import Change, digest, fsync_folder, read_file
from nodewise.errors import BadInput, Conflict, NodewiseError

_WAIT_S: Final = 10.0
"""For another run to end."""


class RecoveredBackup(NamedTuple):
    """What was made of a backup whose run did not end."""

    folder: str
    what: Literal["undone", "left", "unreadable", "foreign"]
    """`left`: somebody has changed a file since, so that nobody knows what belongs together. `foreign`: it names files
    that this run does not manage.
    """


@contextlib.contextmanager
def lock_folder(folder: str) -> Iterator[None]:
    """Nobody else changes this folder's files by these means meanwhile. `Conflict` if somebody does for long."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + _WAIT_S
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


def commit(changes: Sequence[Change], backup: Backup | None = None) -> None:
    """Make the changes, in this order; on any failure nothing is changed.

    `Conflict` where a file is not any more what it was when the change was computed, `NodewiseError` where the system
    refuses.
    """
    changes = [change for change in changes if not change.is_none]
    for change in changes:
        trusted_files.check_folder(os.path.dirname(change.path))
        _check_unchanged(change)
    made: list[str] = []
    done: list[Change] = []
    staged: dict[str, str] = {}
    try:
        if backup is not None:
            backups.save(changes, backup)
        for change in changes:
            _make_folder(os.path.dirname(change.path), made)
            if change.after is not None:
                staged[change.path] = host_files.write_staged(
                    change.path, change.after, change.mode, change.owner
                )
        for change in changes:
            _check_unchanged(change)
            done.append(change)
            _place(staged, change)
        _verify(changes)
    except BaseException as error:
        _undo(done, list(staged.values()), made, backup)
        if isinstance(error, OSError):
            raise NodewiseError(f"nothing was changed: {error.strerror}: {error.filename}") from error
        raise
    if backup is not None:
        backups.mark_finished(backup.path)


def recover(parent: str, managed: Collection[str]) -> list[RecoveredBackup]:
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
            recovered += _recovered(folder, index)
            backups.mark_finished(folder)
    return recovered


def _recovered(folder: str, index: Index) -> list[RecoveredBackup]:
    now = [digest(read_file(entry.path)) for entry in index.files]
    if all(seen == entry.after for seen, entry in zip(now, index.files, strict=True)):
        return []
    if any(seen not in {entry.before, entry.after} for seen, entry in zip(now, index.files, strict=True)):
        return [RecoveredBackup(folder, "left")]
    commit([backups.restore_change(folder, entry) for entry in index.files])
    return [RecoveredBackup(folder, "undone")]


def _check_unchanged(change: Change) -> None:
    if read_file(change.path) != change.before:
        raise Conflict(f"{change.path} was changed by somebody else meanwhile", remedy="run it again")


def _make_folder(path: str, made: list[str]) -> None:
    """Make a folder with its parents, and note those that were made."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        made.append(folder)
        os.mkdir(folder, 0o700)
        os.chmod(folder, 0o755)  # noqa: S103 - as other folders of /etc, whatever the umask
        fsync_folder(os.path.dirname(folder))


def _place(staged: dict[str, str], change: Change) -> None:
    if change.path in staged:
        os.rename(staged[change.path], change.path)
        del staged[change.path]
    else:
        os.unlink(change.path)
    fsync_folder(os.path.dirname(change.path))


def _verify(changes: Sequence[Change]) -> None:
    for change in changes:
        if read_file(change.path) != change.after:
            raise Conflict(
                f"{change.path} is not what was written", remedy="something else writes there; run it again"
            )


def _undo(done: Sequence[Change], staged: Sequence[str], made: Sequence[str], backup: Backup | None) -> None:
    """As it was, but for what somebody else has written since; what cannot be put back stays in the backup."""
    whole = True
    for change in reversed(done):
        try:
            if read_file(change.path) == change.after:
                _put_back(change)
        except (OSError, BadInput):
            whole = False
    for path in staged:
        with contextlib.suppress(OSError):
            os.unlink(path)
    for folder in sorted(made, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    if whole and backup is not None:
        shutil.rmtree(backup.path, ignore_errors=True)
        for folder in backups.list_incomplete(backup.parent):
            shutil.rmtree(folder, ignore_errors=True)


def _put_back(change: Change) -> None:
    if change.before is None:
        Path(change.path).unlink(missing_ok=True)
    else:
        os.rename(
            host_files.write_staged(change.path, change.before, change.mode_before, change.owner), change.path
        )
