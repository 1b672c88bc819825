"""Counterfactuals: how a decision would change with another target of a rule, computed from its evidence.

Counterfactuals exist only for verdicts that follow from their evidence (`Verdict.joined`), which is decided for each of
a pod's policies. The proposed targets are the nearest one that lets a node pass, and a few round numbers, up
to the target beyond which no further node passes. The unit is a whole nano-unit, as in policies.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nodewise.agent import COMPARISONS, Evidence, Joined, ValueState, Verdict
from nodewise.engine.decision import Decision

Mask = NDArray[np.bool_]
"""By candidate of a decision."""

_NEAREST_PASSING: Final[Mapping[np.ufunc, int]] = {
    np.greater: 0,
    np.greater_equal: 1,
    np.less: 0,
    np.less_equal: -1,
}
"""By comparison, the nearest target that a value does not violate, minus the value. Others have no such target."""

_UPPER_LIMITS: Final = frozenset({np.greater, np.greater_equal})
"""Comparisons that a larger target relaxes."""

_SHARES: Final = (0.0, 0.25, 0.5, 1.0)
"""Shares of the nodes that could pass for which a target is proposed: the first, a quarter, half, all."""

_EXACT: Final = 100
_ROUND: Final = 4
"""Divisors of the distance from target to value, which limit how far a proposal is beyond the value. The nearest target
that suffices is exact to 1 % of the distance; the others are round numbers."""


class RelaxedTarget(NamedTuple):
    """A target with which `more` additional nodes pass, all else equal."""

    target: int
    more: int


class RuleChange(NamedTuple):
    """What another target of one rule would change, all else equal."""

    agent: str
    number: int
    """The position of the rule in the agent's evidence."""
    rule: Evidence
    enough: bool
    """Whether a node must violate other rules too to be rejected for this one, so that a change of it is enough."""
    relaxed: tuple[RelaxedTarget, ...]
    """From the nearest target to the one with which this rule alone rejects no value."""
    alone: int
    """Nodes that would pass if this rule rejected no value."""
    unmeasured: int
    """Nodes that would pass if this rule accepted missing values."""


def rejects(rule: Evidence) -> Mask:
    """The candidates that this rule alone rejects."""
    fresh = rule.states == ValueState.FRESH
    compare = COMPARISONS.get(rule.operator)
    if compare is None or rule.target is None:
        return np.zeros(len(fresh), bool)
    broken = np.asarray(compare(rule.values, rule.target), bool)
    rejected: Mask = (fresh & broken) | (~fresh & rule.rejects_missing)
    return rejected


class RuleSet(NamedTuple):
    """The rules of one policy, or those of a verdict without policies."""

    rejected: Mask
    """The candidates that they reject, whether or not that follows from their values."""
    joined: Joined | None
    groups: tuple[tuple[int, ...], ...]
    """Positions in the verdict's evidence: a node is rejected if all rules of one group reject it."""

    @property
    def rules(self) -> tuple[int, ...]:
        return tuple(number for group in self.groups for number in group)


def rule_sets(verdict: Verdict) -> list[RuleSet]:
    """The rules of each policy, in the order of the policies; one set for a verdict without policies."""
    if not verdict.policies:
        return [_make_rule_set(verdict, verdict.codes != 0, verdict.joined)]
    return [
        _make_rule_set(verdict, policy.rejected, policy.joined, policy.policy) for policy in verdict.policies
    ]


def _make_rule_set(
    verdict: Verdict, rejected: Mask, joined: Joined | None, policy: str | None = None
) -> RuleSet:
    groups: dict[tuple[str, int], list[int]] = {}
    for number, rule in enumerate(verdict.evidence):
        if policy in {None, rule.policy}:
            # a rule that is alone has its position as the number of its group, below 0
            alone = (rule.policy, rule.group if rule.group >= 0 else -1 - number)
            groups.setdefault(("", 0) if joined == "all" else alone, []).append(number)
    return RuleSet(rejected, joined, tuple(map(tuple, groups.values())))


