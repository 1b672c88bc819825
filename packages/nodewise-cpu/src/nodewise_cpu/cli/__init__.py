"""`nodewise cpu`: the CPU manager's commands, which are those of the script `cmk` as well."""

from typing import Final

import click

import nodewise
from nodewise.cli.main import CONTEXT, CommandTable

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "init": ("nodewise_cpu.cli.node_commands:init_command", "Divide a node's cores into pools."),
    "discover": ("nodewise_cpu.cli.node_commands:discover_command", "Advertise a node's exclusive cores."),
    "describe": ("nodewise_cpu.cli.node_commands:describe_command", "Print a node's pools and their tasks."),
    "isolate": ("nodewise_cpu.cli.isolate", "Run a command on CPUs of a pool."),
    "reconcile": ("nodewise_cpu.cli.node_commands:reconcile_command", "Release the CPUs of ended tasks."),
    "node-report": (
        "nodewise_cpu.cli.node_commands:node_report_command",
        "Print a node's cores and pools, and problems.",
    ),
    "validate": (
        "nodewise_cpu.cli.cluster_commands:validate_command",
        "Check whether a node is ready for pods.",
    ),
    "agent": ("nodewise_cpu.cli.agent", "Allocate CPUs to containers of a node."),
    "topology": (
        "nodewise_cpu.cli.machine_commands:topology_command",
        "Show sockets, cores and CPUs of a machine.",
    ),
    "install": ("nodewise_cpu.cli.install", "Install the program for containers on the host."),
    "plan": (
        "nodewise_cpu.cli.machine_commands:plan_command",
        "Show which cores `init` would put into which pool.",
    ),
    "cluster-init": ("nodewise_cpu.cli.cluster_init", "Prepare nodes from one place."),
    "reconfigure": (
        "nodewise_cpu.cli.node_commands:reconfigure_command",
        "Give a node other pools while tasks run.",
    ),
    "reaffinitize": (
        "nodewise_cpu.cli.node_commands:reaffinitize_command",
        "Do nothing: reconfigure moves all processes.",
    ),
    "reconfigure_setup": (
        "nodewise_cpu.cli.cluster_commands:reconfigure_setup_command",
        "Give all nodes other pools while tasks run.",
    ),
    "uninstall": (
        "nodewise_cpu.cli.cluster_commands:uninstall_command",
        "Remove the CPU manager from a node, and from the cluster.",
    ),
    "webhook": ("nodewise_cpu.cli.webhook", "Serve the admission webhook for pods."),
}


@click.group(cls=CommandTable, commands_of=COMMANDS, outline_path=("cpu",), context_settings=CONTEXT)
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
