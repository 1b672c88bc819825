"""The files of the GPU trace that Alibaba published (cluster-trace-gpu-v2023): nodes and pods, as CSV.

Source: github.com/alibaba/clusterdata, folder cluster-trace-gpu-v2023. Other files with these columns do as well.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from nodewise.errors import BadInput, Problem, shown

T = TypeVar("T")

CARD_MILLI: Final = 1000
"""A whole card."""
_MOST: Final = 2**53
_MOST_CARDS: Final = 64
_MOST_PROBLEMS: Final = 20


class TraceNode(NamedTuple):
    """A line of a node list."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    model: str


class TracePod(NamedTuple):
    """A line of a pod list; lines that ask for the same are equal."""

    cpu_milli: int
    memory_mib: int
    cards: int
    card_milli: int
    """Of each card; 0 without cards."""
    models: tuple[str, ...]
    """() for any."""

    @property
    def demand_milli(self) -> int:
        """Of all its cards together."""
        return self.cards * self.card_milli


class _Line:
    """One line, which notes what is wrong with it."""

    def __init__(self, where: str, cells: Mapping[str, str], problems: list[Problem]) -> None:
        self._where = where
        self._cells = cells
        self._problems = problems

    def number(self, column: str, most: int = _MOST) -> int:
        text = self._cells[column].strip()
        if text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST)) and int(text) <= most:
            return int(text)
        self.wrong(column, f"a whole number from 0 to {most}")
        return 0

    def text(self, column: str) -> str:
        return self._cells[column].strip()

    def wrong(self, column: str, wanted: str) -> None:
        self._problems.append(Problem(f"{self._where}: {column}", shown(self._cells[column]), wanted))


def nodes(path: str) -> list[TraceNode]:
    """The nodes of a list. `BadInput` names each line and column that is wrong."""
    nodes = _read(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model"), _node)
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise _bad([Problem(f"{path}: sn", shown(twice), "each name once")])
    if not any(node.cards for node in nodes):
        raise _bad([Problem(f"{path}: gpu", "no cards at all", "nodes with cards")])
    return nodes


def pods(path: str) -> list[TracePod]:
    """The pods of a list, likewise."""
    pods = _read(path, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"), _pod)
    if not any(pod.demand_milli for pod in pods):
        raise _bad([Problem(f"{path}: num_gpu", "no cards at all", "pods that ask for cards")])
    return pods


def _node(line: _Line) -> TraceNode:
    name = line.text("sn")
    if not name:
        line.wrong("sn", "a name")
    cards = line.number("gpu", _MOST_CARDS)
    return TraceNode(name, line.number("cpu_milli"), line.number("memory_mib"), cards, line.text("model"))


def _pod(line: _Line) -> TracePod:
    cards, milli = line.number("num_gpu", _MOST_CARDS), line.number("gpu_milli", CARD_MILLI)
    if cards and not milli:
        line.wrong("gpu_milli", f"1 to {CARD_MILLI} of each card")
    models = tuple(filter(None, line.text("gpu_spec").split("|")))
    return TracePod(
        line.number("cpu_milli"),
        line.number("memory_mib"),
        cards,
        milli if cards else 0,
        models if cards else (),
    )


def _read(path: str, columns: tuple[str, ...], read: Callable[[_Line], T]) -> list[T]:
    problems: list[Problem] = []
    rows: list[T] = []
    try:
        for number, cells in _lines(path, columns):
            rows.append(read(_Line(f"{path}: line {number}", cells, problems)))
            if len(problems) >= _MOST_PROBLEMS:
                break
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _bad([Problem(path, str(error), "a readable CSV file")]) from error
    if problems:
        raise _bad(problems)
    return rows


def _lines(path: str, columns: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str]]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file, strict=True, restval="")
        missing = [name for name in columns if name not in (lines.fieldnames or ())]
        if missing:
            raise _bad([Problem(f"{path}: line 1", shown(lines.fieldnames), f"columns {', '.join(columns)}")])
        for cells in lines:
            yield lines.line_num, cells


def _bad(problems: list[Problem]) -> BadInput:
    return BadInput("trace", problems)
