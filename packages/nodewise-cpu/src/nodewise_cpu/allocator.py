"""The choice of CPU lists for a task, the environment of its command, and the release of its lists.

Standard library only.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.base.errors import BadInput, Unavailable, shown
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.pool_allocations import Allocations, CpuListAllocation, Pool, Task
from nodewise_cpu.pool_planning import INFRA, SHARED

COUNT_VARIABLE: Final = "CMK_NUM_CORES"
"""The variable with the number of lists that a task requests of an exclusive pool."""

TASK_VARIABLE: Final = "NODEWISE_CPU_TASK"
"""The variable by which a task's descendants are recognised after its wrapper has ended."""

CANNOT_CHOOSE_CPUS: Final = "cannot choose CPUs"
"""The first part of every error of an allocation."""

_WRAPPER_NAME: Final = re.compile(r"isolate-(\d{1,7})", re.ASCII)
_MAX_COUNT_DIGITS: Final = 9


class AllocationRequest(NamedTuple):
    """The pool and number of lists that a task requests, and constraints on the choice."""

    pool: str
    lists: int = 1
    """The number of lists of an exclusive pool. A task gets one list of any other pool."""
    socket: int | None = None
    """The socket of the lists. Ignored for the pool infra."""
    avoid: Collection[int] = ()
    """CPUs that no list may contain: offline CPUs, unless the task sets no affinity."""
    prefer: Collection[int] = ()
    """CPUs whose lists are chosen first: those with a higher base frequency."""
    caches: Mapping[int, int] = {}
    """The cache of level 3 of each CPU that has one; without preferred CPUs, lists are chosen from one cache."""


class AllocationResult(NamedTuple):
    """The allocations with the task on its CPU lists, and these lists, by first CPU."""

    allocations: Allocations
    cpu_lists: tuple[CpuListAllocation, ...]

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(cpu for cpu_list in self.cpu_lists for cpu in cpu_list.cpus)


def wrapper_process_name(pid: int) -> str:
    """The name that a wrapper gives itself, and its child until that executes the command.

    The kernel keeps 15 characters.
    """
    return f"isolate-{pid}"


def process_id_of_wrapper_name(name: str) -> int:
    """The process id in a `wrapper_process_name`; 0 for any other name."""
    match = _WRAPPER_NAME.fullmatch(name)
    return int(match[1]) if match else 0


def parse_core_count(text: str) -> int:
    """The value of `CMK_NUM_CORES`. BadInput if it is no positive whole number."""
    digits = text.strip()
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_COUNT_DIGITS
    if not (is_number and int(digits) > 0):
        raise BadInput.of(
            "cannot parse the number of cores", COUNT_VARIABLE, shown(text), "a positive whole number"
        )
    return int(digits)


def allocate(
    allocations: Allocations, request: AllocationRequest, task: Task, draw: float
) -> AllocationResult:
    """Put the task on the lists that it requests.

    Of an exclusive pool these are free lists, preferred ones first, by first CPU, all on one socket where possible, and
    of one cache of level 3 where possible: of the one with the fewest free lists, as the kubelet's option
    `prefer-align-cpus-by-uncorecache` does (`pkg/kubelet/cm/cpumanager/cpu_assignment.go` of Kubernetes 1.37). Of
    another pool it is one of the lists with the fewest tasks, chosen by `draw`, a number in [0, 1). BadInput if the
    pool or the socket does not exist; Unavailable if too few lists are free now.
    """
    pool = allocations.pools.get(request.pool)
    if pool is None:
        wanted = "one of " + ", ".join(sorted(allocations.pools))
        raise BadInput.of(CANNOT_CHOOSE_CPUS, "--pool", shown(request.pool), wanted)
    sockets = _candidate_sockets(pool, request)
    if pool.is_exclusive:
        cpu_lists = _free_lists(allocations, pool, sockets, request)
    else:
        cpu_lists = [_least_used_list(pool, sockets, request, draw)]
    chosen = tuple(sorted(cpu_lists, key=lambda cpu_list: cpu_list.cpus))

    def with_task(other: Pool, cpu_list: CpuListAllocation) -> Iterable[Task]:
        is_chosen = other.name == pool.name and cpu_list in chosen
        return (*cpu_list.tasks, task) if is_chosen else cpu_list.tasks

    return AllocationResult(allocations.with_tasks(with_task), chosen)


def task_environment(
    allocations: Allocations, allocated: Sequence[CpuListAllocation], task: Task
) -> Mapping[str, str]:
    """Variables for the task's command: CPU lists without ranges, and a mask."""
    cpus = [cpu for cpu_list in allocated for cpu in cpu_list.cpus]
    environment = {
        "CMK_CPUS_ASSIGNED": cpu_set_formats.format_cpu_list_without_ranges(cpus),
        "CMK_CPUS_ASSIGNED_MASK": cpu_set_formats.format_cpu_mask(cpus),
        TASK_VARIABLE: task.task_variable_value,
    }
    for variable, name in (("CMK_CPUS_SHARED", SHARED), ("CMK_CPUS_INFRA", INFRA)):
        if name in allocations.pools:
            environment[variable] = cpu_set_formats.format_cpu_list_without_ranges(
                cpu for cpu_list in allocations.pools[name].cpu_lists for cpu in cpu_list.cpus
            )
    return environment


