"""Explanation of a pod's last scheduling attempt, computed from its decisions: values, and no text.

An attempt is kube-scheduler's calls for one pod in one scheduling cycle: filter, then prioritize and perhaps bind, or
preempt.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from nodewise.agent import Evidence, Reason, Scores, ValueState, Verdict
from nodewise.engine import counterfactuals, decision_json
from nodewise.engine.counterfactuals import PolicyRemoval, RuleChange
from nodewise.engine.decision import Decision, Verb

NEAR_S: Final = 10.0
"""The longest time between calls of one attempt. kube-scheduler's default timeout of a call is 5 s."""
_SKEW_S: Final = 2.0
"""The largest difference between the clocks of two replicas."""


class Attempt(NamedTuple):
    """The calls of one attempt; None for a call that was not made or is no longer stored."""

    filtered: Decision | None
    scored: Decision | None = None
    preempted: Decision | None = None
    bound: Decision | None = None

    @property
    def main_decision(self) -> Decision:
        """The most informative decision: filter, else preempt, else prioritize, else bind."""
        decision = self.filtered or self.preempted or self.scored or self.bound
        assert decision is not None, "an attempt has a decision"
        return decision


def last_attempt(decisions: Iterable[Decision], uid: str = "") -> Attempt | None:
    """The newest attempt among decisions about one pod, in any order, of any number of replicas.

    With a `uid`, only decisions about that pod count; else those about the newest pod of the name.
    """
    near = _newest_attempt_decisions(sorted(decisions, key=lambda decision: decision.at), uid)
    if not near:
        return None
    filtered = _last_with_verb(near, "filter")
    if filtered is None:
        return Attempt(
            None,
            _last_with_verb(near, "prioritize"),
            _last_with_verb(near, "preempt"),
            _last_with_verb(near, "bind"),
        )
    after = [decision for decision in near if decision.at >= filtered.at - _SKEW_S]
    passed = set(filtered.names[filtered.feasible()].tolist())
    scored = [
        decision
        for decision in after
        if decision.verb == "prioritize" and passed.issuperset(decision.names.tolist())
    ]
    return Attempt(
        filtered,
        scored[-1] if scored else None,
        _last_with_verb(after, "preempt"),
        _last_with_verb(after, "bind"),
    )


def _newest_attempt_decisions(ordered: Sequence[Decision], uid: str) -> list[Decision]:
    """The decisions about the pod that are close in time to its newest one."""
    uid = uid or (ordered[-1].pod.uid if ordered else "")
    of_pod = [decision for decision in ordered if decision.pod.uid == uid]
    return [decision for decision in of_pod if of_pod[-1].at - decision.at <= NEAR_S]


def _last_with_verb(decisions: Sequence[Decision], verb: Verb) -> Decision | None:
    return next((decision for decision in reversed(decisions) if decision.verb == verb), None)


class MeasuredRule(NamedTuple):
    """The value of one rule on one node."""

    metric: str
    operator: str
    target: int | None
    """Nano-units; None if the rule only ranks."""
    value: int | None
    """Nano-units; None if there is no value."""
    state: ValueState
    age_s: float | None
    rejects: bool
    policy: str = ""
    """As in `Evidence`."""
    weight: float = 1.0
    """As in `Evidence`."""


class ScorePart(NamedTuple):
    """The score of one node by one priority."""

    label: str
    weight: float
    points: int


class NodeExplanation(NamedTuple):
    """The explanation of one node."""

    node: str
    reasons: tuple[tuple[str, Reason], ...]
    """By agent, why the node is rejected; empty for a node that passes."""
    measured: tuple[MeasuredRule, ...]
    score: int | None
    """None if the node was not scored."""
    details: tuple[tuple[str, str], ...] = ()
    """By agent: what the pod gets on the node, or what is missing there."""
    parts: tuple[ScorePart, ...] = ()
    """The parts of the score; empty if it is the only score of one agent."""
    numbers: Mapping[str, Mapping[str, Any]] = {}
    """By agent: the numbers that its results are based on."""


class RejectionGroup(NamedTuple):
    """Nodes that are rejected for the same reason, the closest to passing first."""

    agent: str
    reason: Reason
    nodes: tuple[NodeExplanation, ...]


class Explanation(NamedTuple):
    """The explanation of an attempt."""

    attempt: Attempt
    findings: tuple[NodeExplanation, ...]
    """Feasible nodes, the best score first; then rejected nodes, the closest to passing first."""
    groups: tuple[RejectionGroup, ...]
    """The rejected nodes, the largest group first."""
    changes: tuple[RuleChange, ...]
    stuck: int
    """The number of nodes that no change of a single rule lets pass."""
    held: bool
    """Whether some rejections do not follow from the values, for example while a rule is suspended."""
    policies: tuple[PolicyRemoval, ...]
    """The policies that select the pod; empty if no agent has policies."""
    ranking_only: tuple[str, ...]
    """Further policies that select the pod, which reject no nodes and rank them."""

    @property
    def is_rejected_by_several_policies(self) -> bool:
        """Whether each of two or more policies rejects a node."""
        return sum(policy.rejected > 0 for policy in self.policies) > 1


