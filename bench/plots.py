"""The plots of README.md, drawn from results.json; equal results produce equal pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench import alternating_rounds, node_count_scaling
from bench.results import (
    FILTER,
    NOTHING,
    PRIORITIZE,
    REFRESH,
    SCORED,
    SCORING_AGENTS,
    WHOLE,
    Results,
)
from nodewise.cli.policy_backtest.html_page import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER: Final = Path(__file__).parent / "plots"
TITLES: Final[Mapping[str, str]] = {
    "latency": "Duration of a call with 5,000 nodes, by verb and form",
    "growth": "Growth with the number of nodes",
    "load": "Overload by placement, recorded usage of virtual machines on 60 nodes",
    "binding": "Pods that a real kube-scheduler binds per second, with 5,000 nodes",
}
"""Titles by file name; plots without measured figures are omitted."""
OLDER_MS: Final = {FILTER: 730.0, PRIORITIZE: 750.0}
"""The older Go extender with whole nodes, as stated in the design; it was not measured here."""
NODEWISE_COLOR, NO_OP_COLOR, OLDER_COLOR, REFERENCE = "#1f6feb", "#9aa4b2", "#c2410c", "#555555"


class Spread(NamedTuple):
    """Durations of a series: percentiles of the median round, in ms, by `p10_ms` and so on."""

    name: str
    percentiles: Mapping[str, float]
    color: str


def latencies(results: Results) -> list[Spread]:
    """From the fastest form to the slowest, each after the no-op server with the same bytes."""
    spreads = []
    scored = (f"{SCORED}{agent}" for agent in SCORING_AGENTS)
    for series in (FILTER, PRIORITIZE, REFRESH, *scored, WHOLE + FILTER, WHOLE + PRIORITIZE):
        for prefix, whose, color in (
            (NOTHING, "no-op server", NO_OP_COLOR),
            ("", "nodewise", NODEWISE_COLOR),
        ):
            if taken := results["rounds"].get(prefix + series):
                spreads.append(Spread(f"{_form(series)}: {whose}", _middle(taken), color))
        verb = series.removeprefix(WHOLE)
        if series.startswith(WHOLE) and spreads:
            named = f"{verb}, whole nodes: Go original, as stated"
            spreads.append(Spread(named, {"p50_ms": OLDER_MS[verb]}, OLDER_COLOR))
    return spreads


def _form(series: str) -> str:
    if series.startswith(WHOLE):
        return f"{series.removeprefix(WHOLE)}, whole nodes"
    return "filter, names, metrics refresh" if series == REFRESH else f"{series}, names"


def _middle(series: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each percentile of the median round; those that a round lacks are omitted."""
    keys = (f"p{share}_ms" for share in alternating_rounds.PERCENTILES)
    return {
        key: alternating_rounds.median(series, key) for key in keys if all(key in each for each in series)
    }


def lines(rows: Sequence[node_count_scaling.Row]) -> dict[str, list[float]]:
    """By quantity: the ratio to the amount at the smallest size."""
    return {name: [row[name] / rows[0][name] for row in rows] for name in node_count_scaling.quantities(rows)}


def bindings(results: Results) -> dict[str, float]:
    """Pods per second, by extender."""
    named = {
        "no extender": "cluster_bind_rate_none",
        "no-op extender": "cluster_bind_rate_nothing",
        "nodewise": "cluster_bind_rate_5000",
    }
    return {name: results[key] for name, key in named.items() if key in results}


def names(results: Results) -> list[str]:
    """The plots that can be drawn."""
    there = {
        "latency": latencies(results),
        "growth": results.get("growth"),
        "load": results.get("load"),
        "binding": bindings(results),
    }
    return [name for name in TITLES if there[name]]


