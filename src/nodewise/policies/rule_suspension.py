"""Suspends a rule that loses the values of most nodes at once: its last verdicts hold until half of them are back.

If one exporter fails, its node passes. If Prometheus fails, not every node may pass. Gaps between the values of single
nodes hold the states of rules with `for`, `release` or `keepFor` (`hysteresis`). If Prometheus responds without a part
of the series, the nodes that are absent keep their last verdicts.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.metrics.series import ValueState
from nodewise.policies.rule_evaluation import Mask, RuleEvaluation, RuleInputs


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
    before = _align_times_to_index(nodes, history)
    earlier = np.where(inputs.known, -np.inf, before)
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
    since = -np.inf if history.suspended else before.evaluated_at - max_age_s
    fresh_at = _align_times_to_index(nodes, before, history.begun_at)
    had_value = (fresh_at >= since) & (fresh_at > -np.inf)
    suspended = int((had_value & ~inputs.known).sum()) * 2 > int(had_value.sum())
    known_before = _align_mask_to_index(nodes, history)
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


def _align_times_to_index(
    nodes: NodeIndex, history: ValueHistory | None, since: float = -np.inf
) -> NDArray[np.float64]:
    """The times by the node numbers of another index: new nodes have none, deleted nodes are dropped."""
    if history is not None and history.nodes is nodes:
        return history.fresh_at(since)
    times = np.full(len(nodes) + 1, -np.inf)
    if history is not None:
        times[:-1] = history.fresh_at(since)[history.nodes.numbers(nodes.known)]
    return times


def _align_mask_to_index(nodes: NodeIndex, history: RuleHistory) -> Mask:
    """The last results by the node numbers of another index, likewise."""
    if history.nodes is nodes:
        return history.broken
    broken = np.zeros(len(nodes) + 1, bool)
    broken[:-1] = history.broken[history.nodes.numbers(nodes.known)]
    return broken