def explain(attempt: Attempt) -> Explanation:
    """Explain an attempt, by node and rule."""
    decision = attempt.main_decision
    findings = tuple(_explain_nodes(attempt))
    held = any(counterfactuals.is_held(verdict) for _, verdict in decision.verdicts)
    groups, stuck = tuple(_group_by_reason(findings)), int(counterfactuals.stuck(decision).sum())
    changes = tuple(counterfactuals.changes(decision))
    policies = tuple(counterfactuals.policy_removals(decision))
    filtering = {policy.policy for policy in policies}
    ranking = (
        rule.policy
        for _, scores in (attempt.scored or decision).scores
        for rule in scores.evidence
        if rule.policy and rule.policy not in filtering
    )
    return Explanation(
        attempt, findings, groups, changes, stuck, held, policies, tuple(dict.fromkeys(ranking))
    )


def _explain_nodes(attempt: Attempt) -> Iterator[NodeExplanation]:
    decision, scored, points = attempt.main_decision, attempt.scored, _scores_by_node(attempt.scored)
    filtering = list(_rules_of_verdicts_or_scores(decision.verdicts))
    ranking = [
        (rule, np.zeros(len(rule.states), np.bool_))  # rules that score reject no node
        for rule, _ in _rules_of_verdicts_or_scores((scored or decision).scores)
    ]
    positions = {name: number for number, name in enumerate(scored.names)} if scored else {}
    for position in _candidate_order(decision, points):
        name = decision.names[position]
        measured = [_measured_rule(rule, position) for rule in filtering]
        places = [(decision, position)]
        parts: tuple[ScorePart, ...] = ()
        if scored is not None and name in positions:
            measured += [_measured_rule(rule, positions[name]) for rule in ranking]
            places.append((scored, positions[name]))
            parts = tuple(_score_parts_at(scored, positions[name]))
        yield NodeExplanation(
            name,
            tuple(_rejection_reasons_of_node(decision, position)),
            tuple(measured),
            points.get(name),
            _details_by_agent(places),
            parts,
            decision_json.merge_numbers(*places),
        )


def _rules_of_verdicts_or_scores(
    answers: Iterable[tuple[str, Verdict | Scores]],
) -> Iterator[tuple[Evidence, counterfactuals.Mask]]:
    for _, answer in answers:
        yield from ((rule, counterfactuals.rejects(rule)) for rule in answer.evidence)


def _details_by_agent(places: Sequence[tuple[Decision, int]]) -> tuple[tuple[str, str], ...]:
    """By agent; if both decisions have details, those of the later one."""
    return tuple(
        {agent: text for place in places for agent, text in decision_json.candidate_details(*place)}.items()
    )


def _candidate_order(decision: Decision, points: Mapping[str, int]) -> list[int]:
    """The positions of the candidates in the order of `Explanation.findings`; equals keep the order of the request."""
    kept, far = decision.feasible(), counterfactuals.distance_from_passing(decision)
    score = np.array([points.get(name, -1) for name in decision.names.tolist()])
    order: list[int] = np.lexsort((np.arange(len(kept)), np.where(kept, -score, far), ~kept)).tolist()
    return order


def _scores_by_node(scored: Decision | None) -> dict[str, int]:
    if scored is None or not scored.scores:
        return {}
    return dict(zip(scored.names.tolist(), scored.points().tolist(), strict=True))


def _rejection_reasons_of_node(decision: Decision, position: int) -> Iterator[tuple[str, Reason]]:
    for agent, verdict in decision.verdicts:
        if code := int(verdict.codes[position]):
            yield agent, verdict.reasons[code - 1]


def _score_parts_at(scored: Decision, position: int) -> Iterator[ScorePart]:
    if decision_json.has_score_parts(scored):
        for agent, scores in scored.scores:
            yield ScorePart(scores.label or agent, scores.weight, int(scores.points[position]))


def _measured_rule(rule_and_mask: tuple[Evidence, counterfactuals.Mask], position: int) -> MeasuredRule:
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
        rule.policy,
        rule.weight,
    )


def _group_by_reason(findings: Iterable[NodeExplanation]) -> list[RejectionGroup]:
    """Groups by the first reason of each node, which is the one that the pod's event shows."""
    by_reason: dict[tuple[str, str], list[NodeExplanation]] = {}
    for finding in findings:
        if finding.reasons:
            agent, reason = finding.reasons[0]
            by_reason.setdefault((agent, reason.text()), []).append(finding)
    groups = [
        RejectionGroup(agent, nodes[0].reasons[0][1], tuple(nodes)) for (agent, _), nodes in by_reason.items()
    ]
    return sorted(groups, key=lambda group: -len(group.nodes))
