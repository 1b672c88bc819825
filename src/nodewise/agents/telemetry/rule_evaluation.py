"""Evaluates rules over all nodes. This runs when data change; a request only looks the result up.

Source of the semantics of several rules and parts: `anyOf` and `allOf` of Telemetry Aware Scheduling 0.7,
`pkg/strategies/dontschedule`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Evidence, Joined, Names, Reason
from nodewise.agents.telemetry import policy_rejection_reasons, rule_operators
from nodewise.agents.telemetry.placement_policy import AvoidRule, Comparison, PolicyKey
from nodewise.metrics.series import ValueState
from nodewise.metrics.series_arrays import Column, States

Codes = NDArray[np.int16]
Mask = NDArray[np.bool_]


class RuleInputs(NamedTuple):
    """The values that rules with the same metric and maximum age compare, by node number.

    They share one object: a namespace may have hundreds of rules, and arrays of all nodes take most of their memory.
    """

    column: Column
    evaluated_at: float
    """Seconds since 1970."""
    states: States
    known: Mask
    """Where the result is known: a fresh value, or no series if that means healthy (`Comparison.empty_means`)."""
    unknown: Mask
    """Where it is not."""
    none: Mask
    """False for every node, in the memory of one."""

    def share_arrays(self, other: "RuleInputs") -> "RuleInputs":
        """The same inputs, with the arrays of another evaluation if these are equal."""
        if not np.array_equal(self.states, other.states) or not np.array_equal(self.known, other.known):
            return self
        return self._replace(states=other.states, known=other.known, unknown=other.unknown)


class RuleEvaluation(NamedTuple):
    """A rule evaluated over all nodes, by node number."""

    rule: Comparison
    inputs: RuleInputs
    broken: Mask
    lacking: Mask
    """Where there is no fresh value, and the rule rejects such nodes."""
    rejects_missing: bool = False

    def evidence(self, candidates: Names, policy: PolicyKey, group: int = -1) -> Evidence:
        """The values of some candidates, which are stored with the decision; the operator as the kind writes it."""
        numbers = candidates.numbers
        column, evaluated_at, states, *_ = self.inputs
        return Evidence(
            self.rule.metric_request().name,
            rule_operators.written_operator(self.rule.operator, policy.kind),
            self.rule.target,
            column.values[numbers],
            states[numbers],
            column.ages_s(evaluated_at, numbers),
            self.rejects_missing,
            policy.text(),
            group,
        )

    def ranking_evidence(self, candidates: Names, policy: PolicyKey, weight: int) -> Evidence:
        """The values of some candidates, by which a preference ranks them."""
        evidence = self.evidence(candidates, policy)
        return msgspec.structs.replace(evidence, target=None, rejects_missing=False, weight=float(weight))


def rule_inputs(rule: Comparison, column: Column, now: float, max_age_s: float) -> RuleInputs:
    """The inputs of a rule; `max_age_s` is the rule's or the agent's."""
    states = column.states(now, max_age_s)
    known = states == ValueState.FRESH
    is_old = now - column.answered_at > max_age_s
    if rule.empty_means and not is_old:  # an old response does not show which nodes have no series now
        known |= states == ValueState.MISSING
    return RuleInputs(column, now, states, known, ~known, np.broadcast_to(np.False_, len(states)))


def evaluate_rule(rule: Comparison, inputs: RuleInputs, *, reject_missing: bool) -> RuleEvaluation:
    """Evaluate a rule over all nodes."""
    fresh = inputs.states == ValueState.FRESH
    broken = fresh & rule_operators.compare(rule.operator, inputs.column.values, rule.target)
    rejects = reject_missing if not rule.when_missing else rule.when_missing == "reject"
    lacking = inputs.unknown if rejects else inputs.none
    return RuleEvaluation(rule, inputs, broken, lacking, rejects and not rule.empty_means)


class AvoidVerdict(NamedTuple):
    """The rules of a policy over all nodes: codes by node number, 0 passes, k is rejected for `reasons[k - 1]`."""

    codes: Codes
    reasons: tuple[Reason, ...]
    joined: Joined | None = None
    """How the rules are combined; None if the verdict does not follow from their values."""


def combine_rules(
    policy: PolicyKey, rules: Sequence[AvoidRule], evaluated: Mapping[Comparison, RuleEvaluation]
) -> AvoidVerdict:
    """A node is rejected by any rule of which it meets all parts, or lacks the value of those that it does not meet.

    The reason is the first rule of which it meets all parts. If there is none, it is the first missing value.
    """
    size = len(evaluated[rules[0].parts[0]].broken)
    reason_list: list[Reason] = []
    codes = np.zeros(size, np.int16)
    for rule in rules:
        broken = np.logical_and.reduce([evaluated[part].broken for part in rule.parts])
        is_lone = len(rule.parts) == 1
        reason_list.append(
            policy_rejection_reasons.RuleBroken(policy, rule.parts[0])
            if is_lone
            else policy_rejection_reasons.AllBroken(policy, rule.parts)
        )
        codes[broken & (codes == 0)] = len(reason_list)
    for rule in rules:
        rejected = np.logical_and.reduce(
            [evaluated[part].broken | evaluated[part].lacking for part in rule.parts]
        )
        for part in rule.parts:
            reason_list.append(policy_rejection_reasons.NoValue(policy, part))
            codes[rejected & evaluated[part].lacking & (codes == 0)] = len(reason_list)
    return AvoidVerdict(codes, tuple(reason_list), "any")


def reject_all(size: int, reason: Reason) -> AvoidVerdict:
    """Every node is rejected for one reason; `size` includes the unknown node.

    The codes take no memory, because anyone may create many policies that cannot be evaluated.
    """
    return AvoidVerdict(np.broadcast_to(np.int16(1), size), (reason,))
