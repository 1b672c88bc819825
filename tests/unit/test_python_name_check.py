"""The rules of `tools/python_name_check.py`."""

import ast
from pathlib import Path

import pytest
from tools import python_name_check

CLASS = "class Outcome: ..."


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def first():\n    found = 1", [2]),
        ("def first(told): ...", [1]),
        ("def first(nodes):\n    return [one for one in nodes]", [2]),
        ("first = lambda given: given", [1]),
        ("class Problem:\n    found: str", []),
        ("def first():\n    return found", []),
    ],
    ids=["a variable", "a parameter", "a comprehension", "a lambda", "a field", "another one's name"],
)
def test_unclear_variables_are_problems(source: str, lines: list[int]) -> None:
    messages = python_name_check.problems({Path("tests/first.py"): ast.parse(source)})
    assert [message.split(":")[:2] for message in messages] == [
        ["tests/first.py", str(line)] for line in lines
    ]


@pytest.mark.parametrize(
    ("folders", "count"),
    [(("src/a", "src/b"), 1), (("src/a", "tests/b"), 0), (("src/a",), 0)],
    ids=["two in the package", "a fake in a test", "one"],
)
def test_classes_of_the_package_with_one_name_are_a_problem(folders: tuple[str, ...], count: int) -> None:
    trees = {Path(folder, "module.py"): ast.parse(CLASS) for folder in folders}
    assert len(python_name_check.problems(trees)) == count


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("test_what_is_asked", 1),
        ("test_who_dies_is_followed", 1),
        ("test_whole_nodes_are_counted", 0),
        ("what_is_read", 0),
    ],
)
def test_test_names_without_the_behaviour_are_a_problem(name: str, count: int) -> None:
    tree = ast.parse(f"def {name}(): ...")
    assert len(python_name_check.problems({Path("tests/test_first.py"): tree})) == count


@pytest.mark.parametrize(
    ("call", "count"),
    [
        ('Problem("--output", "two", "one of them")', 2),
        ('errors.Problem("--output", found="none", expected="json or text")', 1),
        ('Problem("--output", "no value", "one of json and text")', 0),
        ('Limit("none")', 0),
    ],
)
def test_pronouns_for_values_in_errors_are_a_problem(call: str, count: int) -> None:
    assert len(python_name_check.problems({Path("src/first.py"): ast.parse(call)})) == count