def candidates_rejected_by_rules(evidence: Sequence[Evidence], rule_set: RuleSet, size: int) -> Mask:
    """The candidates that all rules of a group reject, by the values in the evidence."""
    rejected = np.zeros(size, bool)
    for group in rule_set.groups:
        rejected |= np.logical_and.reduce([rejects(evidence[number]) for number in group])
    return rejected


def _follows(verdict: Verdict, rule_set: RuleSet) -> bool:
    """Whether the rejections of these rules follow from their values. If not, they count as unchangeable."""
    size = len(verdict.codes)
    return rule_set.joined is not None and bool(
        np.array_equal(candidates_rejected_by_rules(verdict.evidence, rule_set, size), rule_set.rejected)
    )


def is_held(verdict: Verdict) -> bool:
    """Whether rules that decide by their values reject other nodes now, for example while a rule is suspended."""
    return any(
        rule_set.joined is not None and not _follows(verdict, rule_set) for rule_set in rule_sets(verdict)
    )


def feasible_with_changed_rule(decision: Decision, agent: str, number: int, rule: Evidence) -> Mask:
    """The candidates that pass with another rule in place of one rule of an agent, all else equal."""
    kept = np.ones(len(decision.names), bool)
    for name, verdict in decision.verdicts:
        changed = (*verdict.evidence[:number], rule, *verdict.evidence[number + 1 :])
        for rule_set in rule_sets(verdict):
            is_changed = name == agent and number in rule_set.rules and _follows(verdict, rule_set)
            kept &= ~(
                candidates_rejected_by_rules(changed, rule_set, len(kept))
                if is_changed
                else rule_set.rejected
            )
    return kept


class PolicyRemoval(NamedTuple):
    """What one of a pod's policies rejects, and what its removal would change, all else equal."""

    agent: str
    policy: str
    rejected: int
    """Nodes that it rejects, alone or with others."""
    more: int
    """Nodes that would pass without it."""
    not_enforced: str
    """As in `PolicyRejections`."""
    would_reject: tuple[str, ...] | None
    """The nodes that a policy that only observes would reject; None for other policies."""


def policy_removals(decision: Decision) -> Iterator[PolicyRemoval]:
    """All policies of the pod, in the order of the decision."""
    out = ~decision.feasible()
    for agent, verdict in decision.verdicts:
        of_others = np.zeros(len(out), bool)
        for name, other in decision.verdicts:
            if name != agent:
                of_others |= other.codes != 0
        for number, policy in enumerate(verdict.policies):
            rest = [other.rejected for place, other in enumerate(verdict.policies) if place != number]
            left = out & ~np.logical_or.reduce([of_others, *rest])
            would_reject = policy.would_reject
            yield PolicyRemoval(
                agent,
                policy.policy,
                int(policy.rejected.sum()),
                int(left.sum()),
                policy.not_enforced,
                None if would_reject is None else tuple(decision.names[would_reject].tolist()),
            )


def changes(decision: Decision) -> Iterator[RuleChange]:
    """For each rejecting rule, what another target would change; only rules whose change lets a node pass."""
    for agent, verdict in decision.verdicts:
        enough = {
            number: len(group) > 1
            for rule_set in rule_sets(verdict)
            if _follows(verdict, rule_set)
            for group in rule_set.groups
            for number in group
        }
        for number in sorted(enough):
            if verdict.evidence[number].target is None:
                continue
            change = _target_change_of_rule(decision, agent, number, verdict.evidence[number])
            if change.alone or change.unmeasured:
                yield change._replace(enough=enough[number])


def _target_change_of_rule(decision: Decision, agent: str, number: int, rule: Evidence) -> RuleChange:
    out = ~decision.feasible()

    def newly_feasible(changed: Evidence) -> Mask:
        return out & feasible_with_changed_rule(decision, agent, number, changed)

    alone = newly_feasible(rule_without_effect(rule))
    values = rule.values[alone].tolist()
    target_by_gain: dict[int, int] = {}
    for target in propose_targets(rule, values):
        more = int(newly_feasible(replace(rule, target=target)).sum())
        target_by_gain.setdefault(more, target)
    relaxed = tuple(RelaxedTarget(target, more) for more, target in sorted(target_by_gain.items()) if more)
    lenient = newly_feasible(replace(rule, rejects_missing=False))
    return RuleChange(agent, number, rule, False, relaxed, int(alone.sum()), int(lenient.sum()))


