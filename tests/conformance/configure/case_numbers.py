"""Tests say which numbered cases they hold, and how nodewise departs from the older configurator there."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class CaseNumber(NamedTuple):
    number: str
    differs: str


CASES: list[CaseNumber] = []


def case(number: str | int, differs: str = "") -> Callable[[F], F]:
    """Of the test below; `differs` is empty where nodewise does as the older program did, exit codes apart."""
    CASES.append(CaseNumber(str(number), differs))
    return lambda test: test
