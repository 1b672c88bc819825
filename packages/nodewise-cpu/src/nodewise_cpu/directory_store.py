"""The allocations of a node in a directory: CMK's format up to version 1.4, and a node without an API server.

Standard library only.

    pools/<pool>/exclusive                   `1`: a list is for one task only, else `0`
    pools/<pool>/<socket>/<CPU list>/tasks   process ids, separated by commas
    tasks.json                               the identities of tasks; CMK has no such file
    intent.json                              a reconfiguration in progress; CMK has no such file
    lock                                     CMK's lock; the kernel releases it when its owner ends

The format stays CMK's, because `isolate` processes that CMK started remove their ids from these files when they end.
The files are written together: after a crash either all or none of them are changed.
`parse_files` and `format_files` convert them, as values (path to text, None for a folder).
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from nodewise.base import trusted_files
from nodewise.base.errors import (
    BadInput,
    Conflict,
    NodewiseError,
    NotFound,
    Problem,
    Refused,
    Unavailable,
    shown,
)
from nodewise_cpu import allocation_store, pool_allocations
from nodewise_cpu.allocation_store import Intent, StoredAllocations
from nodewise_cpu.pool_allocations import Allocations
from nodewise_cpu.pool_planning import EXCLUSIVE, SHARED

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
                    try:
                        return dict(json.loads(journal))
                    except (RecursionError, TypeError, ValueError) as error:
                        where, expected = str(self.root / JOURNAL), "JSON, path to text"
                        raise BadInput.of("cannot read a journal", where, shown(journal), expected) from error
                serial = self._read_text(SERIAL)
                files = self._read_files()
                if self._read_text(JOURNAL) is None and self._read_text(SERIAL) == serial:
                    return files
        raise Unavailable.of(
            "cannot read a directory", str(self.root), f"changed in all {_READ_ATTEMPTS} reads"
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
    def locked(self, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
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
                raise Unavailable.of(
                    "cannot lock a directory", str(self.root / LOCK), f"still locked after {timeout_s:g} s"
                )
            sleep(_PAUSE_S)

    def _try_lock(self, descriptor: int) -> bool:
        """Whether the lock is taken, and its file still is the directory's: `remove` removes the file as well."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(descriptor), (self.root / LOCK).stat())
        except (BlockingIOError, FileNotFoundError):
            return False

    def _read_text(self, path: str) -> str | None:
        with suppress(FileNotFoundError):
            return trusted_files.read_bytes(self.root / path).decode("utf-8", "replace")
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
            if (self.root / path).is_dir():
                import shutil  # takes as long to import as the rest of this program, and is seldom needed

                shutil.rmtree(self.root / path)
            else:
                (self.root / path).unlink(missing_ok=True)
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


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _file_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind: type[NodewiseError] = Refused if isinstance(error, PermissionError) else Unavailable
        raise kind.of(
            "cannot use a directory", str(error.filename or root), error.strerror or str(error)
        ) from error


TASKS: Final = "tasks.json"
INTENT: Final = "intent.json"
LOCK_TIMEOUT_S: Final = 30.0

_PLACE: Final = re.compile(
    r"pools/(?P<pool>[^/]+)(?:/(?P<socket>\d{1,9})(?:/(?P<list>[^/]+)/tasks)?|(?P<flag>/exclusive))?",
    re.ASCII,
)
"""The folder of a pool or socket, the file with the tasks of a list, or the flag of a pool."""
_WITHOUT_SOCKET: Final = re.compile(r"pools/[^/]+/[^/]+/tasks")
_FORMER_NAMES: Final = {"dataplane": EXCLUSIVE, "controlplane": SHARED}  # names of pools before CMK 1.3
_LAYOUT: Final = "pools/<pool>/<socket>/<CPU list>/tasks, as CMK has it since 1.1"


