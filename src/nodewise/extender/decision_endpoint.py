"""The kept decisions as `GET /decisions` gives them: in words for people, or as arrays that become decisions again.

    ?namespace= &pod=    whose; any if left out
    ?limit=              how many at most, the newest first; and no more than make 2 MiB
    ?form=words|arrays   `arrays` is what `explain` asks for

At 5,000 nodes one decision makes megabytes of words, so the generators here yield between parts (`cooperative.run`).
"""

from collections.abc import Generator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from nodewise import clock
from nodewise.errors import UNREADABLE, BadInput, Problem
from nodewise.extender import decision_codec, decision_document
from nodewise.extender.decision import Decision, DecisionRing

Parts = Generator[None, None, bytes]
_MOST: Final = 1000
_ENOUGH_BYTES: Final = 2**21
"""To copy so much takes half a millisecond, in one step of the event loop. The last decision may exceed it."""
_FORMS: Final = {"words": decision_document.encoded, "arrays": decision_codec.encoded}
_encode: Final = msgspec.json.encode


class DecisionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside the decisions of an answer. Times are RFC 3339, null for none."""

    found: int
    """How many are kept about these pods."""
    tries: int
    """How many of them are filter calls: attempts of kube-scheduler to place these pods."""
    since: str | None
    """When the oldest of them was made."""
    kept: int
    """How many are kept about all pods."""
    kept_since: str | None
    """When the oldest of all was made: what is older was pushed out, or was before the process began."""


class DecisionPage(DecisionCounts, frozen=True, kw_only=True):
    """An answer: some decisions, the newest first, and the facts."""

    decisions: list[msgspec.Raw]


def page(ring: DecisionRing, query: Mapping[str, str]) -> Parts:
    """The answer to a query. `BadInput` names the parameter that cannot be used."""
    limit, form = _asked(query)
    matching = ring.about(query.get("namespace", ""), query.get("pod", ""))
    facts = _encode(_facts(ring, matching))
    make = _FORMS[form]
    decisions: list[bytes] = []
    size = 0
    for decision in list(islice(reversed(matching), limit)):
        decisions.append((yield from make(decision)))
        size += len(decisions[-1])
        if size >= _ENOUGH_BYTES:
            break
        yield
    return b"".join((b'{"decisions":[', b",".join(decisions), b"],", facts[1:], b"\n"))


def _facts(ring: DecisionRing, decisions: Sequence[Decision]) -> DecisionCounts:
    return DecisionCounts(
        found=len(decisions),
        tries=sum(decision.verb == "filter" for decision in decisions),
        since=_time(decisions[0].at if decisions else None),
        kept=len(ring),
        kept_since=_time(ring.since),
    )


def _asked(query: Mapping[str, str]) -> tuple[int, str]:
    problems = []
    limit, form = query.get("limit", "20"), query.get("form", "words")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 9 and 0 < int(limit) <= _MOST):  # noqa: PLR2004
        problems.append(Problem("limit", repr(limit), f"a whole number from 1 to {_MOST}"))
    if form not in _FORMS:
        problems.append(Problem("form", repr(form), " or ".join(_FORMS)))
    if problems:
        raise BadInput("query", problems)
    return int(limit), form


def _time(at: float | None) -> str | None:
    return None if at is None else clock.format_rfc3339(at)


def read(body: bytes) -> tuple[DecisionPage, list[Decision]]:
    """An answer in the form `arrays`, read. `BadInput` if it is none, as of another version of nodewise."""
    try:
        page = msgspec.json.decode(body, type=DecisionPage)
        return page, [decision_codec.read(decision) for decision in page.decisions]
    except UNREADABLE as error:
        raise BadInput("decisions", [Problem("", str(error), "the form of this version")]) from error
