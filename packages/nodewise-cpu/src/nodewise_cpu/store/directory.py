"""The allocations of a node in a directory: CMK's format up to version 1.4, and a node without an API server.

Standard library only.

    pools/<pool>/exclusive                   `1`: a list is for one task only, else `0`
    pools/<pool>/<socket>/<CPU list>/tasks   process ids, separated by commas
    tasks.json                               the identities of tasks; CMK has no such file
    intent.json                              a reconfiguration in progress; CMK has no such file
    lock                                     CMK's lock; the kernel releases it when its owner ends

The format stays CMK's, because `isolate` processes that CMK started remove their ids from these files when they end.
`parse_files` and `format_files` convert the files, as values (path to text, None for a folder).
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodewise.base.errors import BadInput, Conflict, Problem, shown
from nodewise.kube.api_server_interface import NotFound
from nodewise_cpu import allocation_store, pool_allocations
from nodewise_cpu.allocation_store import Intent, StoredAllocations
from nodewise_cpu.pool_allocations import Allocations, CpuListAllocation
from nodewise_cpu.pool_planning import EXCLUSIVE, SHARED
from nodewise_cpu.store.file_transaction import Files, TransactionalDirectory

TASKS: Final = "tasks.json"
INTENT: Final = "intent.json"
LOCK_TIMEOUT_S: Final = 30.0

_POOL: Final = re.compile(r"pools/(?P<pool>[^/]+)")
_FLAG: Final = re.compile(r"pools/(?P<pool>[^/]+)/exclusive")
_SOCKET: Final = re.compile(r"pools/(?P<pool>[^/]+)/(?P<socket>\d{1,9})", re.ASCII)
_LIST: Final = re.compile(r"pools/(?P<pool>[^/]+)/(?P<socket>\d{1,9})/(?P<list>[^/]+)/tasks", re.ASCII)
_WITHOUT_SOCKET: Final = re.compile(r"pools/[^/]+/[^/]+/tasks")
_FORMER_NAMES: Final = {"dataplane": EXCLUSIVE, "controlplane": SHARED}
"""Names of pools before CMK 1.3."""
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
        if match := _LIST.fullmatch(path):
            tasks = [text.strip()] if text and text.strip() else []
            config.setdefault(match["pool"], {}).setdefault(match["socket"], {})[match["list"]] = tasks
        elif text is None and (match := _SOCKET.fullmatch(path)):
            config.setdefault(match["pool"], {}).setdefault(match["socket"], {})
        elif (text is None and (match := _POOL.fullmatch(path))) or (match := _FLAG.fullmatch(path)):
            config.setdefault(match["pool"], {})
    return config


def format_files(allocations: Allocations) -> dict[str, str | None]:
    """The files that hold the allocations, folders before their content."""
    files: dict[str, str | None] = {"pools": None}
    for pool in allocations.pools.values():
        files[f"pools/{pool.name}"] = None
        files[f"pools/{pool.name}/exclusive"] = str(int(pool.is_exclusive))
        for socket, cpu_lists in pool.sockets.items():
            files[f"pools/{pool.name}/{socket}"] = None
            files.update(_list_files(f"pools/{pool.name}/{socket}", cpu_lists))
    identities = pool_allocations.task_identities_by_cpu_list(allocations)
    files[TASKS] = json.dumps(identities, sort_keys=True, separators=(",", ":"))
    return files


def _list_files(folder: str, cpu_lists: Iterable[CpuListAllocation]) -> Mapping[str, str | None]:
    files: dict[str, str | None] = {}
    for cpu_list in cpu_lists:
        files[f"{folder}/{cpu_list.text}"] = None
        files[f"{folder}/{cpu_list.text}/tasks"] = ",".join(str(task.pid) for task in cpu_list.tasks)
    return files


class DirectoryStore:
    """An `AllocationStore`. A write waits for the lock for at most `timeout_s`."""

    def __init__(self, path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._directory = TransactionalDirectory(path, "pools", (TASKS, INTENT), ("tasks", "exclusive"))

    @property
    def location(self) -> str:
        return f"directory {self._path}"

    def read(self) -> StoredAllocations:
        files = self._directory.read()
        if not _has_pools(files):
            raise NotFound(
                "there are no pools", [Problem(self.location, "no folder pools", "nodewise cpu init")]
            )
        intent = allocation_store.load_intent(files.get(INTENT), INTENT)
        return StoredAllocations(parse_files(files), _content_digest(files), intent)

    def create(self, first: Allocations) -> None:
        with suppress(OSError):  # taking the lock reports the reason
            self._path.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._directory.locked(self._timeout_s):
            current = self._directory.read()
            if _has_pools(current):
                raise Conflict("cannot create pools", [Problem(self.location, "there are pools already", "")])
            self._directory.write(format_files(first), current)

    def replace(self, version: str, new: Allocations, intent: Intent | None = None) -> None:
        with self._directory.locked(self._timeout_s):
            current = self._read_version(version)
            files = format_files(new)
            if intent is not None:
                files[INTENT] = json.dumps(intent.as_dict(), sort_keys=True)
            self._directory.write(files, current)

    def delete(self, version: str) -> None:
        with self._directory.locked(self._timeout_s):
            self._directory.remove(self._read_version(version))

    def _read_version(self, version: str) -> Files:
        """The files. Conflict if they are not of this version."""
        files = self._directory.read()
        if _content_digest(files) != version:
            raise Conflict(
                "cannot write the pools", [Problem(self.location, "changed since it was read", "")]
            )
        return files


def _has_pools(files: Files) -> bool:
    return any(path.startswith("pools/") for path in files)


def _content_digest(files: Files) -> str:
    """The content of all files: CMK changes files without a version number."""
    return json.dumps(sorted(files.items()))
