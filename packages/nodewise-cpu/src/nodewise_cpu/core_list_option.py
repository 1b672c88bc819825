"""Cores named on the command line: the value of `--excl-non-isolcpus`.

Standard library only.
"""

import re
from collections.abc import Sequence
from typing import Final

from nodewise.base.errors import BadInput, Problem, shown
from nodewise_cpu.cpu_set_formats import LAST_CPU
from nodewise_cpu.topology import Core, Topology

OFF: Final = "-1"
"""The value without any cores."""

FIELD: Final = "--excl-non-isolcpus"
_WANTED: Final = (
    "core numbers and ranges separated by commas, such as 3,5-7; socket:core_id, such as 1:4; or cpu12"
)
_PIECE: Final = re.compile(
    r"cpu(?P<cpu>\d{1,9})|(?P<socket>\d{1,9}):(?P<core_id>\d{1,9})|(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?",
    re.ASCII,
)


def parse_cores(text: str, topology: Topology) -> tuple[Core, ...]:
    """The cores in a text, in ascending order, each once.

    A number is the kernel's core id: it selects the core with that id on each socket, as in CMK. If no core has that
    id, it is the number of `nodewise cpu topology` and lscpu. BadInput names the parts that cannot be parsed, and those
    not on the machine.
    """
    problems: list[Problem] = []
    missing: dict[str, None] = {}
    cores: set[Core] = set()
    for piece in text.split(","):
        try:
            cores.update(_parse_cores_part(piece.strip(), topology, missing))
        except ValueError as error:
            problems.append(Problem(FIELD, shown(piece), str(error)))
    if missing:
        wanted = f"core numbers up to {len(topology.cores) - 1}, not those of logical CPUs"
        problems.append(Problem(FIELD, f"cores that are not on this machine: {', '.join(missing)}", wanted))
    if problems:
        raise BadInput("cannot read the cores", problems)
    return tuple(sorted(cores))


def _parse_cores_part(piece: str, topology: Topology, missing: dict[str, None]) -> Sequence[Core]:
    """The cores of one part. Missing cores are added to `missing`. ValueError has the expected form."""
    match = _PIECE.fullmatch(piece)
    if not match:
        raise ValueError(_WANTED)
    if match["first"] is None:
        named = [core for core in topology.cores if _matches_core(core, match)]
        missing.update({} if named else {piece: None})
        return named
    cores: list[Core] = []
    for number in _parse_number_range(match):
        matches = _find_cores(number, topology)
        cores += matches
        missing.update({} if matches else {str(number): None})
    return cores


def _parse_number_range(match: re.Match[str]) -> range:
    """The numbers of a part that is a number or a range. ValueError has the expected form."""
    first = int(match["first"])
    last = int(match["last"] or first)
    if first > last:
        raise ValueError("a range whose first number is not above its last")
    if last > LAST_CPU:
        raise ValueError(f"numbers up to {LAST_CPU}")
    return range(first, last + 1)


def _matches_core(core: Core, match: re.Match[str]) -> bool:
    if match["cpu"] is not None:
        return int(match["cpu"]) in core.cpus
    return (core.socket, core.core_id) == (int(match["socket"]), int(match["core_id"]))


def _find_cores(number: int, topology: Topology) -> Sequence[Core]:
    """The cores with this id, else the core with this number; empty if there is none."""
    same_id = [core for core in topology.cores if core.core_id == number]
    return same_id or topology.cores[number : number + 1]
