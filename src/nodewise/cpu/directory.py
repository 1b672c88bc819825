"""A node's state as files below one directory: CMK's form up to 1.4, and of those who have no API server.

Standard library only.

    pools/<pool>/exclusive                   `1`: a list is for one task only, else `0`
    pools/<pool>/<socket>/<CPU list>/tasks   process ids with commas between
    tasks.json                               what else is known of the tasks; CMK has no such file

The files come and go as values, path to text, None for a folder: this says what is in them, not when they are written.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from nodewise.cpu import state
from nodewise.cpu.pools import EXCLUSIVE, SHARED
from nodewise.cpu.state import Pool, Slot, State
from nodewise.errors import BadInput, Problem, shown

TASKS: Final = "tasks.json"

_POOL: Final = re.compile(r"pools/(?P<pool>[^/]+)")
_FLAG: Final = re.compile(r"pools/(?P<pool>[^/]+)/exclusive")
_SOCKET: Final = re.compile(r"pools/(?P<pool>[^/]+)/(?P<socket>\d{1,9})", re.ASCII)
_LIST: Final = re.compile(r"pools/(?P<pool>[^/]+)/(?P<socket>\d{1,9})/(?P<list>[^/]+)/tasks", re.ASCII)
_WITHOUT_SOCKET: Final = re.compile(r"pools/[^/]+/[^/]+/tasks")
_OLD_NAMES: Final = {"dataplane": EXCLUSIVE, "controlplane": SHARED}
"""What CMK called pools before 1.3."""

_LAYOUT: Final = "pools/<pool>/<socket>/<CPU list>/tasks, as CMK has it since 1.1"


def parse(files: Mapping[str, str | None]) -> State:
    """The state in these files; any pool name is one, as each has its flag. Other files are passed over.

    BadInput names every file that is missing or cannot be read, and lists that no socket has.
    """
    problems = [
        Problem(path, "a CPU list without a socket", _LAYOUT)
        for path in files
        if _WITHOUT_SOCKET.fullmatch(path)
    ]
    config = _config(files)
    flags = {}
    for name in config:
        flag = files.get(f"pools/{name}/exclusive")
        flags[name] = (flag or "").startswith("1")
        if flag is None:
            problems.append(Problem(f"pools/{name}/exclusive", "no such file", "1 or 0"))
        if _OLD_NAMES.get(name) in config:
            problems.append(Problem(f"pools/{name}", f"beside pools/{_OLD_NAMES[name]}", "one of the two"))
    try:
        identities = json.loads(files.get(TASKS) or "{}")
    except (RecursionError, ValueError):
        identities = {}
        problems.append(Problem(TASKS, shown(files[TASKS]), "JSON"))
    if problems:
        raise BadInput("cannot read the state of the node's pools", problems)
    found = state.parse(config, identities, flags)
    return State({_OLD_NAMES.get(name, name): _named(pool) for name, pool in found.pools.items()})


def _config(files: Mapping[str, str | None]) -> Mapping[str, Mapping[str, Mapping[str, list[str]]]]:
    """In the form of the ConfigMap."""
    config: dict[str, dict[str, dict[str, list[str]]]] = {}
    for path, text in files.items():
        if found := _LIST.fullmatch(path):
            tasks = [text.strip()] if text and text.strip() else []
            config.setdefault(found["pool"], {}).setdefault(found["socket"], {})[found["list"]] = tasks
        elif text is None and (found := _SOCKET.fullmatch(path)):
            config.setdefault(found["pool"], {}).setdefault(found["socket"], {})
        elif (text is None and (found := _POOL.fullmatch(path))) or (found := _FLAG.fullmatch(path)):
            config.setdefault(found["pool"], {})
    return config


def _named(pool: Pool) -> Pool:
    return pool._replace(name=_OLD_NAMES.get(pool.name, pool.name))


def format_files(found: State) -> Mapping[str, str | None]:
    """What is to be in the directory, folders before what is in them."""
    files: dict[str, str | None] = {"pools": None}
    for pool in found.pools.values():
        files[f"pools/{pool.name}"] = None
        files[f"pools/{pool.name}/exclusive"] = str(int(pool.is_exclusive))
        for socket, slots in pool.sockets.items():
            files[f"pools/{pool.name}/{socket}"] = None
            files.update(_slots(f"pools/{pool.name}/{socket}", slots))
    files[TASKS] = json.dumps(state.as_identities(found), sort_keys=True, separators=(",", ":"))
    return files


def _slots(folder: str, slots: Iterable[Slot]) -> Mapping[str, str | None]:
    files: dict[str, str | None] = {}
    for slot in slots:
        files[f"{folder}/{slot.text}"] = None
        files[f"{folder}/{slot.text}/tasks"] = ",".join(str(task.pid) for task in slot.tasks)
    return files
