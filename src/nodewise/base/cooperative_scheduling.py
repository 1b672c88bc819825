"""Cooperative scheduling: long background work yields the event loop after each time slice.

A request is answered in one step of the event loop. Work on all nodes or pods takes longer than a request may wait, so
it is written as a generator that yields between its parts, or as a loop over `iterate_with_pauses`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")

SLICE_S: Final = 0.0003


class Pacer:
    """Yields the event loop at the end of each slice: await `pause` before each part of the work.

    The first `pause` always yields.
    """

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._began_s = float("-inf")

    async def pause(self) -> None:
        """Run the event loop once if the slice has ended."""
        if time.perf_counter() - self._began_s > self._slice_s:
            await asyncio.sleep(0)
            self._began_s = time.perf_counter()


async def iterate_with_pauses(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with pauses between them."""
    pacer = Pacer()
    for item in items:
        await pacer.pause()
        yield item


def run_event_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine in an event loop of its own, for commands that read a cluster.

    `asyncio.run` formats the result as text and drops the text, which takes seconds for many objects: it restores the
    handler of SIGINT by `signal.signal`, where an enum rejects the old handler, a partial that refers to the task, with
    a message (CPython 3.11, `signal._int_to_enum`).
    """
    results: list[T] = []

    async def keep_result() -> None:
        results.append(await work)

    asyncio.run(keep_result())
    return results[0]


async def run(work: Generator[None, None, T], slice_s: float = SLICE_S) -> T:
    """The result of a generator, with pauses between its parts."""
    pacer = Pacer(slice_s)
    while True:
        await pacer.pause()
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def run_without_pauses(work: Generator[None, None, T]) -> T:
    """The result of a generator, without pauses, for work within one response, and for commands and tests."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
