"""Prints tables. In a pipe each row is one line; on a terminal the last column is folded."""

import sys
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodewise.base.errors import visible

MAX_LISTED_NODES: Final = 20
"""If there are more nodes, only the most relevant ones are listed."""
_PIPE_WIDTH: Final = 10_000
"""Width of a table in a pipe, where lines must not be folded."""
_MIN_LAST_COLUMN: Final = 30
"""Minimum width of the last column; a narrower terminal breaks the lines."""

T = TypeVar("T")


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
