"""Reads `docs/differences.md`: the section of a system, the numbered rows of its tables, and its faults."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


def section(heading: str) -> str:
    """The text from a heading of the second level to the next one. `heading` is how the heading begins."""
    after = PAGE.read_text().partition(f"\n## {heading}")[2]
    return re.split(r"^## ", after, flags=re.MULTILINE)[0]


def rows(heading: str) -> list[int]:
    """The numbers in the first column of the section's tables of rows."""
    cells = re.findall(r"^\| (\d+(?:, \d+)*) \|", section(heading), re.MULTILINE)
    return [int(number) for cell in cells for number in cell.split(", ")]


def check_faults(heading: str, counts: Mapping[str, int], numbers: Collection[int]) -> None:
    """Check that the section lists every fault in order, with rows that exist.

    `counts` is the number of faults by letter, `numbers` are those of all rows.
    """
    faults = re.findall(r"^\| ([A-Z])(\d+) \|.*\| ([\d, ]*)\|$", section(heading), re.MULTILINE)
    expected = [(letter, number) for letter, count in counts.items() for number in range(1, count + 1)]
    assert [(letter, int(number)) for letter, number, _ in faults] == expected
    assert {int(number) for *_, cell in faults for number in re.findall(r"\d+", cell)} <= set(numbers)
