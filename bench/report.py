"""Formats the results: the table on stdout, and the generated parts of pages."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.cluster import program_cache

from bench import controller_shards, node_count_scaling, plots, results
from bench.alternating_rounds import RoundFigure
from bench.results import FIGURES, PARTS, Figure, Measurement, Results

README: Final = Path(__file__).parent / "README.md"
LOAD_PAGE: Final = Path(__file__).parent.parent / "docs" / "load-aware.md"
"""The page with the table of load-aware placements."""
BEGIN: Final = "<!-- figures: written by `make bench` from results.json -->\n"
END: Final = "<!-- end of figures -->\n"

NOT_MEASURED: Final = "not measured"
Row = tuple[str, str, str, str, str]


def rows(results_: Results) -> list[Row]:
    """Key, meaning, value, spread of the rounds and target with its verdict; one row per figure.

    A figure without a target has no row until it is measured.
    """
    return [
        (
            key,
            figure.meaning,
            _value(results_[key], figure.unit) if key in results_ else NOT_MEASURED,
            " to ".join(f"{value:g}" for value in results_.get("spread", {}).get(key, ())),
            _target(results_.get(key), figure),
        )
        for key, figure in FIGURES.items()
        if key in results_ or figure.at_most is not None or figure.at_least is not None
    ]


def _value(value: float, unit: str) -> str:
    return f"{value:g} {unit}".strip()


def _target(value: float | None, figure: Figure) -> str:
    if figure.at_most is not None:
        target, is_met = (
            f"at most {_value(figure.at_most, figure.unit)}",
            value is None or value <= figure.at_most,
        )
    elif figure.at_least is not None:
        target, is_met = (
            f"at least {_value(figure.at_least, figure.unit)}",
            value is None or value >= figure.at_least,
        )
    else:
        return ""
    return target if value is None else f"{target}: {'met' if is_met else 'not met'}"


def table(results_: Results) -> str:
    """A table for a terminal: the meaning, value, spread and target of each figure."""
    shown = [row[1:] for row in rows(results_)]
    widths = [max(len(row[column]) for row in shown) for column in range(3)]
    lines = [
        f"{meaning:<{widths[0]}}  {value:>{widths[1]}}  {spread:<{widths[2]}}  {target}".rstrip()
        for meaning, value, spread, target in shown
    ]
    return "\n".join(lines)


def block(results_: Results) -> str:
    """The block of README.md: machines, figures, plots, growth, and all rounds."""
    sections = [
        _places(results_),
        ["| key | meaning | figure | rounds | target |", "|---|---|---|---|---|", *map(_row, rows(results_))],
        [f"![{plots.TITLES[name]}](plots/{name}.svg)" for name in plots.names(results_)],
        _growth(results_.get("growth", [])),
        _shards(results_.get("shards", [])),
        _commands(results_.get("commands", [])),
        [
            "### All rounds",
            "",
            "| series | requests per round | medians of the rounds, ms | 99th percentiles, ms |",
            "|---|---|---|---|",
            *(_series(name, results_) for name in results_["rounds"]),
        ],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _row(row: Row) -> str:
    key, *rest = row
    return f"| {' | '.join([f'`{key}`', *rest])} |"


def _places(results_: Results) -> list[str]:
    """When and where each part was measured, and the versions."""
    lines = ["| part | date | machine | other programs took | client |", "|---|---|---|---|---|"]
    for part, place in results_["parts"].items():
        machine = place["machine"]
        named = f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}"
        share = f"{machine['others_share']:.0%}"
        lines.append(f"| {PARTS[part]} | {place['date']} | {named} | {share} | {place.get('client', '')} |")
    versions = {
        name: version for place in results_["parts"].values() for name, version in place["versions"].items()
    }
    programs = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [*lines, "", *textwrap.wrap(f"Versions: {programs}.", 120)]


def _growth(sizes: Sequence[node_count_scaling.Row]) -> list[str]:
    """A table with quantities as rows and sizes as columns, and the quantities that grow faster than the nodes."""
    if not sizes:
        return []
    less, most = sizes[-2]["nodes"], sizes[-1]["nodes"]
    columns = [f"{row['nodes']:,} nodes" for row in sizes]
    head = ["quantity", *columns, f"per node, {most:,} by {less:,}", "growth exponent"]
    lines = ["### Growth", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in node_count_scaling.quantities(sizes):
        meaning, unit = node_count_scaling.QUANTITIES[name]
        values = [_value(row[name], unit) for row in sizes]
        powers = [
            f"{node_count_scaling.per_node(sizes, name):.2f}",
            f"{node_count_scaling.exponent(sizes, name):.2f}",
        ]
        lines.append(f"| {' | '.join([meaning, *values, *powers])} |")
    named = [node_count_scaling.QUANTITIES[name][0] for name in node_count_scaling.faster(sizes)]
    verdict = (
        f"Grows faster than the nodes: {'; '.join(named)}."
        if named
        else "Nothing grows faster than the nodes."
    )
    margin = f"The threshold is {node_count_scaling.FASTER:g} times as much per node at {most:,} nodes as at {less:,}."
    return [*lines, "", f"{verdict} {margin}"]


def _shards(rows: Sequence[controller_shards.Row]) -> list[str]:
    """A table with quantities as rows and numbers of shards as columns."""
    if not rows:
        return []
    columns = ["1 process" if row["shards"] == 1 else f"{row['shards']} shards" for row in rows]
    lines = [f"### Controller, {rows[0]['nodes']:,} nodes, 1 % of them change per minute", ""]
    lines += [f"| {' | '.join(['quantity', *columns])} |", "|---" * (len(rows) + 1) + "|"]
    for name, (meaning, unit) in controller_shards.QUANTITIES.items():
        values = [_value(row[name], unit) for row in rows]
        lines.append(f"| {' | '.join([meaning, *values])} |")
    return lines


def load_block(results_: Results) -> str:
    """The table of load-aware placements on their page, and their plot."""
    head = [
        "placement",
        "node-steps above 90 %",
        "unmet demand",
        "utilization",
        "usable CPU",
        "burst: above 90 %",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, row in results_["load"].items():
        values = [f"{row['overloaded_pct']:.2f} %", f"{row['unmet_pct']:.4f} %", f"{row['used_pct']:.1f} %"]
        values += ["" if row[key] is None else f"{row[key]:.1f} %" for key in ("usable_pct", "herd_pct")]
        lines.append(f"| {' | '.join([name, *values])} |")
    plot = f"![{plots.TITLES['load']}](../bench/plots/load.svg)"
    return "\n".join([*lines, "", plot]) + "\n"


_MOST_ALIKE: Final = 3  # commands with `--help`, and completions, in the table: the slowest


def _commands(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of processor times. Of all commands' `--help` and of the completions, it has the slowest."""
    if not rows:
        return []
    lines = [
        "### Short commands",
        "",
        "| command | median, ms | smallest | largest | starts |",
        "|---|---|---|---|---|",
    ]
    counts = {"--help": 0, "TAB": 0}
    for row in sorted(rows, key=lambda row: -row["median_ms"]):
        ending = row["command"].rpartition(" ")[2]
        counts[ending] = counts.get(ending, 0) + 1
        if ending in ("--help", "TAB") and counts[ending] > _MOST_ALIKE and row["command"].count(" ") > 1:
            continue
        times = [f"{row[f'{name}_ms']:g}" for name in ("median", "min", "max")]
        lines.append(f"| `{row['command']}` | {' | '.join(times)} | {row['starts']} |")
    alike = (
        sum(row["command"].endswith(" --help") for row in rows),
        sum(row["command"].endswith(" TAB") for row in rows),
    )
    return [*lines, "", f"Measured: `--help` of {alike[0]} commands, and {alike[1]} completions."]


