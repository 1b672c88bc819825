"""The tables hold every numbered case, and `docs/differences.md` lists every row that differs.

The numbers are those of the cases that were written down when the older system was observed. They have gaps.
"""

from tests.conformance import differences_page
from tests.conformance.gas import case_table_rows

HEADING = "GPU Aware Scheduling"
NUMBERS = {
    *range(3, 52),
    *range(54, 58),
    *range(59, 70),
    *range(71, 79),
    *range(80, 84),
    *range(85, 102),
    *(103, 104, 105, 106, 107, 110, 111, 112, 113, 114, 117, 118),
    *range(119, 129),
    *(130, 131, 132, 133, 135, 136, 138, 139),
    *range(141, 149),
    *(150, 151, 152, 153, 155, 156, 157, 158, 159),
    *range(162, 174),
    *(175, 178, 179, 180, 181, 183, 184, 185),
    *range(186, 194),
    *(196, 198),
}
FAULTS = {"B": 55}
"""The number of faults by letter."""
FIXED = (
    "B1 (163, 165), B2 (164), B3 (167), B4 (170), B5 (162), B6 (166), B7 (165, 169), B8, B9 (124), B10 "
    "(175), B12 (166), B13 (111, 112), B14 (23, 31, 32), B15 (32, 33), B16 (113), B17 (114), B19 (50), "
    "B20 (49, 57, 75), B21 (94), B22 (105), B26 (26), B27 (153), B28 (47), B32, B33 (196), B34 (184), "
    "B35, B36, B37, B38, B39 (172), B42, B43, B44 (185), B45 (181), B46, B47 (183), B48, B51, B52, B53"
)
"""Faults that do not stand on the page, with the rows that describe them."""


def rows_of_tables() -> list[tuple[int, str]]:
    """The number of every row, and its difference from the older system."""
    rows = [
        (row.number, row.differs)
        for table in case_table_rows.STORIES
        for row in case_table_rows.stories(table)
    ]
    placements = [(case.row.number, case.row.differs) for case in case_table_rows.placing()]
    return (
        placements
        + rows
        + [(row.number, row.differs) for row in (*case_table_rows.parts(), *case_table_rows.http())]
    )


def test_every_row_stands_in_the_tables():
    assert {number for number, _ in rows_of_tables()} == NUMBERS


def test_every_departure_stands_on_the_page():
    assert set(differences_page.rows(HEADING)) == {number for number, differs in rows_of_tables() if differs}


def test_the_page_names_each_row_once():
    assert len(differences_page.rows(HEADING)) == len(set(differences_page.rows(HEADING)))


def test_page_names_outcome_and_rows_of_every_fault():
    differences_page.check_faults(HEADING, FAULTS, NUMBERS, FIXED)
