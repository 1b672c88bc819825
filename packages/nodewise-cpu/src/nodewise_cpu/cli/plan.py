"""`nodewise cpu plan`: the pools that `init` would create."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from nodewise.base.errors import BadInput, BadSettings, Problem, shown
from nodewise.cli import tables, terminal_output
from nodewise_cpu import cpu_set_formats, pool_planning
from nodewise_cpu.cli import common_options, machine_svg
from nodewise_cpu.cli.common_options import MachineOptions, PoolCounts
from nodewise_cpu.cli.topology import OUTPUT
from nodewise_cpu.pool_planning import PoolPlan
from nodewise_cpu.topology import Topology

_CLASS: Final = re.compile(r"(?P<name>[a-z_]+)[=:](?P<cpus>[^=:]*)", re.ASCII)
_REST: Final = "power"
"""The class of the CPUs that a list for SST-CP does not name."""


@click.command(params=[*common_options.click_parameters("sysfs", *common_options.POOLS), OUTPUT])
@click.option(
    "--sst-bf",
    default="",
    metavar="LIST",
    help="Plan as for a node with SST-BF whose CPUs of higher base frequency are these.",
)
@click.option(
    "--sst-cp",
    default="",
    metavar="LIST",
    help="Plan as for a node with SST-CP whose CPUs of high core power are these and all others are of class power; "
    "or all classes: 'performance=2-3;balance_performance=4-5;power=0-1'.",
)
def command(output: str, sst_bf: str, sst_cp: str, sysfs: str, **counts: Any) -> None:
    """Show which cores of a machine `init` would put into which pool.

    Nothing is changed. Exclusive cores are chosen first, then shared ones; the others are infra. If the kernel isolates
    cores, exclusive and shared cores are chosen from these. Warnings go to stderr. `svg` draws the machine in the
    colours of its pools.

    \b
    Examples:
      nodewise cpu plan --num-exclusive-cores 6 --exclusive-mode spread
      nodewise cpu plan --sysfs /tmp/copy-of-a-node -o svg > node.svg

    \b
    Exit codes:
      0  planned
      1  the machine has too few cores for it, or cannot be read
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    machine = common_options.read_machine(MachineOptions(sysfs=sysfs))
    fast = _parse_online_cpu_list("--sst-bf", sst_bf, machine)
    pool_plan = pool_planning.plan(
        machine,
        PoolCounts(**counts).pools,
        fast,
        _energy_preferences_by_cpu(sst_cp, machine) if sst_cp else None,
    )
    for problem in pool_plan.warnings:
        terminal_output.print_message(str(problem))
    if output == "json":
        click.echo(json.dumps(pool_plan.as_dict(), separators=(",", ":")))
    elif output == "svg":
        click.echo(machine_svg.draw_machine_svg(machine, pool_plan), nl=False)
    else:
        tables.print_table(["POOL", "SOCKET", "CPUS", "CPU LISTS"], _pool_plan_rows(pool_plan))


def _pool_plan_rows(pool_plan: PoolPlan) -> Sequence[Sequence[str]]:
    return [
        (
            pool,
            str(socket),
            str(len(cpu_set_formats.parse_cpu_numbers(",".join(lists)))),
            " ".join(lists) or "-",
        )
        for pool, sockets in pool_plan.pools.items()
        for socket, lists in sockets.items()
    ]


def _parse_online_cpu_list(option: str, text: str, machine: Topology) -> frozenset[int]:
    """The CPUs of a list; BadSettings if it is invalid, or names CPUs that are not online."""
    try:
        cpus = frozenset(cpu_set_formats.parse_cpu_numbers(text, option, max(machine.online)))
    except BadInput as error:
        raise BadSettings(error.what, error.problems) from error
    if missing := cpus - machine.online:
        wanted = f"CPUs that are online: {cpu_set_formats.format_cpu_ranges(machine.online)}"
        raise BadSettings(
            "cannot plan", [Problem(option, f"CPUs {cpu_set_formats.format_cpu_ranges(missing)}", wanted)]
        )
    return cpus


def _energy_preferences_by_cpu(text: str, machine: Topology) -> Mapping[int, str]:
    """The energy performance preference of each CPU according to the option."""
    if not re.search("[=:]", text):
        cpus = _parse_online_cpu_list("--sst-cp", text, machine)
        return {cpu: pool_planning.POWER_CLASSES[0] if cpu in cpus else _REST for cpu in machine.online}
    names: dict[int, str] = {}
    for piece in (piece.strip() for piece in text.split(";") if piece.strip()):
        match = _CLASS.fullmatch(piece)
        if not match or match["name"] not in pool_planning.POWER_CLASSES:
            wanted = f"CLASS=LIST with a class of {', '.join(pool_planning.POWER_CLASSES)}"
            raise BadSettings("cannot plan", [Problem("--sst-cp", shown(piece), wanted)])
        names |= dict.fromkeys(_parse_online_cpu_list("--sst-cp", match["cpus"], machine), match["name"])
    return names
