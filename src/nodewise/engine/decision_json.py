"""A decision as JSON: as a document for people, and as arrays by candidate; the responses of `GET /decisions`.

`explain` reads the arrays, which are decoded without loss. Values are whole nano-units; every list is in the order of
the candidates. The reader is another process, perhaps of another version, so decoding checks that all parts are
consistent.
"""

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from nodewise.agent import (
    Details,
    Evidence,
    Joined,
    Names,
    PolicyRejections,
    Reason,
    Scores,
    ValueState,
    Verdict,
    is_unresolvable,
)
from nodewise.base import quantity
from nodewise.base.clock import format_rfc3339
from nodewise.base.errors import UNREADABLE, BadInput, Problem
from nodewise.engine import counterfactuals
from nodewise.engine.counterfactuals import RuleChange
from nodewise.engine.decision import Decision, DecisionRing, PodRef, Verb

_DETAILED_PER_PART: Final = 2
"""Candidates with details between two yields: the texts or numbers of one may take 0.2 ms."""
_PER_PART: Final = 50
"""Other candidates between two yields: some 0.2 ms of work with three rules."""
_STATES: Final = np.array([state.name.lower() for state in ValueState], object)
_STATE_NUMBERS: Final = {name: number for number, name in enumerate(_STATES.tolist())}
_EMPTY: Final = b"{}"
_encode: Final = msgspec.json.encode

Parts = Generator[None, None, bytes]


def to_json_values(value: Any) -> Any:
    """The value without numpy types; NaN and infinity become null."""
    if isinstance(value, np.generic | np.ndarray):
        return to_json_values(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_json_values(item) for key, item in value.items()}
    return [to_json_values(item) for item in value] if isinstance(value, list | tuple) else value


