"""Evaluates rules over all nodes. This runs when data change; a request only looks the result up.

Source of the semantics of several rules and parts: `anyOf` and `allOf` of Telemetry Aware Scheduling 0.7,
`pkg/strategies/dontschedule`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Evidence, Joined, Names, Reason
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.series import Values, ValueState
from nodewise.metrics.series_arrays import Column, States
from nodewise.policies import policy_rejection_reasons, rule_operators
from nodewise.policies.placement_policy import AvoidRule, Comparison, PolicyKey

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


class CandidateValues:
    """The values of the candidates of one request. They are gathered once, although many rules compare them."""

    def __init__(self, candidates: Names) -> None:
        self.candidates = candidates
        self._gathered: dict[tuple[int, int], tuple[Values, States, NDArray[np.float64]]] = {}
        """By the identities of a column's values and of their states, which the snapshot keeps."""

    def gather(self, inputs: RuleInputs) -> tuple[Values, States, NDArray[np.float64]]:
        """The values, their states and their ages in seconds, by candidate."""
        column, numbers = inputs.column, self.candidates.numbers
        key = id(column.values), id(inputs.states)
        if key not in self._gathered:
            self._gathered[key] = (
                column.values[numbers],
                inputs.states[numbers],
                column.ages_s(inputs.evaluated_at, numbers),
            )
        return self._gathered[key]


class RuleEvaluation(NamedTuple):
    """A rule evaluated over all nodes, by node number."""

    rule: Comparison
    inputs: RuleInputs
    broken: Mask
    lacking: Mask
    """Where there is no fresh value, and the rule rejects such nodes."""
    rejects_missing: bool = False
    agreeing: Mask | None = None
    """Where the series of a node differ and all of their values meet the rule, a part of `broken`; None for nowhere."""

    @property
    def known(self) -> Mask:
        """Where the result is known, as in the inputs, or because all values of a node agree."""
        return self.inputs.known if self.agreeing is None else self.inputs.known | self.agreeing

    def evidence(
        self, values: CandidateValues, policy: PolicyKey, group: int = -1, weight: float | None = None
    ) -> Evidence:
        """The values of some candidates, which are stored with the decision; the operator as the kind writes it.

        `weight` is that of a preference, which ranks the candidates by their values and rejects none.
        """
        rule = self.rule
        return Evidence(
            rule.metric_request().name,
            rule_operators.written_operator(rule.operator, policy.kind),
            rule.target if weight is None else None,
            *values.gather(self.inputs),
            self.rejects_missing and weight is None,
            policy.text(),
            group,
            1.0 if weight is None else weight,
        )


def rule_inputs(rule: Comparison, column: Column, now: float, max_age_s: float) -> RuleInputs:
    """The inputs of a rule; `max_age_s` is the rule's or the agent's."""
    states = column.states(now, max_age_s)
    known = states == ValueState.FRESH
    is_old = now - column.answered_at > max_age_s
    # an old or incomplete response does not show which nodes have no series now
    if rule.empty_means and not is_old and not column.is_incomplete:
        known |= states == ValueState.MISSING
    return RuleInputs(column, now, states, known, ~known, np.broadcast_to(np.False_, len(states)))


def evaluate_rule(
    rule: Comparison, inputs: RuleInputs, *, reject_missing: bool, max_age_s: float = np.inf
) -> RuleEvaluation:
    """Evaluate a rule over all nodes."""
    fresh = inputs.states == ValueState.FRESH
    broken = fresh & rule_operators.compare(rule.operator, inputs.column.values, rule.target)
    rejects = reject_missing if not rule.when_missing else rule.when_missing == "reject"
    lacking = inputs.unknown if rejects else inputs.none
    agreeing = _agreeing_nodes(rule, inputs, max_age_s)
    if agreeing is not None:
        broken = broken | agreeing
    return RuleEvaluation(rule, inputs, broken, lacking, rejects and not rule.empty_means, agreeing)


def _agreeing_nodes(rule: Comparison, inputs: RuleInputs, max_age_s: float) -> Mask | None:
    """The nodes whose series differ and that meet the rule with each of their values; None for none.

    For example the same sensor, scraped by two servers at different times. Otherwise such a node would pass.
    """
    differing = inputs.column.differing
    if differing is None:
        return None
    is_met = rule_operators.compare_all(rule.operator, differing.lowest, differing.highest, rule.target)
    is_old = inputs.evaluated_at - differing.times > max_age_s
    is_response_old = inputs.evaluated_at - inputs.column.answered_at > max_age_s
    numbers = differing.numbers[is_met & ~is_old & (not is_response_old)]
    if not len(numbers):
        return None
    agreeing = np.zeros(len(inputs.known), bool)
    agreeing[numbers] = True
    return agreeing


class AvoidVerdict(NamedTuple):
    """The rules of a policy over all nodes: codes by node number, 0 passes, k is rejected for `reasons[k - 1]`."""

    codes: Codes
    reasons: tuple[Reason, ...]
    joined: Joined | None = None
    """How the rules are combined; None if the verdict does not follow from their values."""


def combine_rules(
    policy: PolicyKey,
    rules: Sequence[AvoidRule],
    rejections: Sequence[Mask],
    evaluated: Mapping[Comparison, RuleEvaluation],
    causes: Mapping[str, Cause],
) -> AvoidVerdict:
    """A node is rejected by any rule that rejects it by its values (`rejections`), and by a rule of which it lacks the
    value of those parts that it does not meet. `causes` say why nodes lack values, by key of the metric.

    The reason is the first rule that rejects it by its values. If there is none, it is the first missing value.
    """
    size = len(evaluated[rules[0].parts[0]].broken)
    reason_list: list[Reason] = []
    codes = np.zeros(size, np.int16)
    for rule, rejected in zip(rules, rejections, strict=True):
        is_lone = len(rule.parts) == 1
        reason_list.append(
            policy_rejection_reasons.RuleBroken(policy, rule.parts[0], rule.times)
            if is_lone
            else policy_rejection_reasons.AllBroken(policy, rule.parts, rule.times)
        )
        codes[rejected & (codes == 0)] = len(reason_list)
    for rule in rules:
        lacking = np.logical_and.reduce(
            [evaluated[part].broken | evaluated[part].lacking for part in rule.parts]
        )
        for part in rule.parts:
            reason_list.append(
                policy_rejection_reasons.NoValue(policy, part, causes.get(part.metric_request().key))
            )
            codes[lacking & evaluated[part].lacking & (codes == 0)] = len(reason_list)
    has_states = any(rule.has_states for rule in rules)
    return AvoidVerdict(codes, tuple(reason_list), None if has_states else "any")


def reject_all(size: int, reason: Reason) -> AvoidVerdict:
    """Every node is rejected for one reason; `size` includes the unknown node.

    The codes take no memory, because anyone may create many policies that cannot be evaluated.
    """
    return AvoidVerdict(np.broadcast_to(np.int16(1), size), (reason,))
