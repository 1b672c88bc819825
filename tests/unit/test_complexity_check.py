"""The bounds of `tools/complexity_check.py`."""

from pathlib import Path

import pytest
from tools import complexity_check


def branches(count: int) -> str:
    return "\n".join(f"    if a == {number}:\n        return {number}" for number in range(count))


REASON = "  # complexity: a table of values"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (f"def first(a):\n{branches(12)}\n", ["first"]),
        ("def first(a):\n    return " + " or ".join("abcdefghijklmn") + "\n", ["first"]),
        ("def first(a):\n    return [b for b in a if b]\n", []),
        (f"def first(a):{REASON}\n{branches(14)}\n", []),
        (f"def first(\n    a,{REASON}\n):\n{branches(14)}\n", []),
        (f"def first(a):{REASON}\n{branches(15)}\n", ["first"]),
        (f"def first(a):\n    a = 1{REASON}\n{branches(12)}\n", ["first"]),
        ("a = 1\n" * 801, ["found 801 lines, expected at most 800"]),
    ],
    ids=[
        "branches",
        "boolean operators",
        "a comprehension",
        "a reason",
        "a reason inside of the signature",
        "above the bound with a reason",
        "a reason inside of the body",
        "a long module",
    ],
)
def test_a_value_above_a_bound_is_a_problem(tmp_path: Path, source: str, expected: list[str]) -> None:
    (tmp_path / "module.py").write_text(source)
    assert [problem.split(": ")[1] for problem in complexity_check.problems(tmp_path)] == expected
