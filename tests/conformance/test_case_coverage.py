"""Every row of the numbered cases is collected as a test.

The `test_differences_page.py` of each folder checks that the tables hold every number. This file checks that pytest
makes at least as many tests of each number as the tables have rows of it, whichever command runs them
(`tests/unit/test_make_test_targets.py`: no numbered case is long, and every other test runs in exactly one command).
"""

import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CLUSTER_TESTS = {
    "packages/nodewise-cpu/cpu_tests/conformance": (),
    "tests/conformance/gas": (
        "tests/cluster/test_gpu_aware_scheduling_cases.py",
        "tests/cluster/test_gpu_aware_scheduling_stories.py",
    ),
    "packages/nodewise-scorers/scorers_tests/conformance": (),
    "tests/conformance/tas": (
        "tests/cluster/test_taspolicy_crd_cases.py",
        "tests/cluster/test_telemetry_aware_stories.py",
    ),
}
"""The tests on a real API server that also read the tables, by folder."""
NUMBER = r"[A-Z]{0,2}\d+"


def rows(document: Any) -> Iterator[str]:
    """The number of each row of a table. A story of several requests counts once for each number in it."""
    if isinstance(document, list):
        for item in document:
            yield from rows(item)
    elif isinstance(document, dict):
        if document.get("number"):
            yield str(document["number"])
        for key, value in document.items():
            yield from set(rows(value)) if key == "asks" else rows(value)


def rows_of_tables(folder: str) -> Counter[str]:
    """The count of rows by number."""
    tables = (ROOT / folder).glob("*.yaml")
    return Counter(
        number for table in tables for number in rows(yaml.load(table.read_text(), yaml.CSafeLoader))
    )


@functools.cache
def collected() -> list[str]:
    """The ids of all tests of these folders, including those with real programs."""
    paths = list(CLUSTER_TESTS)
    paths += [path for files in CLUSTER_TESTS.values() for path in files]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-o", "addopts=", *paths]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert listing.returncode == 0, listing.stdout + listing.stderr
    return [line for line in listing.stdout.splitlines() if "::" in line]


def collected_by_number(folder: str) -> Counter[str]:
    """The count of tests by the number at the beginning of their parameters."""
    tests: Counter[str] = Counter()
    for test in collected():
        path = test.partition("::")[0]
        if path.startswith(f"{folder}/") or path in CLUSTER_TESTS[folder]:
            match = re.search(rf"\[({NUMBER}(?:,{NUMBER})*)(?=[ \]_-])", test)
            tests.update(match[1].split(",") if match else ())
    return tests


def test_every_folder_of_tables_is_checked() -> None:
    tables = [*ROOT.glob("tests/conformance/*/*.yaml"), *ROOT.glob("packages/*/*_tests/conformance/*.yaml")]
    folders = {str(path.parent.relative_to(ROOT)) for path in tables}
    assert {folder for folder in folders if rows_of_tables(folder)} == CLUSTER_TESTS.keys()


@pytest.mark.parametrize("folder", CLUSTER_TESTS)
def test_every_row_is_collected(folder: str) -> None:
    numbers, tests = rows_of_tables(folder), collected_by_number(folder)
    assert numbers
    assert {number: count for number, count in numbers.items() if tests[number] < count} == {}
