"""The allocations of a node: pools, their CPU lists, and the tasks on each list.

Standard library only.

The stored form is CMK's, so that CMK's programs can read it: the CPU lists of each pool and socket, and for each list
the process ids of wrappers (`isolate` processes). A process id alone does not identify a process, so the identities of
tasks are stored separately (`task_identities_by_cpu_list`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, Final, NamedTuple

from nodewise.base.errors import BadInput, Problem, shown
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.pool_planning import IS_EXCLUSIVE

IDENTITIES: Final = "cpu.nodewise.io/tasks"
"""The annotation that holds the identities of tasks."""

_MAX_NUMBER: Final = 2**53


class Task(NamedTuple):
    """A wrapper with all processes that it started, directly or not. Process ids are those of the host."""

    pid: int
    start: int | None = None
    """Clock ticks between boot and start (`/proc/<pid>/stat`, field 22); None if CMK wrote the task."""
    boot: str = ""
    """The boot id of the kernel that the task runs on; empty where `start` is None."""
    pod: str = ""
    container: str = ""

    @property
    def task_variable_value(self) -> str:
        """The value of `allocator.TASK_VARIABLE` in the environment of the task's processes."""
        return f"{self.pid}-{self.start}"


class CpuListAllocation(NamedTuple):
    """A CPU list and the tasks on it: `text` as stored, and the CPUs that it names, in its order."""

    text: str
    cpus: tuple[int, ...]
    tasks: tuple[Task, ...] = ()


class Pool(NamedTuple):
    """A pool with the CPU lists of each socket, sorted by first CPU."""

    name: str
    is_exclusive: bool
    sockets: Mapping[int, tuple[CpuListAllocation, ...]]

    @property
    def cpu_lists(self) -> Iterator[CpuListAllocation]:
        return (cpu_list for socket in sorted(self.sockets) for cpu_list in self.sockets[socket])


class Allocations(NamedTuple):
    """The pools of a node, by name."""

    pools: Mapping[str, Pool]

    @property
    def cpu_lists(self) -> Iterator[tuple[Pool, CpuListAllocation]]:
        return ((pool, cpu_list) for pool in self.pools.values() for cpu_list in pool.cpu_lists)

    @property
    def tasks(self) -> frozenset[Task]:
        """All tasks, each once."""
        return frozenset(task for _, cpu_list in self.cpu_lists for task in cpu_list.tasks)

    @property
    def cpus(self) -> frozenset[int]:
        """The CPUs of all lists."""
        return frozenset(cpu for _, cpu_list in self.cpu_lists for cpu in cpu_list.cpus)

    def with_tasks(self, tasks_of: Callable[[Pool, CpuListAllocation], Iterable[Task]]) -> "Allocations":
        """The same CPU lists, each with the tasks that `tasks_of` returns for it."""
        pools = {}
        for pool in self.pools.values():
            sockets = {
                socket: tuple(
                    cpu_list._replace(tasks=tuple(tasks_of(pool, cpu_list))) for cpu_list in cpu_lists
                )
                for socket, cpu_lists in pool.sockets.items()
            }
            pools[pool.name] = pool._replace(sockets=sockets)
        return Allocations(pools)

    def without(self, task: Task) -> "Allocations":
        return self.with_tasks(lambda _, cpu_list: (other for other in cpu_list.tasks if other != task))


def parse_cpu_list(text: str, field: str = "CPU list", tasks: Iterable[Task] = ()) -> CpuListAllocation:
    """A CPU list, which may have ranges. BadInput if the text is no list, or names no CPU."""
    cpus = cpu_set_formats.parse_cpu_numbers(text, field)
    if not cpus:
        raise BadInput.of("cannot read a CPU list", field, shown(text), "at least one CPU")
    return CpuListAllocation(text, cpus, tuple(tasks))


def pool(
    name: str, sockets: Mapping[int, Iterable[CpuListAllocation]], is_exclusive: bool | None = None
) -> Pool:
    """A pool with its CPU lists sorted. Without `is_exclusive` the name decides, as in CMK."""
    ordered = {
        socket: tuple(sorted(sockets[socket], key=lambda cpu_list: cpu_list.cpus))
        for socket in sorted(sockets)
    }
    return Pool(name, IS_EXCLUSIVE[name] if is_exclusive is None else is_exclusive, ordered)


def allocations_without_tasks(pools: Mapping[str, Mapping[int, Iterable[str]]]) -> Allocations:
    """The allocations of a node without tasks, from the pools of a `pool_planning.PoolPlan`."""
    return Allocations(
        {
            name: pool(
                name, {socket: [parse_cpu_list(text) for text in texts] for socket, texts in sockets.items()}
            )
            for name, sockets in pools.items()
        }
    )


def parse_allocations(
    config: object, identities: object = None, pools: Mapping[str, bool] = IS_EXCLUSIVE
) -> Allocations:
    """The allocations from the values of `as_cmk_config` and `task_identities_by_cpu_list`.

    Accepted as well: sockets and process ids as numbers or texts, several ids in one text, single CPUs as numbers,
    lists with ranges, nothing in the place of an empty mapping or list. `pools` names the possible pools and whether
    each is exclusive. BadInput names everything else by its place.
    """
    reader = _ConfigReader(problems=[])
    parsed = {}
    for name, sockets in reader.mapping(config, "config"):
        if name in pools:
            parsed[name] = pool(name, reader.sockets(sockets, f"config.{name}"), pools[name])
        else:
            reader.problems.append(Problem("config", f"pool {shown(name)}", ", ".join(pools)))
    known_tasks = reader.identities(identities)
    if reader.problems:
        raise BadInput("cannot read the state of the node's pools", reader.problems)
    return Allocations(parsed).with_tasks(
        lambda pool, cpu_list: _with_known_identities(
            cpu_list.tasks, known_tasks.get((pool.name, cpu_list.text), ())
        )
    )


