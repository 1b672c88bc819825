"""Commands about a machine: `topology` shows its sockets, cores and CPUs, `plan` the pools that `init` would create.

Both can draw a picture in SVG: sockets, NUMA nodes, cores and CPUs, in the colours of their pools. The same machine and
plan always give the same bytes. The colours follow the reader's preference for light or dark.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import click

from nodewise.base.errors import BadInput, BadSettings, shown
from nodewise.cli import terminal_output
from nodewise_cpu import cpu_set_formats, pool_planning
from nodewise_cpu.cli import common_options
from nodewise_cpu.cli.common_options import MachineOptions, PoolCounts, option
from nodewise_cpu.pool_planning import PoolPlan
from nodewise_cpu.topology import Core, Topology

_CPU_W: Final = 34
_CPU_H: Final = 24
_GAP: Final = 5
_PAD: Final = 8
_LINE: Final = 18  # height of a line of text, in pixels like all other sizes
_LETTER_W: Final = 7
_THREADS: Final = 4  # CPUs per row of a core
_SHAPE: Final = 1.6  # the preferred ratio of width to height

_UNUSED: Final = "unused"
_POOL_CLASSES: Final = {
    pool_planning.EXCLUSIVE: "ex",
    pool_planning.SHARED: "sh",
    pool_planning.NON_ISOLCPUS: "xn",
    pool_planning.INFRA: "in",
    _UNUSED: "un",
}
_PAINT: Final = {
    ".bg": ("fill", "#ffffff", "#0d1117"),
    "text": ("fill", "#1b1f24", "#f0f3f6"),
    ".dim": ("fill", "#57606a", "#9ea7b3"),
    ".frame": ("stroke", "#c4cbd3", "#444c56"),
    ".off": ("stroke", "#8c959f", "#6e7681"),
    ".cell": ("fill", "#ffffff", "#161b22"),
    ".mark": ("fill", "#1b1f24", "#f0f3f6"),
    ".ex": ("fill", "#f0894a", "#c05a1c"),
    ".sh": ("fill", "#6fb1e6", "#2a72ad"),
    ".xn": ("fill", "#c79be0", "#8350a8"),
    ".in": ("fill", "#b4bcc6", "#59626e"),
    ".un": ("stroke", "#8c959f", "#9ea7b3"),
}
"""The property and its colours in light and dark mode, by selector. The pools differ for the colour-blind too."""
_FORM: Final = """\
text { font: 12px system-ui, "DejaVu Sans", sans-serif; } text.h { font-size: 15px; font-weight: 600; }
text.n { text-anchor: middle; } text.c { font-size: 10px; }
.frame, .off, .un { fill: none; } .cell { fill-opacity: .85; }
.off { stroke-dasharray: 3 2; } .un { stroke-dasharray: 4 3; }
"""


class _Box(NamedTuple):
    """Elements relative to their own origin, and their size."""

    width: int
    height: int
    body: str


def draw_machine_svg(  # complexity: one expression for each part of the picture
    machine: Topology, plan: PoolPlan | None = None
) -> str:
    """Draw the machine; with a plan, in the colours of pools. A core without a pool has a dashed outline."""
    pool_of = _pool_by_core(machine, plan) if plan else {}
    sockets = [_draw_socket(socket, machine, pool_of) for socket in machine.sockets]
    offline = [cpu.cpu for cpu in machine.cpus if not cpu.online]
    numbers = {"socket": len(machine.sockets), "core": len(machine.cores), "CPU": len(machine.online)}
    counts = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in numbers.items())
    heading = _Box(len(counts) * (_LETTER_W + 2), _LINE + 4, f'<text class="h" y="15">{counts}</text>\n')
    parts = [heading, _draw_legend(machine, pool_of), _choose_page_wide_grid(sockets)]
    if offline:
        cells = [_draw_cpu_cell(cpu, name="off") for cpu in offline]
        parts.append(_frame_box_with_title(_choose_page_wide_grid(cells), "Offline CPUs"))
    page = _arrange_boxes_in_grid([box for box in parts if box.height], 1)
    width, height = page.width + 4 * _PAD, page.height + 4 * _PAD
    cores = Counter(pool_of.values())
    light = " ".join(f"{name} {{ {what}: {colour}; }}" for name, (what, colour, _) in _PAINT.items())
    dark = " ".join(f"{name} {{ {what}: {colour}; }}" for name, (what, _, colour) in _PAINT.items())
    pools = ", ".join(f"{cores[pool]} {pool}" for pool in _POOL_CLASSES if cores[pool])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}">\n'
        f"<title>{counts}{f'; {pools}' if pools else ''}</title>\n<style>\n"
        f"{_FORM}{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n</style>\n"
        f'<rect class="bg" width="{width}" height="{height}"/>\n{_move_box(page, 2 * _PAD, 2 * _PAD)}</svg>\n'
    )


def _pool_by_core(machine: Topology, plan: PoolPlan) -> Mapping[int, str]:
    pool_of_cpu = {
        cpu: pool
        for pool, sockets in plan.pools.items()
        for lists in sockets.values()
        for text in lists
        for cpu in cpu_set_formats.parse_cpu_numbers(text)
    }
    return {core.core: pool_of_cpu.get(core.cpus[0], _UNUSED) for core in machine.cores}


def _draw_legend(machine: Topology, pool_of: Mapping[int, str]) -> _Box:
    """A line with the colours and marks, and the number of cores of each."""
    cores = Counter(pool_of.values())
    entries = [
        (
            f'<rect class="{name}" y="2" width="16" height="14" rx="3"/>',
            f"{pool}: {cores[pool]} {'core' if cores[pool] == 1 else 'cores'}",
        )
        for pool, name in _POOL_CLASSES.items()
        if cores[pool]
    ]
    if machine.isolated:
        entries.append(('<circle class="mark" cx="8" cy="9" r="3"/>', "isolated by the kernel"))
    body, left = "", 0
    for sign, text in entries:
        body += f'<g transform="translate({left},0)">{sign}<text x="22" y="13">{text}</text></g>\n'
        left += 22 + len(text) * _LETTER_W + 2 * _PAD
    return _Box(left, _LINE if entries else 0, body)


def _draw_socket(socket: int, machine: Topology, pool_of: Mapping[int, str]) -> _Box:
    """A socket with a frame for each of its NUMA nodes, and for each kind of core if there are several."""
    place_of = {cpu.cpu: cpu for cpu in machine.cpus}
    several = len({cpu.kind for cpu in machine.cpus if cpu.online}) > 1
    groups: dict[tuple[int | None, str | None], list[Core]] = {}
    for core in (core for core in machine.cores if core.socket == socket):
        place = place_of[core.cpus[0]]
        groups.setdefault((place.numa, place.kind if several else None), []).append(core)
    panels = []
    for (numa, kind), cores in groups.items():
        names = [] if numa is None else [f"NUMA node {numa}"]
        names += [] if kind is None else [f"{kind} cores"]
        boxes = [_draw_core(core, machine, pool_of.get(core.core)) for core in cores]
        panels.append(_frame_box_with_title(_choose_page_wide_grid(boxes), ", ".join(names)))
    return _frame_box_with_title(_choose_page_wide_grid(panels), f"Socket {socket}")


def _draw_core(core: Core, machine: Topology, pool: str | None) -> _Box:
    cells = [_draw_cpu_cell(cpu, isolated=cpu in machine.isolated) for cpu in core.cpus]
    inner = _arrange_boxes_in_grid(cells, min(len(cells), _THREADS))
    width, height = inner.width + 2 * _GAP, inner.height + 2 * _GAP + 14
    name = _POOL_CLASSES[pool] if pool else "in"
    tooltip = f"core {core.core}, CPUs {core.text}" + (f", {pool}" if pool else "")
    body = (
        f"<g><title>{tooltip}</title>"
        f'<rect class="{name}" width="{width}" height="{height}" rx="5"/>'
        f'<text x="{_GAP + 1}" y="13" class="c">{core.core}</text>\n'
        f"{_move_box(inner, _GAP, 14 + _GAP)}</g>\n"
    )
    return _Box(width, height, body)


def _draw_cpu_cell(cpu: int, *, isolated: bool = False, name: str = "cell") -> _Box:
    mark = f'<circle class="mark" cx="{_CPU_W - 5}" cy="5" r="2"/>' if isolated else ""
    body = (
        f'<rect class="{name}" width="{_CPU_W}" height="{_CPU_H}" rx="3"/>'
        f'<text class="n" x="{_CPU_W // 2}" y="16">{cpu}</text>{mark}\n'
    )
    return _Box(_CPU_W, _CPU_H, body)


def _frame_box_with_title(box: _Box, title: str) -> _Box:
    top = _PAD + (_LINE if title else 0)
    width = max(box.width, len(title) * _LETTER_W) + 2 * _PAD
    height = box.height + top + _PAD
    text = f'<text class="dim" x="{_PAD}" y="{_PAD + 10}">{title}</text>\n' if title else ""
    frame = f'<rect class="frame" width="{width}" height="{height}" rx="7"/>\n'
    return _Box(width, height, frame + text + _move_box(box, _PAD, top))


def _choose_page_wide_grid(boxes: Sequence[_Box]) -> _Box:
    """The grid with a number of columns that makes it about as wide as a page, and leaves few places empty."""

    def badness(columns: int) -> float:
        box = _arrange_boxes_in_grid(boxes, columns)
        empty = -len(boxes) % columns / len(boxes)
        return abs(math.log(box.width / box.height / _SHAPE)) + empty

    return _arrange_boxes_in_grid(boxes, min(range(1, len(boxes) + 1), key=badness))


def _arrange_boxes_in_grid(boxes: Sequence[_Box], columns: int) -> _Box:
    """The boxes in rows of this length. Each column is as wide as its widest box."""
    rows = [boxes[at : at + columns] for at in range(0, len(boxes), columns)]
    widths = [max(box.width for box in boxes[at::columns]) for at in range(columns)]
    body, top = "", 0
    for row in rows:
        left = 0
        for box, width in zip(row, widths, strict=False):
            body += _move_box(box, left, top)
            left += width + _GAP
        top += max(box.height for box in row) + _GAP
    return _Box(sum(widths) + _GAP * (columns - 1), top - _GAP, body)


def _move_box(box: _Box, x: int, y: int) -> str:
    return f'<g transform="translate({x},{y})">\n{box.body}</g>\n'


@dataclass(frozen=True, kw_only=True)
class TopologyOptions(MachineOptions):
    """Options of `topology`."""

    output: str = common_options.output_choice("table", "json", "svg")


def run_topology(options: TopologyOptions) -> None:
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
    machine = common_options.read_machine(options)
    for problem in (*machine.unread, *pool_planning.partition_warnings(machine)):
        terminal_output.print_message(str(problem))
    if options.output == "json":
        click.echo(json.dumps(machine.as_dict(), separators=(",", ":")))
    elif options.output == "svg":
        click.echo(draw_machine_svg(machine), nl=False)
    else:
        head = ["CPU", "CORE", "SOCKET", "NUMA", "L3", "KIND", "ONLINE", "ISOLATED", "PARTITION", "SIBLINGS"]
        rows = [
            [
                *map(_format_table_cell, (cpu.cpu, cpu.core, cpu.socket, cpu.numa, cpu.l3, cpu.kind)),
                *map(_format_table_cell, (cpu.online, cpu.isolated, cpu.partition or None)),
                ",".join(map(str, cpu.siblings)) or "-",
            ]
            for cpu in machine.cpus
        ]
        terminal_output.print_table(
            *terminal_output.drop_empty_columns(("L3", "KIND", "PARTITION"), head, rows)
        )


def _format_table_cell(value: int | str | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


topology_command = common_options.create_click_command("topology", run_topology, TopologyOptions)


_CLASS: Final = re.compile(r"(?P<name>[a-z_]+)[=:](?P<cpus>[^=:]*)", re.ASCII)
_REST: Final = "power"  # the class of the CPUs that a list for SST-CP does not name


@dataclass(frozen=True, kw_only=True)
class PlanOptions(TopologyOptions, PoolCounts):
    """Options of `plan`."""

    sst_bf: str = option(
        "Plan as for a node with SST-BF whose CPUs of higher base frequency are these.", metavar="LIST"
    )
    sst_cp: str = option(
        "Plan as for a node with SST-CP whose CPUs of high core power are these and all others are of class power; "
        "or all classes: 'performance=2-3;balance_performance=4-5;power=0-1'.",
        metavar="LIST",
    )


def run_plan(options: PlanOptions) -> None:
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
    machine = common_options.read_machine(options)
    fast = _parse_online_cpu_list("--sst-bf", options.sst_bf, machine)
    pool_plan = pool_planning.plan(
        machine,
        options.pools,
        fast,
        _energy_preferences_by_cpu(options.sst_cp, machine) if options.sst_cp else None,
    )
    for problem in pool_plan.warnings:
        terminal_output.print_message(str(problem))
    if options.output == "json":
        click.echo(json.dumps(pool_plan.as_dict(), separators=(",", ":")))
    elif options.output == "svg":
        click.echo(draw_machine_svg(machine, pool_plan), nl=False)
    else:
        rows = []
        for pool, sockets in pool_plan.pools.items():
            for socket, lists in sockets.items():
                count = len(cpu_set_formats.parse_cpu_numbers(",".join(lists)))
                rows.append((pool, str(socket), str(count), " ".join(lists) or "-"))
        terminal_output.print_table(["POOL", "SOCKET", "CPUS", "CPU LISTS"], rows)


def _parse_online_cpu_list(option: str, text: str, machine: Topology) -> frozenset[int]:
    try:
        cpus = frozenset(cpu_set_formats.parse_cpu_numbers(text, option, max(machine.online)))
    except BadInput as error:
        raise BadSettings(error.what, error.problems) from error
    if missing := cpus - machine.online:
        wanted = f"CPUs that are online: {cpu_set_formats.format_cpu_ranges(machine.online)}"
        raise BadSettings.of(
            "cannot plan", option, f"CPUs {cpu_set_formats.format_cpu_ranges(missing)}", wanted
        )
    return cpus


def _energy_preferences_by_cpu(text: str, machine: Topology) -> Mapping[int, str]:
    if not re.search("[=:]", text):
        cpus = _parse_online_cpu_list("--sst-cp", text, machine)
        return {cpu: pool_planning.POWER_CLASSES[0] if cpu in cpus else _REST for cpu in machine.online}
    names: dict[int, str] = {}
    for piece in (piece.strip() for piece in text.split(";") if piece.strip()):
        match = _CLASS.fullmatch(piece)
        if not match or match["name"] not in pool_planning.POWER_CLASSES:
            wanted = f"CLASS=LIST with a class of {', '.join(pool_planning.POWER_CLASSES)}"
            raise BadSettings.of("cannot plan", "--sst-cp", shown(piece), wanted)
        names |= dict.fromkeys(_parse_online_cpu_list("--sst-cp", match["cpus"], machine), match["name"])
    return names


plan_command = common_options.create_click_command("plan", run_plan, PlanOptions)
