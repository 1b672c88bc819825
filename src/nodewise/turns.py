"""Whose turn it is on the event loop: a request's; of all other work there is one slice in each round.

Ten jobs that each took their slice in every round would be one step of ten slices to a request. So long work is done in
slices, and waits for its turn before each.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_SLICE_S: Final = 0.0003
"""Of work, then the event loop goes on."""


def slices(items: Iterable[T], budget_s: float = _SLICE_S) -> Iterator[T | None]:
    """Pass items on, with a None among them whenever `budget_s` of work has gone by.

    The caller awaits `turn` at each None, so that long work never keeps the event loop from a request for longer than
    about the budget.
    """
    began = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - began > budget_s:
            yield None
            began = time.perf_counter()


class _Turns:
    """Of one event loop: who works in its present round, and who waits."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._worked: asyncio.Task[Any] | None = None
        """Who had the last slice, while others wait."""
        self._is_taken = False

    async def take(self) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next)
            self._worked = task
            return
        mine = loop.create_future()
        if task is self._worked:
            self._waiting.appendleft(mine)
        else:
            self._waiting.append(mine)
        await mine
        self._worked = task

    def _next(self) -> None:
        """Once in each round, as long as somebody waits."""
        while self._waiting and self._waiting[0].done():  # cancelled meanwhile
            self._waiting.popleft()
        if not self._waiting:
            self._is_taken, self._worked = False, None
            return
        self._waiting.popleft().set_result(None)
        asyncio.get_running_loop().call_soon(self._next)


_TURNS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]] = WeakKeyDictionary()


def _turns() -> _Turns:
    loop = asyncio.get_running_loop()
    found = _TURNS.get(loop)
    if found is None:
        found = _TURNS[loop] = _Turns()
    return found


async def turn() -> None:
    """Let the event loop go on until nobody else has worked in its present round.

    Who began first ends first.
    """
    await _turns().take()


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with the event loop let go on whenever a slice of work is done."""
    await turn()
    for item in slices(items):
        if item is None:
            await turn()
        else:
            yield item


class Pace:
    """For what comes when it likes, maybe much at once, and must not wait for its turn: await `pause` before each."""

    def __init__(self, budget_s: float = _SLICE_S) -> None:
        self._budget_s = budget_s
        self._began = float("-inf")

    async def pause(self) -> None:
        """Let the event loop go on for a round if a slice of work is done."""
        if time.perf_counter() - self._began > self._budget_s:
            await asyncio.sleep(0)
            self._began = time.perf_counter()


async def paced_result(work: Generator[None, None, T], budget_s: float = _SLICE_S) -> T:
    """The result of a computation that yields between its parts; the event loop goes on in between."""
    await turn()
    began = time.perf_counter()
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if time.perf_counter() - began > budget_s:
            await turn()
            began = time.perf_counter()


def result(work: Generator[None, None, T]) -> T:
    """The result of a computation that yields between its parts, all at once: offline nobody waits."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
