"""What `bench.stepping` wrote, read: which steps of the event loop were the longest, by what ran in them."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

LEAST_MS: Final = 0.25
"""Of CPU or wall time; what is shorter is counted only."""
LIMIT_MS: Final = 2.0
"""The target of the design."""
SHOWN: Final = 12


class Step(NamedTuple):
    """One step that took long."""

    at_s: float
    """When it began, on the machine's monotonic clock."""
    wall_ms: float
    cpu_ms: float
    gc_ms: float
    """Of its wall time, the garbage collector's."""
    pages: int
    """Of memory that the kernel gave it."""
    name: str


def read(path: Path, began_s: float, ended_s: float) -> list[Step]:
    """The long steps that began within a time on the machine's monotonic clock."""
    found = [Step(**json.loads(line)) for line in path.read_text().splitlines()]
    return [step for step in found if began_s <= step.at_s < ended_s]


def figures(rounds: Sequence[Sequence[Step]]) -> dict[str, float]:
    """The longest step of each round, their median.

    RuntimeError for a round without one: something of `LEAST_MS` there always is.
    """
    if not all(rounds):
        raise RuntimeError("no step was measured")
    return {
        "loop_step_max_ms": round(median(max(step.cpu_ms for step in found) for found in rounds), 2),
        "loop_step_wall_max_ms": round(median(max(step.wall_ms for step in found) for found in rounds), 2),
    }


def longest(found: Iterable[Step]) -> list[dict[str, Any]]:
    """By what ran: how many steps were long, how many of these too long, and the longest; the worst first."""
    by_name: defaultdict[str, list[Step]] = defaultdict(list)
    for step in found:
        by_name[step.name].append(step)
    rows = [_row(name, steps) for name, steps in by_name.items()]
    return sorted(rows, key=lambda row: -row["cpu_ms"])[:SHOWN]


def _row(name: str, steps: Sequence[Step]) -> dict[str, Any]:
    worst = max(steps, key=lambda step: step.cpu_ms)
    return {
        "name": name,
        "long": len(steps),
        "too_long": sum(step.cpu_ms > LIMIT_MS for step in steps),
        "cpu_ms": worst.cpu_ms,
        "wall_ms": max(step.wall_ms for step in steps),
        "gc_ms": worst.gc_ms,
        "pages": worst.pages,
    }
