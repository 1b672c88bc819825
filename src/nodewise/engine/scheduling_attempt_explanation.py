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


def last_attempt(  # complexity: all calls of an attempt are found by one rule
    decisions: Iterable[Decision], uid: str = ""
) -> Attempt | None:
    """The newest attempt among decisions about one pod, in any order, of any number of replicas.

    With a `uid`, only decisions about that pod count; else those about the newest pod of the name.
    """
    ordered = sorted(decisions, key=lambda decision: decision.at)
    uid = uid or (ordered[-1].pod.uid if ordered else "")
    of_pod = [decision for decision in ordered if decision.pod.uid == uid]
    if not of_pod:
        return None
    near = [decision for decision in of_pod if of_pod[-1].at - decision.at <= NEAR_S]
    filtered = _last_with_verb(near, "filter")
    scored = near
    if filtered is not None:
        near = [decision for decision in near if decision.at >= filtered.at - _SKEW_S]
        passed = set(filtered.names[filtered.feasible()].tolist())
        scored = [decision for decision in near if passed.issuperset(decision.names.tolist())]
    return Attempt(
        filtered,
        _last_with_verb(scored, "prioritize"),
        _last_with_verb(near, "preempt"),
        _last_with_verb(near, "bind"),
    )


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
    policies = tuple(counterfactuals.policy_removals(decision))
    filtering = {policy.policy for policy in policies}
    ranking = (
        rule.policy
        for _, scores in (attempt.scored or decision).scores
        for rule in scores.evidence
        if rule.policy and rule.policy not in filtering
    )
    return Explanation(
        attempt,
        findings,
        tuple(_group_by_reason(findings)),
        tuple(counterfactuals.changes(decision)),
        int(counterfactuals.stuck(decision).sum()),
        any(counterfactuals.is_held(verdict) for _, verdict in decision.verdicts),
        policies,
        tuple(dict.fromkeys(ranking)),
    )


def _explain_nodes(  # complexity: each field joins the filter and the prioritize decision
    attempt: Attempt,
) -> Iterator[NodeExplanation]:
    decision, scored = attempt.main_decision, attempt.scored
    scored_names = scored.names.tolist() if scored is not None else []
    positions = dict(zip(scored_names, range(len(scored_names)), strict=True))
    points: dict[str, int] = {}
    if scored is not None and scored.scores:
        points = dict(zip(scored_names, scored.points().tolist(), strict=True))
    filtering = _rules_with_rejections(decision.verdicts)
    ranking = [  # rules that score reject no node
        (rule, np.zeros_like(rejected))
        for rule, rejected in _rules_with_rejections((scored or decision).scores)
    ]
    for position in _candidate_order(decision, points):
        name = decision.names[position]
        measured = [_measured_rule(rule, position) for rule in filtering]
        places = [(decision, position)]
        parts: list[ScorePart] = []
        if scored is not None and name in positions:
            there = positions[name]
            measured += [_measured_rule(rule, there) for rule in ranking]
            places.append((scored, there))
            parts = _score_parts_at(scored, there)
        # if both decisions have details, those of the later one
        details = {agent: text for place in places for agent, text in decision_json.candidate_details(*place)}
        yield NodeExplanation(
            name,
            _reasons_at(decision, position),
            tuple(measured),
            points.get(name),
            tuple(details.items()),
            tuple(parts),
            decision_json.merge_numbers(*places),
        )


def _score_parts_at(scored: Decision, position: int) -> list[ScorePart]:
    return [
        ScorePart(scores.label or agent, scores.weight, int(scores.points[position]))
        for agent, scores in (scored.scores if decision_json.has_score_parts(scored) else ())
    ]


def _reasons_at(decision: Decision, position: int) -> tuple[tuple[str, Reason], ...]:
    return tuple(
        (agent, verdict.reasons[verdict.codes[position] - 1])
        for agent, verdict in decision.verdicts
        if verdict.codes[position]
    )


def _candidate_order(decision: Decision, points: Mapping[str, int]) -> list[int]:
    """The positions of the candidates in the order of `Explanation.findings`; equals keep the order of the request."""
    kept, far = decision.feasible(), counterfactuals.distance_from_passing(decision)
    score = np.array([points.get(name, -1) for name in decision.names.tolist()])
    order: list[int] = np.lexsort((np.arange(len(kept)), np.where(kept, -score, far), ~kept)).tolist()
    return order


def _rules_with_rejections(
    results: Iterable[tuple[str, Verdict | Scores]],
) -> list[tuple[Evidence, counterfactuals.Mask]]:
    return [(rule, counterfactuals.rejects(rule)) for _, result in results for rule in result.evidence]


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
