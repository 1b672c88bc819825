"""Evaluates rules and preferences over all nodes. This runs when data change; a request only looks the result up.

Source of the semantics of several rules and parts: `anyOf` and `allOf` of Telemetry Aware Scheduling 0.7,
`pkg/strategies/dontschedule`.

Each different rule is evaluated once per build of the state. A rule that loses the values of most nodes at once is
suspended: its last verdicts hold until half of the values are back. If one exporter fails, its node passes. If
Prometheus fails, not every node may pass. Gaps between the values of single nodes hold the states of rules with `for`,
`release` or `keepFor` (`hysteresis`). If Prometheus responds without a part of the series, the nodes that are absent
keep their last verdicts.

Preferences are scored by rank: dense ranks once per refresh, competition ranks among the candidates of a request. Equal
values get equal scores; nodes without a fresh value get 0. With n measured candidates and rank r from 0 (1, 1, 3
counted from 0: 0, 0, 2) the score is `10 - r` up to eleven candidates and `round(10 (n-1-r) / (n-1))` beyond, so the
whole scale is used and no score leaves 0..10. Several preferences are combined to one by the weighted mean of their
ranks among the candidates. Nodes that a policy with `enforcement: Preferred` rejects come after all others.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE, ClusterState, Evidence, Joined, Names, NodeIndex, Reason
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.series import Column, States, Values, ValueState
from nodewise.policies import policy_rejection_reasons, rule_operators
from nodewise.policies.options import MaxAges
from nodewise.policies.placement_policy import AvoidRule, Comparison, PolicyKey

_T = TypeVar("_T", np.bool_, np.float64)
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
            states = inputs.states.take(numbers)
            measured = (
                states if inputs.states is column.initial_states else column.initial_states.take(numbers)
            )
            self._gathered[key] = (
                column.values.take(numbers),
                states,
                column.ages_s(inputs.evaluated_at, numbers, measured),
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


def compare(operator: str, values: Values, target: int) -> NDArray[np.bool_]:
    """Where `value operator target` is true. An operator that does not exist is true nowhere."""
    entry = rule_operators.OPERATORS.get(operator)
    if entry is None:
        return np.zeros(len(values), bool)
    return np.asarray(entry.compare(values, target), bool)


def compare_all(
    operator: str, lowest: NDArray[np.int64], highest: NDArray[np.int64], target: int
) -> NDArray[np.bool_]:
    """Where all values of a range are certain to meet `value operator target`."""
    if operator == "notEquals":
        return compare("above", lowest, target) | compare("below", highest, target)
    return compare(operator, lowest, target) & compare(operator, highest, target)


def evaluate_rule(
    rule: Comparison, inputs: RuleInputs, *, reject_missing: bool, max_age_s: float = np.inf
) -> RuleEvaluation:
    """Evaluate a rule over all nodes."""
    fresh = inputs.states == ValueState.FRESH
    broken = fresh & compare(rule.operator, inputs.column.values, rule.target)
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
    is_met = compare_all(rule.operator, differing.lowest, differing.highest, rule.target)
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
        reason_list.append(policy_rejection_reasons.RuleBroken(policy, rule.parts, rule.times))
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


class ValueHistory(NamedTuple):
    """When nodes last had a value, by node number of `nodes`. Rules with the same inputs share it."""

    nodes: NodeIndex
    evaluated_at: float
    """When the inputs were last evaluated, in seconds since 1970."""
    known: Mask
    """Which nodes had a value then."""
    earlier: NDArray[np.float64]
    """When each of the other nodes last had one; -inf for never, in the memory of one number if no node ever had."""

    def fresh_at(self, since: float) -> NDArray[np.float64]:
        """When each node last had a value; -inf for never, or not since that time."""
        times: NDArray[np.float64] = np.where(self.known, self.evaluated_at, self.earlier)
        return np.where(times >= since, times, -np.inf)


class RuleHistory(NamedTuple):
    """The last known result of a rule."""

    nodes: NodeIndex
    begun_at: float
    """When the rule was first evaluated, in seconds since 1970."""
    broken: Mask
    """Whether the last fresh value of each node broke the rule."""
    any_fresh_value: bool
    """Whether any node had a fresh value at the last evaluation."""
    suspended: bool = False


def update_value_history(history: ValueHistory | None, inputs: RuleInputs, nodes: NodeIndex) -> ValueHistory:
    """The history of values after one more evaluation."""
    if history is not None and history.nodes is nodes and history.known is inputs.known:
        return history._replace(evaluated_at=inputs.evaluated_at)
    earlier = np.full(len(nodes) + 1, -np.inf)
    if history is not None:
        earlier = _align_to_index(nodes, history.nodes, history.fresh_at(-np.inf), -np.inf)
    earlier = np.where(inputs.known, -np.inf, earlier)
    if np.isneginf(earlier).all():
        earlier = np.broadcast_to(-np.inf, len(earlier))
    return ValueHistory(nodes, inputs.evaluated_at, inputs.known, earlier)


def update_history(
    history: RuleHistory | None,
    evaluation: RuleEvaluation,
    before: ValueHistory | None,
    nodes: NodeIndex,
    max_age_s: float,
) -> RuleHistory:
    """The history of a rule after one more evaluation. `before` is the history of its values before that.

    A rule is suspended if more than half of the nodes that had a fresh value within `max_age_s` before the last
    evaluation have none now. While it is suspended, every node that ever had a value counts. A node whose series differ
    has none, whatever the rule, so that all rules with the same metric and maximum age are suspended at once.
    """
    inputs = evaluation.inputs
    any_fresh_value = bool(inputs.known.any())
    if history is None or before is None:
        return RuleHistory(nodes, inputs.evaluated_at, evaluation.broken, any_fresh_value)
    suspended = False
    # otherwise, the nodes that ever had a value have one now
    if before.nodes is not nodes or before.known is not inputs.known or before.earlier.strides != (0,):
        since = -np.inf if history.suspended else before.evaluated_at - max_age_s
        fresh_at = _align_to_index(nodes, before.nodes, before.fresh_at(history.begun_at), -np.inf)
        had_value = (fresh_at >= since) & (fresh_at > -np.inf)
        suspended = int((had_value & ~inputs.known).sum()) * 2 > int(had_value.sum())
    known_before = _align_to_index(nodes, history.nodes, history.broken, default=False)
    broken = np.where(evaluation.known, evaluation.broken, known_before)
    # unchanged arrays stay, so that a rebuild takes no memory for them
    broken = next(
        (same for same in (known_before, evaluation.broken) if np.array_equal(same, broken)), broken
    )
    return RuleHistory(nodes, history.begun_at, broken, any_fresh_value, suspended)


def hold_last_verdicts(
    evaluation: RuleEvaluation, history: RuleHistory, values: ValueHistory
) -> RuleEvaluation:
    """The evaluation, with the last known results in place of missing values if the rule is suspended, or if the source
    responded with a part of the series.
    """
    if not history.suspended and not evaluation.inputs.column.is_incomplete:
        if np.array_equal(evaluation.broken, history.broken):
            return evaluation._replace(broken=history.broken)
        return evaluation
    # a node that was rejected because all of its differing values met the rule never had a value
    is_held = ~evaluation.known & (history.broken | (values.fresh_at(history.begun_at) > -np.inf))
    return evaluation._replace(
        broken=np.where(is_held, history.broken, evaluation.broken), lacking=evaluation.lacking & ~is_held
    )


def find_gaps(
    evaluation: RuleEvaluation, history: RuleHistory, values: ValueHistory, max_age_s: float
) -> Mask:
    """The nodes without a value now that had their last one at most `max_age_s` ago: a missed scrape or refresh.

    An invalid value, or values that differ, are no gap.
    A rule that was first evaluated at most `max_age_s` ago may continue with the states in a status, so each of its
    nodes counts as having had a value then.
    """
    last_at = np.maximum(values.fresh_at(-np.inf), history.begun_at)
    is_absent = ~evaluation.known & (evaluation.inputs.states != ValueState.INVALID)
    in_gap: Mask = is_absent & (values.evaluated_at - last_at <= max_age_s)
    return in_gap


def _align_to_index(nodes: NodeIndex, before: NodeIndex, values: NDArray[_T], default: float) -> NDArray[_T]:
    """The values by the node numbers of another index: new nodes have the default, deleted nodes are dropped."""
    if before is nodes:
        return values
    aligned = np.full(len(nodes) + 1, default, values.dtype)
    aligned[:-1] = values[before.numbers(nodes.known)]
    return aligned


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
            evaluation = evaluate_rule(rule, inputs, reject_missing=self._reject_missing, max_age_s=max_age_s)
            yield
            before = self._values.get(key)
            self._histories[rule] = update_history(
                self._histories.get(rule),
                evaluation,
                before.history if before else None,
                cluster_state.nodes,
                max_age_s,
            )
            self.evaluated[rule] = hold_last_verdicts(evaluation, self._histories[rule], history)
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
        """The nodes in a gap between their values, of a rule that is evaluated (`find_gaps`)."""
        values = self._new_values[_values_key(rule)]
        return find_gaps(self.evaluated[rule], self._histories[rule], values.history, values.max_age_s)

    def max_age_s(self, rule: Comparison) -> float:
        """The maximum age in effect, of a rule that is evaluated."""
        return self._new_values[_values_key(rule)].max_age_s

    def _rule_values(
        self, rule: Comparison, key: _ValuesKey, column: Column, cluster_state: ClusterState
    ) -> _RuleValues:
        """The values of a rule. Arrays that equal those before, or for another maximum age, are shared."""
        metric, _ = key
        max_age_s = self._max_ages.of_rule(rule, column.sample_distance_s)
        inputs = rule_inputs(rule, column, cluster_state.now, max_age_s)
        before = self._values.get(key)
        others = [
            before,
            next((values for (name, _), values in self._new_values.items() if name == metric), None),
        ]
        for other in others:
            if other is not None:
                inputs = inputs.share_arrays(other.inputs)
        history = update_value_history(before.history if before else None, inputs, cluster_state.nodes)
        return _RuleValues(inputs, history, max_age_s)


def _values_key(rule: Comparison) -> _ValuesKey:
    return rule.metric_request().key, rule.max_age_s


_STEPWISE: Final = MAX_SCORE + 1
"""With up to this many candidates, each rank costs one point."""

_DECIMALS: Final = 9
"""Decimal places of a mean of ranks that count. 100 preferences of 5,000 candidates have rounding errors of 1e-13."""

Ranks = NDArray[np.int64]


def rank_nodes_by_value(operator: str, column: Column, states: States) -> Ranks:
    """The rank of each node among all nodes, by node number: 0 is best, equal values share one, -1 unmeasured."""
    ranks = np.full(len(states), -1, np.int64)
    fresh = np.flatnonzero(states == ValueState.FRESH)
    if not len(fresh):
        return ranks
    direction = rule_operators.sort_direction(operator)
    _, place = np.unique(column.values[fresh], return_inverse=True)
    ranks[fresh] = 0 if direction == 0 else place if direction > 0 else place.max() - place
    return ranks


def combine_ranks(ranks: Sequence[Ranks], weights: Sequence[int]) -> Ranks:
    """The dense ranks of the candidates by the weighted mean of several preferences, given their ranks in each.

    In each preference the best candidate counts 0 and the last one 1, by its place among the measured ones. A candidate
    without a value counts 1, so that missing values never help a node; without any value it has no rank.
    """
    if len(ranks) == 1:
        return ranks[0]
    shares = []
    for each in ranks:
        places, count = count_better(each)
        shares.append(np.where(each >= 0, places / max(count - 1, 1), 1.0))
    mean = np.average(shares, axis=0, weights=weights)
    combined = np.full(len(mean), -1, np.int64)
    measured = np.flatnonzero(np.logical_or.reduce([each >= 0 for each in ranks]))
    # equal means can differ by rounding errors, and must not be different ranks
    _, combined[measured] = np.unique(mean[measured].round(_DECIMALS), return_inverse=True)
    return combined


def scores_of_avoided(ranks: Ranks | None, rejections: Sequence[NDArray[np.bool_]]) -> NDArray[np.int64]:
    """Scores 0..10 of the candidates if several policies only prefer the nodes that they do not reject.

    The candidates that the fewest of these policies reject are scored by their ranks in the preferences, at least 1;
    without ranks, all of them get 10. The others get 0. So policies that reject every candidate have no effect.
    """
    counts = np.sum(rejections, axis=0, dtype=np.int64)
    is_best = counts == counts.min(initial=len(rejections))
    best = np.where(is_best, 0 if ranks is None else ranks, -1)
    if not (best >= 0).any():
        best = np.where(is_best, 0, -1)
    return np.where(is_best, np.maximum(scores_from_ranks(best), 1), 0)


def count_better(ranks: Ranks) -> tuple[NDArray[np.int64], int]:
    """How many measured candidates have a better value than each candidate, given their dense ranks: all but one for a
    candidate without a value. And the number of measured candidates.
    """
    positions = ranks + 1  # 0 for a candidate without a value
    shares = np.bincount(positions, minlength=1)
    count = len(ranks) - int(shares[0])
    better = shares.cumsum()
    better -= shares
    better -= shares[0]
    better[0] = max(count - 1, 0)
    return better.take(positions), count


def scores_from_ranks(ranks: Ranks) -> NDArray[np.int64]:
    """Scores 0..10 of the candidates, given their dense ranks in the order of the request."""
    places, count = count_better(ranks)
    if count <= _STEPWISE:
        return np.where(ranks >= 0, MAX_SCORE - places, 0)
    scores = (count - 1 - places) * MAX_SCORE / (count - 1)
    return np.rint(scores, out=scores).astype(np.int64)
