"""The result of a backtest as text, and the texts that the page has as well."""

from collections.abc import Iterator, Sequence
from typing import Final

import click

from nodewise.base import clock
from nodewise.cli import tables, terminal_output
from nodewise.cli.policy_backtest.report import AlternativeReport, BacktestReport, PolicyReport
from nodewise.cli.tables import TableData
from nodewise.policy_tools.backtest_summary import Interval, Measures

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
        for alternative in _by_rule(policy.alternatives)
    ]
    return TableData(["rule", "instead", *MEASURE_HEAD], rows if policy.alternatives else [])


def _by_rule(alternatives: Sequence[AlternativeReport]) -> list[AlternativeReport]:
    return sorted(alternatives, key=lambda alternative: alternative.rule)


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
