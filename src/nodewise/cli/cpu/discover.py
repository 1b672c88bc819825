"""`nodewise cpu discover`: has a node say how many exclusive cores it has."""

from dataclasses import dataclass

import click

from nodewise.cli.cpu import common_options
from nodewise.cpu.cluster import node_advertisement
from nodewise.observe import logs


@dataclass(frozen=True, kw_only=True)
class DiscoverOptions(common_options.StoreOptions):
    """Options of `discover`."""

    no_taint: bool


def run(options: DiscoverOptions) -> None:
    """Have this node say how many exclusive cores it has, by its resources, a label and a taint.

    Writes only what is not so already, and leaves what others wrote as it is, their taints with it. A kubelet that
    starts anew takes the resources back: the node agent writes them again.

    \b
    Examples:
      nodewise cpu discover --node-name node1
      nodewise cpu discover --conf-dir /etc/cmk --no-taint

    \b
    Exit codes:
      0  the node says so
      1  the state cannot be read, or the node not be written
      2  the command line or a setting is wrong
    """
    common_options.start_logs()
    counts = node_advertisement.counts(common_options.store(options).read().allocations)
    api = common_options.api(options)
    node = common_options.node(options, api)
    if not node_advertisement.advertise(api, node, counts, taint=not options.no_taint):
        logs.emit("cpu_advertised", node=node)


command = common_options.make_command(
    "discover",
    run,
    DiscoverOptions,
    "Have a node say how many exclusive cores it has.",
    [
        *common_options.parameters(*common_options.STORE),
        click.Option(["--no-taint"], is_flag=True, help="Do not taint the node: other pods may use it."),
    ],
)
