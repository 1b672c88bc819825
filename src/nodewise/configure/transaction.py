"""Files changed together: all of them or none, whatever ends the process, and never one half written.

Each file is written under another name beside its place, forced to the disk, and renamed; the last of the list, the
manifest, is renamed last. Before that, a backup folder holds what was there and says how far it came, so that after a
loss of power the next run puts everything back and does it again. Names that begin with a dot are none that a kubelet
reads.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from nodewise.configure.durable import settle
from nodewise.errors import BadInput, Conflict, NodewiseError, Problem

INDEX: Final = "nodewise-backup.json"
_STAGED: Final = ".nodewise-"
_PRIVATE: Final = 0o700
_WAIT_S: Final = 10.0
"""For another run to end."""


class Change(NamedTuple):
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
    def is_none(self) -> bool:
        return self.before == self.after and self.old_mode in (None, self.mode)

    @property
    def mode_before(self) -> int:
        return self.mode if self.old_mode is None else self.old_mode


class Backup(NamedTuple):
    parent: str
    name: str

    @property
    def path(self) -> str:
        return os.path.join(self.parent, self.name)


def backup_name() -> str:
    return f"backup_{time.strftime('%Y-%m-%d')}_{secrets.randbelow(10**10):010}"


@contextlib.contextmanager
def alone(folder: str) -> Iterator[None]:
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
                    raise Conflict(f"another run works on {folder}") from error
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
        if content(change.path) != change.before:
            raise Conflict(f"{change.path} was changed by somebody else meanwhile", remedy="run it again")
    made: list[str] = []
    done: list[Change] = []
    staged: dict[str, str] = {}
    try:
        if backup is not None:
            _back_up(changes, backup)
        for change in changes:
            made += _folder(os.path.dirname(change.path))
            if change.after is not None:
                staged[change.path] = _staged(change.path, change.after, change.mode, change.owner)
        for change in changes:
            done.append(change)
            _place(staged, change)
        _verify(changes)
    except BaseException as error:
        _undo(done, list(staged.values()), made, backup)
        if isinstance(error, OSError):
            raise NodewiseError(f"nothing was changed: {error.strerror}: {error.filename}") from error
        raise
    if backup is not None:
        _finish(backup)


def recover(parent: str) -> list[str]:
    """Put back what an unfinished run changed. The backups that it was put back from."""
    found = []
    for folder in sorted(_folders(parent, _STAGED)):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in sorted(_folders(parent, "backup_")):
        index = _index(folder)
        if index is not None:
            sweep([folder])
        if index is None or index["finished"]:
            continue
        now = [digest(content(entry["path"])) for entry in index["files"]]
        if any(seen != entry["after"] for seen, entry in zip(now, index["files"], strict=True)):
            changes = [_undone(folder, entry) for entry in index["files"]]
            commit([change for change in changes if change is not None])
            found.append(folder)
        _finish(Backup(*os.path.split(folder)))
    return found


def sweep(folders: Sequence[str]) -> None:
    """Remove files that a run which was ended left beside their places."""
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(_STAGED) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)


def newest(parent: str, names: Sequence[str]) -> str | None:
    """The newest backup that has an index, or one of these files, as the older configurator left it."""
    found = [
        folder
        for folder in _folders(parent, "backup_")
        if (_index(folder) or {}).get("finished")
        or any(os.path.isfile(os.path.join(folder, n)) for n in names)
    ]
    return max(found, key=lambda folder: os.stat(folder).st_mtime_ns, default=None)


def restoration(folder: str, places: Sequence[str]) -> list[Change]:
    """What brings a backup back. `places`: where the files of a backup without an index belong."""
    index = _index(folder)
    if index is None:
        files = [(place, os.path.join(folder, os.path.basename(place))) for place in places]
        there = [(place, name) for place, name in files if os.path.isfile(name)]
        if not there:
            raise BadInput(
                f"{folder} is no backup", [Problem("--restore", "nothing in it", "a backup folder")]
            )
        return [_change(place, content(name)) for place, name in there]
    return [_saved(folder, entry) for entry in index["files"]]


def content(path: str) -> bytes | None:
    """A regular file's bytes; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadInput(path, [Problem("file", "no regular file", "one")])
        return file.read()


def digest(data: bytes | None) -> str | None:
    return hashlib.sha256(data).hexdigest() if data is not None else None


def _change(path: str, after: bytes | None) -> Change:
    """With the mode and owner that the file has."""
    try:
        now = os.stat(path)
        return Change(path, content(path), after, stat.S_IMODE(now.st_mode), (now.st_uid, now.st_gid))
    except FileNotFoundError:
        return Change(path, None, after, 0o600)


