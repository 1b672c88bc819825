"""The bound of `tools/complexity_check.py`."""

from pathlib import Path

import pytest
from tools import complexity_check

BRANCHES = "\n".join(
    f"    if a == {number}:\n        return {number}" for number in range(complexity_check.MAX_COMPLEXITY)
)


@pytest.fixture(autouse=True)
def _no_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complexity_check, "EXCEPTIONS", frozenset())


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


def test_an_exception_that_is_not_needed_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complexity_check, "EXCEPTIONS", frozenset({"Reader.read"}))
    assert "Reader.read: no function of this name is above 12" in complexity_check.problems(tmp_path)[0]