class _Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rule's evidence. Encoders put `msgspec.Raw` in the place of lists, here and below.

    The fields with a default are absent in older decisions, and of rules that no policy has.
    """

    metric: str
    operator: str
    target_nano: int | None
    rejects_missing: bool
    values_nano: list[int]
    states: list[str]
    ages_s: list[float | None]
    policy: str = ""
    group: int = -1
    weight: float = 1.0


class StaticReason(msgspec.Struct, frozen=True):
    """A reason whose texts are known: of another process, or of a third-party agent."""

    words: str
    failure: bool = False
    advice: str = ""
    unresolvable: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """Absent where evicting pods may help, and in older decisions, where it is unknown."""

    @classmethod
    def of(cls, text: str, remedy: str, reason: Reason) -> Self:
        """The reason with these texts."""
        unresolvable: Any = True if is_unresolvable(reason) else msgspec.UNSET
        return cls(text, bool(reason.is_failure), remedy, unresolvable)

    @property
    def is_failure(self) -> bool:
        return self.failure

    @property
    def is_unresolvable(self) -> bool:
        return self.unresolvable is True

    def text(self) -> str:
        return self.words

    def remedy(self) -> str:
        return self.advice


class _Details(msgspec.Struct, frozen=True):
    texts: list[str]
    distances: list[float]
    numbers: list[dict[str, Any]] = []
    """Empty for an agent without numbers."""


class StaticDetails(NamedTuple):
    """Details whose texts and numbers are known: of another process (`agent.Details`)."""

    texts: Sequence[str]
    far: NDArray[np.float64]
    numbers_by_candidate: Sequence[Mapping[str, Any]] = ()
    """Empty for an agent without numbers."""

    @property
    def nbytes(self) -> int:
        return self.far.nbytes + sum(map(len, self.texts))

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        return self.numbers_by_candidate[candidate] if self.numbers_by_candidate else {}

    def text(self, candidate: int) -> str:
        return self.texts[candidate]

    def distances(self) -> NDArray[np.float64]:
        return self.far


class _Policy(msgspec.Struct, frozen=True):
    policy: str
    rejected: list[bool]
    joined: Joined | None = None
    not_enforced: str = ""
    would_reject: list[bool] | msgspec.UnsetType = msgspec.UNSET


class _Verdict(msgspec.Struct, frozen=True):
    agent: str
    joined: Joined | None
    codes: list[int]
    reasons: list[StaticReason]
    rules: list[_Rule]
    details: _Details | None = None
    policies: list[_Policy] | msgspec.UnsetType = msgspec.UNSET
    """Absent for an agent without policies."""


class _Scores(msgspec.Struct, frozen=True):
    agent: str
    points: list[int]
    rules: list[_Rule]
    details: _Details | None = None
    label: str = ""
    weight: float = 1.0


class _Decision(msgspec.Struct, frozen=True, rename={"snapshot": "view", "description": "told"}):
    at: float
    verb: Verb
    namespace: str
    pod: str
    uid: str
    snapshot: int
    nodes: list[str]
    verdicts: list[_Verdict]
    scores: list[_Scores]
    description: str = ""


def encode_arrays(decision: Decision) -> Parts:
    """The decision as JSON. Yields between parts."""
    nodes = _to_raw(decision.names.tolist())
    yield
    verdicts, scores = [], []
    for agent, verdict in decision.verdicts:
        reasons = [StaticReason.of(reason.text(), reason.remedy(), reason) for reason in verdict.reasons]
        rules = yield from _encode_rules(verdict.evidence)
        details = yield from _encode_details(verdict.details, len(verdict.codes), rejects=True)
        codes = _to_raw(verdict.codes.tolist())
        policies = []
        for policy in verdict.policies:
            rejected, mask = _to_raw(policy.rejected.tolist()), policy.would_reject
            yield
            would_reject = msgspec.UNSET if mask is None else _to_raw(mask.tolist())
            yield
            policies.append(
                _Policy(policy.policy, rejected, policy.joined, policy.not_enforced, would_reject)
            )
        verdicts.append(
            _Verdict(agent, verdict.joined, codes, reasons, rules, details, policies or msgspec.UNSET)
        )
    for agent, scored in decision.scores:
        rules = yield from _encode_rules(scored.evidence)
        details = yield from _encode_details(scored.details, len(scored.points), rejects=False)
        scores.append(
            _Scores(agent, _to_raw(scored.points.tolist()), rules, details, scored.label, scored.weight)
        )
    about = (decision.at, decision.verb, decision.pod.namespace, decision.pod.name, decision.pod.uid)
    return _encode(_Decision(*about, decision.generation, nodes, verdicts, scores, decision.description))


def _encode_rules(evidence: Sequence[Evidence]) -> Generator[None, None, list[_Rule]]:
    rules = []
    for rule in evidence:
        arrays = []
        for array in (rule.values, _STATES[rule.states], np.round(rule.ages_s, 3)):
            arrays.append(_to_raw(array.tolist()))  # NaN is written as null
            yield
        head = (rule.metric, rule.operator, rule.target, rule.rejects_missing)
        tail = (rule.policy, rule.group, rule.weight)
        rules.append(_Rule(*head, arrays[0], arrays[1], arrays[2], *tail))
    return rules


def _encode_details(
    details: Details | None, size: int, *, rejects: bool
) -> Generator[None, None, _Details | None]:
    """The details of a verdict (`rejects`) or of scores, whose distances are all 0."""
    if details is None:
        return None
    texts: list[str] = []
    numbers: list[bytes] = []
    for candidate in range(size):
        if candidate % _DETAILED_PER_PART == 0:
            yield
        texts.append(details.text(candidate))
        numbers.append(_encode(to_json_values(details.numbers(candidate))))
    yield
    distances = _to_raw(details.distances().tolist() if rejects else [0.0] * size)
    listed = b"[" + b",".join(numbers) + b"]" if any(item != _EMPTY for item in numbers) else b"[]"
    encoded_numbers: Any = msgspec.Raw(listed)
    return _Details(_to_raw(texts), distances, encoded_numbers)


def _to_raw(values: list[Any]) -> Any:
    return msgspec.Raw(_encode(values))


def decode_arrays(raw: bytes | msgspec.Raw) -> Decision:
    """The decoded decision. Raises one of `errors.UNREADABLE` for anything else."""
    document = msgspec.json.decode(raw, type=_Decision)
    size = len(document.nodes)
    return Decision(
        document.verb,
        PodRef(document.namespace, document.pod, document.uid),
        document.at,
        document.snapshot,
        Names.of(document.nodes),
        tuple((verdict.agent, _decode_verdict(verdict, size)) for verdict in document.verdicts),
        tuple((scores.agent, _decode_scores(scores, size)) for scores in document.scores),
        document.description,
    )


def _decode_verdict(verdict: _Verdict, size: int) -> Verdict:
    codes = _to_array(verdict.codes, np.int16, size)
    if len(codes) and not 0 <= codes.min() <= codes.max() <= len(verdict.reasons):
        raise ValueError("a code without a reason")
    evidence, details = _decode_evidence(verdict.rules, size), _decode_details(verdict.details, size)
    policies = tuple(
        PolicyRejections(
            policy.policy,
            _to_array(policy.rejected, bool, size),
            policy.joined,
            policy.not_enforced,
            None if policy.would_reject is msgspec.UNSET else _to_array(policy.would_reject, bool, size),
        )
        for policy in verdict.policies or ()
    )
    return Verdict(codes, tuple(verdict.reasons), evidence, verdict.joined, details, policies)


def _decode_scores(scores: _Scores, size: int) -> Scores:
    if not 0 <= scores.weight < math.inf:
        raise ValueError(f"a weight of {scores.weight}")
    points = _to_array(scores.points, np.int64, size)
    evidence, details = _decode_evidence(scores.rules, size), _decode_details(scores.details, size)
    return Scores(points, evidence, details, scores.label, scores.weight)


def _decode_details(details: _Details | None, size: int) -> StaticDetails | None:
    if details is None:
        return None
    for values in (details.texts, details.numbers or details.texts):
        _check_size(values, size)
    return StaticDetails(details.texts, _to_array(details.distances, np.float64, size), details.numbers)


def _decode_evidence(rules: Sequence[_Rule], size: int) -> tuple[Evidence, ...]:
    evidence = []
    for rule in rules:
        # as in a column: int64 if every value fits, else Python integers
        fits = all(-(2**63) <= value < 2**63 for value in rule.values_nano)
        if unknown := set(rule.states) - _STATE_NUMBERS.keys():
            raise ValueError(f"unknown states {sorted(unknown)}")
        evidence.append(
            Evidence(
                rule.metric,
                rule.operator,
                rule.target_nano,
                _to_array(rule.values_nano, np.int64 if fits else object, size),
                _to_array([_STATE_NUMBERS[name] for name in rule.states], np.uint8, size),
                _to_array(rule.ages_s, np.float64, size),
                rule.rejects_missing,
                rule.policy,
                rule.group,
                rule.weight,
            )
        )
    return tuple(evidence)


def _to_array(values: Sequence[Any], dtype: DTypeLike, size: int) -> NDArray[Any]:
    _check_size(values, size)
    return np.array(values, dtype)


def _check_size(values: Sequence[Any], size: int) -> None:
    if len(values) != size:
        raise ValueError(f"{len(values)} entries for {size} nodes")


_ENCODER = msgspec.json.Encoder(decimal_format="number")
_HAS_VALUE = (ValueState.FRESH, ValueState.STALE)
Numbers = dict[str, dict[str, dict[str, Any]]]
"""By agent and node: the numbers that its result is based on, as JSON values."""


def encode_document(document: Any) -> bytes:
    """JSON with exact numbers."""
    return _ENCODER.encode(document)


def pod_document(filtered: Decision, scored: Decision, agents: list[str]) -> dict[str, Any]:
    """The filter and prioritize decisions of one pod: feasible nodes in the order of the input, with their scores.

    `error` is why an agent could not decide, for example because a policy does not exist; null if all could.
    """
    document = {
        "pod": f"{filtered.pod.namespace}/{filtered.pod.name}",
        "agents": agents,
        "feasible": filtered.names[filtered.feasible()].tolist(),
        "scores": _points_by_node(scored, scored.points()),
        "rejected": rejection_reasons(filtered),
        "values": [*measured_values(filtered), *measured_values(scored)],
        "error": failure_text(filtered),
    }
    # policies that rank nodes may reject none
    ranking = {
        rule.policy: {"agent": agent, "rejected": []}
        for agent, scores in scored.scores
        for rule in scores.evidence
        if rule.policy
    }
    if all_policies := ranking | policies(filtered):
        document["policies"] = all_policies
    if changes := list(map(change_document, counterfactuals.changes(filtered))):
        document["changes"] = changes
    if has_details(filtered) or has_details(scored):
        document["details"] = details_by_node(filtered, scored)
    if numbers := numbers_by_agent(filtered, scored):
        document["numbers"] = numbers
    if parts := score_parts(scored):
        document["parts"] = parts
    return document


def change_document(change: RuleChange) -> dict[str, Any]:
    """What another target of a rule would change."""
    return {
        "agent": change.agent,
        "rule": change.number,
        "metric": change.rule.metric,
        "operator": change.rule.operator,
        "target": quantity.nano_to_decimal(change.rule.target or 0),
        "more": [
            {"target": quantity.nano_to_decimal(relaxed.target), "nodes": relaxed.more}
            for relaxed in change.relaxed
        ],
        "alone": change.alone,
        "missing": change.unmeasured,
        "one_is_enough": change.enough,
        **({"policy": change.rule.policy} if change.rule.policy else {}),
    }


def encode_decision(decision: Decision) -> Parts:
    """A decision as JSON. Yields between parts, because at 5,000 nodes it has megabytes."""
    document: dict[str, Any] = {
        "time": format_rfc3339(decision.at),
        "verb": decision.verb,
        "pod": f"{decision.pod.namespace}/{decision.pod.name}",
        "uid": decision.pod.uid,
        "view": decision.generation,
    }
    if decision.verb == "prioritize":
        document["scores"] = _points_by_node(decision, decision.points())
        yield
        document |= {"parts": parts} if (parts := score_parts(decision)) else {}
    else:
        document["feasible"] = decision.names[decision.feasible()].tolist()
        reasons = ((position, reasons_at(decision, position)) for position in _rejected_positions(decision))
        document["rejected"] = msgspec.Raw((yield from _encode_by_node(decision, reasons, _PER_PART)))
        document |= {"policies": listed} if (listed := policies(decision)) else {}
    if decision.description:
        document["told"] = decision.description
    yield
    # joined as bytes: the encoder takes five times as long to copy megabytes
    members = [encode_document(document)[:-1]]
    yield
    every = range(len(decision.names))
    if has_details(decision):
        texts = ((position, dict(candidate_details(decision, position))) for position in every)
        members += [b',"details":', (yield from _encode_by_node(decision, texts, _DETAILED_PER_PART))]
        members += yield from _encode_numbers(decision)
    values: list[bytes] = []
    evidence = list(decision.evidence())
    for position in every:
        if position % _PER_PART == 0:
            yield
        values += [encode_document(_measured_value(decision, rule, position)) for rule in evidence]
    return b"".join((*members, b',"values":[', b",".join(values), b"]}"))


def _encode_numbers(decision: Decision) -> Generator[None, None, list[bytes]]:
    """The member `numbers` of the JSON object, in parts; empty if there are none."""
    members: list[bytes] = []
    for agent in dict.fromkeys(agent for agent, _ in decision.details()):
        every = range(len(decision.names))
        by_position = (
            (position, merge_numbers((decision, position), agent=agent).get(agent)) for position in every
        )
        numbers = yield from _encode_by_node(decision, by_position, _DETAILED_PER_PART)
        if numbers != _EMPTY:
            members += [b"," if members else b',"numbers":{', encode_document(agent), b":", numbers]
    return [*members, b"}"] if members else []


def _encode_by_node(decision: Decision, values: Iterable[tuple[int, Any]], step: int) -> Parts:
    """A JSON object of the values that are not empty, by node. `values` are by position."""
    members: dict[str, bytes] = {}
    for number, (position, value) in enumerate(values):
        if number % step == 0:
            yield
        if value:
            name = decision.names[position]
            members[name] = encode_document(name) + b":" + encode_document(value)
    return b"{" + b",".join(members.values()) + b"}"


def _points_by_node(decision: Decision, points: NDArray[np.int64]) -> dict[str, int]:
    return dict(zip(decision.names.tolist(), points.tolist(), strict=True))


def failure_text(decision: Decision) -> str | None:
    """Why an agent could not decide and rejected every node; None if all could."""
    for _, verdict in decision.verdicts:
        for code in np.unique(verdict.codes[verdict.codes > 0]).tolist():
            reason = verdict.reasons[int(code) - 1]
            if reason.is_failure:
                return reason.text()
    return None


def rejection_reasons(decision: Decision) -> dict[str, list[dict[str, str]]]:
    """Each rejected node with the reasons of the agents, in the order of the chain."""
    return {
        decision.names[position]: reasons_at(decision, position) for position in _rejected_positions(decision)
    }


def _rejected_positions(decision: Decision) -> list[int]:
    positions: list[int] = np.flatnonzero(~decision.feasible()).tolist()
    return positions


def reasons_at(decision: Decision, position: int) -> list[dict[str, str]]:
    """The reasons of one candidate; empty if it passes."""
    return [
        {"agent": agent, "reason": verdict.reasons[code - 1].text()}
        for agent, verdict in decision.verdicts
        if (code := int(verdict.codes[position]))
    ]


def policies(decision: Decision) -> dict[str, dict[str, Any]]:
    """The policies that select the pod, and the nodes that each rejects, whether or not others reject them too."""
    documents: dict[str, dict[str, Any]] = {}
    for agent, verdict in decision.verdicts:
        for policy in verdict.policies:
            document = {"agent": agent, "rejected": decision.names[policy.rejected].tolist()}
            if policy.not_enforced:
                document["not_enforced"] = policy.not_enforced
            if policy.would_reject is not None:
                document["would_reject"] = decision.names[policy.would_reject].tolist()
            documents[policy.policy] = document
    return documents


def has_details(decision: Decision) -> bool:
    """Whether an agent has details of the candidates."""
    return any(True for _ in decision.details())


def details_by_node(*decisions: Decision) -> dict[str, dict[str, str]]:
    """By node and agent: what the pod gets on the node, or what is missing there. Later decisions override."""
    texts: dict[str, dict[str, str]] = {}
    for decision in decisions:
        for position in range(len(decision.names)):
            if by_agent := dict(candidate_details(decision, position)):
                texts.setdefault(decision.names[position], {}).update(by_agent)
    return texts


def candidate_details(decision: Decision, position: int) -> Iterator[tuple[str, str]]:
    """Each agent's details of one candidate, without empty ones."""
    for agent, agent_details in decision.details():
        if text := agent_details.text(position):
            yield agent, text


