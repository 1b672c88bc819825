"""An event loop with real sockets, whose time passes only while nothing comes in.

A deadline is reached when all that was sent has been read and everybody waits, so a test of deadlines is the same on a
machine that is busy, or stands still for seconds.
"""

import asyncio
import selectors
from typing import Final

QUIET_S: Final = 0.01
"""Of real time, in which what was sent to oneself arrives, or a thread ends its work."""


class _Patient(selectors.DefaultSelector):
    """Waits shortly instead of long, and then moves the time on."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select()
        ready = super().select(min(timeout, QUIET_S))
        if not ready:
            self.now_s += max(timeout, 0.0)
        return ready


class PatientLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._patient = _Patient()
        super().__init__(self._patient)

    def time(self) -> float:
        return self._patient.now_s

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        # Threads end in real time; the five minutes that Python 3.13 gives them would pass at once on this loop.
        del timeout
        await super().shutdown_default_executor()


BACKEND: Final = ("asyncio", {"loop_factory": PatientLoop})
