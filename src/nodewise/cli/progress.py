"""Shows the current step of a command on stderr, after two seconds and only on a terminal."""

import sys
import threading
from types import TracebackType
from typing import Final, Self

from nodewise.base.errors import visible

LATE_S: Final = 2.0


class Progress:
    """A context manager: `with Progress() as progress: progress.say("reading nodes")`. The line disappears at the end.

    Nothing may be printed inside of it, or the output would interrupt the line.
    """

    def __init__(self) -> None:
        from rich.console import Console  # a server, which imports this file too, starts sooner without
        from rich.status import Status

        self._status = Status("", console=Console(stderr=True, highlight=False))
        self._timer = threading.Timer(LATE_S, self._status.start)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._timer.ident is not None:
            self._timer.join()
            self._status.stop()

    def say(self, doing: str) -> None:
        """Show the current step."""
        from rich.text import Text

        self._status.update(Text(visible(f"{doing} …")))