def numbers_by_agent(*decisions: Decision) -> Numbers:
    """The numbers that results are based on, of all agents that have any. Later decisions override."""
    numbers: Numbers = {}
    for decision in decisions:
        for position in range(len(decision.names)):
            for agent, agent_numbers in merge_numbers((decision, position)).items():
                by_node = numbers.setdefault(agent, {})
                by_node.setdefault(decision.names[position], {}).update(agent_numbers)
    return numbers


def merge_numbers(*places: tuple[Decision, int], agent: str = "") -> dict[str, dict[str, Any]]:
    """By agent, or of one agent, the numbers of one node in several decisions, each with its position there."""
    numbers: dict[str, dict[str, Any]] = {}
    for decision, position in places:
        for name, details in decision.details():
            if agent in {"", name} and (agent_numbers := details.numbers(position)):
                numbers.setdefault(name, {}).update(to_json_values(agent_numbers))
    return numbers


def has_score_parts(decision: Decision) -> bool:
    """Whether the score has several parts, or one part with its own name."""
    return len(decision.scores) > 1 or any(scores.label for _, scores in decision.scores)


def score_parts(decision: Decision) -> dict[str, dict[str, Any]]:
    """By name, each priority's weight and scores; empty without `has_score_parts`."""
    return {
        scores.label or agent: {
            "agent": agent,
            "weight": scores.weight,
            "scores": _points_by_node(decision, scores.points),
        }
        for agent, scores in decision.scores
        if has_score_parts(decision)
    }


