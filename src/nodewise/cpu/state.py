"""Who holds what on a node: pools, their CPU lists, and the tasks on each.

Standard library only.

The form is CMK's, so that its readers go on working: of each pool and socket the CPU lists, and of each list the
process ids of its wrappers. A process id alone is not enough to know a process by, so the rest of what a task is
stands beside it, in a form of its own (`identities`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, Final, NamedTuple

from nodewise.cpu import cpulist
from nodewise.cpu.pools import IS_EXCLUSIVE
from nodewise.errors import BadInput, Problem, shown

IDENTITIES: Final = "cpu.nodewise.io/tasks"
"""The annotation that the rest of what tasks are stands in."""

_LARGEST: Final = 2**53


class Task(NamedTuple):
    """One wrapper, and with it all that it started. Process ids are those of the host."""

    pid: int
    start: int | None = None
    """Clock ticks between boot and start (`/proc/<pid>/stat`, field 22); None if an older program wrote the task."""
    boot: str = ""
    """The boot id of the kernel that it runs on; empty where `start` is None."""
    pod: str = ""
    container: str = ""

    @property
    def mark(self) -> str:
        """What its descendants carry in their environment."""
        return f"{self.pid}-{self.start}"


class Slot(NamedTuple):
    """One CPU list: `text` as it is stored, and the CPUs that it means, in that order."""

    text: str
    cpus: tuple[int, ...]
    tasks: tuple[Task, ...] = ()


class Pool(NamedTuple):
    """Of each socket the slots, by first CPU."""

    name: str
    is_exclusive: bool
    sockets: Mapping[int, tuple[Slot, ...]]

    @property
    def slots(self) -> Iterator[Slot]:
        return (slot for socket in sorted(self.sockets) for slot in self.sockets[socket])


class State(NamedTuple):
    """The pools of a node, by name."""

    pools: Mapping[str, Pool]

    @property
    def slots(self) -> Iterator[tuple[Pool, Slot]]:
        return ((pool, slot) for pool in self.pools.values() for slot in pool.slots)

    def mapped(self, change: Callable[[Pool, Slot], Iterable[Task]]) -> "State":
        """The same slots, each with the tasks that `change` gives it."""
        return State(
            {
                pool.name: pool._replace(
                    sockets={
                        socket: tuple(slot._replace(tasks=tuple(change(pool, slot))) for slot in slots)
                        for socket, slots in pool.sockets.items()
                    }
                )
                for pool in self.pools.values()
            }
        )


def slot(text: str, field: str = "CPU list", tasks: Iterable[Task] = ()) -> Slot:
    """The slot of a CPU list, which may have ranges; BadInput if it is none, or names no CPU."""
    cpus = cpulist.parse_list(text, field)
    if not cpus:
        raise BadInput("cannot read a CPU list", [Problem(field, shown(text), "at least one CPU")])
    return Slot(text, cpus, tuple(tasks))


def pool(name: str, sockets: Mapping[int, Iterable[Slot]], is_exclusive: bool | None = None) -> Pool:
    """A pool with its slots in order; whether it is exclusive follows from CMK's names unless it is told."""
    ordered = {socket: tuple(sorted(sockets[socket], key=lambda one: one.cpus)) for socket in sorted(sockets)}
    return Pool(name, IS_EXCLUSIVE[name] if is_exclusive is None else is_exclusive, ordered)


def from_lists(pools: Mapping[str, Mapping[int, Iterable[str]]]) -> State:
    """The state of a node on which nothing runs yet, from a `pools.Plan`."""
    return State(
        {
            name: pool(name, {socket: [slot(text) for text in texts] for socket, texts in sockets.items()})
            for name, sockets in pools.items()
        }
    )


def parse(config: object, identities: object = None, pools: Mapping[str, bool] = IS_EXCLUSIVE) -> State:
    """The state that was stored: `config` as `as_config` gives it, `identities` likewise.

    Read as well: sockets and process ids as numbers or texts, several ids in one text, single CPUs as numbers, lists
    with ranges, nothing in the place of an empty mapping or list. `pools` says of each pool that there may be whether
    it is exclusive. BadInput names everything else by its place.
    """
    reading = _Reading(problems=[])
    found = {}
    for name, sockets in reading.mapping(config, "config"):
        if name in pools:
            found[name] = pool(name, reading.sockets(sockets, f"config.{name}"), pools[name])
        else:
            reading.problems.append(Problem("config", f"pool {shown(name)}", ", ".join(pools)))
    known = reading.identities(identities)
    if reading.problems:
        raise BadInput("cannot read the state of the node's pools", reading.problems)
    return State(found).mapped(lambda of, one: _identified(one.tasks, known.get((of.name, one.text), ())))


def parse_task(fields: object, at: str) -> Task:
    """A task that was written as `Task._asdict` gives it; BadInput names its fields below `at`."""
    reading = _Reading(problems=[])
    found = reading.task(dict(reading.mapping(fields, at)), at)
    if found is None or reading.problems:
        raise BadInput("cannot read a task", reading.problems)
    return found


