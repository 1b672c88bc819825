"""What commands print: tables, messages on stderr, exit codes, the current step of a slow command, and `--watch`.

In a pipe each row of a table is one line; on a terminal the last column is folded.
"""

import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, NamedTuple, NoReturn, Self, TypeVar

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


MAX_LISTED_NODES: Final = 20
"""If there are more nodes, only the most relevant ones are listed."""
_PIPE_WIDTH: Final = 10_000  # width of a table in a pipe, where lines must not be folded
_MIN_LAST_COLUMN: Final = 30  # minimum width of the last column; a narrower terminal breaks the lines


class TableData(NamedTuple):
    """The heading and rows of a table, as `print_table` takes them."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def select_nodes_to_list(passing: Sequence[T], rejected: Sequence[T]) -> list[T]:
    """At most `MAX_LISTED_NODES` nodes, half of them rejected if there are so many. The first are the most relevant."""
    kept = passing[: max(MAX_LISTED_NODES // 2, MAX_LISTED_NODES - len(rejected))]
    return [*kept, *rejected[: MAX_LISTED_NODES - len(kept)]]


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table. Nothing is cut off, and control characters are made visible."""
    from rich.console import Console  # start-up time: most commands print no table
    from rich.table import Table
    from rich.text import Text

    listed = [tuple(head), *(tuple(map(visible, row)) for row in rows)]
    table = Table(box=None, header_style="", pad_edge=False)
    for name in head[:-1]:
        table.add_column(name, no_wrap=True)
    table.add_column(head[-1], overflow="fold")
    for row in listed[1:]:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False)
    if sys.stdout.isatty():  # the terminal's width, or more if the columns before the last one need it
        before = [max(len(cell) for cell in column) + 2 for column in list(zip(*listed, strict=True))[:-1]]
        console.width = max(console.width, sum(before) + _MIN_LAST_COLUMN)
    else:
        console.width = _PIPE_WIDTH
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        click.echo(line.rstrip())


def drop_empty_columns(
    names: str | Sequence[str], head: Sequence[str], rows: Sequence[Sequence[str]]
) -> TableData:
    """The table without those of the named columns that contain only dashes."""
    named = {names} if isinstance(names, str) else set(names)
    kept = [at for at, name in enumerate(head) if name not in named or any(row[at] != "-" for row in rows)]
    return TableData([head[at] for at in kept], [[row[at] for at in kept] for row in rows])
