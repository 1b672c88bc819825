"""Creation of a node's first pools. Existing pools are never changed."""

from collections.abc import Mapping
from typing import Final

from nodewise.base.errors import Conflict, Problem
from nodewise.kube.api_server_interface import NotFound
from nodewise_cpu import pool_allocations
from nodewise_cpu.allocation_store import AllocationStore
from nodewise_cpu.pool_allocations import Allocations
from nodewise_cpu.pool_planning import PoolPlan

_REMEDY: Final = "`nodewise cpu reconfigure` gives a node other pools, `uninstall` takes them away"

CpuSets = Mapping[tuple[str, int], frozenset[frozenset[int]]]
"""The CPUs of each list, by pool and socket."""


def store_new_pools(store: AllocationStore, plan: PoolPlan) -> bool:
    """Store the pools. Returns False if the node has exactly these pools already, with or without tasks.

    Conflict names the differences if the node has other pools.
    """
    planned = pool_allocations.allocations_without_tasks(plan.pools)
    try:
        stored = store.read().allocations
    except NotFound:
        try:
            store.create(planned)
        except Conflict:
            stored = store.read().allocations  # another process created them first
        else:
            return True
    _check_pools_equal(store.location, stored, planned)
    return False


def _check_pools_equal(place: str, stored: Allocations, planned: Allocations) -> None:
    old, new = cpu_lists_as_sets(stored), cpu_lists_as_sets(planned)
    names = dict.fromkeys([*stored.pools, *planned.pools])
    problems = [
        Problem(f"pool {name}", _describe_cpu_lists(stored, name), _describe_cpu_lists(planned, name))
        for name in names
        if _sets_of_pool(old, name) != _sets_of_pool(new, name)
    ]
    if problems:
        raise Conflict(f"there are other pools already in {place}", problems, remedy=_REMEDY)


def cpu_lists_as_sets(allocations: Allocations) -> CpuSets:
    """The lists as sets: independent of how they are written and of their tasks."""
    return {
        (pool.name, socket): frozenset(frozenset(cpu_list.cpus) for cpu_list in cpu_lists)
        for pool in allocations.pools.values()
        for socket, cpu_lists in pool.sockets.items()
        if cpu_lists
    }


def _sets_of_pool(sets: CpuSets, name: str) -> CpuSets:
    return {(pool, socket): lists for (pool, socket), lists in sets.items() if pool == name}


def _describe_cpu_lists(allocations: Allocations, name: str) -> str:
    """The lists of a pool: `2 CPU lists (0,4 1,5)`."""
    pool = allocations.pools.get(name)
    texts = [cpu_list.text for cpu_list in pool.cpu_lists] if pool else []
    lists = f"{len(texts)} CPU list{'s' * (len(texts) != 1)}"
    return f"{lists} ({' '.join(texts)})" if texts else lists
