"""`nodewise cpu init`: creates the first pools of a node."""

from dataclasses import dataclass
from pathlib import Path

import click

from nodewise.observe import logs
from nodewise_cpu.cli import common_options
from nodewise_cpu.node import machine_features


@dataclass(frozen=True, kw_only=True)
class InitOptions(common_options.StoreOptions, common_options.MachineOptions, common_options.PoolCounts):
    """Options of `init`."""


def run(options: InitOptions) -> None:
    """Divide this node's cores into pools, and store them without tasks.

    A node that has exactly these pools already is not changed, and neither are its tasks. A node that has other pools
    is rejected: use `reconfigure`. Everything is computed before anything is written.

    \b
    Examples:
      nodewise cpu init --num-exclusive-cores 4 --num-shared-cores 1
      nodewise cpu init --conf-dir /etc/cmk --exclusive-mode spread

    \b
    Exit codes:
      0  the node has these pools
      1  it cannot have them, or has others
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    root = Path(options.sysfs)
    machine_features.log_missing_huge_pages(root)
    logs.emit("cpu_cores_asked", exclusive=options.pools.exclusive, shared=options.pools.shared)
    node_machine = machine_features.read(root, common_options.fetch_node_labels(options))
    plan = node_machine.plan(options.pools)
    machine_features.log_pool_plan(node_machine, plan)
    store = common_options.open_allocation_store(options)
    if not machine_features.store_new_pools(store, plan):
        logs.emit("cpu_pools_kept", place=store.location)


command = common_options.create_click_command(
    "init",
    run,
    InitOptions,
    "Divide a node's cores into pools.",
    [
        *common_options.click_parameters(*common_options.POOLS, *common_options.STORE, "sysfs"),
        click.Option(["--socket-id"], type=int, default=-1, hidden=True, expose_value=False),
    ],
)
