"""Which CPU lists a task gets, what it is told of them, and how it gives them back.

Standard library only.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.cpu import cpulist
from nodewise.cpu.pools import INFRA, SHARED
from nodewise.cpu.state import Pool, Slot, State, Task
from nodewise.errors import BadInput, Problem, Unavailable, shown

COUNT: Final = "CMK_NUM_CORES"
"""The variable that says how many lists of an exclusive pool a task wants."""

MARK: Final = "NODEWISE_CPU_TASK"
"""The variable by which a task's descendants are known after its wrapper is gone."""

_NAME: Final = re.compile(r"isolate-(\d{1,7})", re.ASCII)


class Wish(NamedTuple):
    """What a task asks for, and what is to be heeded."""

    pool: str
    lists: int = 1
    """How many lists, of an exclusive pool; a task gets one list of the others."""
    socket: int | None = None
    """Heeded in all pools but infra, which is for whoever has no wishes."""
    numa_cpus: Collection[int] | None = None
    """The CPUs of the NUMA node wished for: lists of an exclusive pool lie within, others touch it."""
    avoid: Collection[int] = ()
    """CPUs of which no list may have any: those that are offline, unless the task sets no affinity."""
    prefer: Collection[int] = ()
    """CPUs whose lists come first: those of a higher base frequency."""


class Claim(NamedTuple):
    """The state with the task on its slots, and these slots, by first CPU."""

    state: State
    slots: tuple[Slot, ...]

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(cpu for slot in self.slots for cpu in slot.cpus)


def wrapper_name(pid: int) -> str:
    """What a wrapper names itself before it starts its command, which has this name until it is executed.

    The kernel keeps 15 letters.
    """
    return f"isolate-{pid}"


def parse_wrapper(name: str) -> int:
    """The process id in a name of `wrapper_name`; 0 in any other name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0


def parse_count(text: str) -> int:
    """How many lists `CMK_NUM_CORES` asks for; BadInput if it is no positive whole number."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) > 0):  # noqa: PLR2004
        raise BadInput(
            "cannot tell how many cores are wanted", [Problem(COUNT, shown(text), "a positive whole number")]
        )
    return int(digits)


def claim(state: State, wish: Wish, task: Task, draw: float) -> Claim:
    """The lists that the task gets.

    Of an exclusive pool: free ones, preferred ones first, by first CPU, all on one socket where one has enough. Of
    the others: one of those with the fewest tasks, by `draw`, a number from 0 up to 1. BadInput if the wish names a
    pool or a socket that is not there; Unavailable if too few lists are free now.
    """
    pool = state.pools.get(wish.pool)
    if pool is None:
        wanted = "one of " + ", ".join(sorted(state.pools))
        raise BadInput("cannot choose CPUs", [Problem("--pool", shown(wish.pool), wanted)])
    sockets = _sockets(pool, wish)
    found = _free(state, pool, sockets, wish) if pool.is_exclusive else _shared(pool, sockets, wish, draw)
    chosen = tuple(sorted(found, key=lambda slot: slot.cpus))

    def on(of: Pool, slot: Slot) -> Iterable[Task]:
        return (*slot.tasks, task) if of.name == pool.name and slot in chosen else slot.tasks

    return Claim(state.mapped(on), chosen)


def release(state: State, task: Task) -> State:
    """The state without the task."""
    return state.mapped(lambda _, slot: (one for one in slot.tasks if one != task))


def environment(state: State, claimed: Sequence[Slot], task: Task) -> Mapping[str, str]:
    """What the task's command is told: CPUs in lists without ranges, and a mask."""
    cpus = [cpu for slot in claimed for cpu in slot.cpus]
    told = {
        "CMK_CPUS_ASSIGNED": cpulist.format_list(cpus),
        "CMK_CPUS_ASSIGNED_MASK": cpulist.format_mask(cpus),
        MARK: task.mark,
    }
    for variable, name in (("CMK_CPUS_SHARED", SHARED), ("CMK_CPUS_INFRA", INFRA)):
        if name in state.pools:
            told[variable] = cpulist.format_list(cpu for slot in state.pools[name].slots for cpu in slot.cpus)
    return told


