"""Reads `docs/differences.md`: the section of a system, the numbered rows of its tables, and its faults."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


class KnownFault(NamedTuple):
    """A known defect of an older system: its letter and number, what nodewise does, and the rows that describe it."""

    letter: str
    number: int
    text: str
    rows: Sequence[int]


def section(heading: str) -> str:
    """The text from a heading of the second level to the next one. `heading` is how the heading begins."""
    after = PAGE.read_text().partition(f"\n## {heading}")[2]
    return re.split(r"^## ", after, flags=re.MULTILINE)[0]


def rows(heading: str) -> list[int]:
    """The numbers in the first column of the section's tables of rows."""
    cells = re.findall(r"^\| (\d+(?:, \d+)*) \|", section(heading), re.MULTILINE)
    return [int(number) for cell in cells for number in cell.split(", ")]


def known_faults(heading: str, fixed: str) -> list[KnownFault]:
    """The known defects of a system: those of `fixed`, then those in the table.

    `fixed` names those that are not on the page, such as `B1 (163, 165), B2`, with the rows that describe them.
    """
    text = section(heading).partition("\n### Known defects")[2]
    faults = [
        (letter, number, "fixed", cell)
        for letter, number, cell in re.findall(r"([A-Z])(\d+)(?: \(([\d, ]+)\))?", fixed)
    ]
    faults += re.findall(r"^\| ([A-Z])(\d+) \| (.*) \| ([\d, ]*)\|$", text, re.MULTILINE)
    return [
        KnownFault(letter, int(number), text, [int(row) for row in re.findall(r"\d+", cell)])
        for letter, number, text, cell in faults
    ]


def check_faults(heading: str, counts: Mapping[str, int], numbers: Collection[int], fixed: str) -> None:
    """Check that the section or `fixed` lists every fault once, with rows that exist.

    `counts` is the number of faults by letter, `numbers` are those of all rows.
    """
    faults = known_faults(heading, fixed)
    expected = [(letter, number) for letter, count in counts.items() for number in range(1, count + 1)]
    assert sorted((fault.letter, fault.number) for fault in faults) == sorted(expected)
    assert {row for fault in faults for row in fault.rows} <= set(numbers)
