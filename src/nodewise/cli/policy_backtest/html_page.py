"""The result of a backtest as one page. It loads nothing, and has no script."""

import importlib.util
import io
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from nodewise.base import clock, quantity
from nodewise.base.errors import BadSettings, Problem, truncate, visible
from nodewise.cli.policy_backtest import report as reports
from nodewise.cli.terminal_output import TableData
from nodewise.policy_tools import policy_backtest
from nodewise.policy_tools.backtest_report import BacktestReport, PolicyReport
from nodewise.policy_tools.backtest_summary import History
from nodewise.policy_tools.policy_backtest import ThresholdCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH: Final = 10.0  # inches of 72 points; the page scales the plots to its own width
_MAX_COLUMNS: Final = 600
_MAX_ROWS: Final = 120
_MAX_NAMED_ROWS: Final = 40
_RED: Final = "#c2410c"
_BLUE: Final = "#1d4ed8"
_GREY: Final = "#94a3b8"
_HEAT: Final = ("#f1f5f9", "#fdba74", "#c2410c", "#7f1d1d")
STYLE: Final[Any] = {
    "svg.hashsalt": "nodewise",  # stable element ids
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "figure.facecolor": "white",
}
"""Settings of matplotlib, also for pictures of the documentation and of the benchmarks."""
_STYLE: Final[Any] = {**STYLE, "text.color": "#1e293b", "axes.edgecolor": "#cbd5e1", "axes.labelcolor": "#475569",
                      "xtick.color": "#475569", "ytick.color": "#475569", "figure.facecolor": "none",
                      "axes.facecolor": "none", "grid.color": "#e2e8f0", "image.composite_image": False}  # fmt: skip


