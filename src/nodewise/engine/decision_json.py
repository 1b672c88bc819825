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
from numpy.typing import NDArray

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
from nodewise.base import clock, quantity
from nodewise.base.clock import format_rfc3339
from nodewise.base.errors import UNREADABLE, BadInput, Problem
from nodewise.engine.decision import Decision, DecisionRing, PodRef, Verb
from nodewise.metrics.series import States

CANDIDATES_PER_PART: Final = 2
"""Candidates between two yields: the texts or numbers of one may take 0.2 ms."""

_EMPTY: Final = b"{}"


def numeric_details_of_candidate(
    decision: Decision, position: int, agent: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The numbers of one candidate by agent, or of one agent; only if there are any."""
    for name, details in decision.details():
        if agent in {"", name} and (numbers := details.numbers(position)):
            yield name, to_json_values(numbers)


def merge_numbers(*places: tuple[Decision, int]) -> dict[str, dict[str, Any]]:
    """By agent, the numbers of one node in several decisions, each with the node's position in it."""
    numbers: dict[str, dict[str, Any]] = {}
    for decision, position in places:
        for agent, agent_numbers in numeric_details_of_candidate(decision, position):
            numbers.setdefault(agent, {}).update(agent_numbers)
    return numbers


def encode_numbers(details: Details, size: int) -> Generator[None, None, bytes]:
    """One agent's numbers as a JSON list by candidate; an empty list if there are none. Yields between parts."""
    items: list[bytes] = []
    for candidate in range(size):
        if candidate % CANDIDATES_PER_PART == 0:
            yield
        items.append(msgspec.json.encode(to_json_values(details.numbers(candidate))))
    return b"[" + b",".join(items) + b"]" if any(item != _EMPTY for item in items) else b"[]"


def to_json_values(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers without numpy types; NaN and infinity become null."""
    return {str(key): _to_json_value(value) for key, value in numbers.items()}


def _to_json_value(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return _to_json_value(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return to_json_values(value)
    return [_to_json_value(item) for item in value] if isinstance(value, list | tuple) else value


_STATES: Final = np.array([state.name.lower() for state in ValueState], object)
_NUMBERS: Final = {name: number for number, name in enumerate(_STATES.tolist())}
_encode: Final = msgspec.json.encode


class EncodedRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rule's evidence. Lists are by candidate and stay JSON until they are needed.

    The fields with a default are absent in older decisions, and of rules that no policy has.
    """

    metric: str
    operator: str
    target_nano: int | None
    rejects_missing: bool
    values_nano: msgspec.Raw
    states: msgspec.Raw
    ages_s: msgspec.Raw
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
    """Details, by candidate."""

    texts: msgspec.Raw
    distances: msgspec.Raw
    numbers: msgspec.Raw = msgspec.Raw(b"[]")
    """An empty list for an agent without numbers."""


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
    """A `PolicyRejections`."""

    policy: str
    rejected: msgspec.Raw
    joined: Joined | None = None
    not_enforced: str = ""
    would_reject: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Verdict(msgspec.Struct, frozen=True):
    agent: str
    joined: Joined | None
    codes: msgspec.Raw
    reasons: list[StaticReason]
    rules: list[EncodedRule]
    details: _Details | None = None
    policies: list[_Policy] | msgspec.UnsetType = msgspec.UNSET
    """Absent for an agent without policies."""


class _Scores(msgspec.Struct, frozen=True):
    agent: str
    points: msgspec.Raw
    rules: list[EncodedRule]
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
    nodes: msgspec.Raw
    verdicts: list[_Verdict]
    scores: list[_Scores]
    description: str = ""


def encode_arrays(decision: Decision) -> Generator[None, None, bytes]:
    """The decision as JSON. Yields between parts."""
    nodes = _encode_to_raw_json(decision.names.tolist())
    yield
    verdicts = []
    for agent, verdict in decision.verdicts:
        reasons = [StaticReason.of(reason.text(), reason.remedy(), reason) for reason in verdict.reasons]
        rules = yield from _encode_rule_evidence(verdict.evidence)
        details = yield from _encode_details(verdict.details, len(verdict.codes), rejects=True)
        codes = _encode_to_raw_json(verdict.codes.tolist())
        policies = yield from _encode_policies(verdict.policies)
        verdicts.append(
            _Verdict(agent, verdict.joined, codes, reasons, rules, details, policies or msgspec.UNSET)
        )
    scores = []
    for agent, agent_scores in decision.scores:
        rules = yield from _encode_rule_evidence(agent_scores.evidence)
        details = yield from _encode_details(agent_scores.details, len(agent_scores.points), rejects=False)
        points = _encode_to_raw_json(agent_scores.points.tolist())
        scores.append(_Scores(agent, points, rules, details, agent_scores.label, agent_scores.weight))
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
            decision.description,
        )
    )


