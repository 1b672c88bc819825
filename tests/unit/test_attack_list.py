"""The list of attacks in `docs/security.md`: each has a test that exists, and `make test-attacks` runs it."""

import ast
import functools
from pathlib import Path

import pytest

from tests import attack_list
from tests.attack_list import Attack

LEAST = 60
"""Attacks that the project has tested at least since it kept a list."""
ATTACKS = attack_list.read()


@functools.cache
def _tests_in(path: Path) -> frozenset[str]:
    """The names of the test functions and classes of a file."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def test_the_list_has_many_attacks_and_each_once() -> None:
    assert len(ATTACKS) >= LEAST
    assert len({attack.attack for attack in ATTACKS}) == len(ATTACKS)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.attack[:60])
def test_an_attack_has_a_test_that_exists(attack: Attack) -> None:
    assert attack.defence
    assert attack.tests, "no test is named"
    for test in attack.tests:
        path = attack_list.ROOT / test.path
        assert path.is_file(), test.path
        assert not test.name or test.name in _tests_in(path), str(test)