def measured_values(decision: Decision) -> list[dict[str, Any]]:
    """For each candidate, each rule's value, state and age in seconds (null if unknown)."""
    evidence = list(decision.evidence())
    every = range(len(decision.names))
    return [_measured_value(decision, rule, position) for position in every for rule in evidence]


def _measured_value(decision: Decision, rule: Evidence, position: int) -> dict[str, Any]:
    state = ValueState(int(rule.states[position]))
    age_s = float(rule.ages_s[position])
    value = quantity.nano_to_decimal(int(rule.values[position])) if state in _HAS_VALUE else None
    document = {
        "node": decision.names[position],
        "metric": rule.metric,
        "value": value,
        "target": None if rule.target is None else quantity.nano_to_decimal(rule.target),
        "operator": rule.operator,
        "state": state.name.lower(),
        "age_s": None if np.isnan(age_s) or value is None else round(age_s, 3),
    }
    if rule.policy:
        document["policy"] = rule.policy
    if rule.weight != 1:
        document["weight"] = rule.weight
    return document


_MAX_DECISIONS: Final = 1000
_MAX_BYTES: Final = 2**21
"""The response ends with the decision that exceeds it. To copy it takes half a millisecond of the event loop."""
_FORMS: Final = {"words": encode_decision, "arrays": encode_arrays}


