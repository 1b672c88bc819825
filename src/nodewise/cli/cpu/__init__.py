"""`nodewise cpu`: the table of the CPU manager's commands; the script `cmk` knows the same ones."""

from typing import Final

import click

from nodewise.cli.main import Table

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "topology": ("nodewise.cli.cpu.topology", "Sockets, cores and CPUs of a machine."),
    "plan": ("nodewise.cli.cpu.plan", "Which cores would go to which pool; changes nothing."),
    "cluster-init": ("nodewise.cli.cpu.cluster_init", "Prepare nodes, from one place."),
}


@click.group(cls=Table, commands_of=COMMANDS)
def command() -> None:
    """Pools of cores on a node: exclusive ones for who needs them, and who holds which."""
