"""An event loop with real sockets and virtual time, which advances only while no data arrives.

A timeout expires when all sent data has been read and all tasks wait, so tests of timeouts have the same result on a
machine that is busy or suspended for seconds.
"""

import asyncio
import selectors
from typing import Final

QUIET_S: Final = 0.01
"""Real time within which data on loopback arrives."""


class _Patient(selectors.DefaultSelector):
    """Waits for a short real time, and then advances the virtual time."""

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
