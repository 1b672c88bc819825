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
    differences_page.check_faults(HEADING, FAULTS, NUMBERS)
