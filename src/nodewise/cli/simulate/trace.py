"""`nodewise simulate trace`: places a published GPU trace with the gpu agent."""

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

from nodewise.agents.gpu.options import Placement
from nodewise.base.errors import BadInput, BadSettings, Problem, shown
from nodewise.base.option import Argument, Option
from nodewise.cli import options_from_settings, plots
from nodewise.cli.options_from_settings import CommandLine
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.scheduling_model import gpu_trace_files, gpu_trace_replay
from nodewise.scheduling_model.gpu_trace_replay import Trace, TraceResult

_PUBLISHED_PCT: Final = (50, 80, 90, 100, 130)
"""Shares of requested GPUs, in per cent, for which results are published."""


class TraceOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise simulate trace`."""

    form: Annotated[Literal["openb"], Argument()]

    output: Annotated[Literal["text", "json"], Option("-o --output")] = "text"
    """Output format."""

    nodes_file: Annotated[str, Option("--nodes", metavar="FILE")]
    """CSV: sn,cpu_milli,memory_mib,gpu,model"""

    pods_file: Annotated[str, Option("--pods", metavar="FILE")]
    """CSV: cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec]"""

    placements: Annotated[tuple[Placement, ...], Option("--placement")] = ("first-fit",)
    """Value of --gpu-placement; may be repeated."""

    arrivals: Annotated[float, Meta(ge=0.01, le=10)] = 1.3
    """Stop when this share of all GPUs has been requested."""

    seed: Annotated[int, Meta(ge=0)] = 42
    """Seed of the first run."""

    seeds: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Runs of each placement, with consecutive seeds."""

    published: Annotated[str | None, Option(metavar="FILE")] = None
    """JSON file with published results, for comparison."""

    svg: Annotated[str | None, Option(metavar="FILE")] = None
    """Plot the allocated share; needs matplotlib."""


def run(command_line: CommandLine) -> None:
    """Place a published GPU trace with the gpu agent: its filter, scores, choice of GPUs and allocations.

    Pods are drawn from the list with replacement and stay on their nodes, until the requested GPUs reach the given
    share of all GPUs. The trace openb (1,213 nodes, 6,212 GPUs) is published by Alibaba, comparable results by Weng et
    al., USENIX ATC 2023.

    \b
    With -o json, by each whole per cent of all GPUs that was requested:
      allocated_gpu_pct   allocated GPUs, per cent
      fragmented_gpu_pct  free GPUs that these pods cannot use, per cent
      failed_pods         pods that fit nowhere
      seconds             duration
    With several placements or seeds: `runs`, and the `mean` of each placement.

    \b
    Examples:
      nodewise simulate trace openb --nodes openb_node_list_gpu_node.csv \\
        --pods openb_pod_list_default.csv --placement pack --seeds 10

    \b
    Exit codes:
      0  placed
      1  a file cannot be read
      2  the command line or a setting is invalid
    """
    own = command_line.settings(TraceOptions)
    if own.svg is not None:
        plots.check_matplotlib_installed()
    known = _read_published_means(own.published, Path(own.pods_file).stem) if own.published else {}
    runs = _execute_trace_runs(
        own, Trace(gpu_trace_files.nodes(own.nodes_file), gpu_trace_files.pods(own.pods_file))
    )
    means: dict[str, Any] = {
        name: gpu_trace_replay.mean([run for run in runs if run.placement == name]) for name in own.placements
    }
    if own.svg is not None:
        plots.plot_gpu_allocation_curves(
            {name: run_means["allocated_gpu_pct"] for name, run_means in means.items()}, known, Path(own.svg)
        )
    click.echo(
        _encode_trace_runs_json(runs, means) if own.output == "json" else _format_trace_table(means, known)
    )


def _execute_trace_runs(own: TraceOptions, pods: Trace) -> list[TraceResult]:
    """Execute all runs; on a terminal, with a progress bar."""
    placements = list(dict.fromkeys(own.placements))
    hidden = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=hidden) as progress:
        total = len(placements) * own.seeds * round(own.arrivals * 100)
        bar = progress.add_task("placing", total=total)
        return [
            gpu_trace_replay.run(pods, placement, seed, own.arrivals, lambda _: progress.advance(bar))
            for placement in placements
            for seed in range(own.seed, own.seed + own.seeds)
        ]


def _encode_trace_runs_json(runs: Sequence[TraceResult], means: Mapping[str, Any]) -> str:
    """A single run, or several runs with their means."""
    document: Any = runs[0] if len(runs) == 1 else {"mean": means, "runs": runs}
    return msgspec.json.encode(document).decode()


def _format_trace_table(
    means: Mapping[str, Mapping[str, Any]], known: Mapping[str, Mapping[int, float]]
) -> str:
    """A table of allocated shares, by placement and requested share."""
    rows = {name: run_means["allocated_gpu_pct"] for name, run_means in means.items()}
    rows |= {f"published: {name}": curve for name, curve in known.items()}
    longest = max(max(run_means["allocated_gpu_pct"]) for run_means in means.values())
    shares = [
        pct
        for pct in sorted({*_PUBLISHED_PCT, longest})
        if pct == longest or any(pct in curve for curve in rows.values())
    ]
    width = max(map(len, rows))
    lines = [f"{'% allocated at':{width}}" + "".join(f"{pct:>8} %" for pct in shares)]
    for name, curve in rows.items():
        cells = "".join(f"{curve[pct]:10.2f}" if pct in curve else " " * 10 for pct in shares)
        lines.append(f"{name:{width}}{cells}")
    return "\n".join(lines)


def _read_published_means(path: str, pods: str) -> dict[str, dict[int, float]]:
    """Published means by policy and requested per cent, for this list of pods."""
    wanted = '{"<pod list>": {"<policy>": {"<per cent>": {"mean": 95.2}}}}'
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        return {
            str(policy): {int(pct): float(figures["mean"]) for pct, figures in by_pct.items()}
            for policy, by_pct in document.get(pods, {}).items()
        }
    except OSError as error:
        raise BadSettings("--published", [Problem(path, error.strerror or str(error), "a file")]) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput("--published", [Problem(path, shown(str(error)), wanted)]) from error


command = options_from_settings.create_click_command(
    "trace",
    run,
    options_from_settings.click_parameters(TraceOptions),
    short_help="Place a published GPU trace with the gpu agent.",
)
