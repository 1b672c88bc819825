"""Suspends a rule that loses the values of most nodes at once: its last verdicts hold until half of them are back.

If one exporter fails, its node passes. If Prometheus fails, not every node may pass.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.agents.telemetry.rule_evaluation import RuleEvaluation


class RuleHistory(NamedTuple):
    """The last known result of a rule, by node number of `nodes`."""

    nodes: NodeIndex
    evaluated_at: float
    """When the rule was last evaluated, in seconds since 1970."""
    fresh_at: NDArray[np.float64]
    """When the node last had a fresh value; -inf for never."""
    broken: NDArray[np.bool_]
    """Whether that value broke the rule."""
    suspended: bool = False

    @property
    def any_fresh_value(self) -> bool:
        """Whether any node had a fresh value at the last evaluation."""
        return bool((self.fresh_at == self.evaluated_at).any())


def update_history(
    history: RuleHistory | None, evaluation: RuleEvaluation, nodes: NodeIndex, now: float, max_age_s: float
) -> RuleHistory:
    """The history after one more evaluation.

    A rule is suspended if more than half of the nodes that had a fresh value within `max_age_s` before the last
    evaluation have none now. While it is suspended, every node that ever had a value counts.
    """
    before = _align_history_to_index(nodes, history)
    fresh = evaluation.known
    since = -np.inf if before.suspended else before.evaluated_at - max_age_s
    had_value = (before.fresh_at >= since) & (before.fresh_at > -np.inf)
    suspended = int((had_value & ~fresh).sum()) * 2 > int(had_value.sum())
    fresh_at = np.where(fresh, now, before.fresh_at)
    return RuleHistory(nodes, now, fresh_at, np.where(fresh, evaluation.broken, before.broken), suspended)


def hold_last_verdicts(evaluation: RuleEvaluation, history: RuleHistory) -> RuleEvaluation:
    """The evaluation, with the last known results in place of missing values if the rule is suspended."""
    if not history.suspended:
        return evaluation
    is_held = ~evaluation.known & (history.fresh_at > -np.inf)
    return evaluation._replace(
        broken=np.where(is_held, history.broken, evaluation.broken), lacking=evaluation.lacking & ~is_held
    )


def _align_history_to_index(nodes: NodeIndex, history: RuleHistory | None) -> RuleHistory:
    """The history by the node numbers of another index: new nodes have none, deleted nodes are dropped."""
    size = len(nodes) + 1
    if history is None:
        return RuleHistory(nodes, -np.inf, np.full(size, -np.inf), np.zeros(size, bool))
    if history.nodes is nodes:
        return history
    numbers = history.nodes.numbers(nodes.known)
    fresh_at, broken = np.full(size, -np.inf), np.zeros(size, bool)
    fresh_at[:-1], broken[:-1] = history.fresh_at[numbers], history.broken[numbers]
    return history._replace(nodes=nodes, fresh_at=fresh_at, broken=broken)
