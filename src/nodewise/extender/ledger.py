"""The kept decisions as `GET /decisions` gives them: in words for people, or as arrays that become decisions again.

    ?namespace= &pod=    whose; any if left out
    ?limit=              how many at most, the newest first; and no more than make 2 MiB
    ?form=words|arrays   `arrays` is what `explain` asks for: by candidate, values in whole nano-units, so that
                         what is read back is what was written

At 5,000 nodes one decision makes megabytes of words, so everything here is made in parts (`clock.paced_result`).
"""

from collections.abc import Generator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np

from nodewise import clock
from nodewise.agent import Evidence, Joined, Scores, ValueState, Verdict
from nodewise.errors import UNREADABLE, BadInput, Problem
from nodewise.extender import report
from nodewise.extender.decision import Decision, DecisionRing, PodRef, Verb
from nodewise.metrics.column import States

Parts = Generator[None, None, bytes]
_MOST: Final = 1000
_ENOUGH_BYTES: Final = 2**21
"""To copy so much takes half a millisecond, in one step of the event loop. The last decision may exceed it."""
_FORMS: Final = ("words", "arrays")
_STATES: Final = np.array([state.name.lower() for state in ValueState], object)
_NUMBERS: Final = {name: number for number, name in enumerate(_STATES.tolist())}
_encode: Final = msgspec.json.encode


class Rule(msgspec.Struct, frozen=True):
    """One rule's evidence. Lists are by candidate and stay JSON until somebody needs them."""

    metric: str
    operator: str
    target_nano: int | None
    rejects_missing: bool
    values_nano: msgspec.Raw
    states: msgspec.Raw
    ages_s: msgspec.Raw


class Told(msgspec.Struct, frozen=True):
    """A reason of another process, as it told it."""

    words: str
    failure: bool = False
    advice: str = ""

    @property
    def is_failure(self) -> bool:
        return self.failure

    def text(self) -> str:
        return self.words

    def remedy(self) -> str:
        return self.advice


class _Verdict(msgspec.Struct, frozen=True):
    agent: str
    joined: Joined | None
    codes: msgspec.Raw
    reasons: list[Told]
    rules: list[Rule]


class _Scores(msgspec.Struct, frozen=True):
    agent: str
    points: msgspec.Raw
    rules: list[Rule]


class _Decision(msgspec.Struct, frozen=True):
    at: float
    verb: Verb
    namespace: str
    pod: str
    uid: str
    view: int
    nodes: msgspec.Raw
    verdicts: list[_Verdict]
    scores: list[_Scores]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
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


class Page(Facts, frozen=True, kw_only=True):
    """An answer: some decisions, the newest first, and the facts."""

    decisions: list[msgspec.Raw]


def page(ring: DecisionRing, query: Mapping[str, str]) -> Parts:
    """The answer to a query. `BadInput` names the parameter that cannot be used."""
    limit, form = _asked(query)
    found = ring.about(query.get("namespace", ""), query.get("pod", ""))
    facts = _encode(_facts(ring, found))
    make = report.encoded if form == "words" else encoded
    decisions: list[bytes] = []
    size = 0
    for one in list(islice(reversed(found), limit)):
        decisions.append((yield from make(one)))
        size += len(decisions[-1])
        if size >= _ENOUGH_BYTES:
            break
        yield
    return b"".join((b'{"decisions":[', b",".join(decisions), b"],", facts[1:], b"\n"))


def _facts(ring: DecisionRing, found: Sequence[Decision]) -> Facts:
    return Facts(
        found=len(found),
        tries=sum(one.verb == "filter" for one in found),
        since=_time(found[0].at if found else None),
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


def encoded(decision: Decision) -> Parts:
    """One decision in the form `arrays`."""
    nodes = _raw(decision.names.tolist())
    yield
    verdicts = []
    for agent, verdict in decision.verdicts:
        reasons = [Told(one.text(), one.is_failure, one.remedy()) for one in verdict.reasons]
        rules = yield from _rules(verdict.evidence)
        verdicts.append(_Verdict(agent, verdict.joined, _raw(verdict.codes.tolist()), reasons, rules))
    scores = []
    for agent, given in decision.scores:
        rules = yield from _rules(given.evidence)
        scores.append(_Scores(agent, _raw(given.points.tolist()), rules))
    pod = decision.pod
    return _encode(
        _Decision(
            decision.at,
            decision.verb,
            pod.namespace,
            pod.name,
            pod.uid,
            decision.generation,
            nodes,
            verdicts,
            scores,
        )
    )


def _rules(evidence: Sequence[Evidence]) -> Generator[None, None, list[Rule]]:
    rules = []
    for one in evidence:
        values = _raw(one.values.tolist())
        yield
        states = _raw(_STATES[one.states].tolist())
        yield
        ages = _raw(np.round(one.ages_s, 3).tolist())  # NaN is written as null
        yield
        rules.append(Rule(one.metric, one.operator, one.target, one.rejects_missing, values, states, ages))
    return rules


def _raw(listed: list[Any]) -> msgspec.Raw:
    return msgspec.Raw(_encode(listed))


def read(body: bytes) -> tuple[Page, list[Decision]]:
    """An answer in the form `arrays`, read. `BadInput` if it is none, as of another version of nodewise."""
    try:
        found = msgspec.json.decode(body, type=Page)
        return found, [_read(one) for one in found.decisions]
    except UNREADABLE as error:
        raise BadInput("decisions", [Problem("", str(error), "the form of this version")]) from error


def _read(raw: msgspec.Raw) -> Decision:
    given = msgspec.json.decode(raw, type=_Decision)
    names = np.array(_list(given.nodes, str), object)
    verdicts = tuple((one.agent, _verdict(one, len(names))) for one in given.verdicts)
    scores = tuple((one.agent, _scores(one, len(names))) for one in given.scores)
    ref = PodRef(given.namespace, given.pod, given.uid)
    return Decision(given.verb, ref, given.at, given.view, names, verdicts, scores)


def _verdict(given: _Verdict, size: int) -> Verdict:
    codes = np.array(_sized(given.codes, int, size), np.int16)
    if len(codes) and not 0 <= codes.min() <= codes.max() <= len(given.reasons):
        raise ValueError("a code without a reason")
    return Verdict(codes, tuple(given.reasons), _evidence(given.rules, size), given.joined)


def _scores(given: _Scores, size: int) -> Scores:
    return Scores(np.array(_sized(given.points, int, size), np.int64), _evidence(given.rules, size))


def _evidence(rules: Sequence[Rule], size: int) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            one.metric,
            one.operator,
            one.target_nano,
            _whole(_sized(one.values_nano, int, size)),
            _states(_sized(one.states, str, size)),
            np.array(_sized(one.ages_s, float | None, size), np.float64),
            one.rejects_missing,
        )
        for one in rules
    )


def _whole(values: list[int]) -> Any:
    """int64 where every value fits, else Python integers, as in a column."""
    fits = all(-(2**63) <= value < 2**63 for value in values)
    return np.array(values, np.int64 if fits else object)


def _states(names: list[str]) -> States:
    if strange := set(names) - _NUMBERS.keys():
        raise ValueError(f"unknown states {sorted(strange)}")
    return np.array([_NUMBERS[name] for name in names], np.uint8)


def _sized(raw: msgspec.Raw, kind: Any, size: int) -> list[Any]:
    listed = _list(raw, kind)
    if len(listed) != size:
        raise ValueError(f"{len(listed)} entries for {size} nodes")
    return listed


def _list(raw: msgspec.Raw, kind: Any) -> list[Any]:
    found: list[Any] = msgspec.json.decode(raw, type=list[kind])
    return found
