"""From facts to a report: every check, each by itself, and what could not be looked at."""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from typing import Final

from nodewise.configure.doctor import (
    admission,
    entries,
    metrics,
    nodes,
    policies,
    reaching,
    replicas,
    scorers,
    trust,
)
from nodewise.configure.doctor.facts import Configuration, Facts, Unread
from nodewise.configure.doctor.findings import (
    CATALOGUE,
    SEVERITIES,
    Answer,
    Finding,
    Report,
    Unlooked,
    found,
)
from nodewise.visible import short

CHECKS: Final[tuple[Callable[[Facts], Iterable[Answer]], ...]] = (
    reaching.check,
    entries.check,
    trust.check,
    policies.check,
    metrics.check,
    nodes.check,
    scorers.check,
    replicas.check,
    admission.check,
)
NOT_LOOKED: Final = "not-looked-at"
_FEW: Final = 3
_MOST: Final = 10
"""Findings of one id; what more there are is only counted."""


def examine(facts: Facts, skip: Collection[str] = ()) -> Report:
    """All findings, the gravest first, then in the catalogue's order. Those to skip are neither told nor looked for."""
    answers = [answer for check in CHECKS for answer in check(facts) if answer.id not in skip]
    findings = list(dict.fromkeys(one for one in answers if isinstance(one, Finding)))
    missed = list(dict.fromkeys(one for one in answers if isinstance(one, Unlooked)))
    if NOT_LOOKED not in skip:
        findings += [*_not_looked(missed), *_elsewhere(facts)]
    why: dict[str, list[str]] = {}
    for one in missed:
        why.setdefault(one.id, []).append(f"{one.unread.what}: {one.unread.why}")
    asked = [one for one in CATALOGUE if one not in skip and one != NOT_LOOKED]
    return Report(
        _bounded(sorted(findings, key=_rank)),
        [one for one in asked if one not in why],
        [(one, short("; ".join(dict.fromkeys(why[one])))) for one in asked if one in why],
        tuple(_looked(facts)),
    )


def _bounded(findings: Iterable[Finding]) -> list[Finding]:
    """As many of each kind as anybody reads."""
    kept: list[Finding] = []
    for _, same in groupby(findings, key=lambda one: (one.severity, one.id)):
        listed = list(same)
        kept += listed[:_MOST]
        if len(listed) > _MOST:
            kept.append(listed[-1]._replace(object=f"{len(listed) - _MOST} more", seen="of the same kind"))
    return kept


def _looked(facts: Facts) -> Iterator[str]:
    """What was looked at, in words."""
    if not isinstance(facts.schedulers, Unread):
        known = [one.where for one in facts.schedulers if isinstance(one.configuration, Configuration)]
        where = f" ({', '.join(known[:_FEW])})" if known else ""
        yield f"{_count(len(known), 'configuration')} of kube-scheduler{where}"
    if not isinstance(facts.extenders, Unread):
        replicas = sum(one.pod.wanted for one in facts.extenders)
        yield f"{_count(replicas, 'replica')} of nodewise"
    for found_, name in ((facts.nodes, "node"), (facts.policies, "TASPolicy")):
        if not isinstance(found_, Unread):
            yield _count(found_ if isinstance(found_, int) else len(found_), name)


def _count(number: int, name: str) -> str:
    plural = "TASPolicies" if name == "TASPolicy" else f"{name}s"
    return f"{number:,} {name if number == 1 else plural}"


def _elsewhere(facts: Facts) -> Iterator[Finding]:
    """Programs that nobody looked into: a tenant's, or an operator's who did not name the namespace."""
    if facts.elsewhere:
        more = f" and {len(facts.elsewhere) - _FEW} more" if len(facts.elsewhere) > _FEW else ""
        where = ", ".join(short(one, 100) for one in facts.elsewhere[:_FEW]) + more
        seen = f"say that they are a scheduler, a descheduler or nodewise, outside {', '.join(facts.homes)}"
        space = short(facts.elsewhere[0].split("/")[1], 80)
        remedy = f"where they are yours: -n {space}"
        yield found(
            NOT_LOOKED, where, seen, "nothing, where they are a tenant's", remedy=remedy, severity="note"
        )


def _rank(one: Finding) -> tuple[int, int, str, str]:
    return SEVERITIES.index(one.severity), list(CATALOGUE).index(one.id), one.object, one.seen


def _not_looked(missed: Iterable[Unlooked]) -> Iterator[Finding]:
    """One finding for each thing that could not be read, however many checks want it."""
    wants: dict[Unread, list[str]] = {}
    for one in missed:
        wants.setdefault(one.unread, []).append(one.id)
    for unread, ids in wants.items():
        named = list(dict.fromkeys(ids))
        more = f" and {len(named) - _FEW} more checks" if len(named) > _FEW else ""
        what = f"{unread.why}; not checked: {', '.join(named[:_FEW])}{more}"
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