def write(results: Results, folder: Path = FOLDER) -> None:
    """Draw all plots anew, as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    folder.mkdir(exist_ok=True)
    with mpl.rc_context(STYLE):
        for name in names(results):
            figure = Figure(figsize=(8, 4), layout="constrained")
            _DRAW[name](figure, results)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})


def _latency(figure: "Figure", results: Results) -> None:
    spreads = latencies(results)
    figure.set_size_inches(8, 1.0 + 0.27 * len(spreads))
    axes = figure.subplots()
    places = range(len(spreads), 0, -1)
    for place, spread in zip(places, spreads, strict=True):
        _spread(axes, place, spread)
    axes.set(xscale="log", title=TITLES["latency"])
    axes.set_xlabel("ms, logarithmic: dot and number the median, box 25 to 75 %, line 10 to 99 %")
    axes.set_xlim(0.3, 3000)
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axes.set_yticks(list(places), [spread.name for spread in spreads])
    axes.grid(visible=False, axis="y")


def _spread(axes: "Axes", place: int, spread: Spread) -> None:
    percentiles, color = spread.percentiles, spread.color
    median = percentiles["p50_ms"]
    for low, high, width in (("p10_ms", "p99_ms", 1.5), ("p25_ms", "p75_ms", 8)):
        if low in percentiles:
            axes.plot([percentiles[low], percentiles[high]], [place, place], color=color, linewidth=width)
    axes.plot([median], [place], "o", color=color, markeredgecolor="black", markersize=5)
    end = (max(percentiles.values()), place)
    axes.annotate(f"{median:.3g}", end, (6, 0), textcoords="offset points", va="center")


def _growth(figure: "Figure", results: Results) -> None:
    rows = results["growth"]
    nodes = [row["nodes"] for row in rows]
    axes = figure.subplots()
    for name, values in lines(rows).items():
        axes.plot(nodes, values, marker="o", markersize=4, label=node_count_scaling.QUANTITIES[name][0])
    axes.plot(
        nodes, [count / nodes[0] for count in nodes], "--", color=REFERENCE, label="the nodes themselves"
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="nodes",
        ylabel=f"times as much as with {nodes[0]:,}",
        title=TITLES["growth"],
    )
    axes.set_xticks(nodes, [f"{count:,}" for count in nodes])
    axes.set_xticks([], minor=True)
    _plain(axes)
    axes.legend(frameon=False)


def _plain(axes: "Axes") -> None:
    """Format ticks as 1 and 10 instead of powers of ten."""
    from matplotlib.ticker import FormatStrFormatter

    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))


def _binding(figure: "Figure", results: Results) -> None:
    rates = bindings(results)
    figure.set_size_inches(8, 2)
    axes = figure.subplots()
    places = range(len(rates), 0, -1)
    colors = {"nodewise": NODEWISE_COLOR, "no-op extender": NO_OP_COLOR}
    bars = axes.barh(places, list(rates.values()), color=[colors.get(name, "#d5dae1") for name in rates])
    axes.bar_label(bars, fmt="%.1f", padding=4)
    axes.set(xlabel="pods per second", title=TITLES["binding"])
    axes.set_yticks(list(places), list(rates))
    axes.margins(x=0.1)
    axes.grid(visible=False, axis="y")


def _load(figure: "Figure", results: Results) -> None:
    """Two panels: the share of node-steps above 90 %, with a dot for each day, and the unmet demand."""
    rows = results["load"]
    figure.set_size_inches(8, 0.8 + 0.28 * len(rows))
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(rows), 0, -1)
    colors = [
        NODEWISE_COLOR if name.startswith("load,") or name in ("load", "safe") else NO_OP_COLOR
        for name in rows
    ]
    left.barh(places, [row["overloaded_pct"] for row in rows.values()], color=colors)
    for place, row in zip(places, rows.values(), strict=True):
        days = list(row["days_pct"].values())
        left.plot(days, [place] * len(days), "o", color="black", markersize=3)
    left.set(xlabel="% of node-steps above 90 % of CPU: bar the mean, dots the days")
    right.barh(places, [row["unmet_pct"] for row in rows.values()], color=colors)
    right.set(xlabel="% of the demand that is unmet")
    left.set_yticks(list(places), list(rows))
    for axes in (left, right):
        axes.grid(visible=False, axis="y")
    figure.suptitle(TITLES["load"])


_DRAW: Final[dict[str, Any]] = {
    "latency": _latency,
    "growth": _growth,
    "load": _load,
    "binding": _binding,
}
