"""`nodewise cpu`: the CPU manager's commands, which are those of the script `cmk` as well."""

from typing import Final

import click

import nodewise
from nodewise.cli.main import CONTEXT, CommandTable

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "init": ("nodewise.cli.cpu.init", "Divide a node's cores into pools."),
    "discover": ("nodewise.cli.cpu.discover", "Advertise a node's exclusive cores."),
    "describe": ("nodewise.cli.cpu.describe", "Print a node's pools and their tasks."),
    "isolate": ("nodewise.cli.cpu.isolate", "Run a command on CPUs of a pool."),
    "reconcile": ("nodewise.cli.cpu.reconcile", "Release the CPUs of ended tasks."),
    "node-report": ("nodewise.cli.cpu.node_report", "Print a node's cores and pools, and problems."),
    "validate": ("nodewise.cli.cpu.validate", "Check whether a node is ready for pods."),
    "agent": ("nodewise.cli.cpu.agent", "Allocate CPUs to containers of a node."),
    "topology": ("nodewise.cli.cpu.topology", "Show sockets, cores and CPUs of a machine."),
    "install": ("nodewise.cli.cpu.install", "Install the program for containers on the host."),
    "plan": ("nodewise.cli.cpu.plan", "Show which cores `init` would put into which pool."),
    "cluster-init": ("nodewise.cli.cpu.cluster_init", "Prepare nodes from one place."),
    "reconfigure": ("nodewise.cli.cpu.reconfigure", "Give a node other pools while tasks run."),
    "reaffinitize": (
        "nodewise.cli.cpu.reaffinitize",
        "Do nothing: reconfigure moves all processes.",
    ),
    "reconfigure_setup": (
        "nodewise.cli.cpu.reconfigure_all_nodes",
        "Give all nodes other pools while tasks run.",
    ),
    "uninstall": ("nodewise.cli.cpu.uninstall", "Remove the CPU manager from a node, and from the cluster."),
    "webhook": ("nodewise.cli.cpu.webhook", "Serve the admission webhook for pods."),
}


@click.group(cls=CommandTable, commands_of=COMMANDS, context_settings=CONTEXT)
@click.version_option(nodewise.__version__, prog_name="nodewise", message="%(prog)s %(version)s")
def command() -> None:
    """Manage pools of cores on nodes, and allocate exclusive cores to containers.

    The script `cmk` has the same commands, and accepts the flags of CPU Manager for Kubernetes.

    \b
    Examples:
      nodewise cpu topology
      nodewise cpu plan --num-exclusive-cores 6
      nodewise cpu validate node1 --namespace cmk-namespace
    """
