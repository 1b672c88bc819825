"""A picture of a machine in SVG: sockets, NUMA nodes, cores and CPUs, in the colours of their pools.

The same machine and plan always give the same bytes. The colours follow the reader's preference for light or dark.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise_cpu import cpu_set_formats, pool_planning
from nodewise_cpu.pool_planning import PoolPlan
from nodewise_cpu.topology import Core, Topology

_CPU_W: Final = 34
_CPU_H: Final = 24
_GAP: Final = 5
_PAD: Final = 8
_LINE: Final = 18
"""Height of a line of text, in pixels like all other sizes."""
_LETTER_W: Final = 7
_THREADS: Final = 4
"""CPUs per row of a core."""
_SHAPE: Final = 1.6
"""The preferred ratio of width to height."""

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


def draw_machine_svg(machine: Topology, plan: PoolPlan | None = None) -> str:
    """Draw the machine; with a plan, in the colours of pools. A core without a pool has a dashed outline."""
    pool_of = _pool_by_core(machine, plan) if plan else {}
    sockets = [_draw_socket(socket, machine, pool_of) for socket in machine.sockets]
    offline = [cpu.cpu for cpu in machine.cpus if not cpu.online]
    parts = [_svg_title_text(machine), _draw_legend(machine, pool_of), _choose_page_wide_grid(sockets)]
    parts += [_draw_offline_cpus(offline)] if offline else []
    whole = _pad_box(_stack_boxes(parts))
    title = (
        f"{_describe_machine_counts(machine)}; {_describe_pools(pool_of)}"
        if pool_of
        else _describe_machine_counts(machine)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{whole.width}" '
        f'height="{whole.height}" viewBox="0 0 {whole.width} {whole.height}">\n'
        f"<title>{title}</title>\n<style>\n{_svg_style_sheet()}</style>\n"
        f'<rect class="bg" width="{whole.width}" height="{whole.height}"/>\n{whole.body}</svg>\n'
    )


def _svg_style_sheet() -> str:
    light = " ".join(f"{name} {{ {what}: {colour}; }}" for name, (what, colour, _) in _PAINT.items())
    dark = " ".join(f"{name} {{ {what}: {colour}; }}" for name, (what, _, colour) in _PAINT.items())
    return f"{_FORM}{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n"


def _pool_by_core(machine: Topology, plan: PoolPlan) -> Mapping[int, str]:
    """The pool of each core, by number."""
    pool_of_cpu = {
        cpu: pool
        for pool, sockets in plan.pools.items()
        for lists in sockets.values()
        for text in lists
        for cpu in cpu_set_formats.parse_cpu_numbers(text)
    }
    return {core.core: pool_of_cpu.get(core.cpus[0], _UNUSED) for core in machine.cores}


def _describe_machine_counts(machine: Topology) -> str:
    numbers = {"socket": len(machine.sockets), "core": len(machine.cores), "CPU": len(machine.online)}
    return ", ".join(
        f"{count} {name}" if count == 1 else f"{count} {name}s" for name, count in numbers.items()
    )


def _describe_pools(pool_of: Mapping[int, str]) -> str:
    cores = Counter(pool_of.values())
    return ", ".join(f"{cores[pool]} {pool}" for pool in _POOL_CLASSES if cores[pool])


def _svg_title_text(machine: Topology) -> _Box:
    text = _describe_machine_counts(machine)
    return _Box(len(text) * (_LETTER_W + 2), _LINE + 4, f'<text class="h" y="15">{text}</text>\n')


def _draw_legend(machine: Topology, pool_of: Mapping[int, str]) -> _Box:
    """A line with the colours and marks, and the number of cores of each."""
    cores = Counter(pool_of.values())
    entries = [
        (
            f'<rect class="{name}" y="2" width="16" height="14" rx="3"/>',
            f"{pool}: {_format_core_count(cores[pool])}",
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


def _format_core_count(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


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


def _draw_offline_cpus(cpus: Sequence[int]) -> _Box:
    return _frame_box_with_title(
        _choose_page_wide_grid([_draw_cpu_cell(cpu, name="off") for cpu in cpus]), "Offline CPUs"
    )


def _frame_box_with_title(box: _Box, title: str) -> _Box:
    top = _PAD + (_LINE if title else 0)
    width = max(box.width, len(title) * _LETTER_W) + 2 * _PAD
    height = box.height + top + _PAD
    text = f'<text class="dim" x="{_PAD}" y="{_PAD + 10}">{title}</text>\n' if title else ""
    frame = f'<rect class="frame" width="{width}" height="{height}" rx="7"/>\n'
    return _Box(width, height, frame + text + _move_box(box, _PAD, top))


def _pad_box(box: _Box) -> _Box:
    return _Box(box.width + 4 * _PAD, box.height + 4 * _PAD, _move_box(box, 2 * _PAD, 2 * _PAD))


def _stack_boxes(boxes: Iterable[_Box]) -> _Box:
    return _arrange_boxes_in_grid([box for box in boxes if box.height], 1)


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
