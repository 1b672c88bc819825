"""The page of metric back ends names existing tests in each row, and the versions that the tests run."""

import ast
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.cluster import metric_back_ends

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/metric-back-ends.md"
MATRIX = "tests/cluster/test_metric_back_end_matrix.py"
TEST = re.compile(r"`(matrix|tests/[\w/]+\.py)::([\w:]+)`")


def rows() -> list[str]:
    """The rows of all tables, without their headings."""
    lines = PAGE.read_text().splitlines()
    return [
        line
        for before, line in itertools.pairwise(lines)
        if line.startswith("|") and before.startswith("|") and not line.startswith("|---")
    ]


@cache
def names_of_tests(file: str) -> frozenset[str]:
    """The names of test functions, of test classes, and `class::function`."""

    def names() -> Iterator[str]:
        for node in ast.parse((ROOT / file).read_text()).body:
            yield getattr(node, "name", "")
            if isinstance(node, ast.ClassDef):
                yield from (f"{node.name}::{inner.name}" for inner in node.body if hasattr(inner, "name"))

    return frozenset(names())


def test_page_has_tables() -> None:
    assert len(rows()) > 25


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip()[:40])
def test_each_row_names_an_existing_test(row: str) -> None:
    named = TEST.findall(row)
    assert named
    for file, name in named:
        assert name in names_of_tests(MATRIX if file == "matrix" else file), f"{file}::{name}"


def test_versions_are_those_of_the_matrix() -> None:
    [prometheus, victoria_metrics] = [
        row
        for row in rows()
        if row.startswith(("| Prometheus | the version", "| VictoriaMetrics, single node |"))
    ]
    for version in metric_back_ends.VERSIONS:
        row = prometheus if version.product == metric_back_ends.PROMETHEUS else victoria_metrics
        before, _, after = row.partition("`make test-long`")
        assert version.number in (before if version.is_in_every_run else after)
