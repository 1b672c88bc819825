"""The picture of a machine: its content, and its reproducibility."""

import re
import xml.etree.ElementTree as ET
from collections import Counter

import pytest
from hypothesis import given

from cpu_tests.conformance import case_cpu_topologies as made_up
from cpu_tests.laws.test_cpu_pool_laws import machines as any_machine
from cpu_tests.unit import recorded_machine_files
from nodewise_cpu import pool_planning, topology
from nodewise_cpu.cli import machine_commands
from nodewise_cpu.pool_planning import PoolOptions
from nodewise_cpu.topology import Topology

SVG = "{http://www.w3.org/2000/svg}"
Rectangle = tuple[float, float, float, float, str]


def rectangles(element: ET.Element, x: float = 0, y: float = 0) -> list[Rectangle]:
    """Left, top, right, bottom and class of every rectangle of a picture."""
    moved = re.fullmatch(r"translate\((\d+),(\d+)\)", element.get("transform", ""))
    x, y = (x + int(moved[1]), y + int(moved[2])) if moved else (x, y)
    result: list[Rectangle] = []
    if element.tag == f"{SVG}rect":
        left, top = x + float(element.get("x", 0)), y + float(element.get("y", 0))
        size = float(element.attrib["width"]), float(element.attrib["height"])
        result.append((left, top, left + size[0], top + size[1], element.attrib["class"]))
    return result + [rectangle for child in element for rectangle in rectangles(child, x, y)]


def texts(drawn: ET.Element) -> Counter[str]:
    return Counter(element.text or "" for element in drawn.iter(f"{SVG}text"))


@pytest.mark.parametrize("name", recorded_machine_files.NAMES)
def test_every_cpu_of_a_real_machine_is_drawn_once(name: str) -> None:
    machine = recorded_machine_files.machine(name)
    plan = pool_planning.plan(machine, PoolOptions(1, 0))
    drawn = ET.fromstring(machine_commands.draw_machine_svg(machine, plan))
    shapes = Counter(name for *_, name in rectangles(drawn))
    assert shapes["cell"] == len(machine.online)
    assert shapes["off"] == len(machine.cpus) - len(machine.online)
    cells = [element.text for element in drawn.iter(f"{SVG}text") if element.get("class") == "n"]
    assert sorted(int(text or "") for text in cells) == [cpu.cpu for cpu in machine.cpus]
    assert sum(text.startswith("Socket ") for text in texts(drawn).elements()) == len(machine.sockets)
    nodes = {cpu.numa for cpu in machine.cpus if cpu.online}
    named = {int(match[1]) for text in texts(drawn) if (match := re.match(r"NUMA node (\d+)", text))}
    assert named == nodes - {None}


def test_the_legend_counts_the_cores_of_each_pool() -> None:
    machine = topology.parse(made_up.texts("T8", "0-2,8-10"))
    drawn = ET.fromstring(
        machine_commands.draw_machine_svg(machine, pool_planning.plan(machine, PoolOptions(1, 1)))
    )
    assert {"exclusive: 1 core", "shared: 1 core", "infra: 5 cores", "unused: 1 core"} <= set(texts(drawn))
    assert "isolated by the kernel" in texts(drawn)
    shapes = Counter(name for *_, name in rectangles(drawn))
    assert [shapes[name] for name in ("ex", "sh", "in", "un")] == [2, 2, 6, 2], "the cores, and the legend"
    tips = [element.text for element in drawn.iter(f"{SVG}title")]
    assert "core 0, CPUs 0,8, exclusive" in tips
    assert tips[0] == "1 socket, 8 cores, 16 CPUs; 1 exclusive, 1 shared, 5 infra, 1 unused"


def test_kinds_of_cores_are_distinguished() -> None:
    drawn = ET.fromstring(
        machine_commands.draw_machine_svg(recorded_machine_files.machine("20em64t-hybrid-1p6c2t+2ca4co1t"))
    )
    assert {"NUMA node 0, performance cores", "NUMA node 0, efficiency cores"} <= set(texts(drawn))


@given(any_machine())
def test_nothing_overlaps_and_all_is_inside(machine: Topology) -> None:
    text = machine_commands.draw_machine_svg(machine)
    assert text == machine_commands.draw_machine_svg(machine)
    drawn = ET.fromstring(text)
    (_, _, width, height, _), *shapes = rectangles(drawn)
    assert all(0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height for x0, y0, x1, y1, _ in shapes)
    small = [shape for shape in shapes if shape[4] in {"in", "off"}]
    for at, (x0, y0, x1, y1, _) in enumerate(small):
        for other in small[at + 1 :]:
            assert x1 <= other[0] or other[2] <= x0 or y1 <= other[1] or other[3] <= y0


def test_the_picture_has_dark_colours() -> None:
    text = machine_commands.draw_machine_svg(recorded_machine_files.machine("rv64-visionfive2"))
    assert "@media (prefers-color-scheme: dark)" in text
    assert "<script" not in text