def _encode_details(
    details: Details | None, size: int, *, rejects: bool
) -> Generator[None, None, _Details | None]:
    """The details of a verdict (`rejects`) or of scores, whose distances are all 0. Yields between parts."""
    if details is None:
        return None
    texts: list[str] = []
    for candidate in range(size):
        if candidate % CANDIDATES_PER_PART == 0:
            yield
        texts.append(details.text(candidate))
    yield
    distances = _encode_to_raw_json(details.distances().tolist() if rejects else [0.0] * size)
    numbers = yield from encode_numbers(details, size)
    return _Details(_encode_to_raw_json(texts), distances, msgspec.Raw(numbers))


def _encode_policies(policies: Sequence[PolicyRejections]) -> Generator[None, None, list[_Policy]]:
    encoded = []
    for policy in policies:
        rejected = _encode_to_raw_json(policy.rejected.tolist())
        yield
        would_reject: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
        if policy.would_reject is not None:
            would_reject = _encode_to_raw_json(policy.would_reject.tolist())
            yield
        encoded.append(_Policy(policy.policy, rejected, policy.joined, policy.not_enforced, would_reject))
    return encoded


def _encode_rule_evidence(evidence: Sequence[Evidence]) -> Generator[None, None, list[EncodedRule]]:
    rules = []
    for rule in evidence:
        values = _encode_to_raw_json(rule.values.tolist())
        yield
        states = _encode_to_raw_json(_STATES[rule.states].tolist())
        yield
        ages = _encode_to_raw_json(np.round(rule.ages_s, 3).tolist())  # NaN is written as null
        yield
        rules.append(
            EncodedRule(
                rule.metric,
                rule.operator,
                rule.target,
                rule.rejects_missing,
                values,
                states,
                ages,
                rule.policy,
                rule.group,
                rule.weight,
            )
        )
    return rules


def _encode_to_raw_json(listed: list[Any]) -> msgspec.Raw:
    return msgspec.Raw(_encode(listed))


def decode_arrays(raw: bytes | msgspec.Raw) -> Decision:
    """The decoded decision. Raises one of `errors.UNREADABLE` for anything else."""
    document = msgspec.json.decode(raw, type=_Decision)
    names = Names.of(_decode_list(document.nodes, str))
    verdicts = tuple(
        (verdict_document.agent, _decode_verdict(verdict_document, len(names)))
        for verdict_document in document.verdicts
    )
    scores = tuple(
        (scores_document.agent, _decode_scores(scores_document, len(names)))
        for scores_document in document.scores
    )
    ref = PodRef(document.namespace, document.pod, document.uid)
    return Decision(
        document.verb, ref, document.at, document.snapshot, names, verdicts, scores, document.description
    )


def _decode_verdict(verdict: _Verdict, size: int) -> Verdict:
    codes = np.array(_decode_sized_list(verdict.codes, int, size), np.int16)
    if len(codes) and not 0 <= codes.min() <= codes.max() <= len(verdict.reasons):
        raise ValueError("a code without a reason")
    return Verdict(
        codes,
        tuple(verdict.reasons),
        _decode_evidence(verdict.rules, size),
        verdict.joined,
        _decode_details(verdict.details, size),
        tuple(_decode_policy(policy, size) for policy in verdict.policies or ()),
    )


def _decode_policy(policy: _Policy, size: int) -> PolicyRejections:
    rejected = np.array(_decode_sized_list(policy.rejected, bool, size), bool)
    would_reject = None
    if policy.would_reject is not msgspec.UNSET:
        would_reject = np.array(_decode_sized_list(policy.would_reject, bool, size), bool)
    return PolicyRejections(policy.policy, rejected, policy.joined, policy.not_enforced, would_reject)


def _decode_details(details: _Details | None, size: int) -> StaticDetails | None:
    if details is None:
        return None
    texts = _decode_sized_list(details.texts, str, size)
    far = np.array(_decode_sized_list(details.distances, float, size), np.float64)
    numbers = _decode_list(details.numbers, dict[str, Any])
    return StaticDetails(texts, far, _check_size(numbers, size) if numbers else ())


