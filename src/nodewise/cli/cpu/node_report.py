"""`nodewise cpu node-report`: what a node is and has, and what is wrong with it."""

from pathlib import Path
from typing import Any

import click

from nodewise.cli.cpu import common_options
from nodewise.cpu.cluster import reports
from nodewise.cpu.node import kubelet_state, machine, node_report


def run(*, interval: int, publish: bool, **given: Any) -> None:
    """Print a node's cores and pools, and what is wrong with them.

    Takes no lock. A node whose pools cannot be read is reported as well: `checks` says why. The kubelet's own CPU
    manager is looked at where its state file can be read.

    \b
    Examples:
      nodewise cpu node-report --conf-dir /etc/cmk
      nodewise cpu node-report --interval 60 --publish --namespace cmk

    \b
    Exit codes:
      0  printed, whatever is wrong with the node
      1  the report could not be made or published
      2  the command line or a setting is wrong
    """
    common_options.start_logs()
    store = common_options.store(given)

    def once() -> None:
        found = machine.read(Path(given["sysfs"]), common_options.labels(given))
        report = node_report.make(store, found, Path(given["kubelet_dir"]))
        common_options.print_json(report)
        if publish:
            common_options.publish(given, reports.NODE_REPORT, report)

    common_options.run_at_interval(once, interval)


command = click.Command(
    "node-report",
    callback=run,
    help=run.__doc__,
    short_help="What a node is and has, and what is wrong with it.",
    params=[
        *common_options.options(*common_options.PLACE, "sysfs"),
        *common_options.interval_options(),
        click.Option(
            ["--kubelet-dir"],
            default=str(kubelet_state.DEFAULT_FOLDER),
            metavar="DIR",
            show_default=True,
            help="Where the kubelet keeps its checkpoints.",
        ),
    ],
)