def parse_files(files: Files) -> Allocations:
    """The allocations in these files. Each pool has its own flag, so its name may be any; other files are ignored.

    BadInput names every file that is missing or cannot be read, and every list outside of a socket.
    """
    problems = [
        Problem(path, "a CPU list without a socket", _LAYOUT)
        for path in files
        if _WITHOUT_SOCKET.fullmatch(path)
    ]
    config = _parse_pools(files)
    flags = {}
    for name in config:
        flag = files.get(f"pools/{name}/exclusive")
        flags[name] = (flag or "").startswith("1")
        if flag is None:
            problems.append(Problem(f"pools/{name}/exclusive", "no such file", "1 or 0"))
        if _FORMER_NAMES.get(name) in config:
            problems.append(Problem(f"pools/{name}", f"beside pools/{_FORMER_NAMES[name]}", "one of the two"))
    try:
        identities = json.loads(files.get(TASKS) or "{}")
    except (RecursionError, ValueError):
        identities = {}
        problems.append(Problem(TASKS, shown(files[TASKS]), "JSON"))
    if problems:
        raise BadInput("cannot read the state of the node's pools", problems)
    pools = pool_allocations.parse_allocations(config, identities, flags).pools.values()
    renamed = [pool._replace(name=_FORMER_NAMES.get(pool.name, pool.name)) for pool in pools]
    return Allocations({pool.name: pool for pool in renamed})


def _parse_pools(files: Files) -> Mapping[str, Mapping[str, Mapping[str, list[str]]]]:
    """The pools in the form of the ConfigMap."""
    config: dict[str, dict[str, dict[str, list[str]]]] = {}
    for path, text in files.items():
        match = _PLACE.fullmatch(path)
        if not match or (text is not None and not (match["list"] or match["flag"])):
            continue
        sockets = config.setdefault(match["pool"], {})
        if match["socket"]:
            lists = sockets.setdefault(match["socket"], {})
            if match["list"]:
                lists[match["list"]] = [text.strip()] if text and text.strip() else []
    return config


def format_files(allocations: Allocations) -> dict[str, str | None]:
    """The files that hold the allocations, folders before their content."""
    files: dict[str, str | None] = {"pools": None}
    for pool in allocations.pools.values():
        files |= {f"pools/{pool.name}": None, f"pools/{pool.name}/exclusive": str(int(pool.is_exclusive))}
        for socket, cpu_lists in pool.sockets.items():
            files[f"pools/{pool.name}/{socket}"] = None
            for cpu_list in cpu_lists:
                folder = f"pools/{pool.name}/{socket}/{cpu_list.text}"
                files |= {folder: None, f"{folder}/tasks": ",".join(str(task.pid) for task in cpu_list.tasks)}
    identities = pool_allocations.task_identities_by_cpu_list(allocations)
    files[TASKS] = json.dumps(identities, sort_keys=True, separators=(",", ":"))
    return files


class DirectoryStore:
    """An `AllocationStore`. A write waits for the lock for at most `timeout_s`; `sleep` may raise an error."""

    def __init__(
        self, path: Path, timeout_s: float = LOCK_TIMEOUT_S, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._directory = TransactionalDirectory(path, "pools", (TASKS, INTENT), ("tasks", "exclusive"))

    @property
    def location(self) -> str:
        return f"directory {self._path}"

    def read(self) -> StoredAllocations:
        files = self._directory.read()
        if not _has_pools(files):
            raise NotFound.of("there are no pools", self.location, "no folder pools", "nodewise cpu init")
        intent = allocation_store.load_intent(files.get(INTENT), INTENT)
        return StoredAllocations(parse_files(files), _content_digest(files), intent)

    def create(self, first: Allocations) -> None:
        with suppress(OSError):  # taking the lock reports the reason
            self._path.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._directory.locked(self._timeout_s, self._sleep):
            current = self._directory.read()
            if _has_pools(current):
                raise Conflict.of("cannot create pools", self.location, "there are pools already")
            self._directory.write(format_files(first), current)

    def replace(self, version: str, new: Allocations, intent: Intent | None = None) -> None:
        with self._directory.locked(self._timeout_s, self._sleep):
            current = self._read_version(version)
            files = format_files(new)
            if intent is not None:
                files[INTENT] = json.dumps(intent.as_dict(), sort_keys=True)
            self._directory.write(files, current)

    def delete(self, version: str) -> None:
        with self._directory.locked(self._timeout_s, self._sleep):
            self._directory.remove(self._read_version(version))

    def _read_version(self, version: str) -> Files:
        files = self._directory.read()
        if _content_digest(files) != version:
            raise Conflict.of("cannot write the pools", self.location, "changed since it was read")
        return files


def _has_pools(files: Files) -> bool:
    return any(path.startswith("pools/") for path in files)


def _content_digest(files: Files) -> str:
    """The content of all files: CMK changes files without a version number."""
    return json.dumps(sorted(files.items()))
