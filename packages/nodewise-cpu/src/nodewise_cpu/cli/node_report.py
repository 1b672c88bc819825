"""`nodewise cpu node-report`: a node's cores and pools, and problems with them."""

from dataclasses import dataclass
from pathlib import Path

import click

from nodewise.base.errors import NodewiseError
from nodewise_cpu.cli import common_options
from nodewise_cpu.cluster import report_custom_resources
from nodewise_cpu.node import machine_features, node_report, other_cpu_managers
from nodewise_cpu.node.machine_features import PoolInputs
from nodewise_cpu.node.other_cpu_managers import CpuManagers


@dataclass(frozen=True, kw_only=True)
class NodeReportOptions(
    common_options.StoreOptions, common_options.MachineOptions, common_options.IntervalOptions
):
    """Options of `node-report`."""

    kubelet_dir: str


def run(options: NodeReportOptions) -> None:
    """Print a node's cores and pools, and problems with them.

    Nothing is locked. If the pools cannot be read, `checks` has the reason. The kubelet's own CPU manager is checked if
    its state file can be read, and so are other CPU managers (the DRA driver for CPUs, NRI resource policies, systemd)
    and cgroup partitions.

    \b
    Examples:
      nodewise cpu node-report --conf-dir /etc/cmk
      nodewise cpu node-report --interval 60 --publish --namespace cmk

    \b
    Exit codes:
      0  printed, whatever is wrong with the node
      1  the report could not be made or published
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    store = common_options.open_allocation_store(options)

    def read_managers(machine: PoolInputs) -> CpuManagers:
        try:
            allocations = store.read().allocations
        except NodewiseError:
            # the report has the reason
            return node_report.NO_MANAGERS
        root = other_cpu_managers.host_root(Path(options.sysfs))
        if not options.is_in_cluster:
            return other_cpu_managers.read_all(root, allocations, machine.topology)
        api = common_options.open_api_client(options)
        node = common_options.resolve_node_name(options, api)
        return other_cpu_managers.read_all(root, allocations, machine.topology, api, node)

    def once() -> None:
        node_machine = machine_features.read(Path(options.sysfs), common_options.fetch_node_labels(options))
        report = node_report.build_node_report(
            store, node_machine, Path(options.kubelet_dir), read_managers(node_machine)
        )
        common_options.print_json(report)
        if options.publish:
            common_options.publish_report(options, report_custom_resources.NODE_REPORT, report)

    common_options.run_at_interval(once, options.interval)


command = common_options.create_click_command(
    "node-report",
    run,
    NodeReportOptions,
    "Print a node's cores and pools, and problems.",
    [
        *common_options.click_parameters(*common_options.STORE, "sysfs"),
        *common_options.interval_options(),
        click.Option(
            ["--kubelet-dir"],
            default=str(other_cpu_managers.DEFAULT_FOLDER),
            metavar="DIR",
            show_default=True,
            help="Folder of the kubelet's checkpoints.",
        ),
    ],
)
