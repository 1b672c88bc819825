"""`nodewise cpu reconfigure_setup`: gives all nodes other pools while their tasks run."""

import json
from dataclasses import dataclass
from typing import Final

import click

from nodewise.cli import tables, terminal_output
from nodewise_cpu.cli import common_options, node_setup_options
from nodewise_cpu.cluster import node_setup
from nodewise_cpu.cluster.object_writer import Deadline

TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class ReconfigureSetupOptions(node_setup_options.SetupParameters):
    """Options of `reconfigure_setup`."""

    check: bool


def run(options: ReconfigureSetupOptions) -> None:
    """Give all nodes that have pools other ones while their tasks run.

    First a pod on each node checks whether it is possible; nothing is changed unless all checks succeed. Then the nodes
    are reconfigured one after the other, by pods that are removed when they succeed. If it fails on a node, that node
    is not changed and the command ends. It can be repeated.

    \b
    Examples:
      nodewise cpu reconfigure_setup --num-exclusive-cores 6 --check
      nodewise cpu reconfigure_setup --num-exclusive-cores 6 -o json

    \b
    Exit codes:
      0  all nodes have these pools; with --check, all can
      1  it cannot be done on some node, or failed on one
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    pods_options = node_setup_options.build_setup_options(options)
    api = common_options.open_api_client(options)

    def deadline() -> Deadline:
        return Deadline(options.timeout_s)

    with node_setup_options.progress_reporter() as report_progress:
        names = node_setup.nodes_with_pools(api)
        report = node_setup.reconfigure_nodes(
            api, names, pods_options, deadline, report_progress, only_check=options.check
        )
    if options.output == "json":
        click.echo(json.dumps(report.as_dict(), separators=(",", ":")))
    else:
        tables.print_table(
            ["NODE", "RESULT", "DETAIL"], [(*node[:2], node.error or "-") for node in report.nodes]
        )
    click.get_current_context().exit(terminal_output.DONE if report.is_whole else terminal_output.FAILED)


command = common_options.create_click_command(
    "reconfigure_setup",
    run,
    ReconfigureSetupOptions,
    "Give all nodes other pools while tasks run.",
    [
        click.Option(["--check"], is_flag=True, help="Only check whether it is possible; change nothing."),
        *node_setup_options.click_parameters(TIMEOUT_S),
    ],
)
