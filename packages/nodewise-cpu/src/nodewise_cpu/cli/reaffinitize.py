"""`nodewise cpu reaffinitize`: a command of CMK that has nothing to do any more."""

import click

from nodewise.cli import terminal_output


def run() -> None:
    """Do nothing: `reconfigure` moves all threads of all tasks itself.

    CMK ran this command in every container, so that each container moved its own first processes. It is kept for
    scripts that call it.

    \b
    Examples:
      nodewise cpu reaffinitize --node-name node1

    \b
    Exit codes:
      0  nothing was done
    """
    terminal_output.print_message(
        "nothing to do: `nodewise cpu reconfigure`, or the node agent, moves all processes of a node"
    )


command = click.Command(
    "reaffinitize",
    callback=run,
    help=run.__doc__,
    short_help="Do nothing: reconfigure moves all processes.",
    params=[
        click.Option([option], hidden=True, expose_value=False)
        for option in ("--node-name", "--namespace", "--conf-dir", "--kubeconfig")
    ],
)