def _series(name: str, results_: Results) -> str:
    series = results_["rounds"][name]
    requests = ", ".join(f"{each['requests']:g}" for each in series)
    medians = ", ".join(f"{each['p50_ms']:g}" for each in series)
    tails = ", ".join(f"{each['p99_ms']:g}" for each in series)
    return f"| {name} | {requests} | {medians} | {tails} |"


def replace_figures(text: str, shown: str) -> str:
    """Replace the figures of a page. ValueError if its markers are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page lacks the lines {BEGIN!r} and {END!r}")
    return before + BEGIN + "\n" + shown + "\n" + END + after


def update(part: str, measured: Measurement, others_share: float) -> None:
    """Replace a part of the results, and write all of them with their page. `others_share` is as in `MachineLoad`."""
    merged = results.merged(results.read(), part, measured, results.where(measured, others_share))
    results.write(merged)
    write(merged)


def print_and_update(part: str, figures: Mapping[str, float], others_share: float, is_written: bool) -> None:
    """Print the figures of a part that was measured on a control plane, and `update` the results with them if asked."""
    if is_written:
        update(
            part, Measurement(figures, {}, "", programs={"kubernetes": program_cache.VERSION}), others_share
        )
    for key, value in figures.items():
        spread = " ({:g} to {:g})".format(*value.spread) if isinstance(value, RoundFigure) else ""
        print(f"{FIGURES[key].meaning:<78}{_value(value, FIGURES[key].unit)}{spread}")
    print(f"other programs' share of the machine: {others_share:.0%}")


def write(results_: Results) -> None:
    plots.write(results_)
    README.write_text(replace_figures(README.read_text(), block(results_)))
    if "load" in results_:
        LOAD_PAGE.write_text(replace_figures(LOAD_PAGE.read_text(), load_block(results_)))
