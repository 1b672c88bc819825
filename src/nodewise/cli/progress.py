"""What a command is doing, on stderr, once it takes longer than two seconds; only on a terminal."""

import asyncio
import sys
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.status import Status

LATE_S: Final = 2.0


class Progress:
    """`async with Progress() as progress: progress.say("reading nodes")`. The line is gone at the end."""

    def __init__(self) -> None:
        self._status = Status("", console=Console(stderr=True, highlight=False))
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        if sys.stderr.isatty():
            self._timer = asyncio.get_running_loop().call_later(LATE_S, self._status.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._status.stop()

    def say(self, doing: str) -> None:
        """What is being done now."""
        self._status.update(f"{doing} …")
