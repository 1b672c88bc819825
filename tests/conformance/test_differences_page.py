"""The tables hold every numbered case, and `docs/differences.md` lists every row that differs.

The numbers are those of the cases that were written down when the older system was observed. They have gaps.
"""

import re
from pathlib import Path

from tests.conformance.tas import non_request_rows, request_cases, story_definitions

PAGE = (Path(__file__).parents[2] / "docs" / "differences.md").read_text().partition("\n## GPU")[0]
"""The part about TAS, which comes first; others have letters and numbers of their own."""

NUMBERED = {
    "H": (1, 2, *range(4, 15), *range(18, 22), 23, 24, 25, 26),
    "F": (*range(2, 8), *range(9, 21), *range(22, 39)),
    "R": (1, 2, 3, 5, *range(7, 16), *range(17, 22)),
    "O": (*range(1, 10), 13, 14, 15),
    "V": tuple(range(1, 9)),
    "M": (1, 2, 3, *range(5, 13), 14, 15, 16, 17, 20),
    "K": (1, 2, 3, 5, *range(7, 12)),
    "DS": (*range(3, 20), 21, 22, 24, 25, 26),
    "L": (*range(1, 9), *range(10, 23), *range(24, 28)),
    "E": (1, 2, 3, 5, 7, 8, 9, 10, 12),
    "X": (1, 2, 3, 4, *range(7, 12)),
    "S": (*range(1, 9), 10),
}
NUMBERS = {f"{letter}{number}" for letter, numbers in NUMBERED.items() for number in numbers}


NUMBER = r"(?:DS|[HFROVMKLEXS])\d+"


def rows_of_tables() -> list[tuple[str, str]]:
    """The number of every row, and its difference from the older system. Rows without a number are left out."""
    requests = [(case.row.number, case.row.differs) for case in request_cases.all_cases()]
    story_rows = [(story.number, story.differs) for story in story_definitions.all_stories()]
    others = [(row.number, row.differs) for row in non_request_rows.all_rows()]
    return [(number, differs) for number, differs in requests + story_rows + others if number]


def rows_of_page() -> list[str]:
    """The numbers in the first column of the page's tables of rows."""
    numbers: list[str] = []
    for line in PAGE.splitlines():
        cell = re.match(rf"\| ({NUMBER}(?:, {NUMBER})*) \|", line)
        numbers += cell[1].split(", ") if cell else []
    return numbers


def test_every_row_stands_in_the_tables():
    assert {number for number, _ in rows_of_tables()} == NUMBERS


def test_every_departure_stands_on_the_page():
    assert set(rows_of_page()) == {number for number, differs in rows_of_tables() if differs}


def test_the_page_names_each_row_once():
    assert len(rows_of_page()) == len(set(rows_of_page()))


def test_every_row_that_the_page_mentions_exists():
    mentioned = re.findall(rf"\b{NUMBER}\b", PAGE)
    assert set(mentioned) <= NUMBERS
