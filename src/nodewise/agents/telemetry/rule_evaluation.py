"""Which nodes break which rules. Computed once per change of data; a request only looks up.

Source of the meaning of `anyOf` and `allOf`: Telemetry Aware Scheduling 0.7, `pkg/strategies/dontschedule`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Evidence, Joined, Names, Reason
from nodewise.agents.telemetry import operators, reasons
from nodewise.agents.telemetry.policy import Rule
from nodewise.metrics.column import Column, States
from nodewise.metrics.series import State

Codes = NDArray[np.int16]


class Measured(NamedTuple):
    """A rule over all nodes, by node number."""

    rule: Rule
    column: Column
    states: States
    ages_s: NDArray[np.float64]
    broken: NDArray[np.bool_]
    lacking: NDArray[np.bool_]
    """Where there is no fresh value and the rule rejects such nodes."""
    known: NDArray[np.bool_]
    """Where there is evidence: a fresh value, or none at all where that is healthy (`Rule.empty_means`)."""
    rejects_missing: bool = False

    def evidence(self, candidates: Names, *, ranks_only: bool = False) -> Evidence:
        """The values of some candidates, kept with the decision."""
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


def measure(rule: Rule, column: Column, now: float, max_age_s: float, *, reject_missing: bool) -> Measured:
    """Apply a rule to all nodes."""
    max_age_s = max_age_s if rule.max_age_s is None else rule.max_age_s
    states = column.states(now, max_age_s)
    known = fresh = states == State.FRESH
    broken = fresh & operators.holds(rule.operator, column.values, rule.target)
    rejects = reject_missing if not rule.when_missing else rule.when_missing == "reject"
    is_old = now - column.answered_at > max_age_s
    if rule.empty_means and not is_old:  # an old answer says nothing about the nodes that it lacks
        known = fresh | (states == State.MISSING)
    lacking = ~known if rejects else np.zeros(len(fresh), bool)
    rejects = rejects and not rule.empty_means
    return Measured(rule, column, states, column.ages_s(now), broken, lacking, known, rejects)


class Judged(NamedTuple):
    """All nodes judged by a strategy: codes by node number, 0 passes, k is rejected for `reasons[k - 1]`."""

    codes: Codes
    reasons: tuple[Reason, ...]
    joined: Joined | None = None
    """How they follow from the measured rules; None where they do not."""


def any_of(policy: str, measured: Sequence[Measured]) -> Judged:
    """A node is rejected by the first rule that it breaks, else by the first that lacks its value."""
    size = len(measured[0].states)
    reason_list: list[Reason] = []
    codes = np.zeros(size, np.int16)
    for item in measured:
        reason_list.append(reasons.RuleBroken(policy, item.rule))
        codes[item.broken & (codes == 0)] = len(reason_list)
    for item in measured:
        reason_list.append(reasons.NoValue(policy, item.rule))
        codes[item.lacking & (codes == 0)] = len(reason_list)
    return Judged(codes, tuple(reason_list), "any")


def all_of(policy: str, measured: Sequence[Measured]) -> Judged:
    """A node is rejected if every rule rejects it; one that lacks its value is named first."""
    rejected = np.logical_and.reduce([item.broken | item.lacking for item in measured])
    reason_list: list[Reason] = [reasons.AllBroken(policy, tuple(item.rule for item in measured))]
    codes = np.where(rejected, np.int16(1), np.int16(0))
    for item in measured:
        reason_list.append(reasons.NoValue(policy, item.rule))
        codes[rejected & item.lacking & (codes == 1)] = len(reason_list)
    return Judged(codes, tuple(reason_list), "all")


def reject_all(size: int, reason: Reason) -> Judged:
    """Every node is rejected for one reason; `size` counts the unknown node as well."""
    return Judged(np.ones(size, np.int16), (reason,))