def _candidate_sockets(pool: Pool, request: AllocationRequest) -> Sequence[int]:
    if request.socket is None or pool.name == INFRA:
        return sorted(pool.sockets)
    if request.socket not in pool.sockets:
        wanted = f"one of {', '.join(map(str, sorted(pool.sockets)))}, the sockets of pool {pool.name}"
        raise BadInput.of(CANNOT_CHOOSE_CPUS, "--socket-id", str(request.socket), wanted)
    return [request.socket]


def _free_lists(  # complexity: free lists of each socket, then of all
    allocations: Allocations, pool: Pool, sockets: Sequence[int], request: AllocationRequest
) -> Sequence[CpuListAllocation]:
    if request.lists < 1:
        seen = str(request.lists)
        raise BadInput.of(CANNOT_CHOOSE_CPUS, COUNT_VARIABLE, seen, "a positive whole number")
    unusable = _busy_cpus(allocations) | set(request.avoid)
    free = [
        [
            cpu_list
            for cpu_list in pool.sockets[socket]
            if not cpu_list.tasks and unusable.isdisjoint(cpu_list.cpus)
        ]
        for socket in sockets
    ]
    chosen: Sequence[CpuListAllocation] = ()
    for candidates in (*free, [cpu_list for lists in free for cpu_list in lists]):
        chosen = _without_overlaps(candidates, request.prefer)
        if len(chosen) >= request.lists:
            if request.prefer:
                return chosen[: request.lists]
            return _from_few_caches(chosen, request.lists, request.caches)
    raise _too_few_lists_error(pool, sockets, request, len(chosen), request.lists)


def _busy_cpus(allocations: Allocations) -> set[int]:
    """The CPUs of all exclusive lists with tasks. Lists in a hand-written state may overlap: no CPU is given twice."""
    held = (cpu_list for pool, cpu_list in allocations.cpu_lists if pool.is_exclusive and cpu_list.tasks)
    return {cpu for cpu_list in held for cpu in cpu_list.cpus}


def _without_overlaps(
    cpu_lists: Iterable[CpuListAllocation], prefer: Collection[int]
) -> Sequence[CpuListAllocation]:
    """The lists that overlap none before them: those with preferred CPUs first, then by first CPU."""
    disjoint: list[CpuListAllocation] = []
    used: set[int] = set()
    for cpu_list in sorted(cpu_lists, key=lambda item: (set(prefer).isdisjoint(item.cpus), item.cpus)):
        if used.isdisjoint(cpu_list.cpus):
            disjoint.append(cpu_list)
            used.update(cpu_list.cpus)
    return disjoint


def _from_few_caches(
    free: Sequence[CpuListAllocation], count: int, cache_of: Mapping[int, int]
) -> Sequence[CpuListAllocation]:
    """So many of the free lists: of the cache with the fewest that suffice, else all of the largest first."""
    caches: dict[int | None, list[CpuListAllocation]] = {}
    for cpu_list in free:
        caches.setdefault(cache_of.get(cpu_list.cpus[0]), []).append(cpu_list)
    if sufficient := [lists for lists in caches.values() if len(lists) >= count]:
        return min(sufficient, key=len)[:count]
    largest = max(caches.values(), key=len)
    others = [cpu_list for cpu_list in free if cpu_list not in largest]
    return [*largest, *_from_few_caches(others, count - len(largest), cache_of)]


def _least_used_list(
    pool: Pool, sockets: Sequence[int], request: AllocationRequest, draw: float
) -> CpuListAllocation:
    cpu_lists = [
        cpu_list
        for socket in sockets
        for cpu_list in pool.sockets[socket]
        if set(request.avoid).isdisjoint(cpu_list.cpus)
    ]
    if not cpu_lists:
        raise _too_few_lists_error(pool, sockets, request, 0, 1)
    fewest = min(len(cpu_list.tasks) for cpu_list in cpu_lists)
    least_used = [cpu_list for cpu_list in cpu_lists if len(cpu_list.tasks) == fewest]
    return least_used[int(draw * len(least_used))]


def _too_few_lists_error(
    pool: Pool, sockets: Sequence[int], request: AllocationRequest, available: int, wanted: int
) -> Unavailable:
    cpu_lists = [cpu_list for socket in sockets for cpu_list in pool.sockets[socket]]
    offline = sorted({cpu for cpu_list in cpu_lists for cpu in cpu_list.cpus} & set(request.avoid))
    held = sum(bool(cpu_list.tasks) for cpu_list in cpu_lists)
    kind = "free" if pool.is_exclusive else "usable"
    seen = f"{available} of {len(cpu_lists)} CPU lists {kind}"
    seen += f", {held} held" if pool.is_exclusive and held else ""
    seen += f", CPUs {cpu_set_formats.format_cpu_ranges(offline)} offline" if offline else ""
    where = "" if request.socket is None or pool.name == INFRA else f" on socket {request.socket}"
    return Unavailable.of(CANNOT_CHOOSE_CPUS, f"pool {pool.name}{where}", seen, str(wanted))
