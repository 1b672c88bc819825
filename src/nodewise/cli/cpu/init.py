"""`nodewise cpu init`: a node's first pools."""

from pathlib import Path
from typing import Any

import click

from nodewise.cli.cpu import shared
from nodewise.cpu.node import founding, machine
from nodewise.observe import logs


def run(**given: Any) -> None:
    """Divide this node's cores into pools, and write who holds them: nobody yet.

    A node that has these very pools already stays as it is, and so do its tasks. One that has others is refused:
    `reconfigure` gives it other pools. All is computed before anything is written.

    \b
    Examples:
      nodewise cpu init --num-exclusive-cores 4 --num-shared-cores 1
      nodewise cpu init --conf-dir /etc/cmk --exclusive-mode spread

    \b
    Exit codes:
      0  the node has these pools
      1  it cannot have them, or has others
      2  the command line or a setting is wrong
    """
    shared.start_logs()
    root = Path(given["sysfs"])
    machine.tell_huge_pages(root)
    ask = shared.ask(given)
    logs.emit("cpu_cores_asked", exclusive=ask.exclusive, shared=ask.shared)
    found = machine.read(root, shared.labels(given))
    plan = found.plan(ask)
    machine.tell(found, plan)
    book = shared.book(given)
    if not founding.found(book, plan):
        logs.emit("cpu_pools_kept", place=book.place)


command = click.Command(
    "init",
    callback=run,
    help=run.__doc__,
    short_help="Divide a node's cores into pools.",
    params=[
        *shared.options(*shared.POOLS, *shared.PLACE, "sysfs"),
        click.Option(["--socket-id"], type=int, default=-1, hidden=True, expose_value=False),
    ],
)
