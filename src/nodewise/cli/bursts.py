"""`nodewise simulate bursts`: a cluster of bursty pods, placed with the help of scoring agents."""

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from nodewise.agent import AgentKind
from nodewise.cli import burst_curves, curves, forms, kinds, roles, settings, tables
from nodewise.cli.sections import Sectioned
from nodewise.configure import scheduler
from nodewise.configure.scheduler import Wish
from nodewise.errors import BadSettings, Problem
from nodewise.extender.weights import ChainOptions
from nodewise.observe import logs
from nodewise.simulate import bursts
from nodewise.simulate.bursts import Outcome
from nodewise.simulate.bursts_extender import URL, Asked
from nodewise.simulate.bursts_workload import Scenario
from nodewise.statistics.queries import WindowOptions

NONE: Final = "none"
ASKED: Final = (NONE, "safe", "congestion", "pigeon", "learned", "safe,congestion")
_OTHERS: Final = frozenset({"telemetry", "gpu"})
"""Agents that have nothing to read here: there are no policies and no cards."""


def bursts_command(output: str, svg: str | None, **given: Any) -> None:
    """Place pods whose requests lie, with and without agents, and count for how long nodes are overloaded.

    Pods come and go on equal nodes. They are busy and calm in turns: most use much less than they request, some a
    multiple of it. The scheduler is nodewise's stand-in for kube-scheduler, with the default plugins' filters and
    scores; the agents are asked in the extender's own way; nodes carry what `nodewise annotate` writes once a minute,
    and in `congestion-factor` their load in per cent. A pod of a node that is to give more than it has fails now and
    then. The same seed gives the same pods and the same figures.

    \b
    Figures, after the half hour in which the cluster is filled:
      node_minutes   nodes above 90 % of CPU or memory, minute by minute added up
      restarts       of pods that failed on overloaded nodes
      unplaced_pods  on no node in the end
    -o csv has the number of nodes above 90 % in each minute.

    \b
    Examples:
      nodewise simulate bursts
      nodewise simulate bursts --agents none --agents safe --runs 5 --svg out.svg

    \b
    Exit codes:
      0  placed
      1  a file cannot be written, or matplotlib is missing
      2  the command line or a setting is wrong
    """
    logs.configure("error")
    if svg is not None:
        curves.check()
    window_s = settings.build(WindowOptions, given).statistics_window_s
    scenario = Scenario(nodes=given["nodes"], hours=given["hours"], window_s=window_s)
    asked = [_asked(names, given) for names in dict.fromkeys(given["agents"])]
    runs = _runs(scenario, asked, range(given["seed"], given["seed"] + given["runs"]))
    means = {one.name: bursts.mean([run for run in runs if run.agents == one.name]) for one in asked}
    if svg is not None:
        burst_curves.draw({name: found["nodes_by_minute"] for name, found in means.items()}, Path(svg))
    if output == "text":
        _show(means)
    else:
        click.echo(_json(runs, means) if output == "json" else _csv(runs), nl=output == "json")


def _asked(names: str, given: Mapping[str, Any]) -> Asked:
    """Who is asked, with an entry as `configure render-scheduler` prints it."""
    if names.strip() == NONE:
        return Asked(NONE, (), {})
    found = kinds.chosen((name.strip() for name in names.split(",")), ChainOptions)
    if others := [kind.name for kind in found if kind.name in _OTHERS]:
        wanted = "agents that go by what nodes and pods are"
        raise BadSettings("settings", [Problem("--agents", ", ".join(others), wanted)])
    options = {kind.name: settings.of_agent(kind, given) for kind in found}
    every = [roles.role(kind, options[kind.name]) for kind in found]
    wish = Wish(URL, filter_all_pods=given["filter_all_pods"], weights={"": given["entry_weight"]})
    entries = scheduler.configuration(every, wish)["extenders"]
    chain = settings.build(ChainOptions, given)
    return Asked(",".join(kind.name for kind in found), found, options, chain, entries)


def _runs(scenario: Scenario, asked: Sequence[Asked], seeds: Sequence[int]) -> list[Outcome]:
    """All runs; on a terminal, with a bar of how far they are."""
    hidden = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=hidden) as progress:
        bar = progress.add_task("placing", total=len(asked) * len(seeds) * scenario.minutes)
        return [
            bursts.run(scenario, one, seed, lambda: progress.advance(bar)) for one in asked for seed in seeds
        ]


def _show(means: Mapping[str, Mapping[str, Any]]) -> None:
    head = ["AGENTS", "NODE-MINUTES", "SHARE", "CPU", "MEMORY", "RESTARTS", "UNPLACED", "WAITED"]
    tables.show(head, [_row(name, found) for name, found in means.items()])


def _row(name: str, found: Mapping[str, Any]) -> list[str]:
    share = found["node_minutes"] / found["all_node_minutes"]
    counts = ("cpu_node_minutes", "memory_node_minutes", "restarts", "unplaced_pods")
    texts = [f"{found[key]:.0f}" for key in counts]
    return [
        name,
        f"{found['node_minutes']:.0f}",
        f"{share:.2%}",
        *texts,
        f"{found['waited_minutes']:.0f} min",
    ]


def _json(runs: Sequence[Outcome], means: Mapping[str, Any]) -> str:
    return json.dumps({"mean": means, "runs": msgspec.to_builtins(runs)}, indent=1)


def _csv(runs: Sequence[Outcome]) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["agents", "seed", "minute", "nodes"])
    for run in runs:
        lines.writerows([run.agents, run.seed, *one] for one in enumerate(run.nodes_by_minute))
    return text.getvalue()


def _known() -> list[AgentKind]:
    return [kind for kind in kinds.known(ChainOptions) if kind.name not in _OTHERS]


def _parameters() -> list[click.Parameter]:
    return [
        click.Option(
            ["--agents"], multiple=True, default=ASKED, metavar="NAME[,NAME…]", show_default=True,
            help="Agents that are asked together, or `none`; may be given several times.",
        ),
        click.Option(
            ["--nodes"], type=click.IntRange(1, 5000), default=200, show_default=True,
            help="Equal nodes of the cluster.",
        ),
        click.Option(
            ["--hours"], type=click.FloatRange(0.02, 168), default=2.0, show_default=True,
            help="That are measured.",
        ),
        click.Option(
            ["--seed"], type=click.IntRange(min=0), default=1, show_default=True, help="Of the first run."
        ),
        click.Option(
            ["--runs"], type=click.IntRange(1, 100), default=1, show_default=True,
            help="Runs of each, with seeds one after another; the table has their mean.",
        ),
        click.Option(
            ["--entry-weight"], type=click.IntRange(1, 10_000), default=scheduler.DEFAULT_WEIGHT, show_default=True,
            help="How much scores count beside the default plugins', as in `configure render-scheduler`.",
        ),
        click.Option(
            ["--filter-all-pods"], is_flag=True,
            help="Let agents reject nodes as well, such as safe those with too much risk.",
        ),
        click.Option(["--svg"], metavar="FILE", help="Draw how node-minutes add up; needs matplotlib."),
        forms.option(["text", "json", "csv"]),
        *settings.options(ChainOptions, WindowOptions, kinds=_known()),
    ]  # fmt: skip


command = Sectioned(
    "bursts",
    callback=bursts_command,
    help=bursts_command.__doc__,
    short_help="Place bursty pods with scoring agents.",
    params=_parameters(),
)
