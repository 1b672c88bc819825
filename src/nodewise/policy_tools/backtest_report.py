"""The result of a backtest as values: what each policy and each of its rules would have done."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from nodewise.agent import NodeIndex
from nodewise.metrics.prometheus.range_matrix import NodeMatrix, TimeGrid
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policy_tools import backtest_summary, policy_backtest
from nodewise.policy_tools.backtest_summary import (
    History,
    Interval,
    Mask,
    Measures,
    NodeRejections,
    StartedPod,
)
from nodewise.policy_tools.device_backtest import DevicePolicyReport
from nodewise.policy_tools.policy_backtest import Backtest, PolicyRecord, ThresholdCurve

_MAX_INTERVALS: Final = 10_000  # intervals of one rule in JSON


class RuleReport(NamedTuple):
    """What one rule alone would have done."""

    text: str
    measures: Measures
    nodes: Sequence[NodeRejections]
    """The longest rejected first."""
    intervals: Sequence[tuple[str, Interval]]
    """When nodes were rejected, in the order of `nodes`, up to `_MAX_INTERVALS`."""


class AlternativeReport(NamedTuple):
    """The effect of the whole policy with one rule changed."""

    rule: int
    change: str
    measures: Measures


class PolicyReport(NamedTuple):
    """What one policy would have done."""

    policy: Policy
    measures: Measures
    rejected: Mask
    """By step and node."""
    nodes: Sequence[NodeRejections]
    rules: Sequence[RuleReport]
    alternatives: Sequence[AlternativeReport]
    """In the order of the rules, the mildest first."""
    curves: Sequence[ThresholdCurve]
    suspended_s: float
    """For how long a rule was suspended, because most nodes had lost their values."""
    unevaluable: Mapping[str, float]
    """Why the policy rejected all nodes without comparing values, and for how many seconds."""


class BacktestReport(NamedTuple):
    """The whole result."""

    history: History
    nodes: Sequence[str]
    policies: Sequence[PolicyReport]
    notes: Sequence[str]
    """What the history lacks, and how limits were handled."""
    device_policies: Sequence[DevicePolicyReport] = ()

    @property
    def start(self) -> float:
        return float(self.history.times[0])

    @property
    def end(self) -> float:
        """The end of the last step."""
        return float(self.history.times[-1] + self.history.step_s)


def build(
    evaluation: Backtest,
    nodes: NodeIndex,
    grid: TimeGrid,
    pods: Mapping[PolicyKey, Sequence[StartedPod]] | None,
    samples: Mapping[str, NodeMatrix],
    notes: Sequence[str],
) -> BacktestReport:
    """The report of an evaluation that has at least one step. `pods` lacks policies whose pods are not known."""
    times = evaluation.times
    history = History(times, grid.step_s, times[:, np.newaxis] >= evaluation.first_value_at)
    policies = [
        _policy_report(record, history, nodes.known, None if pods is None else pods.get(key), samples)
        for key, record in evaluation.records.items()
    ]
    return BacktestReport(history, nodes.known, policies, notes)


def _policy_report(
    record: PolicyRecord,
    history: History,
    names: Sequence[str],
    pods: Sequence[StartedPod] | None,
    samples: Mapping[str, NodeMatrix],
) -> PolicyReport:
    policy = record.policy
    if policy.only_prefers:
        pods = None  # no pod waits for a policy that rejects no node
    position = {name: number for number, name in enumerate(names)}
    rejected = record.rejected.mask()
    rules: list[RuleReport] = []
    alternatives: list[AlternativeReport] = []
    for variant, packed in zip(record.variants, record.by_variant, strict=True):
        mask = packed.mask()
        if variant.change:
            measures = backtest_summary.measure(mask, history, pods)
            alternatives.append(AlternativeReport(variant.rule, variant.change, measures))
        else:
            text = policy_backtest.rule_text(policy.avoid[variant.rule])
            rejections = backtest_summary.node_rejections(mask, history, names)
            rules.append(
                RuleReport(
                    text,
                    backtest_summary.measure(mask, history, pods),
                    rejections,
                    [
                        (names[node], interval)
                        for node, interval in backtest_summary.rejection_intervals(
                            mask, history, [position[entry.node] for entry in rejections], _MAX_INTERVALS
                        )
                    ],
                )
            )
    return PolicyReport(
        policy,
        backtest_summary.measure(rejected, history, pods),
        rejected,
        backtest_summary.node_rejections(rejected, history, names),
        rules,
        alternatives,
        policy_backtest.threshold_curves(policy, samples),
        record.suspended_steps * history.step_s,
        {reason: steps * history.step_s for reason, steps in record.unevaluable.items()},
    )
