"""Each test that is not long runs in exactly one of `make test` and `make test-cluster`."""

import ast
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


def test_only_folders_whose_tests_are_all_marked_are_ignored() -> None:
    ignored = re.findall(r"--ignore=(\S+)", (ROOT / "Makefile").read_text())
    [marked] = re.findall(r"^PROGRAM_FOLDERS = (.*)$", (ROOT / "conftest.py").read_text(), re.MULTILINE)
    assert tuple(f"{folder}/" for folder in ignored) == ast.literal_eval(marked)


def test_no_numbered_case_is_long() -> None:
    """Together with the tests of the tables, this means that every case runs in one of the two."""
    sources = chain(
        (ROOT / "tests/conformance").rglob("*.py"),
        ROOT.glob("packages/*/*_tests/conformance/*.py"),
        (ROOT / "tests/cluster").glob("test_*cases.py"),
    )
    assert [path for path in sources if "mark.long" in path.read_text()] == []
