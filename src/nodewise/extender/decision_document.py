"""A decision as a document: what `decide -o json` prints and `/decisions` answers. Words are made here."""

from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise import quantity
from nodewise.agent import Evidence, ValueState
from nodewise.clock import format_rfc3339
from nodewise.extender import decision_values
from nodewise.extender.decision import Decision

_ENCODER = msgspec.json.Encoder(decimal_format="number")
Positions = NDArray[np.intp]
_PART: Final = 50
"""Candidates at once: some 0.2 ms of work with three rules."""
_HAS_VALUE = (ValueState.FRESH, ValueState.STALE)


def encode(document: Any) -> bytes:
    """JSON with exact numbers."""
    return _ENCODER.encode(document)


def pod(filtered: Decision, scored: Decision, agents: list[str]) -> dict[str, Any]:
    """One pod decided from end to end: the nodes that are left in the order of the input, with their scores.

    `error` says why nobody could answer, such as a policy that does not exist; null where somebody could.
    """
    feasible = filtered.names[filtered.kept()].tolist()
    return {
        "pod": f"{filtered.pod.namespace}/{filtered.pod.name}",
        "agents": agents,
        "feasible": feasible,
        "scores": dict(zip(scored.names.tolist(), scored.points().tolist(), strict=True)),
        "rejected": rejected(filtered),
        "values": [*values(filtered), *values(scored)],
        "error": failure(filtered),
        **({"details": _together(filtered, scored)} if has_details(filtered) or has_details(scored) else {}),
        **_where_any("numbers", _merged(numbered(filtered), numbered(scored))),
        **_where_any("parts", parts(scored)),
    }


def _where_any(key: str, found: dict[str, Any]) -> dict[str, Any]:
    return {key: found} if found else {}


Numbers = dict[str, dict[str, dict[str, Any]]]
"""By agent and node: what its answer rests on, as JSON has it."""


def _merged(of_verdicts: Numbers, of_scores: Numbers) -> Numbers:
    """Where both have numbers of a node, these are put together."""
    found = dict(of_verdicts)
    for agent, by_node in of_scores.items():
        before = found.get(agent, {})
        found[agent] = before | {node: before.get(node, {}) | one for node, one in by_node.items()}
    return found


def _together(filtered: Decision, scored: Decision) -> dict[str, dict[str, str]]:
    """Details of all nodes; where the scores say more, theirs."""
    found = details(filtered)
    for node, by_agent in details(scored).items():
        found[node] = found.get(node, {}) | by_agent
    return found


def encoded(given: Decision) -> Generator[None, None, bytes]:
    """One answer to kube-scheduler as JSON, made in parts: at 5,000 nodes it has megabytes."""
    document: dict[str, Any] = {
        "time": format_rfc3339(given.at),
        "verb": given.verb,
        "pod": f"{given.pod.namespace}/{given.pod.name}",
        "uid": given.pod.uid,
        "view": given.generation,
    }
    if given.verb == "prioritize":
        document["scores"] = dict(zip(given.names.tolist(), given.points().tolist(), strict=True))
        yield
        document |= _where_any("parts", parts(given))
    else:
        document["feasible"] = given.names[given.kept()].tolist()
        out = np.flatnonzero(~given.kept())
        reasons = yield from _joined(b"{}", (rejected(given, some) for some in _parts(out)))
        document["rejected"] = msgspec.Raw(reasons)
    if given.told:
        document["told"] = given.told
    yield
    # put together by hand: the encoder takes five times as long to copy megabytes
    told = [encode(document)[:-1]]
    yield
    every = np.arange(len(given.names))
    if has_details(given):
        one = yield from _joined(
            b"{}", (details(given, some) for some in _parts(every, decision_values.PART))
        )
        told += [b',"details":', one]
        told += yield from _numbers_in_parts(given)
    measured = yield from _joined(b"[]", (values(given, some) for some in _parts(every)))
    return b"".join((*told, b',"values":', measured, b"}"))


def _numbers_in_parts(given: Decision) -> Generator[None, None, list[bytes]]:
    """The member `numbers` of an object; nothing where there are none."""
    found: list[bytes] = []
    for agent in dict.fromkeys(agent for agent, _ in given.details()):
        every = _parts(np.arange(len(given.names)), decision_values.PART)
        told = yield from _joined(b"{}", (numbered(given, some, agent).get(agent, {}) for some in every))
        if told != b"{}":
            found += [b"," if found else b',"numbers":{', encode(agent), b":", told]
    return [*found, b"}"] if found else []


