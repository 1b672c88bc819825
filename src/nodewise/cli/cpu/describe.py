"""`nodewise cpu describe`: a node's pools, and who holds which CPUs."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from nodewise.cli import tables
from nodewise.cli.cpu import shared
from nodewise.cpu import state
from nodewise.cpu.book import Stored


def run(output: str | None, **given: Any) -> None:
    """Print a node's pools, and the tasks on each of their CPU lists.

    Takes no lock, changes nothing.

    \b
    Examples:
      nodewise cpu describe --node-name node1 --namespace cmk-namespace
      nodewise cpu describe --conf-dir /etc/cmk -o json

    \b
    Exit codes:
      0  printed
      1  the state cannot be read
      2  the command line or a setting is wrong
    """
    shared.start_logs()
    stored = shared.book(given).read()
    if output == "json" or (output is None and not sys.stdout.isatty()):
        path = {"path": given["conf_dir"]} if given["conf_dir"] else {}
        shared.print_json({**path, **_described(stored)})
        return
    head = ["POOL", "SOCKET", "CPUS", "TASK", "POD", "CONTAINER"]
    tables.show(*tables.without(["POD", "CONTAINER"], head, list(_rows(stored))))
    if stored.intent:
        click.echo(
            f"being reconfigured by process {stored.intent.by.pid} since {stored.intent.since}", err=True
        )


def _described(stored: Stored) -> dict[str, Any]:
    told = state.as_description(stored.state)
    return {**told, "reconfiguring": stored.intent.as_dict()} if stored.intent else told


def _rows(stored: Stored) -> Iterator[Sequence[str]]:
    for pool in stored.state.pools.values():
        for socket, slots in pool.sockets.items():
            for slot in slots:
                rows = [(str(task.pid), task.pod or "-", task.container or "-") for task in slot.tasks]
                yield from ((pool.name, str(socket), slot.text, *row) for row in rows or [("-", "-", "-")])


command = click.Command(
    "describe",
    callback=run,
    help=run.__doc__,
    short_help="A node's pools, and who holds which CPUs.",
    params=shared.options(*shared.PLACE, "output"),
)
