"""The phases of a connection, and the deadline of each phase."""

import asyncio
import enum
from collections.abc import Callable
from typing import Final

from nodewise.server.options import ServeOptions


class Phase(enum.Enum):
    """What happens next on a connection."""

    HEADER = "header"
    BODY = "body"
    ANSWERING = "answering"
    IDLE = "idle"
    CLOSING = "closing"


_DEADLINE_PHASES: Final = frozenset({Phase.HEADER, Phase.BODY, Phase.IDLE})


class PhaseTimer:
    """The timer of the phase that a connection is in.

    A header must be complete within `header_timeout_s`, an idle connection be used within `keep_alive_s`. A body must
    be complete within `body_timeout_s`, without a pause over `body_idle_timeout_s`; the time during which the server
    itself does not read is excluded.
    """

    def __init__(self, options: ServeOptions, on_timeout: Callable[[Phase], None]) -> None:
        self._options = options
        self._on_timeout = on_timeout
        self._loop = asyncio.get_running_loop()
        self._deadline: asyncio.TimerHandle | None = None
        self._watched: tuple[Phase, int] | None = None
        """The phase with a deadline, and the number of the request."""
        self._began_s = 0.0
        self._last_read_s = 0.0
        self._is_reading_paused = False

    def watch(self, phase: Phase, request: int) -> None:
        """Arm the timer that the phase of this request needs, and no other."""
        watched = (phase, request) if phase in _DEADLINE_PHASES else None
        if watched == self._watched:
            return
        self._watched = watched
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if watched is not None:
            wait_s = {
                Phase.HEADER: self._options.header_timeout_s,
                Phase.BODY: self._options.body_idle_timeout_s,
                Phase.IDLE: self._options.keep_alive_s,
            }[phase]
            self._began_s = self._last_read_s = self._loop.time()
            self._deadline = self._loop.call_later(wait_s, self._handle_timeout, phase)

    def record_read(self) -> None:
        """The client sent something."""
        self._last_read_s = self._loop.time()

    def pause(self) -> None:
        """The server does not read until `resume`."""
        self._is_reading_paused = True

    def resume(self) -> None:
        """The server reads again."""
        self._is_reading_paused = False
        self._exclude_read_pause()

    def stop(self) -> None:
        """End for good, and release the connection: until it is freed, OpenSSL keeps its session."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        self._on_timeout = _ignore

    def _handle_timeout(self, phase: Phase) -> None:
        self._deadline = None
        if phase is Phase.BODY and (left_s := self._seconds_until_body_deadline()) > 0:
            self._deadline = self._loop.call_later(left_s, self._handle_timeout, phase)
        else:
            self._on_timeout(phase)

    def _seconds_until_body_deadline(self) -> float:
        """Seconds until the body is late, as things stand."""
        if self._is_reading_paused:
            self._exclude_read_pause()
        idle_s = self._last_read_s + self._options.body_idle_timeout_s
        return min(idle_s, self._began_s + self._options.body_timeout_s) - self._loop.time()

    def _exclude_read_pause(self) -> None:
        now_s = self._loop.time()
        self._began_s += now_s - self._last_read_s
        self._last_read_s = now_s


def _ignore(_phase: Phase) -> None:
    """The connection has ended."""
