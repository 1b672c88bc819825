"""`nodewise cpu init`: a node's first pools."""

from pathlib import Path
from typing import Any

import click

from nodewise.cli.cpu import common_options
from nodewise.cpu.node import bootstrap, machine
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
    common_options.start_logs()
    root = Path(given["sysfs"])
    machine.log_huge_pages(root)
    ask = common_options.ask(given)
    logs.emit("cpu_cores_asked", exclusive=ask.exclusive, shared=ask.shared)
    found = machine.read(root, common_options.labels(given))
    plan = found.plan(ask)
    machine.log_plan(found, plan)
    store = common_options.store(given)
    if not bootstrap.create_pools(store, plan):
        logs.emit("cpu_pools_kept", place=store.place)


command = click.Command(
    "init",
    callback=run,
    help=run.__doc__,
    short_help="Divide a node's cores into pools.",
    params=[
        *common_options.options(*common_options.POOLS, *common_options.PLACE, "sysfs"),
        click.Option(["--socket-id"], type=int, default=-1, hidden=True, expose_value=False),
    ],
)