def _decode_scores(scores: _Scores, size: int) -> Scores:
    points = np.array(_decode_sized_list(scores.points, int, size), np.int64)
    if not 0 <= scores.weight < float("inf"):
        raise ValueError(f"a weight of {scores.weight}")
    evidence, details = _decode_evidence(scores.rules, size), _decode_details(scores.details, size)
    return Scores(points, evidence, details, scores.label, scores.weight)


def _decode_evidence(rules: Sequence[EncodedRule], size: int) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            rule.metric,
            rule.operator,
            rule.target_nano,
            _decode_integers(_decode_sized_list(rule.values_nano, int, size)),
            _decode_value_states(_decode_sized_list(rule.states, str, size)),
            np.array(_decode_sized_list(rule.ages_s, float | None, size), np.float64),
            rule.rejects_missing,
            rule.policy,
            rule.group,
            rule.weight,
        )
        for rule in rules
    )


def _decode_integers(values: list[int]) -> Any:
    """int64 if every value fits, else Python integers, as in a column."""
    fits = all(-(2**63) <= value < 2**63 for value in values)
    return np.array(values, np.int64 if fits else object)


def _decode_value_states(names: list[str]) -> States:
    if unknown := set(names) - _NUMBERS.keys():
        raise ValueError(f"unknown states {sorted(unknown)}")
    return np.array([_NUMBERS[name] for name in names], np.uint8)


def _decode_sized_list(raw: msgspec.Raw, kind: Any, size: int) -> list[Any]:
    return _check_size(_decode_list(raw, kind), size)


def _check_size(listed: list[Any], size: int) -> list[Any]:
    if len(listed) != size:
        raise ValueError(f"{len(listed)} entries for {size} nodes")
    return listed


def _decode_list(raw: msgspec.Raw, kind: Any) -> list[Any]:
    items: list[Any] = msgspec.json.decode(raw, type=list[kind])
    return items


_ENCODER = msgspec.json.Encoder(decimal_format="number")
Positions = NDArray[np.intp]
_CANDIDATES_PER_PART: Final = 50
"""Candidates between two yields: some 0.2 ms of work with three rules."""
_HAS_VALUE = (ValueState.FRESH, ValueState.STALE)


def encode_document(document: Any) -> bytes:
    """JSON with exact numbers."""
    return _ENCODER.encode(document)


def pod_document(filtered: Decision, scored: Decision, agents: list[str]) -> dict[str, Any]:
    """The filter and prioritize decisions of one pod: feasible nodes in the order of the input, with their scores.

    `error` is why an agent could not decide, for example because a policy does not exist; null if all could.
    """
    feasible = filtered.names[filtered.feasible()].tolist()
    return {
        "pod": f"{filtered.pod.namespace}/{filtered.pod.name}",
        "agents": agents,
        "feasible": feasible,
        "scores": dict(zip(scored.names.tolist(), scored.points().tolist(), strict=True)),
        "rejected": rejection_reasons(filtered),
        "values": [*measured_values(filtered), *measured_values(scored)],
        "error": failure_text(filtered),
        **_json_member_unless_empty("policies", _ranking_policies(scored) | policies(filtered)),
        **(
            {"details": _merge_details(filtered, scored)}
            if has_details(filtered) or has_details(scored)
            else {}
        ),
        **_json_member_unless_empty(
            "numbers", _merge_numbers(numbers_by_agent(filtered), numbers_by_agent(scored))
        ),
        **_json_member_unless_empty("parts", score_parts(scored)),
    }


def _json_member_unless_empty(key: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value} if value else {}


Numbers = dict[str, dict[str, dict[str, Any]]]
"""By agent and node: the numbers that its result is based on, as JSON values."""


def _merge_numbers(of_verdicts: Numbers, of_scores: Numbers) -> Numbers:
    """The numbers of both, merged by agent and node."""
    numbers = dict(of_verdicts)
    for agent, by_node in of_scores.items():
        before = numbers.get(agent, {})
        numbers[agent] = before | {
            node: before.get(node, {}) | node_numbers for node, node_numbers in by_node.items()
        }
    return numbers