class DecisionPage(msgspec.Struct, frozen=True, kw_only=True):
    """A response: some decisions, and counts and times of stored ones. Times are RFC 3339; null without decisions."""

    decisions: list[msgspec.Raw]
    """The newest first."""
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


def encode_page(ring: DecisionRing, query: Mapping[str, str]) -> Parts:
    """The response to a query. `BadInput` names each invalid parameter. Yields between parts."""
    limit, form = _parse_query(query)
    namespace = query.get("namespace", "")
    matching = ring.about(namespace, query.get("pod", ""))
    page = DecisionPage(
        decisions=[],
        found=len(matching),
        tries=sum(decision.verb == "filter" for decision in matching),
        since=_format_time(matching[0].at if matching else None),
        kept=len(ring),
        kept_since=_format_time(ring.since(namespace)),
    )
    decisions: list[bytes] = []
    size = 0
    for decision in list(islice(reversed(matching), limit)):
        decisions.append((yield from _FORMS[form](decision)))
        size += len(decisions[-1])
        if size >= _MAX_BYTES:
            break
        yield
    start = b'{"decisions":['
    return b"".join((start, b",".join(decisions), _encode(page).removeprefix(start), b"\n"))


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
    return None if at is None else format_rfc3339(at)


def decode_page(body: bytes) -> tuple[DecisionPage, list[Decision]]:
    """Decode a response in the form `arrays`. `BadInput` for any other, for example of another version of nodewise."""
    try:
        page = msgspec.json.decode(body, type=DecisionPage)
        return page, [decode_arrays(decision) for decision in page.decisions]
    except UNREADABLE as error:
        raise BadInput("decisions", [Problem("", str(error), "the form of this version")]) from error
