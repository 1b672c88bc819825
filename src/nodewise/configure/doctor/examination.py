"""From facts to a report: every check, each by itself, and what could not be looked at."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from nodewise.configure.doctor import (
    entries,
    metrics,
    nodes,
    policies,
    reaching,
    replicas,
    scorers,
    trust,
)
from nodewise.configure.doctor.facts import Facts, Unread
from nodewise.configure.doctor.findings import (
    CATALOGUE,
    SEVERITIES,
    Answer,
    Finding,
    Report,
    Unlooked,
    found,
)

CHECKS: Final[tuple[Callable[[Facts], Iterable[Answer]], ...]] = (
    reaching.check,
    entries.check,
    trust.check,
    policies.check,
    metrics.check,
    nodes.check,
    scorers.check,
    replicas.check,
)
NOT_LOOKED: Final = "not-looked-at"


def examine(facts: Facts, skip: Collection[str] = ()) -> Report:
    """All findings, the gravest first, then in the catalogue's order. Those to skip are neither told nor looked for."""
    answers = [answer for check in CHECKS for answer in check(facts) if answer.id not in skip]
    findings = list(dict.fromkeys(one for one in answers if isinstance(one, Finding)))
    missed = list(dict.fromkeys(one for one in answers if isinstance(one, Unlooked)))
    if NOT_LOOKED not in skip:
        findings += _not_looked(missed)
    why: dict[str, list[str]] = {}
    for one in missed:
        why.setdefault(one.id, []).append(f"{one.unread.what}: {one.unread.why}")
    asked = [one for one in CATALOGUE if one not in skip and one != NOT_LOOKED]
    return Report(
        sorted(findings, key=_rank),
        [one for one in asked if one not in why],
        [(one, "; ".join(dict.fromkeys(why[one]))) for one in asked if one in why],
    )


def _rank(one: Finding) -> tuple[int, int, str, str]:
    return SEVERITIES.index(one.severity), list(CATALOGUE).index(one.id), one.object, one.seen


def _not_looked(missed: Iterable[Unlooked]) -> Iterator[Finding]:
    """One finding for each thing that could not be read, however many checks want it."""
    wants: dict[Unread, list[str]] = {}
    for one in missed:
        wants.setdefault(one.unread, []).append(one.id)
    for unread, ids in wants.items():
        what = f"{unread.why}; not checked: {', '.join(dict.fromkeys(ids))}"
        wanted = f"the right to {unread.right}" if unread.right else "to be read"
        remedy = unread.remedy or ("" if unread.right else "mend what is named, or leave it out with --skip")
        yield found(
            NOT_LOOKED,
            unread.what,
            what,
            wanted,
            remedy=remedy,
            severity="note" if unread.is_minor else "warning",
        )
