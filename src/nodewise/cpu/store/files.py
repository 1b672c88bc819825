"""A node's state in a directory, with a lock that the kernel takes from whoever ends.

Standard library only.

What the older CPU manager wrote there, up to its version 1.4, is read as it is; the first change brings it into the
present form (`cpu/directory.py`).
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodewise.cpu import book, directory
from nodewise.cpu.book import Intent, Stored
from nodewise.cpu.state import State
from nodewise.cpu.store.journal import Files, Folder
from nodewise.errors import BadInput, Conflict, Problem, shown
from nodewise.kube.api import NotFound

INTENT: Final = "intent.json"
LOCK_TIMEOUT_S: Final = 30.0


class DirectoryBook:
    """A `Book`. Who writes waits for the lock for at most `timeout_s`."""

    def __init__(self, path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._folder = Folder(path, "pools", (directory.TASKS, INTENT), ("tasks", "exclusive"))

    @property
    def place(self) -> str:
        return f"directory {self._path}"

    def read(self) -> Stored:
        files = self._folder.read()
        if not _is_state(files):
            raise NotFound(
                "there are no pools", [Problem(self.place, "no folder pools", "nodewise cpu init")]
            )
        return Stored(directory.parse(files), _version(files), _intent(files))

    def create(self, first: State) -> None:
        with suppress(OSError):  # the lock says why, in words
            self._path.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._folder.locked(self._timeout_s):
            now = self._folder.read()
            if _is_state(now):
                raise Conflict("cannot create pools", [Problem(self.place, "there are pools already", "")])
            self._folder.write(directory.format_files(first), now)

    def replace(self, version: str, new: State, intent: Intent | None = None) -> None:
        with self._folder.locked(self._timeout_s):
            now = self._checked(version)
            files = dict(directory.format_files(new))
            if intent is not None:
                files[INTENT] = json.dumps(intent.as_dict(), sort_keys=True)
            self._folder.write(files, now)

    def delete(self, version: str) -> None:
        with self._folder.locked(self._timeout_s):
            self._folder.remove(self._checked(version))

    def _checked(self, version: str) -> Files:
        """The files, which are of this version."""
        files = self._folder.read()
        if _version(files) != version:
            raise Conflict("cannot write the pools", [Problem(self.place, "changed since it was read", "")])
        return files


def _is_state(files: Files) -> bool:
    return any(path.startswith("pools/") for path in files)


def _version(files: Files) -> str:
    """All of it: the older program changes files and knows of no version."""
    return json.dumps(sorted(files.items()))


def _intent(files: Files) -> Intent | None:
    text = files.get(INTENT)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise BadInput("cannot read an intent", [Problem(INTENT, shown(text), "JSON")]) from error
    return book.parse_intent(value)