def check_matplotlib_installed() -> None:
    """Raise BadSettings if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        problem = Problem("matplotlib", "not installed", "pip install 'nodewise[plots]'")
        raise BadSettings("--html", [problem])


def heat_map(report: BacktestReport, policy: PolicyReport) -> str:
    """Rejected nodes over time: a row for each node that was ever rejected, the longest rejected first."""
    import matplotlib as mpl
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    names = [node.node for node in policy.nodes[:_MAX_ROWS]]
    if not names:
        return ""
    position = {name: number for number, name in enumerate(report.nodes)}
    columns = [position[name] for name in names]
    cells = _downsample(policy.rejected[:, columns] & report.history.exists[:, columns])
    exists = _downsample(report.history.exists[:, columns])
    shares = np.ma.masked_where(exists == 0, cells)
    with mpl.rc_context(_STYLE):
        row_height = 0.16 if len(names) <= _MAX_NAMED_ROWS else 0.035
        figure = Figure(figsize=(_WIDTH, 0.9 + max(row_height * len(names), 0.5)), layout="constrained")
        axes = figure.subplots()
        start, end = _dates(report.history)
        image = axes.imshow(
            shares.T,
            aspect="auto",
            cmap=LinearSegmentedColormap.from_list("heat", _HEAT),
            vmin=0,
            vmax=1,
            interpolation="nearest",
            extent=(start, end, len(names) - 0.5, -0.5),
        )
        axes.grid(visible=False)
        _format_dates(axes)
        if len(names) <= _MAX_NAMED_ROWS:
            axes.set_yticks(range(len(names)), [truncate(name, 32) for name in names])
        else:
            axes.set_yticks([])
            axes.set_ylabel(f"{len(names)} nodes, the longest rejected on top")
        bar = figure.colorbar(image, ax=axes, fraction=0.02, pad=0.01, ticks=[0, 0.5, 1])
        bar.ax.set_yticklabels(["0 %", "50 %", "100 %"])
        bar.outline.set_visible(False)
        return _svg(figure)


def rejected_over_time(report: BacktestReport, policy: PolicyReport) -> str:
    """The number of rejected nodes over time, with the times without an eligible node."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    history = report.history
    counts = (policy.rejected & history.exists).sum(axis=1)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 2.2), layout="constrained")
        axes = figure.subplots()
        every = -(-len(counts) // _MAX_COLUMNS)
        starts = np.arange(0, len(counts), every)
        most = np.maximum.reduceat(counts, starts)
        dates = _date_library().date2num(_utc(history.times[starts].tolist()))
        axes.fill_between(dates, most, step="post", color=_RED, alpha=0.25, linewidth=0)
        axes.step(dates, most, where="post", color=_RED, linewidth=1)
        axes.step(
            dates,
            history.exists.sum(axis=1)[starts],
            where="post",
            color=_GREY,
            linewidth=1,
            linestyle="--",
            label="all nodes",
        )
        # mark the times without an eligible node, each wide enough to be seen
        shortest_s = (history.times[-1] - history.times[0]) / _MAX_COLUMNS * 2
        for number, outage in enumerate(policy.measures.without_eligible_node):
            start, end = _date_library().date2num(
                _utc([outage.start, max(outage.end, outage.start + shortest_s)])
            )
            axes.axvspan(
                start,
                end,
                color="#7f1d1d",
                alpha=0.6,
                linewidth=0,
                label="" if number else "no eligible node",
            )
        axes.set_ylim(bottom=0)
        axes.set_xlim(*_dates(history))
        axes.set_ylabel("rejected nodes")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        _format_dates(axes)
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
        return _svg(figure)


def threshold_curve(curve: ThresholdCurve) -> str:
    """The share of all values that meet a comparison, by its threshold; the policy's own threshold is marked."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    part = curve.comparison
    target = part.target / quantity.NANO
    percents = 100 * np.array(curve.shares)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH / 2, 2.6), layout="constrained")
        axes = figure.subplots()
        axes.plot(curve.thresholds, percents, color=_BLUE, linewidth=2)
        own = float(np.interp(target, curve.thresholds, percents))
        axes.axvline(target, color=_RED, linewidth=1, linestyle="--")
        axes.plot([target], [own], "o", color=_RED, markersize=5)
        name = policy_backtest.comparison_text(part)
        axes.annotate(
            f"{quantity.nano_to_text(part.target)}: {own:.3g} %",
            (target, own),
            xytext=(6, 6),
            textcoords="offset points",
            color=_RED,
        )
        # a query may contain $, which begins a formula
        axes.set_title(truncate(name, 60), loc="left", fontsize=9, parse_math=False)
        axes.set_xlabel("threshold")
        axes.set_ylabel("values that meet it, %")
        axes.set_ylim(-3, 108)
        return _svg(figure)


def _downsample(mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The mean of consecutive steps, for at most `_MAX_COLUMNS` columns of the plot."""
    every = -(-len(mask) // _MAX_COLUMNS)
    starts = np.arange(0, len(mask), every)
    sizes = np.diff(np.append(starts, len(mask)))
    means: NDArray[np.float64] = (
        np.add.reduceat(mask.astype(np.float64), starts, axis=0) / sizes[:, np.newaxis]
    )
    return means


def _dates(history: History) -> tuple[float, float]:
    start, end = _date_library().date2num(
        _utc([float(history.times[0]), float(history.times[-1]) + history.step_s])
    )
    return float(start), float(end)


def _utc(times: Sequence[float]) -> list[datetime]:
    return [datetime.fromtimestamp(time, UTC) for time in times]


def _format_dates(axes: "Axes") -> None:
    axes.xaxis_date()
    dates = _date_library()
    locator = dates.AutoDateLocator(minticks=4, maxticks=10)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _date_library() -> Any:
    """`matplotlib.dates`, whose functions have no types."""
    import matplotlib.dates

    return matplotlib.dates


def _svg(figure: "Figure") -> str:
    """The figure as an SVG element, which a page can contain."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return text.getvalue()[text.getvalue().index("<svg") :]


_MAX_NODES: Final = 50
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The browser loads nothing, whatever the texts in the page contain."""
_PAGE_STYLE: Final = """
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
    evaluated = [policy.policy.key.path for policy in report.policies]
    evaluated += [policy.policy.key.path for policy in report.device_policies]
    names = ", ".join(dict.fromkeys(evaluated))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>Backtest of {_text(names)}</title><style>{_PAGE_STYLE}</style></head><body><main>",
        f'<h1>Backtest of {_text(names)}</h1><p class="soft">{_text(reports.range_line(report))}</p>',
    ]
    if report.notes:
        notes = "".join(f"<li>{_text(note)}</li>" for note in report.notes)
        parts.append(f'<section class="notes"><ul>{notes}</ul></section>')
    for policy in report.policies:
        parts += _policy_parts(policy, report)
    for device_policy in report.device_policies:
        lines = "".join(f"<p>{_text(line)}</p>" for line in reports.device_lines(device_policy))
        parts.append(
            f"<h2>{_text(device_policy.policy.key.text())}: deviceTaints</h2><section>{lines}</section>"
        )
        table = reports.devices_table(device_policy, _MAX_NODES)
        if table.rows:
            title = "Devices that were tainted for the longest time"
            parts.append(_section(title, "", _table(table)))
    parts.append("</main></body></html>")
    return "\n".join(parts) + "\n"


def _policy_parts(policy: PolicyReport, report: BacktestReport) -> Iterator[str]:
    yield f"<h2>{_text(policy.policy.key.text())}</h2>"
    yield f'<div class="figures">{"".join(_figures(policy))}</div>'
    lines = "".join(f"<p>{_text(line)}</p>" for line in reports.summary_lines(policy, report))
    yield f"<section>{lines}</section>"
    heat = heat_map(report, policy)
    if heat:
        never = len(report.nodes) - len(policy.nodes)
        yield _section(
            "Rejected nodes over time",
            "A row for each node; the color is the share of the time for which it was rejected."
            + (f" {never:,} nodes were never rejected and are not shown." if never else ""),
            heat,
        )
        yield _section("Number of rejected nodes", "", rejected_over_time(report, policy))
    if policy.curves:
        curves = "".join(f"<div>{threshold_curve(curve)}</div>" for curve in policy.curves)
        yield _section(
            "Effect of the threshold",
            "The share of all values in this time that meet the comparison; red is the policy as it is.",
            f'<div class="curves">{curves}</div>',
        )
    for title, table in (
        ("Each rule alone", reports.rules_table(policy)),
        ("Alternatives", reports.alternatives_table(policy)),
        ("Nodes that were rejected for the longest time", reports.nodes_table(policy, _MAX_NODES)),
    ):
        if table.rows:
            yield _section(title, "", _table(table))


def _figures(policy: PolicyReport) -> Iterator[str]:
    measures = policy.measures
    yield _figure(reports.percent(measures.rejected_share), "of the time of all nodes rejected")
    yield _figure(f"{measures.most_rejected:,}", "nodes rejected at once, at most")
    outage_s = measures.longest_outage_s
    yield _figure(reports.duration(outage_s), "longest time without an eligible node", is_bad=outage_s > 0)
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
