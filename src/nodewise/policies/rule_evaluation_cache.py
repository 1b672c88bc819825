"""Evaluates each different rule once per build of the state, and keeps what the next build needs. No I/O."""

from collections.abc import Generator
from typing import NamedTuple

from nodewise.agent import ClusterState
from nodewise.metrics.series_arrays import Column
from nodewise.policies import rule_evaluation, rule_suspension
from nodewise.policies.options import MaxAges
from nodewise.policies.placement_policy import Comparison
from nodewise.policies.rule_evaluation import Mask, RuleEvaluation, RuleInputs
from nodewise.policies.rule_suspension import RuleHistory, ValueHistory

_ValuesKey = tuple[str, float | None]
"""The key of a metric, and the maximum age of its values; None for the default, which follows from the values."""


class _RuleValues(NamedTuple):
    """The values of rules with the same metric and maximum age."""

    inputs: RuleInputs
    history: ValueHistory
    max_age_s: float


class RuleEvaluationCache:
    """The evaluations of one build, and the values and histories of the last one.

    Each build calls `begin`, then `evaluate` for each rule, then `finish`.
    """

    def __init__(self, max_ages: MaxAges, *, reject_missing: bool) -> None:
        self._max_ages = max_ages
        self._reject_missing = reject_missing
        self.evaluated: dict[Comparison, RuleEvaluation] = {}
        """The rules that were evaluated since `begin`; empty after `finish`."""
        self._values: dict[_ValuesKey, _RuleValues] = {}
        """Of the last build."""
        self._new_values: dict[_ValuesKey, _RuleValues] = {}
        """Of the build under way, until now."""
        self._histories: dict[Comparison, RuleHistory] = {}

    def begin(self) -> None:
        """Forget what an interrupted build has evaluated."""
        self.evaluated, self._new_values = {}, {}

    def evaluate(
        self, rule: Comparison, column: Column, cluster_state: ClusterState
    ) -> Generator[None, None, RuleEvaluation]:
        """Evaluate a rule over all nodes, given the column of its metric; equal rules are computed once."""
        if rule not in self.evaluated:
            key = _values_key(rule)
            if key not in self._new_values:
                self._new_values[key] = self._rule_values(rule, key, column, cluster_state)
                yield
            inputs, history, max_age_s = self._new_values[key]
            evaluation = rule_evaluation.evaluate_rule(
                rule, inputs, reject_missing=self._reject_missing, max_age_s=max_age_s
            )
            yield
            before = self._values.get(key)
            self._histories[rule] = rule_suspension.update_history(
                self._histories.get(rule),
                evaluation,
                before.history if before else None,
                cluster_state.nodes,
                max_age_s,
            )
            self.evaluated[rule] = rule_suspension.hold_last_verdicts(
                evaluation, self._histories[rule], history
            )
            yield
        return self.evaluated[rule]

    def finish(self) -> None:
        """Drop the evaluations, and the histories of rules that are gone."""
        self._histories = {
            rule: history for rule, history in self._histories.items() if rule in self.evaluated
        }
        self._values = self._new_values
        self.evaluated, self._new_values = {}, {}

    def history(self, rule: Comparison) -> RuleHistory | None:
        """The history of a rule, with the current build if it is evaluated already; None for a new rule."""
        return self._histories.get(rule)

    def is_suspended(self, rule: Comparison) -> bool:
        """Whether the rule lost the values of most nodes at once, so that its last verdicts remain in effect."""
        history = self._histories.get(rule)
        return history is not None and history.suspended

    def gaps(self, rule: Comparison) -> Mask:
        """The nodes in a gap between their values, of a rule that is evaluated (`rule_suspension.find_gaps`)."""
        values = self._new_values[_values_key(rule)]
        return rule_suspension.find_gaps(
            self.evaluated[rule], self._histories[rule], values.history, values.max_age_s
        )

    def max_age_s(self, rule: Comparison) -> float:
        """The maximum age in effect, of a rule that is evaluated."""
        return self._new_values[_values_key(rule)].max_age_s

    def _rule_values(
        self, rule: Comparison, key: _ValuesKey, column: Column, cluster_state: ClusterState
    ) -> _RuleValues:
        """The values of a rule. Arrays that equal those before, or for another maximum age, are shared."""
        metric, _ = key
        max_age_s = self._max_ages.of_rule(rule, column.sample_distance_s)
        inputs = rule_evaluation.rule_inputs(rule, column, cluster_state.now, max_age_s)
        before = self._values.get(key)
        others = [
            before,
            next((values for (name, _), values in self._new_values.items() if name == metric), None),
        ]
        for other in others:
            if other is not None:
                inputs = inputs.share_arrays(other.inputs)
        history = rule_suspension.update_value_history(
            before.history if before else None, inputs, cluster_state.nodes
        )
        return _RuleValues(inputs, history, max_age_s)


def _values_key(rule: Comparison) -> _ValuesKey:
    return rule.metric_request().key, rule.max_age_s