def _merge_details(filtered: Decision, scored: Decision) -> dict[str, dict[str, str]]:
    """The details of all nodes; those of the scores replace those of the verdicts."""
    texts = details(filtered)
    for node, by_agent in details(scored).items():
        texts[node] = texts.get(node, {}) | by_agent
    return texts


def encode_decision(decision: Decision) -> Generator[None, None, bytes]:
    """A decision as JSON. Yields between parts, because at 5,000 nodes it has megabytes."""
    document: dict[str, Any] = {
        "time": format_rfc3339(decision.at),
        "verb": decision.verb,
        "pod": f"{decision.pod.namespace}/{decision.pod.name}",
        "uid": decision.pod.uid,
        "view": decision.generation,
    }
    if decision.verb == "prioritize":
        document["scores"] = dict(zip(decision.names.tolist(), decision.points().tolist(), strict=True))
        yield
        document |= _json_member_unless_empty("parts", score_parts(decision))
    else:
        document["feasible"] = decision.names[decision.feasible()].tolist()
        out = np.flatnonzero(~decision.feasible())
        reasons = yield from _concatenate_json(
            b"{}", (rejection_reasons(decision, some) for some in _candidate_slices(out))
        )
        document["rejected"] = msgspec.Raw(reasons)
        document |= _json_member_unless_empty("policies", policies(decision))
    if decision.description:
        document["told"] = decision.description
    yield
    # joined as bytes: the encoder takes five times as long to copy megabytes
    members = [encode_document(document)[:-1]]
    yield
    every = np.arange(len(decision.names))
    if has_details(decision):
        texts = yield from _concatenate_json(
            b"{}",
            (details(decision, some) for some in _candidate_slices(every, CANDIDATES_PER_PART)),
        )
        members += [b',"details":', texts]
        members += yield from _numbers_in_parts(decision)
    measured = yield from _concatenate_json(
        b"[]", (measured_values(decision, some) for some in _candidate_slices(every))
    )
    return b"".join((*members, b',"values":', measured, b"}"))


def _numbers_in_parts(decision: Decision) -> Generator[None, None, list[bytes]]:
    """The member `numbers` of the JSON object; empty if there are none. Yields between parts."""
    members: list[bytes] = []
    for agent in dict.fromkeys(agent for agent, _ in decision.details()):
        every = _candidate_slices(np.arange(len(decision.names)), CANDIDATES_PER_PART)
        numbers = yield from _concatenate_json(
            b"{}", (numbers_by_agent(decision, some, agent).get(agent, {}) for some in every)
        )
        if numbers != b"{}":
            members += [b"," if members else b',"numbers":{', encode_document(agent), b":", numbers]
    return [*members, b"}"] if members else []


def _candidate_slices(positions: Positions, size: int = _CANDIDATES_PER_PART) -> Iterator[Positions]:
    for start in range(0, len(positions), size):
        yield positions[start : start + size]


def _concatenate_json(brackets: bytes, parts: Iterable[Any]) -> Generator[None, None, bytes]:
    """JSON lists or objects, concatenated into one. Yields between parts."""
    inner: list[bytes] = []
    for part in parts:
        inner.append(encode_document(part)[1:-1])
        yield
    return brackets[:1] + b",".join(filter(None, inner)) + brackets[1:]


def failure_text(decision: Decision) -> str | None:
    """Why an agent could not decide and rejected every node; None if all could."""
    for _, verdict in decision.verdicts:
        for code in np.unique(verdict.codes[verdict.codes > 0]).tolist():
            reason = verdict.reasons[int(code) - 1]
            if reason.is_failure:
                return reason.text()
    return None


def rejection_reasons(
    decision: Decision, positions: Positions | None = None
) -> dict[str, list[dict[str, str]]]:
    """Each rejected node with the reasons of the agents, in the order of the chain.

    `positions` are those of rejected candidates; None for all of them.
    """
    reasons_by_node: dict[str, list[dict[str, str]]] = {}
    out = np.flatnonzero(~decision.feasible()) if positions is None else positions
    for position in out.tolist():
        reasons = reasons_by_node.setdefault(decision.names[position], [])
        for agent, verdict in decision.verdicts:
            code = int(verdict.codes[position])
            if code:
                reasons.append({"agent": agent, "reason": verdict.reasons[code - 1].text()})
    return reasons_by_node


