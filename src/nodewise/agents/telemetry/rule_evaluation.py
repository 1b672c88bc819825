"""Evaluates rules over all nodes. This runs when data change; a request only looks the result up.

Source of the semantics of `anyOf` and `allOf`: Telemetry Aware Scheduling 0.7, `pkg/strategies/dontschedule`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Evidence, Joined, Names, Reason
from nodewise.agents.telemetry import policy_rejection_reasons, rule_operators
from nodewise.agents.telemetry.taspolicy_parser import Rule
from nodewise.metrics.series import ValueState
from nodewise.metrics.series_arrays import Column, States

Codes = NDArray[np.int16]


class RuleEvaluation(NamedTuple):
    """A rule evaluated over all nodes, by node number."""

    rule: Rule
    column: Column
    states: States
    ages_s: NDArray[np.float64]
    broken: NDArray[np.bool_]
    lacking: NDArray[np.bool_]
    """Where there is no fresh value, and the rule rejects such nodes."""
    known: NDArray[np.bool_]
    """Where the result is known: a fresh value, or no series if that means healthy (`Rule.empty_means`)."""
    rejects_missing: bool = False

    def evidence(self, candidates: Names, *, ranks_only: bool = False) -> Evidence:
        """The values of some candidates, which are stored with the decision."""
        numbers = candidates.numbers
        target = None if ranks_only else self.rule.target
        return Evidence(
            self.rule.metric_request().name,
            self.rule.operator,
            target,
            self.column.values[numbers],
            self.states[numbers],
            self.ages_s[numbers],
            self.rejects_missing and not ranks_only,
        )


def evaluate_rule(
    rule: Rule, column: Column, now: float, max_age_s: float, *, reject_missing: bool
) -> RuleEvaluation:
    """Evaluate a rule over all nodes."""
    max_age_s = max_age_s if rule.max_age_s is None else rule.max_age_s
    states = column.states(now, max_age_s)
    known = fresh = states == ValueState.FRESH
    broken = fresh & rule_operators.compare(rule.operator, column.values, rule.target)
    rejects = reject_missing if not rule.when_missing else rule.when_missing == "reject"
    is_old = now - column.answered_at > max_age_s
    if rule.empty_means and not is_old:  # an old response does not show which nodes have no series now
        known = fresh | (states == ValueState.MISSING)
    lacking = ~known if rejects else np.zeros(len(fresh), bool)
    rejects = rejects and not rule.empty_means
    return RuleEvaluation(rule, column, states, column.ages_s(now), broken, lacking, known, rejects)


class StrategyVerdict(NamedTuple):
    """A strategy applied to all nodes: codes by node number, 0 passes, k is rejected for `reasons[k - 1]`."""

    codes: Codes
    reasons: tuple[Reason, ...]
    joined: Joined | None = None
    """How the rules are combined; None if the verdict does not follow from their values."""


def any_of(policy: str, evaluations: Sequence[RuleEvaluation]) -> StrategyVerdict:
    """A node is rejected for the first rule that it breaks, or else for the first that lacks its value."""
    size = len(evaluations[0].states)
    reason_list: list[Reason] = []
    codes = np.zeros(size, np.int16)
    for evaluation in evaluations:
        reason_list.append(policy_rejection_reasons.RuleBroken(policy, evaluation.rule))
        codes[evaluation.broken & (codes == 0)] = len(reason_list)
    for evaluation in evaluations:
        reason_list.append(policy_rejection_reasons.NoValue(policy, evaluation.rule))
        codes[evaluation.lacking & (codes == 0)] = len(reason_list)
    return StrategyVerdict(codes, tuple(reason_list), "any")


def all_of(policy: str, evaluations: Sequence[RuleEvaluation]) -> StrategyVerdict:
    """A node is rejected if every rule rejects it; the reason is a missing value if there is one."""
    rejected = np.logical_and.reduce([evaluation.broken | evaluation.lacking for evaluation in evaluations])
    reason_list: list[Reason] = [
        policy_rejection_reasons.AllBroken(policy, tuple(evaluation.rule for evaluation in evaluations))
    ]
    codes = np.where(rejected, np.int16(1), np.int16(0))
    for evaluation in evaluations:
        reason_list.append(policy_rejection_reasons.NoValue(policy, evaluation.rule))
        codes[rejected & evaluation.lacking & (codes == 1)] = len(reason_list)
    return StrategyVerdict(codes, tuple(reason_list), "all")


def reject_all(size: int, reason: Reason) -> StrategyVerdict:
    """Every node is rejected for one reason; `size` includes the unknown node.

    The codes take no memory, because anyone may create many policies that cannot be evaluated.
    """
    return StrategyVerdict(np.broadcast_to(np.int16(1), size), (reason,))
