"""The response of `GET /decisions`: the stored decisions as documents for people, or as arrays for `explain`.

    ?namespace= &pod=    the pods; any if left out
    ?limit=              the largest number of decisions, the newest first; the response ends after 2 MiB
    ?form=words|arrays   `explain` uses `arrays`

At 5,000 nodes the document of one decision has megabytes, so the generators yield between parts
(`cooperative_scheduling.run`).
"""

from collections.abc import Generator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from nodewise.base import clock
from nodewise.base.errors import UNREADABLE, BadInput, Problem
from nodewise.engine import decision_codec, decision_document
from nodewise.engine.decision import Decision, DecisionRing

Parts = Generator[None, None, bytes]
_MAX_DECISIONS: Final = 1000
_MAX_BYTES: Final = 2**21
"""The response ends with the decision that exceeds it. To copy it takes half a millisecond of the event loop."""
_FORMS: Final = {"words": decision_document.encode_decision, "arrays": decision_codec.encode_arrays}
_encode: Final = msgspec.json.encode


class DecisionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and times of stored decisions. Times are RFC 3339; null without decisions."""

    found: int
    """The number of stored decisions about these pods."""
    tries: int
    """How many of them are filter calls, which are kube-scheduler's attempts to place these pods."""
    since: str | None
    """The time of the oldest of them."""
    kept: int
    """The number of stored decisions about all pods."""
    kept_since: str | None
    """The time of the oldest of all, or of the oldest of the requested namespace if some of it were dropped. Older ones
    of the namespace were dropped, or made before the process started."""


class DecisionPage(DecisionCounts, frozen=True, kw_only=True):
    """A response: some decisions, the newest first, and the counts."""

    decisions: list[msgspec.Raw]


def encode_page(ring: DecisionRing, query: Mapping[str, str]) -> Parts:
    """The response to a query. `BadInput` names each invalid parameter. Yields between parts."""
    limit, form = _parse_query(query)
    namespace = query.get("namespace", "")
    matching = ring.about(namespace, query.get("pod", ""))
    counts = _encode(_count_decisions(ring, namespace, matching))
    make = _FORMS[form]
    decisions: list[bytes] = []
    size = 0
    for decision in list(islice(reversed(matching), limit)):
        decisions.append((yield from make(decision)))
        size += len(decisions[-1])
        if size >= _MAX_BYTES:
            break
        yield
    return b"".join((b'{"decisions":[', b",".join(decisions), b"],", counts[1:], b"\n"))


def _count_decisions(ring: DecisionRing, namespace: str, decisions: Sequence[Decision]) -> DecisionCounts:
    return DecisionCounts(
        found=len(decisions),
        tries=sum(decision.verb == "filter" for decision in decisions),
        since=_format_time(decisions[0].at if decisions else None),
        kept=len(ring),
        kept_since=_format_time(ring.since(namespace)),
    )


def _parse_query(query: Mapping[str, str]) -> tuple[int, str]:
    problems = []
    limit, form = query.get("limit", "20"), query.get("form", "words")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 9 and 0 < int(limit) <= _MAX_DECISIONS):  # noqa: PLR2004
        problems.append(Problem("limit", repr(limit), f"a whole number from 1 to {_MAX_DECISIONS}"))
    if form not in _FORMS:
        problems.append(Problem("form", repr(form), " or ".join(_FORMS)))
    if problems:
        raise BadInput("query", problems)
    return int(limit), form


def _format_time(at: float | None) -> str | None:
    return None if at is None else clock.format_rfc3339(at)


def decode_page(body: bytes) -> tuple[DecisionPage, list[Decision]]:
    """Decode a response in the form `arrays`. `BadInput` for any other, for example of another version of nodewise."""
    try:
        page = msgspec.json.decode(body, type=DecisionPage)
        return page, [decision_codec.decode_arrays(decision) for decision in page.decisions]
    except UNREADABLE as error:
        raise BadInput("decisions", [Problem("", str(error), "the form of this version")]) from error
