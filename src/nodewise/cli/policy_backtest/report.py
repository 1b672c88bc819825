"""The result of a backtest as values, and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from nodewise.agent import NodeIndex
from nodewise.base import clock, quantity
from nodewise.metrics.prometheus.range_matrix import NodeMatrix, TimeGrid
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policy_tools import backtest_summary, policy_backtest
from nodewise.policy_tools.backtest_summary import (
    History,
    Interval,
    Mask,
    Measures,
    NodeRejections,
    PodWaits,
    StartedPod,
)
from nodewise.policy_tools.policy_backtest import Backtest, PolicyRecord, ThresholdCurve

_MAX_INTERVALS: Final = 10_000
"""Intervals of one rule in JSON."""


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


def to_document(report: BacktestReport) -> dict[str, Any]:
    """The JSON output. Times are RFC 3339, durations are seconds."""
    return {
        "from": clock.format_rfc3339(report.start),
        "to": clock.format_rfc3339(report.end),
        "step_s": report.history.step_s,
        "nodes": len(report.nodes),
        "notes": list(report.notes),
        "policies": [_policy_document(policy) for policy in report.policies],
    }


def _policy_document(report: PolicyReport) -> dict[str, Any]:
    return {
        "policy": report.policy.key.path,
        "kind": report.policy.key.kind,
        "enforcement": report.policy.enforcement,
        **_measures_document(report.measures),
        "suspended_s": report.suspended_s,
        "unevaluable_s": dict(report.unevaluable),
        "rules": [_rule_document(rule) for rule in report.rules],
        "alternatives": [
            {
                "rule": alternative.rule,
                "change": alternative.change,
                **_measures_document(alternative.measures),
            }
            for alternative in report.alternatives
        ],
        "curves": [
            {
                "metric": curve.comparison.query or curve.comparison.metric,
                "operator": curve.comparison.operator,
                "target": quantity.nano_to_text(curve.comparison.target),
                "thresholds": list(curve.thresholds),
                "met_shares": list(curve.shares),
            }
            for curve in report.curves
        ],
    }


def _rule_document(rule: RuleReport) -> dict[str, Any]:
    return {
        "rule": rule.text,
        **_measures_document(rule.measures),
        "nodes": [
            {"node": node.node, "rejected_s": node.rejected_s, "flaps": node.flaps} for node in rule.nodes
        ],
        "rejections": [{"node": node, **_interval_document(interval)} for node, interval in rule.intervals],
        "rejections_total": sum(node.times for node in rule.nodes),
    }


def _measures_document(measures: Measures) -> dict[str, Any]:
    return {
        "rejected_share": measures.rejected_share,
        "most_rejected": {
            "nodes": measures.most_rejected,
            "at": clock.format_rfc3339(measures.most_rejected_at),
        },
        "verdict_changes": measures.changes,
        "flaps": measures.flaps,
        "flaps_per_hour": measures.flaps_per_hour,
        "without_eligible_node": [
            _interval_document(interval) for interval in measures.without_eligible_node
        ],
        "pods": None if measures.pods is None else _pods_document(measures.pods),
    }


def _interval_document(interval: Interval) -> dict[str, Any]:
    return {"from": clock.format_rfc3339(interval.start), "to": clock.format_rfc3339(interval.end)}


def _pods_document(pods: PodWaits) -> dict[str, Any]:
    return {
        "selected": pods.selected,
        "would_have_waited": pods.waiting,
        "wait_s": {"total": pods.total_wait_s, "longest": pods.longest_wait_s},
        "would_have_run_elsewhere": pods.elsewhere,
    }
