"""Load-aware placements on recorded usage and in a burst: how long nodes are overloaded.

    python -m bench.load_placements --traces DIR [--no-write]

This runs `nodewise simulate load` with all placements, also with an image per batch, and writes the figures, and the
table of docs/load-aware.md. The figures do not depend on the machine. `load_left_out_default_ratio` checks that no
constant fits one day only: for each day, the constants are those that have the least overload on the other days.
"""

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench import benchmark_servers, report
from bench.progress_lines import report_progress_line
from bench.results import LOAD, LOAD_RIVALS, MachineLoad, Measurement
from nodewise_scorers.load import projected_load, usage_profiles
from nodewise_scorers.load_simulation import simulation, workload
from nodewise_scorers.load_simulation.simulation import LoadResult

RUNS: Final = 10
_USABLE: Final = ("default", "load")
"""Placements whose usable CPU is determined, which takes several times as long."""
_HERD: Final = ("default", "target-load-packing", "koordinator", "load", "oracle")
_LEFT_OUT_RUNS: Final = 2
Constants = tuple[float, int, float, float]
"""DEVIATIONS, POWER, SHELTERED_SHARE and HALF_LIFE."""
CHOSEN: Final[Constants] = (
    projected_load.DEVIATIONS,
    projected_load.POWER,
    projected_load.SHELTERED_SHARE,
    usage_profiles.HALF_LIFE,
)
_ALTERNATIVES: Final[Sequence[Sequence[float]]] = ((1.0, 1.5, 3.0), (3, 6, 8), (0.15, 0.4), (6.0, 24.0))
"""Other values of each constant, which are tried one at a time."""

Runs = list[dict[str, Any]]


