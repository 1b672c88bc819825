"""A directory of files that are written together: after a crash either all or none of them are changed.

Standard library only.

A write first puts the new content of all files into a journal, which takes effect as a whole. Then it updates the
files one by one and removes the journal. While a journal exists its content is valid and the files are not. Files with
other names are not touched.
"""

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, NodewiseError, Problem, Refused, Unavailable, shown

Files = Mapping[str, str | None]
"""Path below the directory to text, None for a folder; folders before their content."""

LOCK: Final = "lock"
JOURNAL: Final = "journal.json"
SERIAL: Final = "serial"
"""A number that changes with each write. It shows a reader without the lock that files changed while it read."""

_READ_ATTEMPTS: Final = 200
_PAUSE_S: Final = 0.005


class TransactionalDirectory:
    """Files at the top of a directory (`top`), and those of certain `names` in the folder `tree` and below."""

    def __init__(self, root: Path, tree: str, top: Collection[str], names: Collection[str]) -> None:
        self.root = root
        self._tree = tree
        self._top = (*top, SERIAL)
        self._names = frozenset(names)

    def read(self) -> Files:
        """All files as one write left them; empty if there are none. Neither takes the lock nor waits for it."""
        with _file_errors(self.root):
            trusted_files.check_folder(self.root)
            for attempt in range(_READ_ATTEMPTS):
                if attempt:
                    time.sleep(_PAUSE_S)
                if (journal := self._read_text(JOURNAL)) is not None:
                    return _parse_journal(self.root / JOURNAL, journal)
                serial = self._read_text(SERIAL)
                files = self._read_files()
                if self._read_text(JOURNAL) is None and self._read_text(SERIAL) == serial:
                    return files
        raise Unavailable(
            "cannot read a directory", [Problem(str(self.root), f"changed in all {_READ_ATTEMPTS} reads", "")]
        )

    def write(self, files: Files, current: Files) -> None:
        """Leave exactly these files. The caller holds the lock and has read `current` under it.

        Once the journal is written this does not fail: the next write completes what is left.
        """
        serial = current.get(SERIAL) or "0"
        target = {**files, SERIAL: str(int(serial) + 1 if serial.isdecimal() else 1)}
        with _file_errors(self.root):
            # a journal that an interrupted write left behind: the files do not match it yet
            before = self._read_files() if (self.root / JOURNAL).exists() else current
            self._write_file(JOURNAL, json.dumps(target))
        with suppress(OSError):
            _fsync_folder(self.root)
            self._update(target, before)
            (self.root / JOURNAL).unlink()

    def remove(self, current: Files) -> None:
        """Remove all files and the lock, and leave the directory. The caller holds the lock."""
        self.write({}, current)
        with _file_errors(self.root):
            for name in (SERIAL, LOCK):
                (self.root / name).unlink(missing_ok=True)

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Hold CMK's lock, which the kernel releases when its owner ends. Unavailable after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            with _file_errors(self.root):
                trusted_files.check_folder(self.root)
                descriptor = os.open(
                    self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
                )
            try:
                if self._try_lock(descriptor):
                    yield
                    return
            finally:
                os.close(descriptor)
            if time.monotonic() >= deadline:
                problem = Problem(str(self.root / LOCK), f"still locked after {timeout_s:g} s", "")
                raise Unavailable("cannot lock a directory", [problem])
            time.sleep(_PAUSE_S)

    def _try_lock(self, descriptor: int) -> bool:
        """Whether the lock is taken, and its file still is the directory's: `remove` removes the file as well."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(descriptor), (self.root / LOCK).stat())
        except (BlockingIOError, FileNotFoundError):
            return False

    def _read_text(self, path: str) -> str | None:
        try:
            return trusted_files.read_bytes(self.root / path).decode("utf-8", "replace")
        except FileNotFoundError:
            return None

    def _read_files(self) -> dict[str, str | None]:
        """The files of this directory as they are now, whether or not there is a journal."""
        files = dict(self._files_below(self._tree)) if (self.root / self._tree).is_dir() else {}
        for name in self._top:
            if (text := self._read_text(name)) is not None:
                files[name] = text
        return files

    def _files_below(self, path: str) -> Iterator[tuple[str, str | None]]:
        yield path, None
        try:
            trusted_files.check_folder_entry_trust(self.root / path)
            entries = sorted(os.scandir(self.root / path), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for entry in entries:
            inner = f"{path}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from self._files_below(inner)
            elif entry.name in self._names and (text := self._read_text(inner)) is not None:
                yield inner, text

    def _update(self, target: Files, before: Files) -> None:
        """Change the files from `before` to `target`. A removed folder is removed with its content."""
        changed_folders = set()
        for path, text in target.items():
            if path in before and before[path] == text:
                continue
            changed_folders.add((self.root / path).parent)
            if text is None:
                (self.root / path).mkdir(mode=0o755, exist_ok=True)
            elif path != SERIAL:
                self._write_file(path, text)
        for path in sorted(before.keys() - target.keys(), reverse=True):
            changed_folders.add((self.root / path).parent)
            _remove_file(self.root / path)
        for folder in changed_folders:
            if folder.is_dir():
                _fsync_folder(folder)
        # last, so that a reader without the lock that saw some of the changes reads again
        self._write_file(SERIAL, target[SERIAL] or "")

    def _write_file(self, path: str, text: str) -> None:
        """Replace one file atomically and durably. If that fails the file is unchanged and no other one is left."""
        new = self.root / f"{path}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            try:
                data = text.encode()
                while data:
                    data = data[os.write(descriptor, data) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            new.replace(self.root / path)
        except OSError:
            with suppress(OSError):
                new.unlink()
            raise


def _parse_journal(path: Path, text: str) -> Files:
    try:
        return dict(json.loads(text))
    except (RecursionError, TypeError, ValueError) as error:
        raise BadInput(
            "cannot read a journal", [Problem(str(path), shown(text), "JSON, path to text")]
        ) from error


def _remove_file(path: Path) -> None:
    if path.is_dir():
        import shutil  # takes as long to import as the rest of this program, and folders are seldom removed

        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _file_errors(root: Path) -> Iterator[None]:
    """Raise Refused or Unavailable for errors of the file system."""
    try:
        yield
    except OSError as error:
        kind: type[NodewiseError] = Refused if isinstance(error, PermissionError) else Unavailable
        problem = Problem(str(error.filename or root), error.strerror or str(error), "")
        raise kind("cannot use a directory", [problem]) from error
