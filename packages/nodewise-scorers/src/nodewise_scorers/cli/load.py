"""`nodewise simulate load`: compares load-aware placements on recorded usage, or in a burst of pods."""

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Annotated, Any, Final, Literal

import click
import msgspec
from msgspec import Meta

from nodewise.base.errors import BadSettings, Problem, did_you_mean, shown
from nodewise.base.option import Argument, Option
from nodewise.cli import terminal_output
from nodewise.cli.options_from_settings import CommandLine, settings_command
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.observe import logs
from nodewise_scorers.load_simulation import simulation
from nodewise_scorers.load_simulation import workload as workloads
from nodewise_scorers.load_simulation.simulation import PLACEMENTS, LoadResult
from nodewise_scorers.load_simulation.workload import SimulatedPods

ALL: Final = "all"
DEFAULT: Final = "default"
OURS: Final = "load"
_RATIO_STEP: Final = 0.93  # by which the request ratio changes in the search for the usable CPU
_MAX_RATIO_STEPS: Final = 16
_USABLE_RUNS: Final = 10
"""Runs that the search for the usable CPU takes for each other one, about; for the progress bar."""


class LoadOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise simulate load`."""

    workload: Annotated[Literal["planetlab", "herd"], Argument()]

    traces: Annotated[str, Option(metavar="DIR")] = ""
    """Folder with a file per day, DAY.csv or DAY.csv.gz: a line per machine, per cent of its CPU every five minutes.
    Required for planetlab."""

    days: Annotated[tuple[str, ...], Option("--day", metavar="DAY")] = ()
    """Day of the traces; may be repeated. Default: all."""

    placements: Annotated[tuple[str, ...], Option("--placement", metavar="NAME[,NAME…]")] = (ALL,)
    """Placements to compare, or `all`; may be repeated."""

    seed: Annotated[int, Meta(ge=0)] = 1
    """Seed of the first run."""

    runs: Annotated[int, Meta(ge=1, le=100)] = 1
    """Runs per placement and day, with consecutive seeds; the table shows means."""

    request_ratio: Annotated[float, Meta(ge=0.05, le=1)] = workloads.REQUEST_RATIO
    """Request of a pod as a share of its limit (planetlab)."""

    distinct_images: bool = False
    """Give each batch an image of its own, so that nothing is known about its usage before it runs (planetlab)."""

    usable: bool = False
    """Also determine the usable CPU (planetlab; not in csv); takes about ten times as long."""

    output: Annotated[Literal["text", "json", "csv"], Option("-o --output")] = "text"
    """Output format."""


@settings_command("load", LoadOptions, short_help="Compare load-aware placements on recorded usage.")
def command(command_line: CommandLine) -> None:
    """Place pods with recorded usage by load-aware placements, and measure for how long nodes are overloaded.

    planetlab: on 60 nodes with 16 cores, batches of replicas arrive while less than 97 % of the cores are requested.
    The replicas of a batch use a line of the day, each with an offset of up to an hour, and request a fifth of their
    limit. A step is five minutes; statistics are one step old, and the first three hours are not counted. The traces
    are published: CPU utilization of virtual machines, collected by PlanetLab's CoMon project, with Beloglazov and
    Buyya, 2012.

    A line counts as an image: a later batch of the same line is another rollout of the same application. Only the
    placement load uses this: it learns the usage of an image from its earlier pods. With --distinct-images nothing is
    known about a batch before it runs, and load loses most of its advantage.

    herd: a Deployment with 50 replicas is scaled up by 7,000 within one scrape, on 250 nodes with loads from 5 % to a
    limit of 30 to 50 %, drawn for each run. The placement load knows the usage of the pods from the 50 replicas.

    \b
    Placements:
      default, random        kube-scheduler's default plugins; any node that fits
      oracle                 knows the future usage of the pods
      load                   projected load with usage profiles: the formula of
                             the agent load
      safe                   the agent safe; safe and low-risk-over-commitment
                             need scipy (the extra risk)
      target-load-packing, load-variation-risk-balancing,
      low-risk-over-commitment, peaks
                             the plugins of Trimaran, with default parameters
      koordinator, volcano   LoadAware of Koordinator, usage of Volcano
    The same seed produces the same pods for all placements.

    \b
    Figures:
      overloaded_pct  share of node-steps with a demand above 90 % of the node
      unmet_pct       share of the demand that exceeds its node
      used_pct        mean utilization
      usable_pct      mean utilization at the request ratio at which as many
                      nodes are overloaded as with the default plugins and
                      --request-ratio; - if none of 16 ratios has so many
      load_ratio      overloaded_pct of load divided by that of the placement;
                      load_ratio_bound is its upper 95 % bound, from a bootstrap
                      over pairs of runs, and - with one run

    \b
    Examples:
      nodewise simulate load planetlab --traces planetlab --day 20110303
      nodewise simulate load herd --runs 3

    \b
    Exit codes:
      0  placed
      1  a file cannot be read
      2  the command line or a setting is invalid
    """
    logs.configure("error", "messages")
    own = command_line.settings(LoadOptions)
    names = _placement_names(own.placements)
    if own.usable:
        names = list(dict.fromkeys([DEFAULT, *names]))  # it defines the accepted overload
    create_workload, days = _workload_factory(own)
    expected = len(names) * len(days) * own.runs * (_USABLE_RUNS if own.usable else 1)
    with terminal_output.progress_bar("placing") as progress:
        done = 0

        def execute(chosen: Sequence[str], request_ratio: float) -> dict[str, list[LoadResult]]:
            nonlocal done
            results: dict[str, list[LoadResult]] = {name: [] for name in chosen}
            for day in days:
                for seed in range(own.seed, own.seed + own.runs):
                    pods = create_workload(day, seed, request_ratio)
                    for name in chosen:
                        results[name].append(simulation.run(pods, name, seed, day))
                        done += 1
                        progress(done, max(done, expected))
            return results

        results = execute(names, own.request_ratio)
        means = {name: simulation.mean(runs) for name, runs in results.items()}
        if own.usable:
            accepted_pct = means[DEFAULT]["overloaded_pct"]
            for name in names:
                means[name]["usable_pct"] = _usable_pct(
                    lambda ratio, name=name: simulation.mean(execute([name], ratio)[name]),  # type: ignore[misc]
                    means[name],
                    own.request_ratio,
                    accepted_pct,
                )
    if OURS in results:
        for name, runs in results.items():
            theirs, ours = means[name]["overloaded_pct"], means[OURS]["overloaded_pct"]
            means[name]["load_ratio"] = round(ours / theirs, 4) if theirs else None
            bound = simulation.paired_ratio_bound(results[OURS], runs) if len(runs) > 1 else inf
            means[name]["load_ratio_bound"] = round(bound, 4) if bound != inf else None
    _print(own, results, means)


def _placement_names(values: Sequence[str]) -> list[str]:
    """The chosen placements, each once. BadSettings names unknown ones."""
    chosen = [name.strip() for value in values for name in value.split(",")]
    if unknown := [name for name in chosen if name != ALL and name not in PLACEMENTS]:
        valid = [ALL, *PLACEMENTS]
        wanted = f"one of {', '.join(valid)}{did_you_mean(unknown[0], valid)}"
        raise BadSettings("settings", [Problem("--placement", shown(unknown[0]), wanted)])
    return list(PLACEMENTS) if ALL in chosen else list(dict.fromkeys(chosen))


def _workload_factory(own: LoadOptions) -> tuple[Callable[[str, int, float], SimulatedPods], Sequence[str]]:
    """What creates the workload of a day, a seed and a request ratio, and the days."""
    if own.workload == "herd":
        used = {
            "--traces": own.traces,
            "--day": own.days,
            "--request-ratio": own.request_ratio != workloads.REQUEST_RATIO,
            "--distinct-images": own.distinct_images,
            "--usable": own.usable,
        }
        if ignored := [flag for flag, value in used.items() if value]:
            raise BadSettings("settings", [Problem(ignored[0], "used with herd", "planetlab")])
        return (lambda _day, seed, _ratio: workloads.herd(seed)), [""]
    if not own.traces:
        raise BadSettings("settings", [Problem("--traces", "no folder", "a folder with a file per day")])
    if own.usable and own.output == "csv":
        raise BadSettings("settings", [Problem("--output", "csv", "text or json together with --usable")])
    days = own.days or workloads.trace_files(own.traces)
    traces = {day: workloads.read_traces(own.traces, day) for day in dict.fromkeys(days)}
    return (
        lambda day, seed, ratio: workloads.planetlab(
            traces[day], seed, request_ratio=ratio, distinct_images=own.distinct_images
        )
    ), list(traces)


def _usable_pct(
    simulate: Callable[[float], Mapping[str, float]],
    here: Mapping[str, float],
    ratio: float,
    accepted_pct: float,
) -> float | None:
    """The mean utilization at the request ratio at which the overload is `accepted_pct`, interpolated.

    Smaller requests admit more pods, which raises utilization and overload. `here` are the figures at `ratio`. None if
    no ratio that is tried has this overload.
    """
    is_below = here["overloaded_pct"] <= accepted_pct
    last = here
    for _ in range(_MAX_RATIO_STEPS):
        if here["overloaded_pct"] == accepted_pct:
            return here["used_pct"]
        ratio = ratio * _RATIO_STEP if is_below else ratio / _RATIO_STEP
        if ratio > 1:
            break
        last, here = here, simulate(ratio)
        if (here["overloaded_pct"] <= accepted_pct) != is_below:
            part = (accepted_pct - last["overloaded_pct"]) / (here["overloaded_pct"] - last["overloaded_pct"])
            return round(last["used_pct"] + part * (here["used_pct"] - last["used_pct"]), 4)
    return None


def _print(
    own: LoadOptions, results: Mapping[str, Sequence[LoadResult]], means: Mapping[str, Mapping[str, Any]]
) -> None:
    runs = [run for of_placement in results.values() for run in of_placement]
    if own.output == "json":
        inputs: dict[str, Any] = {"workload": own.workload}
        if own.workload == "planetlab":
            inputs |= {"request_ratio": own.request_ratio, "distinct_images": own.distinct_images}
        click.echo(msgspec.json.encode({**inputs, "mean": means, "runs": runs}).decode())
        return
    if own.output == "csv":
        lines = csv.DictWriter(sys.stdout, LoadResult.__struct_fields__, lineterminator="\n")
        lines.writeheader()
        lines.writerows(map(msgspec.structs.asdict, runs))
        return
    _print_table(means)
    if OURS in means and own.workload == "planetlab" and not own.distinct_images:
        click.echo(
            "note: a line of the traces counts as the image of its pods, from which only load learns;"
            " without that: --distinct-images"
        )


def _print_table(means: Mapping[str, Mapping[str, Any]]) -> None:
    has_ratio, has_usable = OURS in means, any("usable_pct" in row for row in means.values())
    head = ["PLACEMENT", "ABOVE 90 %", "UNMET", "USED", "WAITED"]
    head += ["USABLE"] * has_usable + ["LOAD RATIO", "BOUND"] * has_ratio
    rows = []
    for name, figures in means.items():
        row = [name, f"{figures['overloaded_pct']:.3f} %", f"{figures['unmet_pct']:.4f} %"]
        row += [f"{figures['used_pct']:.1f} %", f"{figures['waited_steps']:.0f}"]
        if has_usable:
            usable = figures["usable_pct"]
            row.append("-" if usable is None else f"{usable:.1f} %")
        if has_ratio:
            ratios = (figures["load_ratio"], figures["load_ratio_bound"])
            row += ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        rows.append(row)
    terminal_output.print_table(head, rows)
