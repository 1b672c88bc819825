"""`docs/differences.md` and the tables say the same, and the tables have every row there is.

The numbers are those of the cases that were written down when the older system was observed. They have gaps.
"""

import re
from pathlib import Path

from tests.conformance.tas import cases

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"

NUMBERED = {
    "H": (1, 2, *range(4, 15), *range(18, 22), 23, 24, 25, 26),
    "F": (*range(2, 8), *range(9, 21), *range(22, 39)),
    "R": (1, 2, 3, 5, *range(7, 16), *range(17, 22)),
    "O": (*range(1, 10), 13, 14, 15),
    "V": tuple(range(1, 9)),
}
NUMBERS = {f"{letter}{number}" for letter, numbers in NUMBERED.items() for number in numbers}


def rows_of_page() -> list[str]:
    """The numbers in the first column of the page's tables of rows."""
    found: list[str] = []
    for line in PAGE.read_text().splitlines():
        cell = re.match(r"\| ([HFROV]\d+(?:, [HFROV]\d+)*) \|", line)
        found += cell[1].split(", ") if cell else []
    return found


def test_every_row_stands_in_the_tables():
    assert {case.row.number for case in cases.every()} == NUMBERS


def test_every_departure_stands_on_the_page():
    assert set(rows_of_page()) == {case.row.number for case in cases.every() if case.row.differs}


def test_the_page_names_each_row_once():
    assert len(rows_of_page()) == len(set(rows_of_page()))


def test_every_row_that_the_page_mentions_exists():
    mentioned = re.findall(r"\b[HFROV]\d+\b", PAGE.read_text())
    assert set(mentioned) <= NUMBERS
