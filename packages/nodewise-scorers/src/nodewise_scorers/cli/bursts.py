"""`nodewise simulate bursts`: places bursty pods with scoring agents."""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import click
import msgspec
from msgspec import Meta
from rich.console import Console
from rich.progress import Progress

from nodewise.agent import AgentKind
from nodewise.base.errors import BadSettings, Problem
from nodewise.base.option import Option
from nodewise.cli import agent_selection, plots, terminal_output
from nodewise.cli.options_from_settings import CommandLine, settings_command
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.engine.agent_chain import ChainOptions
from nodewise.install import scheduler_configuration
from nodewise.install.scheduler_configuration import SchedulerOptions
from nodewise.observe import logs
from nodewise.scheduling_model.in_process_extender import URL, AgentGroup
from nodewise_scorers import bursts_simulation
from nodewise_scorers.bursts_simulation import Scenario
from nodewise_scorers.statistics.node_usage_reader import WindowOptions

NONE: Final = "none"
PODS: Final = "pods"


def reads_pods_only(kind: AgentKind) -> bool:
    """Whether the agent reads only nodes and pods: the simulation has neither policies nor GPUs nor metrics."""
    return not kind.needs_metrics and all(
        watched.resource.plural == PODS for watched in kind.watched(kind.options())
    )


def _agents_reading_pods_only() -> list[AgentKind]:
    return [kind for kind in agent_selection.agents_without_conflicts(ChainOptions) if reads_pods_only(kind)]


def default_agent_groups() -> tuple[str, ...]:
    """No agent, each agent that scores by load, and the first complete one with all that score one aspect."""
    scorers = [kind for kind in _agents_reading_pods_only() if kind.load_scoring != "none"]
    whole = [kind.name for kind in scorers if kind.load_scoring == "whole"]
    aspects = [kind.name for kind in scorers if kind.load_scoring == "aspect"]
    combined = [",".join([whole[0], *aspects])] if whole and aspects else []
    return (NONE, *(kind.name for kind in scorers), *combined)


DEFAULT_AGENT_GROUPS: Final = default_agent_groups()


class BurstOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise simulate bursts`."""

    agents: Annotated[tuple[str, ...], Option(metavar="NAME[,NAME…]")] = DEFAULT_AGENT_GROUPS
    """Agents that run together, or `none`; may be repeated."""

    nodes: Annotated[int, Meta(ge=1, le=5000)] = 200
    """Number of identical nodes."""

    hours: Annotated[float, Meta(ge=0.02, le=168)] = 2.0
    """Measured hours."""

    seed: Annotated[int, Meta(ge=0)] = 1
    """Seed of the first run."""

    runs: Annotated[int, Meta(ge=1, le=100)] = 1
    """Runs per group of agents, with consecutive seeds; the table shows means."""

    entry_weight: Annotated[int, Meta(ge=1, le=10_000)] = scheduler_configuration.DEFAULT_WEIGHT
    """Weight of the scores relative to the default plugins, as in `configure render-scheduler`."""

    filter_all_pods: bool = False
    """Let agents also reject nodes, for example safe those with too much risk."""

    svg: Annotated[str | None, Option(metavar="FILE")] = None
    """Plot cumulative node-minutes; needs matplotlib."""

    output: Annotated[Literal["text", "json", "csv"], Option("-o --output")] = "text"
    """Output format."""


@settings_command(
    "bursts",
    BurstOptions,
    ChainOptions,
    WindowOptions,
    kinds=_agents_reading_pods_only(),
    short_help="Place bursty pods with scoring agents.",
)
def command(command_line: CommandLine) -> None:  # complexity: steps in order
    """Place pods whose usage differs from their requests, and measure for how long nodes are overloaded.

    Pods arrive and end on identical nodes and alternate between busy and calm phases: most use much less than they
    request, some a multiple of it. The scheduler is nodewise's simulated kube-scheduler, with the filters and scores of
    the default plugins; it calls the agents through the extender. Nodes have the annotations that `nodewise annotate`
    writes every minute, and in `congestion-factor` their load in per cent. On a node whose demand exceeds its capacity,
    pods fail at random. The same seed produces the same pods and the same figures.

    \b
    Figures, after half an hour in which the cluster is filled:
      node_minutes   nodes above 90 % of CPU or memory, summed over minutes
      restarts       restarts of pods that failed on overloaded nodes
      unplaced_pods  pods without a node at the end
    -o csv shows the number of nodes above 90 % in each minute.

    \b
    Examples:
      nodewise simulate bursts
      nodewise simulate bursts --agents none --agents safe --runs 5 --svg out.svg

    \b
    Exit codes:
      0  placed
      1  a file cannot be written, or matplotlib is missing
      2  the command line or a setting is invalid
    """
    logs.configure("error", "messages")
    own = command_line.settings(BurstOptions)
    if own.svg is not None:
        plots.check_matplotlib_installed()
    window_s = command_line.settings(WindowOptions).statistics_window_s
    scenario = Scenario(nodes=own.nodes, hours=own.hours, window_s=window_s)
    agents = [_create_agent_group(names, own, command_line) for names in dict.fromkeys(own.agents)]
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("placing", total=len(agents) * own.runs * scenario.minutes)
        runs = [
            bursts_simulation.run(scenario, group, seed, lambda: progress.advance(bar))
            for group in agents
            for seed in range(own.seed, own.seed + own.runs)
        ]
    means = {
        entry.name: bursts_simulation.mean([run for run in runs if run.agents == entry.name])
        for entry in agents
    }
    if own.svg is not None:
        nodes_by_minute = {name: mean["nodes_by_minute"] for name, mean in means.items()}
        plots.plot_overloaded_nodes(nodes_by_minute, Path(own.svg))
    if own.output == "text":
        head = ["AGENTS", "NODE-MINUTES", "SHARE", "CPU", "MEMORY", "RESTARTS", "UNPLACED", "WAITED"]
        terminal_output.print_table(
            head, [_burst_table_row(name, run_means) for name, run_means in means.items()]
        )
    elif own.output == "json":
        click.echo(msgspec.json.encode({"mean": means, "runs": runs}))
    else:
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerow(["agents", "seed", "minute", "nodes"])
        for burst_run in runs:
            counts = enumerate(burst_run.nodes_by_minute)
            lines.writerows([burst_run.agents, burst_run.seed, *row] for row in counts)


def _create_agent_group(names: str, own: BurstOptions, command_line: CommandLine) -> AgentGroup:
    """A group of agents, with the extender entry that `configure render-scheduler` prints."""
    if names.strip() == NONE:
        return AgentGroup(NONE, (), {})
    chosen = agent_selection.load_agents_by_name((name.strip() for name in names.split(",")), ChainOptions)
    if others := [kind.name for kind in chosen if not reads_pods_only(kind)]:
        wanted = "agents that read nodes and pods only"
        raise BadSettings("settings", [Problem("--agents", ", ".join(others), wanted)])
    agent_options = {kind.name: command_line.agent_options(kind) for kind in chosen}
    roles = [agent_selection.agent_role_in_extender_entry(kind, agent_options[kind.name]) for kind in chosen]
    scheduler_options = SchedulerOptions(
        URL, filter_all_pods=own.filter_all_pods, weights={"": own.entry_weight}
    )
    entries = scheduler_configuration.build_scheduler_configuration(roles, scheduler_options)["extenders"]
    chain = command_line.settings(ChainOptions)
    return AgentGroup(",".join(kind.name for kind in chosen), chosen, agent_options, chain, entries)


def _burst_table_row(name: str, means: Mapping[str, Any]) -> list[str]:
    share = means["node_minutes"] / means["all_node_minutes"]
    counts = ("cpu_node_minutes", "memory_node_minutes", "restarts", "unplaced_pods")
    texts = [f"{means[key]:.0f}" for key in counts]
    waited = f"{means['waited_minutes']:.0f} min"
    return [name, f"{means['node_minutes']:.0f}", f"{share:.2%}", *texts, waited]
