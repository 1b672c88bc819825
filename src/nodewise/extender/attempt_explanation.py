"""How a pod's last attempt ended, and what would have changed it: functions of decisions. Words are made elsewhere.

An attempt is what kube-scheduler asked about a pod in one try to place it: filter, then prioritize and perhaps bind, or
preempt.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from nodewise.agent import Evidence, Reason, Scores, ValueState, Verdict
from nodewise.extender import counterfactuals, decision_document, decision_values
from nodewise.extender.counterfactuals import RuleChange
from nodewise.extender.decision import Decision, Verb

NEAR_S: Final = 10.0
"""Calls of one attempt lie closer together: kube-scheduler waits for one at most 5 s, unless told otherwise."""
_SKEW_S: Final = 2.0
"""So much the clocks of two replicas may differ."""


class Attempt(NamedTuple):
    """What was asked in one try; None for a call that was not made, or is no longer known."""

    filtered: Decision | None
    scored: Decision | None = None
    preempted: Decision | None = None
    bound: Decision | None = None

    @property
    def judged(self) -> Decision:
        """The decision that says most: filter, else preempt, else prioritize, else bind."""
        decision = self.filtered or self.preempted or self.scored or self.bound
        assert decision is not None, "an attempt has a decision"
        return decision


def last_attempt(decisions: Iterable[Decision], uid: str = "") -> Attempt | None:
    """The newest attempt of these decisions about one pod, in any order, of any number of replicas.

    With a `uid`, only those about the pod that has it count; else those about the newest pod of the name.
    """
    near = _newest_of_pod(sorted(decisions, key=lambda decision: decision.at), uid)
    if not near:
        return None
    filtered = _last(near, "filter")
    if filtered is None:
        return Attempt(None, _last(near, "prioritize"), _last(near, "preempt"), _last(near, "bind"))
    after = [decision for decision in near if decision.at >= filtered.at - _SKEW_S]
    passed = set(filtered.names[filtered.kept()].tolist())
    scored = [
        decision
        for decision in after
        if decision.verb == "prioritize" and passed.issuperset(decision.names.tolist())
    ]
    return Attempt(filtered, scored[-1] if scored else None, _last(after, "preempt"), _last(after, "bind"))


def _newest_of_pod(ordered: Sequence[Decision], uid: str) -> list[Decision]:
    """The decisions about the pod that are near its newest one."""
    uid = uid or (ordered[-1].pod.uid if ordered else "")
    of_pod = [decision for decision in ordered if decision.pod.uid == uid]
    return [decision for decision in of_pod if of_pod[-1].at - decision.at <= NEAR_S]


def _last(decisions: Sequence[Decision], verb: Verb) -> Decision | None:
    return next((decision for decision in reversed(decisions) if decision.verb == verb), None)


class MeasuredRule(NamedTuple):
    """One rule on one node."""

    metric: str
    operator: str
    target: int | None
    """Nano-units; None where the rule only ranks."""
    value: int | None
    """Nano-units; None where there is none."""
    state: ValueState
    age_s: float | None
    rejects: bool


class ScorePart(NamedTuple):
    """What one priority says of one node."""

    label: str
    weight: float
    points: int


class NodeExplanation(NamedTuple):
    """What was found of one node."""

    node: str
    reasons: tuple[tuple[str, Reason], ...]
    """By agent, why it is rejected; empty for a node that passes."""
    measured: tuple[MeasuredRule, ...]
    score: int | None
    """None where the node was not scored."""
    details: tuple[tuple[str, str], ...] = ()
    """By agent: what the pod gets there, or what is in its way."""
    parts: tuple[ScorePart, ...] = ()
    """What the score was made of; empty where one agent's one score is all."""
    numbers: Mapping[str, Mapping[str, Any]] = {}
    """By agent: what its answers rest on."""


class RejectionGroup(NamedTuple):
    """The nodes that are rejected for the same reason, those first that come closest to passing."""

    agent: str
    reason: Reason
    nodes: tuple[NodeExplanation, ...]


class Explanation(NamedTuple):
    """All that can be told of an attempt."""

    attempt: Attempt
    findings: tuple[NodeExplanation, ...]
    """Those that pass first, the best score first; then the rejected, the closest to passing first."""
    groups: tuple[RejectionGroup, ...]
    """The rejected, the largest group first."""
    changes: tuple[RuleChange, ...]
    stuck: int
    """Nodes that no change of a single rule lets pass."""
    held: bool
    """Whether some rejections do not follow from the values that are shown, as while a rule is suspended."""


