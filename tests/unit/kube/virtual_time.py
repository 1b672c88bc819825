"""An event loop with virtual time, which advances only when all tasks sleep. Hours of an election take milliseconds."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")


class _Skipping(selectors.SelectSelector):
    """A selector that advances the virtual time instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "deadlock: no task is runnable and no timer is set"
        self.now_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now_s

    def compute(self, seconds: float) -> None:
        """Advance the time as a computation does that takes so long."""
        self._skipping.now_s += seconds


BACKEND: Final = ("asyncio", {"loop_factory": VirtualLoop})
"""Of the fixture `anyio_backend`, for async tests in virtual time."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class VirtualClock:
    """The clocks of a machine in virtual time, with an offset and a rate; `step_s` makes wall time jump."""

    def __init__(self, offset_s: float = 0.0, rate: float = 1.0) -> None:
        self._offset_s = offset_s
        self._rate = rate
        self.step_s = 0.0

    def now(self) -> float:
        return 1_700_000_000.0 + self.monotonic() + self.step_s

    def monotonic(self) -> float:
        return self._offset_s + asyncio.get_running_loop().time() * self._rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)