def _identified(tasks: Iterable[Task], known: Iterable[Task]) -> Iterator[Task]:
    """The tasks, each with the rest of what it is, if that is known."""
    left = list(known)
    for task in tasks:
        same = next((one for one in left if one.pid == task.pid), task)
        if same is not task:
            left.remove(same)
        yield same


class _Reading(NamedTuple):
    """Reads what was stored; what is not as it should be is gathered in `problems`, by place."""

    problems: list[Problem]

    def mapping(self, value: object, at: str) -> Iterable[tuple[Any, Any]]:
        if isinstance(value, Mapping):
            return value.items()
        if value is not None:
            self.problems.append(Problem(at, shown(value), "a mapping"))
        return ()

    def sequence(self, value: object, at: str) -> Iterable[Any]:
        if isinstance(value, list | tuple):
            return value
        if value is not None:
            self.problems.append(Problem(at, shown(value), "a list"))
        return ()

    def sockets(self, value: object, at: str) -> Mapping[int, Iterable[Slot]]:
        found: dict[int, list[Slot]] = {}
        for key, lists in self.mapping(value, at):
            socket = self.number(key, at)
            slots = [
                self.slot(text, tasks, f"{at}.{key}") for text, tasks in self.mapping(lists, f"{at}.{key}")
            ]
            found.setdefault(-1 if socket is None else socket, []).extend(
                one for one in slots if one is not None
            )
        return found

    def slot(self, text: object, tasks: object, at: str) -> Slot | None:
        pids = [
            self.number(piece, f"{at}.{text}")
            for value in self.sequence(tasks, f"{at}.{text}")
            for piece in (value.split(",") if isinstance(value, str) else [value])
        ]
        try:
            return slot(str(text), at, [Task(pid) for pid in pids if pid is not None])
        except BadInput as error:
            self.problems.extend(error.problems)
            return None

    def number(self, value: object, at: str) -> int | None:
        """A whole number that is not negative, as such or as a text."""
        digits = value.strip() if isinstance(value, str) else ""
        if digits.isascii() and digits.isdigit() and len(digits) < len(str(_LARGEST)):
            return int(digits)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST:
            return value
        self.problems.append(Problem(at, shown(value), "a whole number"))
        return None

    def identities(self, value: object) -> Mapping[tuple[str, str], list[Task]]:
        """By pool and text of the slot."""
        found: dict[tuple[str, str], list[Task]] = {}
        for name, lists in self.mapping(value, IDENTITIES):
            for text, tasks in self.mapping(lists, f"{IDENTITIES}.{name}"):
                at = f"{IDENTITIES}.{name}.{text}"
                read = [self.task(dict(self.mapping(one, at)), at) for one in self.sequence(tasks, at)]
                found[name, text] = [one for one in read if one is not None]
        return found

    def task(self, fields: Mapping[str, object], at: str) -> Task | None:
        pid, start = (
            self.number(fields.get("pid"), f"{at}.pid"),
            self.number(fields.get("start"), f"{at}.start"),
        )
        words = {name: fields.get(name, "") for name in ("boot", "pod", "container")}
        wrong = [
            Problem(f"{at}.{name}", shown(word), "a text")
            for name, word in words.items()
            if type(word) is not str
        ]
        self.problems.extend(wrong)
        return (
            None
            if pid is None or wrong
            else Task(pid, start, **{name: str(word) for name, word in words.items()})
        )


def as_config(state: State) -> dict[str, dict[int, dict[str, list[str]]]]:
    """CMK's form: pool, socket, CPU list, and the process ids on it as texts."""
    return {
        pool.name: {
            socket: {slot.text: [str(task.pid) for task in slot.tasks] for slot in slots}
            for socket, slots in pool.sockets.items()
        }
        for pool in state.pools.values()
    }


def as_identities(state: State) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What stands beside it: pool, CPU list, and the tasks on it of which more is known than the process id."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for pool, slot in state.slots:
        known = [task._asdict() for task in slot.tasks if task.start is not None]
        if known:
            found.setdefault(pool.name, {})[slot.text] = known
    return found


def as_description(state: State) -> dict[str, Any]:
    """What `describe` prints: sockets are left out, and process ids are texts."""
    return {
        "pools": {
            pool.name: {
                "cpuLists": {
                    slot.text: {"cpus": slot.text, "tasks": [str(task.pid) for task in slot.tasks]}
                    for slot in pool.slots
                },
                "exclusive": pool.is_exclusive,
                "name": pool.name,
            }
            for pool in state.pools.values()
        }
    }


def overlaps(state: State) -> tuple[str, ...]:
    """What no pool should have: CPUs that are in two lists."""
    named = [(f"{pool.name}:{slot.text}", frozenset(slot.cpus)) for pool, slot in state.slots]
    return tuple(
        f"{one} and {other} (in both: {sorted(cpus & others)})"
        for (one, cpus), (other, others) in combinations(named, 2)
        if cpus & others
    )
