"""A limit of concurrent calls that is shared fairly by namespaces.

A namespace starts a call only while it has fewer running calls than there are free slots. Alone it holds half of the
slots; n namespaces with many calls hold an n+1-th each, and as much stays free. So a namespace without running calls
finds a free slot at once, although the calls of others hang, unless as many namespaces as slots have hanging calls.

Of the namespaces that wait, the one with the fewest running calls starts the next call; of several such, the one whose
last turn was longest ago. A namespace that begins to wait comes after those that wait already.
"""

import asyncio
import itertools
from types import TracebackType
from typing import Final, Self

AGENTS: Final = ""
"""The name under which requests of agents' own are scheduled, in place of a namespace."""
DECODING: Final = 4
"""Responses of a source that are decoded at the same time. The samples of 5,000 nodes take several megabytes until they
are packed, and decoding more at a time is not faster on one event loop."""


class FairConcurrencyLimit:
    """Slots for concurrent calls. A call of several namespaces counts for the one with the fewest running calls."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = slots
        self._shares: dict[str, _Share] = {}
        """By namespace; only of namespaces with running or waiting calls."""
        self._turns = itertools.count()

    def slot(self, namespaces: frozenset[str]) -> "Slot":
        """A slot for one call, to be used once with `async with`. No namespaces: a call of an agent's own."""
        return Slot(self, namespaces or frozenset([AGENTS]))

    def enqueue(self, slot: "Slot") -> None:
        """Let a call wait for its turn, which may be at once."""
        for name in slot.namespaces:
            share = self._shares.get(name)
            if share is None:
                share = self._shares[name] = _Share(next(self._turns))
            share.waiting[slot] = None
        self._start_waiting_calls()

    def remove(self, slot: "Slot") -> None:
        """End a running or waiting call."""
        if slot.charged_to is None:
            self._stop_waiting(slot)
        else:
            self._shares[slot.charged_to].running -= 1
            self._free += 1
        for name in slot.namespaces:
            share = self._shares.get(name)
            if share is not None and not share.running and not share.waiting:
                del self._shares[name]
        self._start_waiting_calls()

    def calls_of_namespace(self, namespaces: frozenset[str]) -> tuple[str, int]:
        """The namespace with the fewest running and waiting calls, and their number."""
        calls = {name: self._shares[name].calls if name in self._shares else 0 for name in namespaces}
        name = min(calls, key=lambda name: (calls[name], name))
        return name, calls[name]

    def _start_waiting_calls(self) -> None:
        while self._free:
            waiting = [
                (share.running, share.turn, name) for name, share in self._shares.items() if share.waiting
            ]
            if not waiting or min(waiting)[0] >= self._free:
                return
            self._start_first_call(min(waiting)[2])

    def _start_first_call(self, name: str) -> None:
        share = self._shares[name]
        slot = next(iter(share.waiting))
        self._stop_waiting(slot)
        share.turn = next(self._turns)
        share.running += 1
        self._free -= 1
        slot.charged_to = name
        slot.start()

    def _stop_waiting(self, slot: "Slot") -> None:
        for name in slot.namespaces:
            del self._shares[name].waiting[slot]


class _Share:
    """The calls of one namespace."""

    def __init__(self, turn: int) -> None:
        self.running = 0
        self.waiting: dict[Slot, None] = {}
        """In the order of arrival."""
        self.turn = turn
        """Number of the last turn, or of the arrival."""

    @property
    def calls(self) -> int:
        return self.running + len(self.waiting)


class Slot:
    """The place of one call in the limit: waits, runs, and ends in any of these states."""

    def __init__(self, limit: FairConcurrencyLimit, namespaces: frozenset[str]) -> None:
        self.namespaces = namespaces
        self.charged_to: str | None = None
        """The namespace for which the running call counts; None while it waits."""
        self.calls_before = ("", 0)
        """When the call arrived: which of its namespaces had the fewest calls, and how many."""
        self._limit = limit
        self._started: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Wake the call."""
        # A canceled call has not run since, and returns the slot when it does.
        if self._started is not None and not self._started.done():
            self._started.set_result(None)

    async def __aenter__(self) -> Self:
        self._started = asyncio.get_running_loop().create_future()
        self.calls_before = self._limit.calls_of_namespace(self.namespaces)
        self._limit.enqueue(self)
        try:
            await self._started
        except BaseException:
            self._limit.remove(self)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limit.remove(self)
