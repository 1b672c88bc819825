"""The output of a backtest: JSON, and text with the tables that the page has, too."""

from collections.abc import Iterator
from typing import Any, Final

import click

from nodewise.base import clock, quantity
from nodewise.base.errors import counted
from nodewise.cli import terminal_output
from nodewise.cli.terminal_output import TableData
from nodewise.policy_tools.backtest_report import BacktestReport, PolicyReport, RuleReport
from nodewise.policy_tools.backtest_summary import Interval, Measures
from nodewise.policy_tools.device_backtest import DevicePolicyReport, DeviceTaintInterval


def to_document(report: BacktestReport) -> dict[str, Any]:
    """The JSON output. Times are RFC 3339, durations are seconds."""
    return {
        "from": clock.format_rfc3339(report.start),
        "to": clock.format_rfc3339(report.end),
        "step_s": report.history.step_s,
        "nodes": len(report.nodes),
        "notes": list(report.notes),
        "policies": [_policy_document(policy) for policy in report.policies],
        "device_policies": [_device_policy_document(policy) for policy in report.device_policies],
    }


def _device_policy_document(report: DevicePolicyReport) -> dict[str, Any]:
    return {
        "policy": report.policy.key.path,
        "rules": list(report.rules),
        "devices": report.devices,
        "most_tainted": report.most_tainted,
        "limited_s": report.limited_s,
        "unmatched": report.unmatched,
        "taints": [
            {
                "device": taint.device,
                "effect": taint.effect,
                "reason": taint.reason,
                **_interval_document(taint.interval),
            }
            for taint in report.taints
        ],
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
    pods = measures.pods
    return {
        "rejected_share": measures.rejected_share,
        "most_rejected": {
            "nodes": measures.most_rejected,
            "at": clock.format_rfc3339(measures.most_rejected_at),
        },
        "verdict_changes": measures.changes,
        "flaps": measures.flaps,
        "flaps_per_hour": measures.flaps_per_hour,
        "without_eligible_node": list(map(_interval_document, measures.without_eligible_node)),
        "pods": pods
        and {
            "selected": pods.selected,
            "would_have_waited": pods.waiting,
            "wait_s": {"total": pods.total_wait_s, "longest": pods.longest_wait_s},
            "would_have_run_elsewhere": pods.elsewhere,
        },
    }


def _interval_document(interval: Interval) -> dict[str, Any]:
    return {"from": clock.format_rfc3339(interval.start), "to": clock.format_rfc3339(interval.end)}


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
    terminal_output.print_line(range_line(report))
    for note in report.notes:
        terminal_output.print_line(f"Note: {note}")
    for policy in report.policies:
        click.echo()
        terminal_output.print_line(f"{policy.policy.key.text()}")
        for line in summary_lines(policy, report):
            terminal_output.print_line(f"  {line}")
        for table in (rules_table(policy), nodes_table(policy, _MAX_NODES), alternatives_table(policy)):
            if table.rows:
                click.echo()
                terminal_output.print_table(
                    *terminal_output.drop_empty_columns(table.head, table.head, table.rows)
                )
    for device_policy in report.device_policies:
        click.echo()
        terminal_output.print_line(f"{device_policy.policy.key.text()}: deviceTaints")
        for line in device_lines(device_policy):
            terminal_output.print_line(f"  {line}")
        table = devices_table(device_policy, _MAX_NODES)
        if table.rows:
            click.echo()
            terminal_output.print_table(table.head, table.rows)


def device_lines(policy: DevicePolicyReport) -> Iterator[str]:
    """Sentences with the figures of device rules."""
    yield from (f"rule: {rule}" for rule in policy.rules)
    tainted = len({taint.device for taint in policy.taints})
    yield (
        f"taints: {counted(len(policy.taints), 'DeviceTaintRule')} would have been written, for"
        f" {tainted:,} of {counted(policy.devices, 'device')}; at most {policy.most_tainted:,} at once"
    )
    if policy.limited_s:
        yield f"limit: for {duration(policy.limited_s)}, maxTaintedShare kept devices that meet a rule from a taint"
    if policy.unmatched:
        yield f"not matched: {policy.unmatched}"


def devices_table(policy: DevicePolicyReport, most: int) -> TableData:
    """The devices that were tainted for the longest time."""
    taints: dict[str, list[DeviceTaintInterval]] = {}
    for taint in policy.taints:
        taints.setdefault(taint.device, []).append(taint)
    durations = {device: sum(each.interval.duration_s for each in own) for device, own in taints.items()}
    rows = [
        [
            device,
            duration(durations[device]),
            str(len(taints[device])),
            interval_text(taints[device][-1].interval),
            f"{taints[device][-1].effect}: {taints[device][-1].reason}",
        ]
        for device in sorted(taints, key=lambda device: (-durations[device], device))[:most]
    ]
    return TableData(["device", "tainted", "times", "last", "why"], rows)


def range_line(report: BacktestReport) -> str:
    """`2026-11-16T12:00:00Z to …: 10,080 evaluations, one per 1m, of 1,000 nodes`."""
    return (
        f"{clock.format_rfc3339(report.start)} to {clock.format_rfc3339(report.end)}:"
        f" {counted(len(report.history.times), 'evaluation')},"
        f" one per {clock.format_duration(report.history.step_s)},"
        f" of {counted(len(report.nodes), 'node')}"
    )


def summary_lines(policy: PolicyReport, report: BacktestReport) -> Iterator[str]:
    """Sentences with the figures of the whole policy."""
    measures = policy.measures
    verb = "avoided" if policy.policy.only_prefers else "rejected"
    yield (
        f"{verb}: {percent(measures.rejected_share)} of the time of all nodes; at most"
        f" {measures.most_rejected:,} of {len(report.nodes):,} nodes at once"
        + (f", at {clock.format_rfc3339(measures.most_rejected_at)}" if measures.most_rejected else "")
    )
    most = max(policy.nodes, key=lambda node: node.flaps, default=None)
    flapping = f"; most on {most.node} ({most.flaps})" if most and most.flaps else ""
    yield (
        f"flaps: {measures.flaps:,} rejections within an hour after the node passed,"
        f" {measures.flaps_per_hour:.1f} per hour{flapping}"
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
