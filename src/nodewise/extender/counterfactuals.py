"""Counterfactuals: how a decision would change with another target of a rule, computed from its evidence.

Counterfactuals exist only for verdicts that follow from their evidence (`Verdict.joined`). The proposed targets are a
few round numbers, from the nearest target that lets a node pass to the target beyond which no further node passes. The
unit is a whole nano-unit, as in policies.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nodewise.agent import COMPARISONS, Evidence, ValueState, Verdict
from nodewise.extender.decision import Decision

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
    """Whether a node must violate other rules too to be rejected, so that a change of this rule lets it pass."""
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


def candidates_rejected_by_rules(verdict: Verdict) -> Mask:
    """The candidates that the evidence rejects, with the rules joined as the verdict says."""
    masks = [rejects(rule) for rule in verdict.evidence]
    if not masks:
        return np.zeros(len(verdict.codes), bool)
    join = np.logical_and if verdict.joined == "all" else np.logical_or
    together: Mask = join.reduce(masks)
    return together


def follows_from_evidence(verdict: Verdict) -> bool:
    """Whether the verdict follows from its evidence. If not, counterfactuals cannot be computed."""
    return verdict.joined is not None and bool(
        np.array_equal(candidates_rejected_by_rules(verdict), verdict.codes != 0)
    )


def feasible_with_changed_rule(decision: Decision, agent: str, number: int, rule: Evidence) -> Mask:
    """The candidates that pass with another rule in place of one rule of an agent, all else equal."""
    kept = np.ones(len(decision.names), bool)
    for name, verdict in decision.verdicts:
        if name == agent:
            changed = (*verdict.evidence[:number], rule, *verdict.evidence[number + 1 :])
            kept &= ~candidates_rejected_by_rules(replace(verdict, evidence=changed))
        else:
            kept &= verdict.codes == 0
    return kept


def changes(decision: Decision) -> Iterator[RuleChange]:
    """For each rejecting rule, what another target would change; only rules whose change lets a node pass."""
    for agent, verdict in decision.verdicts:
        if not follows_from_evidence(verdict):
            continue
        for number, rule in enumerate(verdict.evidence):
            change = _target_change_of_rule(decision, agent, verdict, number)
            if rule.target is not None and (change.alone or change.unmeasured):
                yield change


def _target_change_of_rule(decision: Decision, agent: str, verdict: Verdict, number: int) -> RuleChange:
    rule = verdict.evidence[number]
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
    enough = verdict.joined == "all" and len(verdict.evidence) > 1
    return RuleChange(agent, number, rule, enough, relaxed, int(alone.sum()), int(lenient.sum()))


def stuck(decision: Decision) -> Mask:
    """Rejected candidates that no change of a single rule lets pass, as far as the evidence shows."""
    rejected = ~decision.feasible()
    for agent, verdict in decision.verdicts:
        if not follows_from_evidence(verdict):
            rejected &= verdict.codes == 0
            continue
        for number, rule in enumerate(verdict.evidence):
            harmless = replace(rule_without_effect(rule), rejects_missing=False)
            rejected &= ~feasible_with_changed_rule(decision, agent, number, harmless)
    return rejected


def distance_from_passing(decision: Decision) -> NDArray[np.float64]:
    """By candidate, the distance from passing: the number of rejecting rules, then the distance of values from targets.

    0 for a candidate that passes.
    """
    far = np.zeros(len(decision.names))
    for _, verdict in decision.verdicts:
        far += np.where(verdict.codes != 0, _verdict_distance_from_passing(verdict), 0.0)
    return far


def _verdict_distance_from_passing(verdict: Verdict) -> NDArray[np.float64]:
    """Each rule counts from 1 (a value at its target) to 2, and so do details; 2 without rules and details."""
    if verdict.details is not None:
        nearly: NDArray[np.float64] = 1.0 + verdict.details.distances()
        return nearly
    if not verdict.evidence or not follows_from_evidence(verdict):
        return np.full(len(verdict.codes), 2.0)
    each = [
        np.where(rejects(rule), 1.0 + _relative_excess_over_target(rule), 0.0) for rule in verdict.evidence
    ]
    if verdict.joined == "all":
        nearest: NDArray[np.float64] = np.minimum.reduce(each)
        return nearest
    total: NDArray[np.float64] = np.add.reduce(each)
    return total


def _relative_excess_over_target(rule: Evidence) -> NDArray[np.float64]:
    """The distance of each value from the target relative to the target, mapped to 0..1; 1 without a value."""
    target = float(rule.target or 0)
    share = np.abs(rule.values.astype(np.float64) - target) / (abs(target) or 1e9)
    pressed: NDArray[np.float64] = np.where(rule.states == ValueState.FRESH, share / (1.0 + share), 1.0)
    return pressed


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
        yield round_target(rule.target, value + beyond, least_slack=abs(beyond * value) // 100)


def round_target(target: int, value: int, *, least_slack: int = 0) -> int:
    """The roundest number at the value or beyond it, as seen from the target: 85 for the value 84.7 and the target 80.

    It is beyond by at most a quarter of the distance, or by `least_slack`, so that the proposal is not more than the
    nodes need.
    """
    slack = max(abs(value - target) // 4, least_slack)
    best = value
    for step in _round_numbers(10 * abs(value)):
        candidate = -(-value // step) * step if value > target else value // step * step
        if abs(candidate - value) <= slack:
            best = candidate
    return best


def _round_numbers(most: int) -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, … up to `most`."""
    power = 1
    while power <= most:
        yield from (power, 2 * power, 5 * power)
        power *= 10
