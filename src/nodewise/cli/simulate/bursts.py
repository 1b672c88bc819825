"""`nodewise simulate bursts`: places bursty pods with scoring agents."""

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import click
import msgspec
from msgspec import Meta
from rich.console import Console
from rich.progress import Progress

from nodewise.agent import AgentKind
from nodewise.cli import agent_kinds, options, tables
from nodewise.cli.options import CommandLine
from nodewise.cli.settings import CommandOptions
from nodewise.cli.simulate import plots
from nodewise.configure import scheduler_configuration
from nodewise.configure.scheduler_configuration import SchedulerOptions
from nodewise.errors import BadSettings, Problem
from nodewise.extender.score_weights import ChainOptions
from nodewise.observe import logs
from nodewise.option import Option
from nodewise.simulate import bursts_simulation
from nodewise.simulate.bursts_extender import URL, Asked
from nodewise.simulate.bursts_simulation import Outcome
from nodewise.simulate.bursts_workload import Scenario
from nodewise.statistics.load_queries import WindowOptions

NONE: Final = "none"
PODS: Final = "pods"


def reads_pods_only(kind: AgentKind) -> bool:
    """Whether the agent reads no objects besides nodes and pods: here are neither policies nor GPUs."""
    return all(watched.resource.plural == PODS for watched in kind.watched(kind.options()))


def _known() -> list[AgentKind]:
    return [kind for kind in agent_kinds.usable_kinds(ChainOptions) if reads_pods_only(kind)]


def default_agents() -> tuple[str, ...]:
    """None, each agent that scores by load, and the first of them together with those that complement it."""
    scorers = [kind for kind in _known() if kind.load_scoring != "none"]
    whole = [kind.name for kind in scorers if kind.load_scoring == "whole"]
    aspects = [kind.name for kind in scorers if kind.load_scoring == "aspect"]
    combined = [",".join([whole[0], *aspects])] if whole and aspects else []
    return (NONE, *(kind.name for kind in scorers), *combined)


ASKED: Final = default_agents()


class BurstOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise simulate bursts`."""

    agents: Annotated[tuple[str, ...], Option(metavar="NAME[,NAME…]")] = ASKED
    """Agents that are asked together, or `none`; may be given several times."""

    nodes: Annotated[int, Meta(ge=1, le=5000)] = 200
    """Equal nodes of the cluster."""

    hours: Annotated[float, Meta(ge=0.02, le=168)] = 2.0
    """That are measured."""

    seed: Annotated[int, Meta(ge=0)] = 1
    """Of the first run."""

    runs: Annotated[int, Meta(ge=1, le=100)] = 1
    """Runs of each, with seeds one after another; the table has their mean."""

    entry_weight: Annotated[int, Meta(ge=1, le=10_000)] = scheduler_configuration.DEFAULT_WEIGHT
    """How much scores count beside the default plugins', as in `configure render-scheduler`."""

    filter_all_pods: bool = False
    """Let agents reject nodes as well, such as safe those with too much risk."""

    svg: Annotated[str | None, Option(metavar="FILE")] = None
    """Draw how node-minutes add up; needs matplotlib."""

    output: Annotated[Literal["text", "json", "csv"], Option("-o --output")] = "text"
    """Form of what is printed."""


def run(command_line: CommandLine) -> None:
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
    own = command_line.settings(BurstOptions)
    if own.svg is not None:
        plots.check()
    window_s = command_line.settings(WindowOptions).statistics_window_s
    scenario = Scenario(nodes=own.nodes, hours=own.hours, window_s=window_s)
    agents = [_asked(names, own, command_line) for names in dict.fromkeys(own.agents)]
    runs = _runs(scenario, agents, range(own.seed, own.seed + own.runs))
    means = {
        entry.name: bursts_simulation.mean([run for run in runs if run.agents == entry.name])
        for entry in agents
    }
    if own.svg is not None:
        nodes_by_minute = {name: mean["nodes_by_minute"] for name, mean in means.items()}
        plots.draw_bursts(nodes_by_minute, Path(own.svg))
    if own.output == "text":
        _show(means)
    else:
        click.echo(_json(runs, means) if own.output == "json" else _csv(runs), nl=own.output == "json")


def _asked(names: str, own: BurstOptions, command_line: CommandLine) -> Asked:
    """The agents, with an entry as `configure render-scheduler` prints it."""
    if names.strip() == NONE:
        return Asked(NONE, (), {})
    chosen = agent_kinds.load_kinds((name.strip() for name in names.split(",")), ChainOptions)
    if others := [kind.name for kind in chosen if not reads_pods_only(kind)]:
        wanted = "agents that go by what nodes and pods are"
        raise BadSettings("settings", [Problem("--agents", ", ".join(others), wanted)])
    agent_options = {kind.name: command_line.agent_options(kind) for kind in chosen}
    roles = [agent_kinds.extender_role(kind, agent_options[kind.name]) for kind in chosen]
    wish = SchedulerOptions(URL, filter_all_pods=own.filter_all_pods, weights={"": own.entry_weight})
    entries = scheduler_configuration.build_configuration(roles, wish)["extenders"]
    chain = command_line.settings(ChainOptions)
    return Asked(",".join(kind.name for kind in chosen), chosen, agent_options, chain, entries)


def _runs(scenario: Scenario, agents: Sequence[Asked], seeds: Sequence[int]) -> list[Outcome]:
    """All runs; on a terminal, with a bar of how far they are."""
    hidden = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=hidden) as progress:
        bar = progress.add_task("placing", total=len(agents) * len(seeds) * scenario.minutes)
        return [
            bursts_simulation.run(scenario, group, seed, lambda: progress.advance(bar))
            for group in agents
            for seed in seeds
        ]


def _show(means: Mapping[str, Mapping[str, Any]]) -> None:
    head = ["AGENTS", "NODE-MINUTES", "SHARE", "CPU", "MEMORY", "RESTARTS", "UNPLACED", "WAITED"]
    tables.print_table(head, [_row(name, run_means) for name, run_means in means.items()])


def _row(name: str, means: Mapping[str, Any]) -> list[str]:
    share = means["node_minutes"] / means["all_node_minutes"]
    counts = ("cpu_node_minutes", "memory_node_minutes", "restarts", "unplaced_pods")
    texts = [f"{means[key]:.0f}" for key in counts]
    return [
        name,
        f"{means['node_minutes']:.0f}",
        f"{share:.2%}",
        *texts,
        f"{means['waited_minutes']:.0f} min",
    ]


def _json(runs: Sequence[Outcome], means: Mapping[str, Any]) -> str:
    return json.dumps({"mean": means, "runs": msgspec.to_builtins(runs)}, indent=1)


def _csv(runs: Sequence[Outcome]) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["agents", "seed", "minute", "nodes"])
    for run in runs:
        lines.writerows([run.agents, run.seed, *row] for row in enumerate(run.nodes_by_minute))
    return text.getvalue()


command = options.make_command(
    "bursts",
    run,
    options.parameters(BurstOptions, ChainOptions, WindowOptions, kinds=_known()),
    short_help="Place bursty pods with scoring agents.",
)
