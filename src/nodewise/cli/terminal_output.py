"""Messages on stderr, exit codes, the current step of a slow command, and `--watch`."""

import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Final, NoReturn, Self, TypeVar

import click

from nodewise.base.clock import Clock
from nodewise.base.errors import Unavailable, visible


def print_line(text: str) -> None:
    """Print a line to stdout."""
    click.echo(visible(text))


def print_message(text: str) -> None:
    """Print a message to stderr."""
    click.echo(f"nodewise: {visible(text)}", err=True)


DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
"""Invalid usage or settings."""
NO: Final = 3
"""Done, with a negative answer."""

MEANING: Final[Mapping[int, str]] = {
    DONE: "success; if the command answers a question, the answer is positive",
    FAILED: "failure; stderr has the reason",
    USAGE: "the command line or a setting is invalid; stderr names it",
    NO: "a negative answer: a pod that fits on no node, a policy with problems, a change that is due",
    130: "ended by SIGINT",
}
"""The meaning of each code, as the reference page prints it."""


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


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float, float], None]]:
    """A progress bar, on a terminal only; the function takes how much is done, and the total."""
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        bar = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


T = TypeVar("T")

Show = Callable[[T], None]


async def show_changes(
    compute: Callable[[], Awaitable[T]],
    comparable: Callable[[T], object],
    show: Show[T],
    period_s: float,
    clock: Clock,
) -> NoReturn:
    """Compute an answer once per period, and show the first one and each that differs from the last one shown.

    `comparable` returns the part of an answer that counts. A server that does not respond is reported once on stderr,
    and tried again; at the first answer it is an error, because the command line may be wrong. Ctrl-C ends the command.
    """
    answer = await compute()
    while True:
        show(answer)
        shown = comparable(answer)
        reported = ""
        while comparable(answer) == shown:
            await clock.sleep(period_s)
            try:
                answer = await compute()
                reported = ""
            except Unavailable as error:
                if str(error) != reported:
                    print_message(str(error))
                reported = str(error)
