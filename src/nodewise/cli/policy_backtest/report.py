"""The result of a backtest as values, and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click
import numpy as np

from nodewise.agent import NodeIndex
from nodewise.base import clock, quantity
from nodewise.cli import tables, terminal_output
from nodewise.cli.tables import TableData
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


_MAX_NODES: Final = 10
_MAX_OUTAGES: Final = 3
MEASURE_HEAD: Final = (
    "rejected",
    "flaps/h",
    "most nodes at once",
    "longest without a node",
    "pods waiting",
    "longest wait",
)


def print_report(report: BacktestReport) -> None:
    """Print the report."""
    terminal_output.print_line(range_line(report))
    for note in report.notes:
        terminal_output.print_line(f"Note: {note}")
    for policy in report.policies:
        _print_policy(policy, report)


def range_line(report: BacktestReport) -> str:
    """`2026-11-16T12:00:00Z to …: 10,080 evaluations, one per 1m, of 1,000 nodes`."""
    return (
        f"{clock.format_rfc3339(report.start)} to {clock.format_rfc3339(report.end)}:"
        f" {len(report.history.times):,} evaluations, one per {clock.format_duration(report.history.step_s)},"
        f" of {len(report.nodes):,} nodes"
    )


def _print_policy(policy: PolicyReport, report: BacktestReport) -> None:
    click.echo()
    terminal_output.print_line(f"{policy.policy.key.text()}")
    for line in summary_lines(policy, report):
        terminal_output.print_line(f"  {line}")
    for table in (rules_table(policy), nodes_table(policy, _MAX_NODES), alternatives_table(policy)):
        if table.rows:
            click.echo()
            tables.print_table(*tables.drop_empty_columns(table.head, table.head, table.rows))


def summary_lines(policy: PolicyReport, report: BacktestReport) -> Iterator[str]:
    """Sentences with the figures of the whole policy."""
    measures = policy.measures
    verb = "avoided" if policy.policy.only_prefers else "rejected"
    yield (
        f"{verb}: {percent(measures.rejected_share)} of the time of all nodes; at most"
        f" {measures.most_rejected:,} of {len(report.nodes):,} nodes at once"
        + (f", at {clock.format_rfc3339(measures.most_rejected_at)}" if measures.most_rejected else "")
    )
    yield (
        f"flaps: {measures.flaps:,} rejections within an hour after the node passed,"
        f" {measures.flaps_per_hour:.1f} per hour{_flapping_nodes(policy)}"
    )
    outages = measures.without_eligible_node
    if not outages:
        yield "eligible nodes: at least one at any time"
    else:
        total = clock.format_duration(sum(outage.duration_s for outage in outages))
        listed = ", ".join(map(interval_text, outages[:_MAX_OUTAGES]))
        times = "1 time" if len(outages) == 1 else f"{len(outages):,} times"
        yield f"no eligible node: {times}, {total} in total; the longest: {listed}"
    if measures.pods is not None:
        pods = measures.pods
        yield (
            f"pods: of {pods.selected:,} selected pods that started, {pods.waiting:,} would have waited"
            + (
                f", the longest {duration(pods.longest_wait_s)}, {duration(pods.total_wait_s)} in total"
                if pods.waiting
                else ""
            )
            + f"; {pods.elsewhere:,} would have run on another node"
        )
    if policy.suspended_s:
        yield (
            f"suspended rules: for {duration(policy.suspended_s)}, most nodes had lost their values and the last"
            " verdicts stayed"
        )
    for reason, seconds in policy.unevaluable.items():
        yield f"all nodes rejected for {duration(seconds)}: {reason}"


def _flapping_nodes(policy: PolicyReport) -> str:
    most = max(policy.nodes, key=lambda node: node.flaps, default=None)
    return f"; most on {most.node} ({most.flaps})" if most is not None and most.flaps else ""


def rules_table(policy: PolicyReport) -> TableData:
    """What each rule alone would have done."""
    rows = [[rule.text, *measure_cells(rule.measures)] for rule in policy.rules]
    return TableData(["rule alone", *MEASURE_HEAD], rows)


def nodes_table(policy: PolicyReport, most: int) -> TableData:
    """The nodes that were rejected for the longest time, with the time for each rule."""
    by_rule = [{node.node: node.rejected_s for node in rule.nodes} for rule in policy.rules]
    head = ["node", "rejected", "times", "last", *(rule.text for rule in policy.rules)]
    rows = [
        [
            node.node,
            duration(node.rejected_s),
            str(node.times),
            interval_text(node.last),
            *(duration(rule.get(node.node, 0.0)) for rule in by_rule),
        ]
        for node in policy.nodes[:most]
    ]
    return TableData(
        head if len(by_rule) > 1 else head[:4], rows if len(by_rule) > 1 else [row[:4] for row in rows]
    )


def alternatives_table(policy: PolicyReport) -> TableData:
    """The policy as it is, and with one rule changed."""
    rows = [["as it is", "", *measure_cells(policy.measures)]]
    rows += [
        [policy.rules[alternative.rule].text, alternative.change, *measure_cells(alternative.measures)]
        for alternative in sorted(policy.alternatives, key=lambda alternative: alternative.rule)
    ]
    return TableData(["rule", "instead", *MEASURE_HEAD], rows if policy.alternatives else [])


def measure_cells(measures: Measures) -> list[str]:
    """One cell for each of `MEASURE_HEAD`."""
    pods = measures.pods
    return [
        percent(measures.rejected_share),
        f"{measures.flaps_per_hour:.1f}",
        f"{measures.most_rejected:,}",
        duration(measures.longest_outage_s),
        "-" if pods is None else f"{pods.waiting:,}",
        "-" if pods is None else duration(pods.longest_wait_s),
    ]


def percent(share: float) -> str:
    """`1.3 %`; a share that is small but not 0 has two significant digits."""
    if share == 0:
        return "0 %"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.1f} %"  # noqa: PLR2004 - one digit more


def duration(seconds: float) -> str:
    """A duration in whole seconds; 0 for none."""
    return clock.format_duration(round(seconds)) if seconds else "0"


def interval_text(interval: Interval) -> str:
    """`2h from 2026-11-20T12:00:00Z`."""
    return f"{duration(interval.duration_s)} from {clock.format_rfc3339(interval.start)}"