def _sockets(pool: Pool, wish: Wish) -> Sequence[int]:
    if wish.socket is None or pool.name == INFRA:
        return sorted(pool.sockets)
    if wish.socket not in pool.sockets:
        wanted = "one of " + ", ".join(map(str, sorted(pool.sockets)))
        raise BadInput("cannot choose CPUs", [Problem("--socket-id", str(wish.socket), wanted)])
    return [wish.socket]


def _free(state: State, pool: Pool, sockets: Sequence[int], wish: Wish) -> Sequence[Slot]:
    """So many free lists as are wished for."""
    if wish.lists < 1:
        raise BadInput("cannot choose CPUs", [Problem(COUNT, str(wish.lists), "a positive whole number")])
    # lists that overlap are a fault of whoever wrote them, and still no CPU is given twice
    busy = {cpu for of, slot in state.slots if of.is_exclusive and slot.tasks for cpu in slot.cpus}
    free = {
        socket: [
            slot
            for slot in _usable(pool.sockets[socket], wish)
            if not slot.tasks and busy.isdisjoint(slot.cpus)
            if wish.numa_cpus is None or set(slot.cpus) <= set(wish.numa_cpus)
        ]
        for socket in sockets
    }
    everywhere = [slot for socket in sockets for slot in free[socket]]
    for slots in (*free.values(), everywhere):
        chosen = _apart(sorted(slots, key=lambda slot: (set(wish.prefer).isdisjoint(slot.cpus), slot.cpus)))
        if len(chosen) >= wish.lists:
            return chosen[: wish.lists]
    raise _too_few(pool, sockets, wish, len(chosen), wish.lists)


def _apart(slots: Iterable[Slot]) -> Sequence[Slot]:
    """Those that overlap no slot before them."""
    found: list[Slot] = []
    seen: set[int] = set()
    for slot in slots:
        if seen.isdisjoint(slot.cpus):
            found.append(slot)
            seen.update(slot.cpus)
    return found


def _shared(pool: Pool, sockets: Sequence[int], wish: Wish, draw: float) -> Sequence[Slot]:
    """One list; the NUMA node is heeded as the socket is."""
    numa = None if pool.name == INFRA else wish.numa_cpus
    slots = [
        slot
        for socket in sockets
        for slot in _usable(pool.sockets[socket], wish)
        if numa is None or not set(numa).isdisjoint(slot.cpus)
    ]
    if not slots:
        raise _too_few(pool, sockets, wish, 0, 1)
    fewest = min(len(slot.tasks) for slot in slots)
    least = [slot for slot in slots if len(slot.tasks) == fewest]
    return [least[int(draw * len(least))]]


def _usable(slots: Iterable[Slot], wish: Wish) -> Iterable[Slot]:
    return (slot for slot in slots if set(wish.avoid).isdisjoint(slot.cpus))


def _too_few(pool: Pool, sockets: Sequence[int], wish: Wish, seen: int, wanted: int) -> Unavailable:
    """What there is of the pool, and why it is not more."""
    slots = [slot for socket in sockets for slot in pool.sockets[socket]]
    offline = sorted({cpu for slot in slots for cpu in slot.cpus} & set(wish.avoid))
    held = sum(bool(slot.tasks) for slot in slots)
    state = (
        f"{seen} of {len(slots)} CPU lists free"
        if pool.is_exclusive
        else f"{seen} of {len(slots)} CPU lists usable"
    )
    state += f", {held} held" if pool.is_exclusive and held else ""
    state += f", CPUs {cpulist.format_ranges(offline)} offline" if offline else ""
    return Unavailable("cannot choose CPUs", [Problem(f"pool {pool.name}", state, str(wanted))])