def parse_task(fields: object, at: str) -> Task:
    """A task from the value of `Task._asdict`. BadInput names its fields below `at`."""
    reader = _ConfigReader(problems=[])
    task = reader.task(dict(reader.mapping(fields, at)), at)
    if task is None or reader.problems:
        raise BadInput("cannot read a task", reader.problems)
    return task


def _with_known_identities(tasks: Iterable[Task], known_tasks: Iterable[Task]) -> Iterator[Task]:
    """The tasks, each replaced by the known task with its process id, if there is one."""
    left = list(known_tasks)
    for task in tasks:
        known_task = next((other for other in left if other.pid == task.pid), task)
        if known_task is not task:
            left.remove(known_task)
        yield known_task


class _ConfigReader(NamedTuple):
    """Reads stored values and collects all problems, by place, in `problems`."""

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

    def sockets(self, value: object, at: str) -> Mapping[int, Iterable[CpuListAllocation]]:
        sockets: dict[int, list[CpuListAllocation]] = {}
        for key, lists in self.mapping(value, at):
            socket = self.number(key, at)
            cpu_lists = sockets.setdefault(-1 if socket is None else socket, [])
            for text, tasks in self.mapping(lists, f"{at}.{key}"):
                if (cpu_list := self.cpu_list(text, tasks, f"{at}.{key}")) is not None:
                    cpu_lists.append(cpu_list)
        return sockets

    def cpu_list(self, text: object, tasks: object, at: str) -> CpuListAllocation | None:
        pids = [
            self.number(piece, f"{at}.{text}")
            for value in self.sequence(tasks, f"{at}.{text}")
            for piece in (value.split(",") if isinstance(value, str) else [value])
        ]
        try:
            return parse_cpu_list(str(text), at, [Task(pid) for pid in pids if pid is not None])
        except BadInput as error:
            self.problems.extend(error.problems)
            return None

    def number(self, value: object, at: str) -> int | None:
        """A non-negative whole number, given as a number or as a text."""
        digits = value.strip() if isinstance(value, str) else ""
        if digits.isascii() and digits.isdigit() and len(digits) < len(str(_MAX_NUMBER)):
            return int(digits)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER:
            return value
        self.problems.append(Problem(at, shown(value), "a whole number"))
        return None

    def identities(self, value: object) -> Mapping[tuple[str, str], list[Task]]:
        """The tasks by pool and text of the CPU list."""
        identities: dict[tuple[str, str], list[Task]] = {}
        for name, lists in self.mapping(value, IDENTITIES):
            for text, tasks in self.mapping(lists, f"{IDENTITIES}.{name}"):
                at = f"{IDENTITIES}.{name}.{text}"
                parsed = [self.task(dict(self.mapping(task, at)), at) for task in self.sequence(tasks, at)]
                identities[name, text] = [task for task in parsed if task is not None]
        return identities

    def task(self, fields: Mapping[str, object], at: str) -> Task | None:
        pid = self.number(fields.get("pid"), f"{at}.pid")
        start = self.number(fields.get("start"), f"{at}.start")
        texts = {name: fields.get(name, "") for name in ("boot", "pod", "container")}
        invalid = [
            Problem(f"{at}.{name}", shown(text), "a text")
            for name, text in texts.items()
            if type(text) is not str
        ]
        self.problems.extend(invalid)
        if pid is None or invalid:
            return None
        return Task(pid, start, **{name: str(text) for name, text in texts.items()})


def as_cmk_config(allocations: Allocations) -> dict[str, dict[int, dict[str, list[str]]]]:
    """CMK's form: pool, socket, CPU list, and the process ids on the list as texts."""
    return {
        pool.name: {
            socket: {cpu_list.text: [str(task.pid) for task in cpu_list.tasks] for cpu_list in cpu_lists}
            for socket, cpu_lists in pool.sockets.items()
        }
        for pool in allocations.pools.values()
    }


def task_identities_by_cpu_list(allocations: Allocations) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The identities of tasks by pool and CPU list, of those tasks whose start is known."""
    identities: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for pool, cpu_list in allocations.cpu_lists:
        tasks = [task._asdict() for task in cpu_list.tasks if task.start is not None]
        if tasks:
            identities.setdefault(pool.name, {})[cpu_list.text] = tasks
    return identities


def as_describe_output(allocations: Allocations) -> dict[str, Any]:
    """The output of `describe`: without sockets, process ids as texts."""
    return {
        "pools": {
            pool.name: {
                "cpuLists": {
                    cpu_list.text: {
                        "cpus": cpu_list.text,
                        "tasks": [str(task.pid) for task in cpu_list.tasks],
                    }
                    for cpu_list in pool.cpu_lists
                },
                "exclusive": pool.is_exclusive,
                "name": pool.name,
            }
            for pool in allocations.pools.values()
        }
    }


def overlaps(allocations: Allocations) -> tuple[str, ...]:
    """Pairs of lists that have CPUs in common, which is an error."""
    lists = [
        (f"{pool.name}:{cpu_list.text}", frozenset(cpu_list.cpus)) for pool, cpu_list in allocations.cpu_lists
    ]
    return tuple(
        f"{first} and {second} (in both: {sorted(first_cpus & second_cpus)})"
        for (first, first_cpus), (second, second_cpus) in combinations(lists, 2)
        if first_cpus & second_cpus
    )
