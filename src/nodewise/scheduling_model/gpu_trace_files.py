"""CSV files of the GPU trace that Alibaba published (cluster-trace-gpu-v2023): nodes and pods.

Source: github.com/alibaba/clusterdata, folder cluster-trace-gpu-v2023. Other files with these columns work too.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from nodewise.base.errors import BadInput, Problem, shown

T = TypeVar("T")

GPU_MILLI: Final = 1000
"""Thousandths of a whole GPU."""
_MAX_VALUE: Final = 2**53
_MAX_GPUS: Final = 64
_MAX_PROBLEMS: Final = 20


class TraceNode(NamedTuple):
    """A row of a node list."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class TracePod(NamedTuple):
    """A row of a pod list; rows with equal requests are equal."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    """Thousandths of each GPU; 0 without GPUs."""
    models: tuple[str, ...]
    """Accepted GPU models; empty accepts any."""

    @property
    def total_gpu_demand_milli(self) -> int:
        """Thousandths of all GPUs together."""
        return self.gpus * self.gpu_milli


class _CsvRow:
    """A row that collects the problems of its cells."""

    def __init__(self, where: str, cells: Mapping[str, str], problems: list[Problem]) -> None:
        self._where = where
        self._cells = cells
        self._problems = problems

    def number(self, column: str, most: int = _MAX_VALUE) -> int:
        text = self._cells[column].strip()
        if text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_VALUE)) and int(text) <= most:
            return int(text)
        self.report_problem(column, f"a whole number from 0 to {most}")
        return 0

    def text(self, column: str) -> str:
        return self._cells.get(column, "").strip()

    def report_problem(self, column: str, wanted: str) -> None:
        self._problems.append(Problem(f"{self._where}: {column}", shown(self._cells[column]), wanted))


def nodes(path: str) -> list[TraceNode]:
    """Read a node list. BadInput names each invalid line and column."""
    nodes = _read_trace_file(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model"), _parse_node_line)
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise _invalid_trace_error([Problem(f"{path}: sn", shown(duplicate), "each name once")])
    if not any(node.gpus for node in nodes):
        raise _invalid_trace_error([Problem(f"{path}: gpu", "no GPUs", "nodes with GPUs")])
    return nodes


def pods(path: str) -> list[TracePod]:
    """Read a pod list. Without the column gpu_spec, as in some published lists, pods accept any GPU model. BadInput
    names each invalid line and column.
    """
    pods = _read_trace_file(path, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"), _parse_pod_line)
    if not any(pod.total_gpu_demand_milli for pod in pods):
        raise _invalid_trace_error([Problem(f"{path}: num_gpu", "no GPUs", "pods that request GPUs")])
    return pods


def _parse_node_line(line: _CsvRow) -> TraceNode:
    name = line.text("sn")
    if not name:
        line.report_problem("sn", "a name")
    gpus = line.number("gpu", _MAX_GPUS)
    return TraceNode(name, line.number("cpu_milli"), line.number("memory_mib"), gpus, line.text("model"))


def _parse_pod_line(line: _CsvRow) -> TracePod:
    gpus, milli = line.number("num_gpu", _MAX_GPUS), line.number("gpu_milli", GPU_MILLI)
    if gpus and not milli:
        line.report_problem("gpu_milli", f"1 to {GPU_MILLI} of each GPU")
    models = tuple(filter(None, line.text("gpu_spec").split("|")))
    return TracePod(
        line.number("cpu_milli"),
        line.number("memory_mib"),
        gpus,
        milli if gpus else 0,
        models if gpus else (),
    )


def _read_trace_file(path: str, columns: tuple[str, ...], read: Callable[[_CsvRow], T]) -> list[T]:
    problems: list[Problem] = []
    rows: list[T] = []
    try:
        for number, cells in _read_csv_rows(path, columns):
            rows.append(read(_CsvRow(f"{path}: line {number}", cells, problems)))
            if len(problems) >= _MAX_PROBLEMS:
                break
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _invalid_trace_error([Problem(path, str(error), "a readable CSV file")]) from error
    if problems:
        raise _invalid_trace_error(problems)
    return rows


def _read_csv_rows(path: str, columns: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str]]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file, strict=True, restval="")
        missing = [name for name in columns if name not in (lines.fieldnames or ())]
        if missing:
            raise _invalid_trace_error(
                [Problem(f"{path}: line 1", shown(lines.fieldnames), f"columns {', '.join(columns)}")]
            )
        for cells in lines:
            yield lines.line_num, cells


def _invalid_trace_error(problems: list[Problem]) -> BadInput:
    return BadInput("trace", problems)
