"""`nodewise cpu reconfigure_setup`: other pools for all nodes, under tasks that run."""

import json
from typing import Any, Final

import click

from nodewise.cli import exit_codes, tables
from nodewise.cli.cpu import common_options, setup_options
from nodewise.cpu.cluster import cluster_reconfiguration
from nodewise.cpu.cluster.object_writer import Deadline

TIMEOUT_S: Final = 300.0


def run(**given: Any) -> None:
    """Give all nodes that have pools other ones, without ending what runs in them.

    A pod on each node looks first whether it can be done there; nothing is changed unless all of them say so. Then one
    node after the other is reconfigured, by a pod that is removed when it succeeded. A node on which it fails stays as
    it was, and ends the command: it can be run again.

    \b
    Examples:
      nodewise cpu reconfigure_setup --num-exclusive-cores 6 --check
      nodewise cpu reconfigure_setup --num-exclusive-cores 6 -o json

    \b
    Exit codes:
      0  all nodes have these pools; with --check, all can
      1  it cannot be done on some node, or failed on one
      2  the command line or a setting is wrong
    """
    common_options.start_logs()
    wish = setup_options.wish(given)
    requests = common_options.requests(given)

    def patience() -> Deadline:
        return Deadline(given["timeout_s"])

    with setup_options.telling() as tell:
        names = cluster_reconfiguration.nodes(requests)
        report = cluster_reconfiguration.reconfigure(
            requests, names, wish, patience, tell, only_check=given["check"]
        )
    if given["output"] == "json":
        click.echo(json.dumps(report.as_dict(), indent=2, sort_keys=True))
    else:
        tables.show(["NODE", "RESULT", "DETAIL"], [(*one[:2], one.error or "-") for one in report.nodes])
    click.get_current_context().exit(exit_codes.DONE if report.is_whole else exit_codes.FAILED)


command = click.Command(
    "reconfigure_setup",
    callback=run,
    help=run.__doc__,
    short_help="Give all nodes other pools, under tasks that run.",
    params=[
        click.Option(["--check"], is_flag=True, help="Only look whether it can be done; change nothing."),
        *setup_options.options(TIMEOUT_S),
    ],
)
