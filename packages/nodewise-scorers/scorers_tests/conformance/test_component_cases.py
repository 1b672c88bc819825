"""The numbered cases that are about a single component, with the tolerance of each case."""

from math import isclose
from typing import Any

import pytest

from scorers_tests.conformance import case_table_rows, component_calls
from scorers_tests.conformance.case_table_rows import PARTS, SafePartRow

ROWS = [row for table in PARTS for row in case_table_rows.read(table, SafePartRow)]
PROGRAMS = {"deviation": pytest.mark.cluster}
"""Parts that a real program computes: Prometheus's own engine."""


def is_close(actual: Any, wanted: Any, row: SafePartRow) -> bool:
    """Whether all numbers are within the row's tolerance, and everything else is equal."""
    if isinstance(wanted, dict):
        return actual.keys() == wanted.keys() and all(
            is_close(actual[key], wanted[key], row) for key in wanted
        )
    if isinstance(wanted, list):
        pairs = zip(actual, wanted, strict=True)
        return len(actual) == len(wanted) and all(is_close(item, other, row) for item, other in pairs)
    if isinstance(wanted, int | float) and not isinstance(wanted, bool):
        return isclose(actual, wanted, rel_tol=row.relative, abs_tol=row.within)
    return bool(actual == wanted)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=PROGRAMS.get(row.part, ())) for row in ROWS]
)
def test_parts(row: SafePartRow) -> None:
    actual = component_calls.call_component(row)
    assert is_close(actual, row.gives, row), actual