def policies(decision: Decision) -> dict[str, dict[str, Any]]:
    """The policies that select the pod, and the nodes that each rejects, whether or not others reject them too."""
    return {
        policy.policy: {"agent": agent, "rejected": decision.names[policy.rejected].tolist()}
        | ({"not_enforced": policy.not_enforced} if policy.not_enforced else {})
        | (
            {}
            if policy.would_reject is None
            else {"would_reject": decision.names[policy.would_reject].tolist()}
        )
        for agent, verdict in decision.verdicts
        for policy in verdict.policies
    }


def _ranking_policies(scored: Decision) -> dict[str, dict[str, Any]]:
    """The policies that rank nodes, in the form of `policies`. They may reject none."""
    return {
        rule.policy: {"agent": agent, "rejected": []}
        for agent, scores in scored.scores
        for rule in scores.evidence
        if rule.policy
    }


def has_details(decision: Decision) -> bool:
    """Whether an agent has details of the candidates."""
    return any(True for _ in decision.details())


def details(decision: Decision, positions: Positions | None = None) -> dict[str, dict[str, str]]:
    """By node and agent: what the pod gets on the node, or what is missing there.

    `positions` are those of some candidates; None for all.
    """
    every = np.arange(len(decision.names)) if positions is None else positions
    texts = {
        decision.names[position]: dict(candidate_details(decision, position)) for position in every.tolist()
    }
    return {node: by_agent for node, by_agent in texts.items() if by_agent}


def candidate_details(decision: Decision, position: int) -> Iterator[tuple[str, str]]:
    """Each agent's details of one candidate, without empty ones."""
    for agent, agent_details in decision.details():
        if text := agent_details.text(position):
            yield agent, text


def numbers_by_agent(decision: Decision, positions: Positions | None = None, agent: str = "") -> Numbers:
    """The numbers that results are based on, of all agents that have any, or of one agent.

    `positions` are those of some candidates; None for all.
    """
    every = np.arange(len(decision.names)) if positions is None else positions
    numbers: Numbers = {}
    for position in every.tolist():
        for name, agent_numbers in numeric_details_of_candidate(decision, position, agent):
            numbers.setdefault(name, {}).setdefault(decision.names[position], {}).update(agent_numbers)
    return numbers


def has_score_parts(decision: Decision) -> bool:
    """Whether the score has several parts, or one part with its own name."""
    return len(decision.scores) > 1 or any(scores.label for _, scores in decision.scores)


def score_parts(decision: Decision) -> dict[str, dict[str, Any]]:
    """By name, each priority's weight and scores; empty without `has_score_parts`."""
    if not has_score_parts(decision):
        return {}
    nodes = decision.names.tolist()
    return {
        scores.label or agent: {
            "agent": agent,
            "weight": scores.weight,
            "scores": dict(zip(nodes, scores.points.tolist(), strict=True)),
        }
        for agent, scores in decision.scores
    }


def measured_values(decision: Decision, positions: Positions | None = None) -> list[dict[str, Any]]:
    """For each candidate, each rule's value, state and age in seconds (null if unknown).

    `positions` are those of some candidates; None for all.
    """
    evidence = list(decision.evidence())
    every = np.arange(len(decision.names)) if positions is None else positions
    return [
        _measured_value(decision.names[position], measured, position)
        for position in every.tolist()
        for measured in evidence
    ]


def _measured_value(node: str, measured: Evidence, position: int) -> dict[str, Any]:
    state = ValueState(int(measured.states[position]))
    age_s = float(measured.ages_s[position])
    value = quantity.nano_to_decimal(int(measured.values[position])) if state in _HAS_VALUE else None
    return {
        "node": node,
        "metric": measured.metric,
        "value": value,
        "target": None if measured.target is None else quantity.nano_to_decimal(measured.target),
        "operator": measured.operator,
        "state": state.name.lower(),
        "age_s": None if np.isnan(age_s) or value is None else round(age_s, 3),
        **({"policy": measured.policy} if measured.policy else {}),
        **({"weight": measured.weight} if measured.weight != 1 else {}),
    }


Parts = Generator[None, None, bytes]
_MAX_DECISIONS: Final = 1000
_MAX_BYTES: Final = 2**21
"""The response ends with the decision that exceeds it. To copy it takes half a millisecond of the event loop."""
_FORMS: Final = {"words": encode_decision, "arrays": encode_arrays}


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
        return page, [decode_arrays(decision) for decision in page.decisions]
    except UNREADABLE as error:
        raise BadInput("decisions", [Problem("", str(error), "the form of this version")]) from error
