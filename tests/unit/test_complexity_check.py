"""The bound of `tools/complexity_check.py`."""

from pathlib import Path

import pytest
from tools import complexity_check

BRANCHES = "\n".join(
    f"    if a == {number}:\n        return {number}" for number in range(complexity_check.MAX_COMPLEXITY)
)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (f"def first(a):\n{BRANCHES}\n", ["first"]),
        ("def first(a):\n    return " + " or ".join("abcdefghijklmn") + "\n", ["first"]),
        ("def first(a):\n    return [b for b in a if b]\n", []),
    ],
    ids=["branches", "boolean operators", "a comprehension"],
)
def test_functions_above_the_bound_are_problems(tmp_path: Path, source: str, expected: list[str]) -> None:
    (tmp_path / "module.py").write_text(source)
    assert [problem.split(": ")[1] for problem in complexity_check.problems(tmp_path)] == expected
