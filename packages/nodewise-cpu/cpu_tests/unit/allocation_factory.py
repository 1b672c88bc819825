"""Allocations of a node with one socket."""

from collections.abc import Iterable, Mapping

from nodewise_cpu import pool_allocations
from nodewise_cpu.pool_allocations import Allocations, Task


def create_allocations(pools: Mapping[str, Mapping[str, Iterable[Task]]]) -> Allocations:
    """The allocations with these tasks on each CPU list of each pool."""
    lists = {
        name: [pool_allocations.parse_cpu_list(text, tasks=tasks) for text, tasks in cpu_lists.items()]
        for name, cpu_lists in pools.items()
    }
    return Allocations({name: pool_allocations.pool(name, {0: of_pool}) for name, of_pool in lists.items()})
