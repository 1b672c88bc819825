"""`nodewise cpu discover`: advertises a node's exclusive cores."""

from dataclasses import dataclass

import click

from nodewise.observe import logs
from nodewise_cpu.cli import common_options
from nodewise_cpu.cluster import exclusive_core_advertisement


@dataclass(frozen=True, kw_only=True)
class DiscoverOptions(common_options.StoreOptions):
    """Options of `discover`."""

    no_taint: bool


def run(options: DiscoverOptions) -> None:
    """Advertise this node's exclusive cores by extended resources, a label and a taint.

    Nothing is written if the node is up to date, and changes by others are kept, such as their taints. A kubelet that
    restarts removes the resources: the node agent advertises them again.

    \b
    Examples:
      nodewise cpu discover --node-name node1
      nodewise cpu discover --conf-dir /etc/cmk --no-taint

    \b
    Exit codes:
      0  the node is up to date
      1  the state cannot be read, or the node cannot be written
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    counts = exclusive_core_advertisement.count_resources_to_advertise(
        common_options.open_allocation_store(options).read().allocations
    )
    api = common_options.open_api_client(options)
    node = common_options.resolve_node_name(options, api)
    if not exclusive_core_advertisement.advertise(api, node, counts, taint=not options.no_taint):
        logs.emit("cpu_advertised", node=node)


command = common_options.create_click_command(
    "discover",
    run,
    DiscoverOptions,
    "Advertise a node's exclusive cores.",
    [
        *common_options.click_parameters(*common_options.STORE),
        click.Option(["--no-taint"], is_flag=True, help="Do not taint the node: other pods may use it."),
    ],
)
