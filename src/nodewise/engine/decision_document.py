"""A decision as a JSON document, for `decide -o json` and `GET /decisions`."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Evidence, ValueState
from nodewise.base import quantity
from nodewise.base.clock import format_rfc3339
from nodewise.engine import decision_values_json
from nodewise.engine.decision import Decision

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
    members = [encode(document)[:-1]]
    yield
    every = np.arange(len(decision.names))
    if has_details(decision):
        texts = yield from _concatenate_json(
            b"{}",
            (
                details(decision, some)
                for some in _candidate_slices(every, decision_values_json.CANDIDATES_PER_PART)
            ),
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
        every = _candidate_slices(np.arange(len(decision.names)), decision_values_json.CANDIDATES_PER_PART)
        numbers = yield from _concatenate_json(
            b"{}", (numbers_by_agent(decision, some, agent).get(agent, {}) for some in every)
        )
        if numbers != b"{}":
            members += [b"," if members else b',"numbers":{', encode(agent), b":", numbers]
    return [*members, b"}"] if members else []


def _candidate_slices(positions: Positions, size: int = _CANDIDATES_PER_PART) -> Iterator[Positions]:
    for start in range(0, len(positions), size):
        yield positions[start : start + size]


def _concatenate_json(brackets: bytes, parts: Iterable[Any]) -> Generator[None, None, bytes]:
    """JSON lists or objects, concatenated into one. Yields between parts."""
    inner: list[bytes] = []
    for part in parts:
        inner.append(encode(part)[1:-1])
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
        for name, agent_numbers in decision_values_json.numeric_details_of_candidate(
            decision, position, agent
        ):
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
