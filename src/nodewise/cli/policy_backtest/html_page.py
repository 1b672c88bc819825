"""The result of a backtest as one page. It loads nothing, and has no script."""

from collections.abc import Iterator
from html import escape
from typing import Final

from nodewise.base import clock
from nodewise.base.errors import visible
from nodewise.cli.policy_backtest import plots, text_report
from nodewise.cli.policy_backtest.report import BacktestReport, PolicyReport
from nodewise.cli.tables import TableData

_MAX_NODES: Final = 50
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The browser loads nothing, whatever the texts in the page contain."""
_STYLE: Final = """
:root { color-scheme: light; --line: #e2e8f0; --soft: #64748b; --text: #1e293b; --red: #c2410c; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--text); background: #f8fafc;
  margin: 0; padding: 2rem 1rem; }
main { max-width: 72rem; margin: auto; }
h1 { font-size: 1.6rem; margin: 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0 0 .25rem; }
p { margin: .25rem 0; }
.soft { color: var(--soft); }
section { background: #fff; border: 1px solid var(--line); border-radius: .5rem; padding: 1rem 1.25rem;
  margin: .75rem 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem; }
.figures section { margin: 0; }
.figures b { display: block; font-size: 1.5rem; font-weight: 600; }
.bad b { color: var(--red); }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; }
.notes { border-left: 4px solid #f59e0b; }
.notes ul { margin: 0; padding-left: 1.2rem; }
svg { width: 100%; height: auto; display: block; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 2px solid var(--line); }
td, th { padding: .35rem .75rem .35rem 0; vertical-align: top; }
td { border-bottom: 1px solid var(--line); }
tr.own td { background: #f1f5f9; font-weight: 600; }
"""


def render(report: BacktestReport) -> str:
    """The page. All texts of policies, nodes and Prometheus are escaped."""
    names = ", ".join(policy.policy.key.path for policy in report.policies)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>Backtest of {_text(names)}</title><style>{_STYLE}</style></head><body><main>",
        f'<h1>Backtest of {_text(names)}</h1><p class="soft">{_text(text_report.range_line(report))}</p>',
    ]
    if report.notes:
        notes = "".join(f"<li>{_text(note)}</li>" for note in report.notes)
        parts.append(f'<section class="notes"><ul>{notes}</ul></section>')
    for policy in report.policies:
        parts += _policy_parts(policy, report)
    parts.append("</main></body></html>")
    return "\n".join(parts) + "\n"


def _policy_parts(policy: PolicyReport, report: BacktestReport) -> Iterator[str]:
    yield f"<h2>{_text(policy.policy.key.text())}</h2>"
    yield f'<div class="figures">{"".join(_figures(policy))}</div>'
    lines = "".join(f"<p>{_text(line)}</p>" for line in text_report.summary_lines(policy, report))
    yield f"<section>{lines}</section>"
    heat = plots.heat_map(report, policy)
    if heat:
        never = len(report.nodes) - len(policy.nodes)
        yield _section(
            "Rejected nodes over time",
            "A row for each node; the color is the share of the time for which it was rejected."
            + (f" {never:,} nodes were never rejected and are not shown." if never else ""),
            heat,
        )
        yield _section("Number of rejected nodes", "", plots.rejected_over_time(report, policy))
    if policy.curves:
        curves = "".join(f"<div>{plots.threshold_curve(curve)}</div>" for curve in policy.curves)
        yield _section(
            "Effect of the threshold",
            "The share of all values in this time that meet the comparison; red is the policy as it is.",
            f'<div class="curves">{curves}</div>',
        )
    for title, table in (
        ("Each rule alone", text_report.rules_table(policy)),
        ("Alternatives", text_report.alternatives_table(policy)),
        ("Nodes that were rejected for the longest time", text_report.nodes_table(policy, _MAX_NODES)),
    ):
        if table.rows:
            yield _section(title, "", _table(table))


def _figures(policy: PolicyReport) -> Iterator[str]:
    measures = policy.measures
    yield _figure(text_report.percent(measures.rejected_share), "of the time of all nodes rejected")
    yield _figure(f"{measures.most_rejected:,}", "nodes rejected at once, at most")
    outage_s = measures.longest_outage_s
    yield _figure(
        text_report.duration(outage_s), "longest time without an eligible node", is_bad=outage_s > 0
    )
    yield _figure(f"{measures.flaps_per_hour:.1f}", "flaps per hour, of all nodes")
    if measures.pods is not None:
        pods = measures.pods
        label = f"of {pods.selected:,} pods would have waited"
        if pods.waiting:
            label += f", up to {clock.format_duration(round(pods.longest_wait_s))}"
        yield _figure(f"{pods.waiting:,}", label, is_bad=pods.waiting > 0)


def _figure(value: str, label: str, *, is_bad: bool = False) -> str:
    kind = ' class="bad"' if is_bad else ""
    return f'<section{kind}><b>{_text(value)}</b><span class="soft">{_text(label)}</span></section>'


def _section(title: str, subtitle: str, content: str) -> str:
    """A section whose content is HTML already."""
    lead = f'<p class="soft">{_text(subtitle)}</p>' if subtitle else ""
    return f"<section><h3>{_text(title)}</h3>{lead}{content}</section>"


def _table(table: TableData) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in table.head)
    rows = "".join(
        f"<tr{' class=own' if row[0] == 'as it is' else ''}>"
        + "".join(f"<td>{_text(cell)}</td>" for cell in row)
        + "</tr>"
        for row in table.rows
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _text(text: str) -> str:
    return escape(visible(text))