def _saved(folder: str, entry: dict[str, Any]) -> Change:
    """What brings one file of a backup back. `BadInput` where the copy is not what was saved."""
    data = content(os.path.join(folder, entry["name"])) if entry["name"] is not None else None
    if digest(data) != entry["before"]:
        raise BadInput(
            folder, [Problem(str(entry["name"]), "not as it was saved", "the backup as it was made")]
        )
    owner = tuple(entry["owner"]) if entry["owner"] else None
    return Change(entry["path"], content(entry["path"]), data, entry["mode"], owner)


def _undone(folder: str, entry: dict[str, Any]) -> Change | None:
    """None for a file that is as it was, or that somebody else has changed since."""
    return _saved(folder, entry) if digest(content(entry["path"])) == entry["after"] else None


def _back_up(changes: Sequence[Change], backup: Backup) -> None:
    """A folder with what is there, under its name only when it is complete."""
    folder = os.path.join(backup.parent, f"{_STAGED}{secrets.token_hex(6)}")
    os.mkdir(folder, _PRIVATE)
    names: set[str] = set()
    entries = []
    for change in changes:
        name = None
        if change.before is not None:
            name = os.path.basename(change.path)
            name = name if name not in names else f"{len(names)}-{name}"
            names.add(name)
            _write(os.path.join(folder, name), change.before, change.mode_before, change.owner)
        entries.append(
            {
                "path": change.path,
                "name": name,
                "mode": change.mode_before,
                "owner": change.owner,
                "before": digest(change.before),
                "after": digest(change.after),
            }
        )
    index = {"finished": False, "files": entries}
    _write(os.path.join(folder, INDEX), json.dumps(index, indent=1).encode(), 0o600, None)
    settle(folder)
    os.rename(folder, backup.path)
    settle(backup.parent)


def _finish(backup: Backup) -> None:
    index = _index(backup.path)
    data = json.dumps({**(index or {}), "finished": True}, indent=1).encode()
    path = os.path.join(backup.path, INDEX)
    os.rename(_staged(path, data, 0o600, None), path)
    settle(backup.path)


def _index(folder: str) -> dict[str, Any] | None:
    try:
        data = content(os.path.join(folder, INDEX))
        found = json.loads(data) if data is not None else None
        if found is not None:
            _ = (
                found["finished"],
                [(one["path"], one["name"], one["mode"], one["owner"]) for one in found["files"]],
            )
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(folder, [Problem(INDEX, "unreadable", "as it was written")]) from error
    return found


def _folders(parent: str, prefix: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        return [
            entry.path
            for entry in entries
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)
        ]
    return []


def _folder(path: str) -> list[str]:
    """Make a folder with its parents; those that were made."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.mkdir(folder, _PRIVATE)
        os.chmod(folder, 0o755)  # noqa: S103 - as other folders of /etc, whatever the umask
        settle(os.path.dirname(folder))
    return missing


def _staged(path: str, data: bytes, mode: int, owner: tuple[int, int] | None) -> str:
    name = os.path.join(os.path.dirname(path), f"{_STAGED}{secrets.token_hex(6)}")
    _write(name, data, mode, owner)
    return name


def _write(path: str, data: bytes, mode: int, owner: tuple[int, int] | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if owner is not None and owner != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, *owner)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _place(staged: dict[str, str], change: Change) -> None:
    if change.path in staged:
        os.rename(staged[change.path], change.path)
        del staged[change.path]
    else:
        os.unlink(change.path)
    settle(os.path.dirname(change.path))


def _verify(changes: Sequence[Change]) -> None:
    for change in changes:
        if content(change.path) != change.after:
            raise Conflict(
                f"{change.path} is not what was written", remedy="something else writes there; run it again"
            )


def _undo(done: Sequence[Change], staged: Sequence[str], made: Sequence[str], backup: Backup | None) -> None:
    """As it was; what cannot be put back stays in the backup."""
    whole = True
    for change in reversed(done):
        try:
            if change.before is None:
                Path(change.path).unlink(missing_ok=True)
            else:
                os.rename(_staged(change.path, change.before, change.mode_before, change.owner), change.path)
        except OSError:
            whole = False
    for path in staged:
        with contextlib.suppress(OSError):
            os.unlink(path)
    for folder in sorted(made, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    if whole and backup is not None:
        shutil.rmtree(backup.path, ignore_errors=True)
        for folder in _folders(backup.parent, _STAGED):
            shutil.rmtree(folder, ignore_errors=True)
