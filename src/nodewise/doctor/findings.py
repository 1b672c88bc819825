"""Findings as values, the report, and the declaration of checks, which name the facts that they need."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base.errors import short
from nodewise.doctor.facts import DERIVED, Facts, UnavailableFact
from nodewise.doctor.finding_catalogue import CATALOGUE, Severity

PAGE: Final = "docs/how-to/doctor.md"
"""The page that describes each finding."""
_MAX_LENGTH: Final = 500
"""Characters of a text: values of objects have any length."""


class Finding(NamedTuple):
    """One problem. `object` is kind/namespace/name, or a file."""

    id: str
    object: str
    found: str
    expected: str
    severity: Severity
    remedy: str

    @property
    def title(self) -> str:
        return CATALOGUE[self.id].title

    @property
    def doc(self) -> str:
        """The section that describes it."""
        return f"{PAGE}#{self.id}"

    def document(self) -> dict[str, Any]:
        """As `-o json` prints it."""
        return {
            "id": self.id,
            "severity": self.severity,
            "object": self.object,
            "seen": self.found,
            "wanted": self.expected,
            "remedy": self.remedy,
            "doc": self.doc,
        }


class NotChecked(NamedTuple):
    """A check that could not be made, and the missing fact."""

    id: str
    unavailable: UnavailableFact


Result = Finding | NotChecked


class Report(NamedTuple):
    """The result of an examination."""

    findings: Sequence[Finding]
    checked: Sequence[str]
    """Ids that were checked everywhere."""
    not_checked: Sequence[tuple[str, str]]
    """Ids that were not, or not everywhere, each with the reason."""
    examined: Sequence[str] = ()
    """What was examined, in words."""

    @property
    def has_no_errors_or_warnings(self) -> bool:
        """Whether there is no error and no warning. A fact that could not be read is a warning."""
        return all(finding.severity == "note" for finding in self.findings)


def finding(
    id_: str, object_: str, actual: str, expected: str, *, remedy: str = "", severity: Severity | None = None
) -> Finding:
    """A finding; remedy and severity default to those of the catalogue."""
    kind = CATALOGUE[id_]
    texts = (short(object_, _MAX_LENGTH), short(actual, _MAX_LENGTH), short(expected, _MAX_LENGTH))
    return Finding(id_, *texts, severity or kind.severity, short(remedy or kind.remedy, _MAX_LENGTH))


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
