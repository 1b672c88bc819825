"""`nodewise cpu describe`: the pools of a node, and the tasks on their CPU lists."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from nodewise.cli import tables
from nodewise.cli.cpu import common_options
from nodewise.cpu import pool_allocations
from nodewise.cpu.allocation_store import StoredAllocations


@dataclass(frozen=True, kw_only=True)
class DescribeOptions(common_options.StoreOptions):
    """Options of `describe`."""

    output: str | None


def run(options: DescribeOptions) -> None:
    """Print a node's pools, and the tasks on each of their CPU lists.

    Nothing is locked or changed.

    \b
    Examples:
      nodewise cpu describe --node-name node1 --namespace cmk-namespace
      nodewise cpu describe --conf-dir /etc/cmk -o json

    \b
    Exit codes:
      0  printed
      1  the state cannot be read
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    stored = common_options.open_allocation_store(options).read()
    if options.output == "json" or (options.output is None and not sys.stdout.isatty()):
        path = {"path": options.conf_dir} if options.conf_dir else {}
        common_options.print_json({**path, **_node_pools_document(stored)})
        return
    head = ["POOL", "SOCKET", "CPUS", "TASK", "POD", "CONTAINER"]
    tables.print_table(*tables.drop_empty_columns(["POD", "CONTAINER"], head, list(_pool_table_rows(stored))))
    if stored.intent:
        click.echo(
            f"being reconfigured by process {stored.intent.by.pid} since {stored.intent.since}", err=True
        )


def _node_pools_document(stored: StoredAllocations) -> dict[str, Any]:
    description = pool_allocations.as_describe_output(stored.allocations)
    return {**description, "reconfiguring": stored.intent.as_dict()} if stored.intent else description


def _pool_table_rows(stored: StoredAllocations) -> Iterator[Sequence[str]]:
    for pool in stored.allocations.pools.values():
        for socket, cpu_lists in pool.sockets.items():
            for cpu_list in cpu_lists:
                rows = [(str(task.pid), task.pod or "-", task.container or "-") for task in cpu_list.tasks]
                yield from (
                    (pool.name, str(socket), cpu_list.text, *row) for row in rows or [("-", "-", "-")]
                )


command = common_options.create_click_command(
    "describe",
    run,
    DescribeOptions,
    "Print a node's pools and their tasks.",
    common_options.click_parameters(*common_options.STORE, "output"),
)
