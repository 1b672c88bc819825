"""Backups of the files that a run changes: one folder per run, with an index of the original paths and the progress."""

import contextlib
import os
import secrets
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, Problem
from nodewise.install import file_transaction
from nodewise.install.file_transaction import (
    PERMISSIONS,
    STAGED_PREFIX,
    FileChange,
    digest,
    fsync_folder,
    read_file,
)

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


def save_backup(changes: Sequence[FileChange], backup: Backup) -> None:
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
            file_transaction.write(
                os.path.join(folder, name), change.before, change.mode_before, change.owner
            )
        digests = digest(change.before), digest(change.after)
        mode = change.mode_before & PERMISSIONS
        entries.append(SavedFile(change.path, name, mode, change.owner, *digests))
    index = BackupIndex(False, tuple(entries), os.uname().nodename, backup.manifest, backup.cluster)
    file_transaction.write(os.path.join(folder, INDEX), _encode_index(index), 0o600, None)
    fsync_folder(folder)
    os.rename(folder, backup.path)
    fsync_folder(backup.parent)


def mark_backup_finished(folder: str) -> None:
    """Mark the run of a backup as finished."""
    index = read_backup_index(folder)
    if index is not None:
        path = os.path.join(folder, INDEX)
        data = _encode_index(msgspec.structs.replace(index, finished=True))
        os.rename(file_transaction.write_staged(path, data, 0o600, None), path)
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


def list_backups(parent: str) -> list[str]:
    """All backup folders, sorted by name."""
    return sorted(_list_folders(parent, _PREFIX))


def list_incomplete_backups(parent: str) -> list[str]:
    """Folders of backups that an interrupted run did not complete."""
    return sorted(_list_folders(parent, STAGED_PREFIX))


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
        return [file_transaction.plan_file_change(place, read_file(name)) for place, name in existing]
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


def _list_folders(parent: str, prefix: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        return [
            entry.path
            for entry in entries
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)
        ]
    return []
