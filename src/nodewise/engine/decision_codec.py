"""Encoding of a decision as JSON arrays by candidate, and decoding without loss.

Values are whole nano-units; every list is in the order of the candidates. The reader is another process, perhaps of
another version, so decoding checks that all parts are consistent.
"""

from collections.abc import Generator, Mapping, Sequence
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
from nodewise.engine import decision_values_json
from nodewise.engine.decision import Decision, PodRef, Verb
from nodewise.metrics.series import States

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
        if candidate % decision_values_json.CANDIDATES_PER_PART == 0:
            yield
        texts.append(details.text(candidate))
    yield
    distances = _encode_to_raw_json(details.distances().tolist() if rejects else [0.0] * size)
    numbers = yield from decision_values_json.encode_numbers(details, size)
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
