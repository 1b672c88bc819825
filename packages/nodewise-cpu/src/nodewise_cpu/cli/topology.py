"""`nodewise cpu topology`: the sockets, cores and CPUs of a machine."""

import json
from typing import Final

import click

from nodewise.cli import tables, terminal_output
from nodewise.cli.options_from_settings import output_option
from nodewise_cpu import pool_planning
from nodewise_cpu.cli import common_options, machine_svg
from nodewise_cpu.cli.common_options import MachineOptions
from nodewise_cpu.topology import Cpu, Topology

OUTPUT: Final = output_option(["table", "json", "svg"])


@click.command(params=[*common_options.click_parameters("sysfs"), OUTPUT])
def command(output: str, sysfs: str) -> None:
    """Show a machine's sockets, NUMA nodes, cores and CPUs according to its kernel.

    `core` and `socket` are numbered as by lscpu; `core_id` and `package_id` are the kernel's numbers; `l3` is the
    lowest CPU that shares the cache of level 3. Offline CPUs are listed without a place. `svg` draws the machine.

    \b
    Examples:
      nodewise cpu topology
      nodewise cpu topology --sysfs /tmp/copy-of-a-node -o svg > node.svg

    \b
    Exit codes:
      0  shown
      1  the machine cannot be read
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    machine = common_options.read_machine(MachineOptions(sysfs=sysfs))
    for problem in (*machine.unread, *pool_planning.partition_warnings(machine)):
        terminal_output.print_message(str(problem))
    if output == "json":
        click.echo(json.dumps(machine.as_dict(), separators=(",", ":")))
    elif output == "svg":
        click.echo(machine_svg.draw_machine_svg(machine), nl=False)
    else:
        tables.print_table(*_cpu_table(machine))


def _cpu_table(machine: Topology) -> tables.TableData:
    head = ["CPU", "CORE", "SOCKET", "NUMA", "L3", "KIND", "ONLINE", "ISOLATED", "PARTITION", "SIBLINGS"]
    return tables.drop_empty_columns(
        ("L3", "KIND", "PARTITION"), head, [_cpu_table_row(cpu) for cpu in machine.cpus]
    )


def _cpu_table_row(cpu: Cpu) -> list[str]:
    siblings = ",".join(map(str, cpu.siblings)) or "-"
    places = [
        _format_table_cell(value) for value in (cpu.cpu, cpu.core, cpu.socket, cpu.numa, cpu.l3, cpu.kind)
    ]
    states = [_format_table_cell(value) for value in (cpu.online, cpu.isolated, cpu.partition or None)]
    return [*places, *states, siblings]


def _format_table_cell(value: int | str | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
