"""`nodewise cpu describe`: the pools of a node, and the tasks on their CPU lists."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from nodewise.base.errors import BadInput
from nodewise.cli import tables, terminal_output
from nodewise_cpu import pool_allocations
from nodewise_cpu.allocation_store import StoredAllocations
from nodewise_cpu.cli import common_options
from nodewise_cpu.node import node_report


@dataclass(frozen=True, kw_only=True)
class DescribeOptions(common_options.StoreOptions, common_options.MachineOptions):
    """Options of `describe`."""

    output: str | None


def run(options: DescribeOptions) -> None:
    """Print a node's pools, and the tasks on each of their CPU lists.

    Nothing is locked or changed. With `--conf-dir`, lists with CPUs in a cgroup partition of this machine are
    reported.

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
    if options.conf_dir:
        _print_partition_conflicts(stored, options)
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


def _print_partition_conflicts(stored: StoredAllocations, options: DescribeOptions) -> None:
    """Warn of lists with CPUs that no task can use; nothing if the machine cannot be read."""
    with contextlib.suppress(BadInput):
        topology = common_options.read_machine(options)
        for problem in node_report.find_partition_conflicts(stored.allocations, topology):
            terminal_output.print_message(str(problem))


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
    common_options.click_parameters(*common_options.STORE, "sysfs", "output"),
)