def stuck(decision: Decision) -> Mask:
    """Rejected candidates that no change of a single rule lets pass, as far as the evidence shows."""
    rejected = ~decision.feasible()
    for agent, verdict in decision.verdicts:
        for rule_set in rule_sets(verdict):
            if not _follows(verdict, rule_set):
                rejected &= ~rule_set.rejected
                continue
            for number in rule_set.rules:
                harmless = replace(rule_without_effect(verdict.evidence[number]), rejects_missing=False)
                rejected &= ~feasible_with_changed_rule(decision, agent, number, harmless)
    return rejected


def distance_from_passing(decision: Decision) -> NDArray[np.float64]:
    """By candidate, the distance from passing: the number of rejecting rules, then the distance of values from targets.

    0 for a candidate that passes.
    """
    far = np.zeros(len(decision.names))
    for _, verdict in decision.verdicts:
        if verdict.details is not None:
            far += np.where(verdict.codes != 0, 1.0 + verdict.details.distances(), 0.0)
            continue
        # Each group counts from 1 (a value at its target) to 2, and 2 where the evidence does not decide. A group
        # rejects no more when the nearest of its values passes.
        for rule_set in rule_sets(verdict):
            distance = np.where(rule_set.rejected, 2.0, 0.0)
            if rule_set.groups and _follows(verdict, rule_set):
                rules = [
                    [_distance_of_rule(verdict.evidence[number]) for number in group]
                    for group in rule_set.groups
                ]
                distance = np.sum([np.minimum.reduce(group) for group in rules], axis=0)
            far += np.where(verdict.codes != 0, distance, 0.0)
    return far


def _distance_of_rule(rule: Evidence) -> NDArray[np.float64]:
    """From 1 to 2 for the candidates that the rule rejects, 2 for those without a fresh value; 0 for others."""
    target = float(rule.target or 0)
    share = np.abs(rule.values.astype(np.float64) - target) / (abs(target) or 1e9)
    excess = np.where(rule.states == ValueState.FRESH, share / (1.0 + share), 1.0)
    return np.where(rejects(rule), 1.0 + excess, 0.0)


def rule_without_effect(rule: Evidence) -> Evidence:
    """The rule with an operator and a target that no value violates."""
    fresh = rule.values[rule.states == ValueState.FRESH]
    if not len(fresh) or rule.target is None:
        return rule
    return replace(rule, operator="above", target=int(np.max(fresh)))


def propose_targets(rule: Evidence, values: Sequence[int]) -> Iterator[int]:
    """Targets with which some of these values no longer violate the rule; with the last target, none does.

    No targets for an operator without a direction, because another target would reject other values.
    """
    comparison = COMPARISONS.get(rule.operator)
    beyond = None if comparison is None else _NEAREST_PASSING.get(comparison)
    if rule.target is None or beyond is None or not values:
        return
    ordered = sorted(values, reverse=comparison not in _UPPER_LIMITS)
    for share in _SHARES:
        value = ordered[round(share * (len(ordered) - 1))]
        # The target must differ from the value: 80.000000001 would be exact, and nobody would write it.
        least_slack = abs(beyond * value) // 100
        slack_divisor = _ROUND if share else _EXACT
        yield round_target(rule.target, value + beyond, slack_divisor, least_slack=least_slack)


def round_target(target: int, value: int, slack_divisor: int = _ROUND, *, least_slack: int = 0) -> int:
    """The roundest number at the value or beyond it, as seen from the target: 85 for the value 84.7 and the target 80.

    It is beyond by at most the distance divided by `slack_divisor`, or by `least_slack`, so that the proposal is not
    more than the nodes need.
    """
    slack = max(abs(value - target) // slack_divisor, least_slack)
    best, power = value, 1
    while power <= 10 * abs(value):
        for step in (power, 2 * power, 5 * power):
            candidate = -(-value // step) * step if value > target else value // step * step
            if abs(candidate - value) <= slack:
                best = candidate
        power *= 10
    return best