def _parts(positions: Positions, size: int = _PART) -> Iterator[Positions]:
    for start in range(0, len(positions), size):
        yield positions[start : start + size]


def _joined(brackets: bytes, parts: Iterable[Any]) -> Generator[None, None, bytes]:
    """Lists, or objects, made into one."""
    inner: list[bytes] = []
    for part in parts:
        inner.append(encode(part)[1:-1])
        yield
    return brackets[:1] + b",".join(filter(None, inner)) + brackets[1:]


def failure(given: Decision) -> str | None:
    """Why an agent could not answer and rejected every node; None if all could."""
    for _, verdict in given.verdicts:
        for code in np.unique(verdict.codes[verdict.codes > 0]).tolist():
            reason = verdict.reasons[int(code) - 1]
            if reason.is_failure:
                return reason.text()
    return None


def rejected(given: Decision, positions: Positions | None = None) -> dict[str, list[dict[str, str]]]:
    """Each rejected node with every agent's reason, in the order in which the agents were asked.

    `positions` are those of rejected candidates; None: of all of them.
    """
    found: dict[str, list[dict[str, str]]] = {}
    out = np.flatnonzero(~given.kept()) if positions is None else positions
    for position in out.tolist():
        reasons = found.setdefault(given.names[position], [])
        for agent, verdict in given.verdicts:
            code = int(verdict.codes[position])
            if code:
                reasons.append({"agent": agent, "reason": verdict.reasons[code - 1].text()})
    return found


def has_details(given: Decision) -> bool:
    """Whether an agent knows more of the candidates than reasons, values and scores."""
    return any(True for _ in given.details())


def details(given: Decision, positions: Positions | None = None) -> dict[str, dict[str, str]]:
    """By node and agent: what the pod gets there, or what is in its way.

    `positions` are those of some candidates; None: of all.
    """
    every = np.arange(len(given.names)) if positions is None else positions
    found = {given.names[position]: dict(said(given, position)) for position in every.tolist()}
    return {node: by_agent for node, by_agent in found.items() if by_agent}


def said(given: Decision, position: int) -> Iterator[tuple[str, str]]:
    """Each agent's details of one candidate; none that are empty."""
    for agent, one in given.details():
        if text := one.text(position):
            yield agent, text


def numbered(given: Decision, positions: Positions | None = None, agent: str = "") -> Numbers:
    """The numbers that answers rest on, of the agents that have any, or of one.

    `positions` are those of some candidates; None: of all.
    """
    every = np.arange(len(given.names)) if positions is None else positions
    found: Numbers = {}
    for position in every.tolist():
        for name, one in decision_values.of(given, position, agent):
            found.setdefault(name, {}).setdefault(given.names[position], {}).update(one)
    return found


def has_parts(given: Decision) -> bool:
    """Whether the score is made of several, or of one that has a name of its own."""
    return len(given.scores) > 1 or any(scores.label for _, scores in given.scores)


def parts(given: Decision) -> dict[str, dict[str, Any]]:
    """By its name, each priority's weight and scores; empty where the one score of an agent without names is all."""
    if not has_parts(given):
        return {}
    nodes = given.names.tolist()
    return {
        scores.label or agent: {
            "agent": agent,
            "weight": scores.weight,
            "scores": dict(zip(nodes, scores.points.tolist(), strict=True)),
        }
        for agent, scores in given.scores
    }


def values(given: Decision, positions: Positions | None = None) -> list[dict[str, Any]]:
    """What was measured: for each candidate, each rule's value, state and age in seconds (null where unknown).

    `positions` are those of some candidates; None: of all.
    """
    evidence = list(given.evidence())
    every = np.arange(len(given.names)) if positions is None else positions
    return [
        _value(given.names[position], measured, position)
        for position in every.tolist()
        for measured in evidence
    ]


def _value(node: str, measured: Evidence, position: int) -> dict[str, Any]:
    state = ValueState(int(measured.states[position]))
    age_s = float(measured.ages_s[position])
    value = quantity.to_decimal(int(measured.values[position])) if state in _HAS_VALUE else None
    return {
        "node": node,
        "metric": measured.metric,
        "value": value,
        "target": None if measured.target is None else quantity.to_decimal(measured.target),
        "operator": measured.operator,
        "state": state.name.lower(),
        "age_s": None if np.isnan(age_s) or value is None else round(age_s, 3),
    }
