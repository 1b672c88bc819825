"""`nodewise cpu`: the CPU manager's commands, which are those of the script `cmk` as well."""

from typing import Final

import click

import nodewise
from nodewise.cli.main import CONTEXT, CommandTable

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "init": ("nodewise.cli.cpu.init", "Divide a node's cores into pools."),
    "discover": ("nodewise.cli.cpu.discover", "Have a node say how many exclusive cores it has."),
    "describe": ("nodewise.cli.cpu.describe", "A node's pools, and who holds which CPUs."),
    "isolate": ("nodewise.cli.cpu.isolate", "Run a command on CPUs of a pool."),
    "reconcile": ("nodewise.cli.cpu.reconcile", "Free what tasks held that are over."),
    "node-report": ("nodewise.cli.cpu.node_report", "What a node is and has, and what is wrong with it."),
    "validate": ("nodewise.cli.cpu.validate", "Whether a node is as the CPU manager needs it."),
    "agent": ("nodewise.cli.cpu.agent", "Give a node's containers CPUs, and take them back."),
    "topology": ("nodewise.cli.cpu.topology", "Sockets, cores and CPUs of a machine."),
    "install": ("nodewise.cli.cpu.install", "One program without dependencies, for containers to call."),
    "plan": ("nodewise.cli.cpu.plan", "Which cores would go to which pool; changes nothing."),
    "cluster-init": ("nodewise.cli.cpu.cluster_init", "Prepare nodes, from one place."),
    "reconfigure": ("nodewise.cli.cpu.reconfigure", "Give a node other pools, under tasks that run."),
    "reaffinitize": (
        "nodewise.cli.cpu.reaffinitize",
        "Nothing: who reconfigures a node moves its processes.",
    ),
    "reconfigure_setup": (
        "nodewise.cli.cpu.reconfigure_setup",
        "Give all nodes other pools, under tasks that run.",
    ),
    "uninstall": ("nodewise.cli.cpu.uninstall", "Remove the CPU manager from a node, and from the cluster."),
    "webhook": ("nodewise.cli.cpu.webhook", "Give pods that ask for cores what they need."),
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
