"""`docs/differences.md` and the tests agree, and every numbered case has a test.

The numbers are those of the 110 cases that were observed with the older program, with gaps. A number without a test and
a tested number that is not among them fail.
"""

import re

from tests.conformance import differences_page
from tests.conformance.configure import (
    test_configure_runs,
    test_deployed_manifests,
    test_host_and_certificate_problems,
    test_other_platforms,
    test_scheduler_manifest_variants,
)
from tests.conformance.configure.case_numbers import CASES

HEADING = "The configurator"
NUMBERS = {
    *range(1, 11),
    *(12, 14, 15, 16, 17, 18, 20, 21, 22, 23, 25, 26, 27, 28, 29, 30),
    *range(32, 39),
    *(40, 41, 42, 43, 45),
    *range(47, 64),
    *(65, 67, 68, 69, 70, 71, "71a", "71b"),
    *range(72, 84),
    *range(85, 92),
    *range(94, 104),
    *range(106, 112),
    *range(113, 126),
}
NUMBER = r"\d+[ab]?"
MODULES = (
    test_deployed_manifests,
    test_other_platforms,
    test_host_and_certificate_problems,
    test_configure_runs,
    test_scheduler_manifest_variants,
)
"""The import of these modules fills the list of cases."""


def rows_of_page() -> list[str]:
    """The numbers in the first column of the tables on the page."""
    cells = re.findall(
        rf"^\| ({NUMBER}(?:, {NUMBER})*) \|", differences_page.section(HEADING), flags=re.MULTILINE
    )
    return [number for cell in cells for number in cell.split(", ")]


def test_every_case_has_a_test():
    assert {row.number for row in CASES} == {str(number) for number in NUMBERS}


def test_a_case_is_claimed_once():
    numbers = [row.number for row in CASES]
    assert len(numbers) == len(set(numbers))


def test_every_departure_stands_on_the_page_once():
    assert sorted(rows_of_page()) == sorted(row.number for row in CASES if row.differs)