def measure(traces: str) -> Measurement:
    """Simulate all placements, and compute their figures."""
    planetlab = ("planetlab", f"--traces={traces}", f"--runs={RUNS}")
    days = [*workload.trace_files(traces)]
    commands = {  # the longest first
        "usable": (*planetlab, f"--placement={','.join(_USABLE)}", "--usable"),
        **{day: (*planetlab, f"--day={day}") for day in days},
        "distinct": (*planetlab, "--placement=load", "--distinct-images"),
        "herd": ("herd", f"--placement={','.join(_HERD)}", f"--runs={RUNS}"),
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        documents = dict(zip(commands, pool.map(_simulated, commands.values()), strict=True))
    runs: Runs = [run for day in days for run in documents[day]["runs"]]
    distinct = [run for run in documents["distinct"]["runs"] if run["placement"] == "load"]
    usable = {name: row["usable_pct"] for name, row in documents["usable"]["mean"].items()}
    herd = documents["herd"]["mean"]
    rows = _rows([*runs, *({**run, "placement": "load, distinct images"} for run in distinct)])
    for name, row in rows.items():
        row |= {"usable_pct": usable.get(name), "herd_pct": herd.get(name, {}).get("overloaded_pct")}
    left_out = _left_out_ratio(traces, days)
    return Measurement(figures(rows, runs, distinct, left_out), {}, "", more={"load": rows})


def _simulated(words: Sequence[str]) -> Mapping[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NODEWISE_")}
    command = [benchmark_servers.PROGRAM, "simulate", "load", *words, "--output=json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=kept)
    if ended.returncode:
        raise RuntimeError(f"nodewise simulate load {' '.join(words)}: {ended.stderr[-500:]}")
    report_progress_line(f"simulated {' '.join(word for word in words if 'traces' not in word)}")
    document: Mapping[str, Any] = json.loads(ended.stdout)
    return document


def _rows(runs: Runs) -> dict[str, dict[str, Any]]:
    """By placement: means, and the share of overloaded node-steps by day."""
    rows: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(run["placement"] for run in runs):
        own = [run for run in runs if run["placement"] == name]
        rows[name] = {
            key: round(statistics.mean(run[key] for run in own), 4)
            for key in ("overloaded_pct", "unmet_pct", "used_pct")
        }
        rows[name]["days_pct"] = {
            day: round(statistics.mean(run["overloaded_pct"] for run in own if run["day"] == day), 3)
            for day in dict.fromkeys(run["day"] for run in own)
        }
    return rows


def figures(
    rows: Mapping[str, Mapping[str, Any]], runs: Runs, distinct: Runs, left_out_ratio: float
) -> dict[str, float]:
    """The figures with targets; a rival is a published formula, and the best one counts for each figure."""

    def to_rivals(name: str, key: str) -> float:
        return round(rows[name][key] / min(rows[rival][key] for rival in LOAD_RIVALS), 3)

    def bound(own: Runs) -> float:
        """The largest of the upper bounds against each rival."""
        bounds = (
            simulation.paired_ratio_bound(_results(own), _results(runs, rival)) for rival in LOAD_RIVALS
        )
        return round(max(bounds), 3)

    default, load, other = (rows[name] for name in ("default", "load", "load, distinct images"))
    herd = {name: rows[name]["herd_pct"] for name in _HERD}
    rivals = min(herd["target-load-packing"], herd["koordinator"])
    return {
        "load_default_ratio": round(load["overloaded_pct"] / default["overloaded_pct"], 3),
        "load_rival_ratio": to_rivals("load", "overloaded_pct"),
        "load_unmet_ratio": to_rivals("load", "unmet_pct"),
        "load_bound": bound([run for run in runs if run["placement"] == "load"]),
        "load_usable_ratio": round(load["usable_pct"] / default["usable_pct"], 3),
        "load_distinct_default_ratio": round(other["overloaded_pct"] / default["overloaded_pct"], 3),
        "load_distinct_rival_ratio": to_rivals("load, distinct images", "overloaded_pct"),
        "load_distinct_unmet_ratio": to_rivals("load, distinct images", "unmet_pct"),
        "load_distinct_bound": bound(distinct),
        "load_left_out_default_ratio": round(left_out_ratio, 3),
        "load_herd_rival_ratio": round(herd["load"] / rivals, 3),
        "load_herd_excess_pct": round(herd["load"] - 1.1 * herd["oracle"], 3),
    }


def _results(runs: Runs, placement: str = "") -> list[LoadResult]:
    """In the order of days and seeds, so that those of two placements are pairs."""
    chosen = [LoadResult(**run) for run in runs if not placement or run["placement"] == placement]
    return sorted(chosen, key=lambda run: (run.day, run.seed))


def _left_out_ratio(traces: str, days: Sequence[str]) -> float:
    """The overload of load, divided by that of default, with constants chosen on the other days for each day."""
    tried = [CHOSEN] + [
        (*CHOSEN[:at], value, *CHOSEN[at + 1 :])
        for at, values in enumerate(_ALTERNATIVES)
        for value in values
    ]
    cases = [(traces, constants, day) for constants in tried for day in days]
    with ProcessPoolExecutor() as pool:
        overload = dict(zip(cases, pool.map(_overloaded_pct, cases), strict=True))
        default = list(pool.map(_overloaded_pct, [(traces, None, day) for day in days]))

    def on(others: Sequence[str], constants: Constants) -> float:
        return sum(overload[traces, constants, day] for day in others)

    best = {
        day: min(tried, key=lambda each: on([other for other in days if other != day], each)) for day in days
    }
    for day, constants in best.items():
        report_progress_line(f"without {day}: {constants}")
    return sum(overload[traces, constants, day] for day, constants in best.items()) / sum(default)


def _overloaded_pct(case: tuple[str, Constants | None, str]) -> float:
    """The mean of a day with these constants; of the placement default if there are none."""
    traces, constants, day = case
    values = workload.read_traces(traces, day)
    if constants:
        vars(projected_load).update(
            zip(("DEVIATIONS", "POWER", "SHELTERED_SHARE"), constants[:3], strict=True)
        )
        usage_profiles.UsageProfiles.__init__.__defaults__ = constants[3:]
    results = [
        simulation.run(workload.planetlab(values, seed), "load" if constants else "default", seed, day)
        for seed in range(1, _LEFT_OUT_RUNS + 1)
    ]
    return statistics.mean(result.overloaded_pct for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", required=True, metavar="DIR", help="folder with a file per day")
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the figures only")
    options = parser.parse_args()
    machine_load = MachineLoad()
    measured = measure(str(Path(options.traces).resolve()))
    print(json.dumps(measured.figures, indent=2))
    if options.write:
        report.update(LOAD, measured, machine_load.others_share())


if __name__ == "__main__":
    main()
