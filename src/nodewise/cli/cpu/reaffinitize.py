"""`nodewise cpu reaffinitize`: what the older program ran in every container."""

import click

from nodewise.cli import terminal


def run() -> None:
    """Move nothing: who reconfigures a node moves its processes from outside, all threads of them.

    The older CPU manager ran this in every container of the cluster, to have each move its own first processes. It is
    here for scripts that call it.

    \b
    Examples:
      nodewise cpu reaffinitize --node-name node1

    \b
    Exit codes:
      0  nothing was done
    """
    terminal.print_message(
        "nothing to do: `nodewise cpu reconfigure`, or the node agent, moves all processes of a node"
    )


command = click.Command(
    "reaffinitize",
    callback=run,
    help=run.__doc__,
    short_help="Nothing: who reconfigures a node moves its processes.",
    params=[
        click.Option([option], hidden=True, expose_value=False)
        for option in ("--node-name", "--namespace", "--conf-dir", "--kubeconfig")
    ],
)
