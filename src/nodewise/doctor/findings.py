"""Findings as values, and the report."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from nodewise.base.errors import short
from nodewise.doctor.facts import UnavailableFact
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
