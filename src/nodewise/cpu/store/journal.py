"""A set of files below one directory, written whole or not at all, whenever the program ends.

Standard library only.

What is to be there is first written to a journal, in one piece: from then on it is so. Then the files are made like
it, one after the other, and the journal goes. Who finds a journal knows that somebody ended in between, and what is
in it counts. Files that this knows nothing of stay.
"""

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from nodewise import trusted_files
from nodewise.errors import BadInput, NodewiseError, Problem, Refused, Unavailable, shown

Files = Mapping[str, str | None]
"""Path below the directory to text, None for a folder; folders before what is in them."""

LOCK: Final = "lock"
JOURNAL: Final = "journal.json"
SERIAL: Final = "serial"
"""A number that changes with each write: who reads without the lock sees by it that somebody wrote meanwhile."""

_LOOKS: Final = 200
_PAUSE_S: Final = 0.005


class Folder:
    """A directory with files at its top, and folders of which only files with some names count."""

    def __init__(self, root: Path, tree: str, top: Collection[str], names: Collection[str]) -> None:
        self.root = root
        self._tree = tree
        self._top = (*top, SERIAL)
        self._names = frozenset(names)

    def read(self) -> Files:
        """All files as one write left them; empty if there are none. Needs no lock, and waits for nobody's."""
        with _told(self.root):
            trusted_files.check_folder(self.root)
            for look in range(_LOOKS):
                if look:
                    time.sleep(_PAUSE_S)
                if (journal := self._text(JOURNAL)) is not None:
                    return _journal(self.root / JOURNAL, journal)
                before = self._text(SERIAL)
                found = self._found()
                if self._text(JOURNAL) is None and self._text(SERIAL) == before:
                    return found
        raise Unavailable(
            "cannot read a directory", [Problem(str(self.root), "others write all the time", "")]
        )

    def write(self, files: Files, now: Files) -> None:
        """Leave these files and no others; the caller holds the lock, and has read `now` with it.

        Once the journal is written this does not fail: the next one to write does the rest.
        """
        serial = now.get(SERIAL) or "0"
        wanted = {**files, SERIAL: str(int(serial) + 1 if serial.isdecimal() else 1)}
        with _told(self.root):
            # somebody's journal that is there still: files are not yet as it says
            found = self._found() if (self.root / JOURNAL).exists() else now
            self._put(JOURNAL, json.dumps(wanted))
        with suppress(OSError):
            _sync(self.root)
            self._make(wanted, found)
            (self.root / JOURNAL).unlink()

    def remove(self, now: Files) -> None:
        """Take all files away, the lock too, and leave the directory; the caller holds the lock."""
        self.write({}, now)
        with _told(self.root):
            for name in (SERIAL, LOCK):
                (self.root / name).unlink(missing_ok=True)

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Hold the lock, the older program's; the kernel takes it from whoever ends. Unavailable after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            with _told(self.root):
                trusted_files.check_folder(self.root)
                descriptor = os.open(
                    self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
                )
            try:
                if self._has_locked(descriptor):
                    yield
                    return
            finally:
                os.close(descriptor)
            if time.monotonic() >= deadline:
                problem = Problem(str(self.root / LOCK), f"still held by somebody after {timeout_s:g} s", "")
                raise Unavailable("cannot lock a directory", [problem])
            time.sleep(_PAUSE_S)

    def _has_locked(self, descriptor: int) -> bool:
        """Whether we hold it, and it is the lock still: who removes a directory's files removes its lock as well."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(descriptor), (self.root / LOCK).stat())
        except (BlockingIOError, FileNotFoundError):
            return False

    def _text(self, path: str) -> str | None:
        try:
            return trusted_files.read_bytes(self.root / path).decode("utf-8", "replace")
        except FileNotFoundError:
            return None

    def _found(self) -> dict[str, str | None]:
        """The files that count, as they are just now."""
        found = dict(self._below(self._tree)) if (self.root / self._tree).is_dir() else {}
        for name in self._top:
            if (text := self._text(name)) is not None:
                found[name] = text
        return found

    def _below(self, path: str) -> Iterator[tuple[str, str | None]]:
        yield path, None
        try:
            trusted_files.check_entry(self.root / path)
            entries = sorted(os.scandir(self.root / path), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for entry in entries:
            inner = f"{path}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from self._below(inner)
            elif entry.name in self._names and (text := self._text(inner)) is not None:
                yield inner, text

    def _make(self, wanted: Files, found: Files) -> None:
        """Make files that are as `found` like `wanted`; a folder that goes takes all that is in it along."""
        touched = set()
        for path, text in wanted.items():
            if path in found and found[path] == text:
                continue
            touched.add((self.root / path).parent)
            if text is None:
                (self.root / path).mkdir(mode=0o755, exist_ok=True)
            elif path != SERIAL:
                self._put(path, text)
        for path in sorted(found.keys() - wanted.keys(), reverse=True):
            touched.add((self.root / path).parent)
            _remove(self.root / path)
        for folder in touched:
            if folder.is_dir():
                _sync(folder)
        self._put(SERIAL, wanted[SERIAL] or "")

    def _put(self, path: str, text: str) -> None:
        """Write one file in one step, on the disk when this returns; as it was, and nothing beside it, if it fails."""
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


def _journal(path: Path, text: str) -> Files:
    try:
        return dict(json.loads(text))
    except (RecursionError, TypeError, ValueError) as error:
        raise BadInput(
            "cannot read a journal", [Problem(str(path), shown(text), "JSON, path to text")]
        ) from error


def _remove(path: Path) -> None:
    if path.is_dir():
        import shutil  # takes as long to import as all the rest, and folders seldom go

        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _told(root: Path) -> Iterator[None]:
    """Errors of the file system as kinds of ours."""
    try:
        yield
    except OSError as error:
        kind: type[NodewiseError] = Refused if isinstance(error, PermissionError) else Unavailable
        problem = Problem(str(error.filename or root), error.strerror or str(error), "")
        raise kind("cannot use a directory", [problem]) from error
