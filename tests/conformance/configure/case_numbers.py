"""Assigns case numbers to tests, with the differences from the older configurator."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class CaseNumber(NamedTuple):
    number: str
    differs: str


CASES: list[CaseNumber] = []


def case(number: str | int, differs: str = "") -> Callable[[F], F]:
    """Decorates the test of a case. `differs` is empty if only exit codes differ from the older program."""
    CASES.append(CaseNumber(str(number), differs))
    return lambda test: test
