"""Each test that is not long runs in exactly one of `make test` and `make test-cluster`."""

import re
from itertools import chain, combinations
from pathlib import Path

from _pytest.mark.expression import Expression

ROOT = Path(__file__).parents[2]
MARKERS = ("cluster", "root", "long")
COMBINATIONS = [set(names) for size in range(4) for names in combinations(MARKERS, size)]


def selections(makefile: str) -> list[Expression]:
    return [Expression.compile(text) for text in re.findall(r"-m '([^']*)'", makefile)]


def test_every_test_that_is_not_long_is_run_by_one_command() -> None:
    expressions = selections((ROOT / "Makefile").read_text())
    assert len(expressions) == 2
    for markers in COMBINATIONS:
        runs = [expression.evaluate(lambda name, m=markers, **_: name in m) for expression in expressions]
        assert sum(runs) == ("long" not in markers), markers


def test_no_numbered_case_is_long() -> None:
    """Together with the tests of the tables, this means that every case runs in one of the two."""
    sources = chain(
        (ROOT / "tests/conformance").rglob("*.py"),
        ROOT.glob("packages/*/*_tests/conformance/*.py"),
        (ROOT / "tests/cluster").glob("test_*cases.py"),
    )
    assert [path for path in sources if "mark.long" in path.read_text()] == []