def explain(attempt: Attempt) -> Explanation:
    """Everything about an attempt, node by node and rule by rule."""
    judged = attempt.judged
    findings = tuple(_findings(attempt))
    held = any(
        verdict.joined is not None and not counterfactuals.follows(verdict) for _, verdict in judged.verdicts
    )
    groups, stuck = tuple(_groups(findings)), int(counterfactuals.stuck(judged).sum())
    return Explanation(attempt, findings, groups, tuple(counterfactuals.changes(judged)), stuck, held)


def _findings(attempt: Attempt) -> Iterator[NodeExplanation]:
    judged, scored, points = attempt.judged, attempt.scored, _points(attempt.scored)
    filtering = list(_rules(judged.verdicts))
    ranking = list(_rules((scored or judged).scores))
    positions = {name: number for number, name in enumerate(scored.names)} if scored else {}
    for position in _order(judged, points):
        name = judged.names[position]
        measured = [_measured(rule, position) for rule in filtering]
        places = [(judged, position)]
        parts: tuple[ScorePart, ...] = ()
        if scored is not None and name in positions:
            measured += [_measured(rule, positions[name]) for rule in ranking]
            places.append((scored, positions[name]))
            parts = tuple(_parts(scored, positions[name]))
        yield NodeExplanation(
            name,
            tuple(_reasons(judged, position)),
            tuple(measured),
            points.get(name),
            _details(places),
            parts,
            decision_values.together(*places),
        )


def _rules(
    answers: Iterable[tuple[str, Verdict | Scores]],
) -> Iterator[tuple[Evidence, counterfactuals.Mask]]:
    for _, answer in answers:
        yield from map(_rule, answer.evidence)


def _details(places: Sequence[tuple[Decision, int]]) -> tuple[tuple[str, str], ...]:
    """By agent; of two decisions the later one's."""
    return tuple({agent: text for place in places for agent, text in decision_document.said(*place)}.items())


def _order(judged: Decision, points: Mapping[str, int]) -> list[int]:
    """The positions of the candidates as they are told; among equals the order is that of the request."""
    kept, far = judged.kept(), counterfactuals.closeness(judged)
    score = np.array([points.get(name, -1) for name in judged.names.tolist()])
    order: list[int] = np.lexsort((np.arange(len(kept)), np.where(kept, -score, far), ~kept)).tolist()
    return order


def _points(scored: Decision | None) -> dict[str, int]:
    if scored is None or not scored.scores:
        return {}
    return dict(zip(scored.names.tolist(), scored.points().tolist(), strict=True))


def _reasons(judged: Decision, position: int) -> Iterator[tuple[str, Reason]]:
    for agent, verdict in judged.verdicts:
        if code := int(verdict.codes[position]):
            yield agent, verdict.reasons[code - 1]


def _parts(scored: Decision, position: int) -> Iterator[ScorePart]:
    if decision_document.has_parts(scored):
        for agent, scores in scored.scores:
            yield ScorePart(scores.label or agent, scores.weight, int(scores.points[position]))


def _rule(rule: Evidence) -> tuple[Evidence, counterfactuals.Mask]:
    return rule, counterfactuals.rejects(rule)


def _measured(rule_and_mask: tuple[Evidence, counterfactuals.Mask], position: int) -> MeasuredRule:
    rule, rejects = rule_and_mask
    state = ValueState(int(rule.states[position]))
    known = state in {ValueState.FRESH, ValueState.STALE}
    age_s = float(rule.ages_s[position])
    return MeasuredRule(
        rule.metric,
        rule.operator,
        rule.target,
        int(rule.values[position]) if known else None,
        state,
        age_s if known and not np.isnan(age_s) else None,
        bool(rejects[position]),
    )


def _groups(findings: Iterable[NodeExplanation]) -> list[RejectionGroup]:
    """By the first reason of each node, which is the one that the pod's event shows."""
    by_reason: dict[tuple[str, str], list[NodeExplanation]] = {}
    for finding in findings:
        if finding.reasons:
            agent, reason = finding.reasons[0]
            by_reason.setdefault((agent, reason.text()), []).append(finding)
    groups = [
        RejectionGroup(agent, nodes[0].reasons[0][1], tuple(nodes)) for (agent, _), nodes in by_reason.items()
    ]
    return sorted(groups, key=lambda group: -len(group.nodes))
