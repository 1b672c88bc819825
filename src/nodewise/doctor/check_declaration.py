"""Checks. A check declares the facts that it needs by its parameters, which have the names of fields of `Facts`.

- A parameter without a default is needed. If the fact could not be read, the check is reported as not made. If only
  parts of it could not be read, the check gets the other parts and is reported as not made everywhere.
- A parameter with a default is used if the fact could be read; otherwise the check gets the default.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from nodewise.doctor.facts import DERIVED, Facts, UnavailableFact
from nodewise.doctor.finding_catalogue import CATALOGUE
from nodewise.doctor.findings import NotChecked, Result

Function = Callable[..., Iterable[Result]]


class Check(NamedTuple):
    """A check, and what it declares."""

    ids: tuple[str, ...]
    """The findings that it can have."""
    function: Function
    needs: frozenset[str]
    uses: frozenset[str]

    @property
    def fields(self) -> frozenset[str]:
        """The fields of `Facts` that have to be collected for it."""
        names = self.needs | self.uses
        return frozenset().union(*(DERIVED.get(name, frozenset({name})) for name in names))

    def run(self, facts: Facts) -> Iterator[Result]:
        """Findings, and what could not be checked."""
        needed = {name: getattr(facts, name) for name in self.needs}
        for value in needed.values():
            yield from (NotChecked(id_, part) for part in _unavailable_facts(value) for id_ in self.ids)
        if any(isinstance(value, UnavailableFact) for value in needed.values()):
            return
        used = {name: getattr(facts, name) for name in self.uses}
        yield from self.function(
            **{name: _remove_unavailable_facts(value) for name, value in needed.items()},
            **{name: value for name, value in used.items() if not isinstance(value, UnavailableFact)},
        )


def _unavailable_facts(value: Any) -> list[UnavailableFact]:
    if isinstance(value, UnavailableFact):
        return [value]
    return [part for part in value if isinstance(part, UnavailableFact)] if type(value) is tuple else []


def _remove_unavailable_facts(value: Any) -> Any:
    if type(value) is not tuple:  # a NamedTuple is one fact
        return value
    return tuple(part for part in value if not isinstance(part, UnavailableFact))


def check(*ids: str) -> Callable[[Function], Check]:
    """Declare a function as the check of these findings."""
    assert set(ids) <= CATALOGUE.keys(), ids

    def declare(function: Function) -> Check:
        parameters = inspect.signature(function).parameters.values()
        unknown = {parameter.name for parameter in parameters} - {*Facts._fields, *DERIVED}
        assert not unknown, f"{function.__name__} needs facts that do not exist: {unknown}"
        needs = frozenset(parameter.name for parameter in parameters if parameter.default is parameter.empty)
        return Check(ids, function, needs, frozenset(parameter.name for parameter in parameters) - needs)

    return declare
