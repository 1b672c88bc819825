"""Gives a node its first pools, and never touches those that it has."""

from collections.abc import Mapping
from typing import Final

from nodewise.cpu import state as states
from nodewise.cpu.book import Book
from nodewise.cpu.pools import Plan
from nodewise.cpu.state import State
from nodewise.errors import Conflict, Problem
from nodewise.kube.api import NotFound

_REMEDY: Final = "`nodewise cpu reconfigure` gives a node other pools, `uninstall` takes them away"

Cores = Mapping[tuple[str, int], frozenset[frozenset[int]]]
"""Of each pool and socket the CPUs of its lists."""


def found(book: Book, plan: Plan) -> bool:
    """Write the pools; False if the node has these very pools already, with whatever tasks.

    Conflict says how those that it has differ. Nothing is ever written over.
    """
    wanted = states.from_lists(plan.pools)
    try:
        stored = book.read().state
    except NotFound:
        try:
            book.create(wanted)
        except Conflict:
            stored = book.read().state  # somebody was faster
        else:
            return True
    _check(book.place, stored, wanted)
    return False


def _check(place: str, stored: State, wanted: State) -> None:
    old, new = cores(stored), cores(wanted)
    names = dict.fromkeys([*stored.pools, *wanted.pools])
    problems = [
        Problem(f"pool {name}", _told(stored, name), _told(wanted, name))
        for name in names
        if _of(old, name) != _of(new, name)
    ]
    if problems:
        raise Conflict(f"there are other pools already in {place}", problems, remedy=_REMEDY)


def cores(state: State) -> Cores:
    """What of a state is the same however its lists are written and whoever holds them."""
    return {
        (pool.name, socket): frozenset(frozenset(slot.cpus) for slot in slots)
        for pool in state.pools.values()
        for socket, slots in pool.sockets.items()
        if slots
    }


def _of(all_cores: Cores, name: str) -> Cores:
    return {place: lists for place, lists in all_cores.items() if place[0] == name}


def _told(state: State, name: str) -> str:
    """`2 CPU lists (0,4 1,5)`."""
    texts = [slot.text for slot in state.pools[name].slots] if name in state.pools else []
    lists = f"{len(texts)} CPU list{'s' * (len(texts) != 1)}"
    return f"{lists} ({' '.join(texts)})" if texts else lists
