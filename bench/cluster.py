"""`python -m bench.cluster`: how many pods per second a real kube-scheduler binds, with and without nodewise.

It runs a control plane of its own: etcd, kube-apiserver and kube-scheduler, no kubelets. Writes cluster-results.json,
which keeps the last run of each number of nodes, and prints a table.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.cluster import controlplane, fake_custom_metrics_server, namespace_sandboxes, program_cache
from tests.cluster.namespace_sandboxes import Sandbox

from bench import (
    compared_extenders,
    etcd_population,
    generated_cluster_objects,
    report,
    results,
    scheduler_bind_rounds,
)
from bench.compared_extenders import ADMITTING, ALL, HALF, NODEWISE, NONE, NOTHING
from bench.progress_lines import report_progress_line
from bench.results import CLUSTER, FIGURES, Measurement
from bench.scheduler_bind_rounds import BindSummary, BindWatch

PATH: Final = Path(__file__).parent / "cluster-results.json"
NOTES: Final = PATH.with_name("cluster.md")
BEGIN: Final = "<!-- figures: written by `make bench-cluster` from cluster-results.json -->\n"
END: Final = "<!-- end of figures -->\n"
TARGET: Final = 0.85
"""Minimum ratio to the rate with the no-op extender, at 5,000 nodes."""
MERGED_NODES: Final = 5000
"""A run with this number of nodes updates results.json."""
REJECTED: Final = {0, 1, 2, 3, 4}
"""Last digits of the numbers of nodes that violate a rule, in every response of `generated_cluster_objects`:
half of all."""
SLOWEST_RATE: Final = 5.0
"""Pods per second; a slower round is aborted."""

Rounds = dict[str, list[BindSummary]]
"""Rounds by contender, in order. The n-th rounds of all belong together."""


class ClusterBench(NamedTuple):
    """Inputs of every round."""

    sandbox: Sandbox
    folder: Path
    nodes: int
    pods: int


def main() -> None:
    options = _arguments()
    began, machine_load = time.monotonic(), results.MachineLoad()
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as name:
        report_progress_line("finding the control plane (where it has to be built: five minutes)")
        with _prepared(options, program_cache.folder(), Path(name)) as bench:
            measured = _alternate(bench, options.rounds)
    share = machine_load.others_share()
    run = summarize_run(measured, options.nodes, options.pods, share)
    if options.write:
        _write(run, options.nodes)
        _merge(run, share)
    report_progress_line(f"done in {time.monotonic() - began:.0f} s")
    print(table(run, options.nodes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000, help="pods per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the table only")
    return parser.parse_args()


@contextlib.contextmanager
def _prepared(options: argparse.Namespace, programs: Path, folder: Path) -> Iterator[ClusterBench]:
    """Run a control plane with the nodes, the policies, and metrics that change."""
    names = generated_cluster_objects.names(options.nodes)
    with controlplane.running(programs, folder) as plane, namespace_sandboxes.created(plane) as sandbox:
        report_progress_line(f"creating {options.nodes} nodes")
        etcd_population.fill(
            plane.etcd,
            etcd_population.nodes(names),
            lambda count: report_progress_line(f"{count} created"),
        )
        compared_extenders.policies(sandbox)
        with (
            fake_custom_metrics_server.behind(sandbox, folder, ("v1beta2",)) as metrics,
            compared_extenders.feeding(metrics, names),
        ):
            yield ClusterBench(sandbox, folder, options.nodes, options.pods)


def _alternate(bench: ClusterBench, count: int) -> Rounds:
    """Measure `count` rounds of all contenders; every other round uses the reverse order."""
    order = [NONE, NOTHING, NODEWISE, ADMITTING]
    rounds: Rounds = {name: [] for name in order}
    for number in range(count):
        for name in order if number % 2 == 0 else order[::-1]:
            report_progress_line(f"round {number + 1} of {count}, {name}: starting")
            bound = _round(bench, name, number)
            rounds[name].append(bound)
            report_progress_line(f"round {number + 1} of {count}, {name}: {bound.rate:g} pods a second")
    return rounds


def _round(bench: ClusterBench, name: str, number: int) -> BindSummary:
    """Measure one round. RuntimeError if a pod violates nodewise's policy: then the measurement is invalid."""
    plane = bench.sandbox.plane
    deadline_s = 60 + bench.pods / SLOWEST_RATE
    with compared_extenders.extenders(name, plane, bench.folder / f"{name}-{number}") as extenders:
        policy = ALL if name == ADMITTING else HALF
        watch = scheduler_bind_rounds.bind_pods(bench.sandbox, bench.pods, policy, extenders, deadline_s)
    if name == NODEWISE and (wrong := _violating(watch, bench.nodes)):
        raise RuntimeError(f"{wrong} pods are on nodes that the policy rejects")
    return scheduler_bind_rounds.summary(watch)


def _violating(watch: BindWatch, nodes: int) -> int:
    """Number of pods on nodes that violate a rule."""
    numbers = {name: number for number, name in enumerate(generated_cluster_objects.names(nodes))}
    return sum(numbers[node] % 10 in REJECTED for node in watch.node_of.values())


def summarize_run(measured: Rounds, nodes: int, pods: int, others_share: float) -> dict[str, Any]:
    """Summarize a run; a ratio is the median of the rounds' ratios."""

    def median(name: str) -> float:
        return round(statistics.median(each.rate for each in measured[name]), 1)

    def ratio(name: str, to: str) -> float:
        pairs = zip(measured[name], measured[to], strict=True)
        return round(statistics.median(own.rate / other.rate for own, other in pairs), 2)

    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": results.machine() | {"others_share": round(others_share, 2)},
        "versions": results.versions() | {"kubernetes": program_cache.VERSION},
        "nodes": nodes,
        "pods": pods,
        "cluster_bind_rate_none": median(NONE),
        "cluster_bind_rate_nothing": median(NOTHING),
        f"cluster_bind_rate_{nodes}": median(NODEWISE),
        f"cluster_bind_ratio_{nodes}": ratio(NODEWISE, NOTHING),
        f"cluster_bind_ratio_none_{nodes}": ratio(NODEWISE, NONE),
        f"cluster_bind_rate_admitting_{nodes}": median(ADMITTING),
        f"cluster_bind_ratio_admitting_{nodes}": ratio(ADMITTING, NOTHING),
        "rounds": {name: [each._asdict() for each in series] for name, series in measured.items()},
    }


def table(run: dict[str, Any], nodes: int) -> str:
    """Format the results for a terminal."""
    rows = [
        ("no extender", f"{run['cluster_bind_rate_none']:g} pods/s"),
        ("no-op extender", f"{run['cluster_bind_rate_nothing']:g} pods/s"),
        ("nodewise", f"{run[f'cluster_bind_rate_{nodes}']:g} pods/s"),
        ("  to no-op", f"{run[f'cluster_bind_ratio_{nodes}']:g} (at least {TARGET:g})"),
        ("  to no extender", f"{run[f'cluster_bind_ratio_none_{nodes}']:g}"),
        (ADMITTING, f"{run[f'cluster_bind_rate_admitting_{nodes}']:g} pods/s"),
        ("  to no-op", f"{run[f'cluster_bind_ratio_admitting_{nodes}']:g}"),
        ("other programs' share of the machine", f"{run['machine']['others_share']:.0%}"),
    ]
    return "\n".join([f"{nodes} nodes, {run['pods']} pods a round", *(f"{a:<38}{b}" for a, b in rows)])


def _write(run: dict[str, Any], nodes: int) -> None:
    """Store the run, keep those with other numbers of nodes, and update NOTES."""
    known = json.loads(PATH.read_text()) if PATH.exists() else {}
    kept = dict(sorted((known | {str(nodes): run}).items(), key=lambda entry: int(entry[0])))
    PATH.write_text(json.dumps(kept, indent=2) + "\n")
    before, begin, rest = NOTES.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    shown = "\n\n".join(_block(each) for each in kept.values())
    NOTES.write_text(f"{before}{begin}\n{shown}\n\n{END}{after}")


def _merge(run: dict[str, Any], others_share: float) -> None:
    """Update results.json if the run has the number of nodes of its keys."""
    if run["nodes"] != MERGED_NODES:
        return
    figures = {key: run[key] for key, figure in FIGURES.items() if figure.part == CLUSTER}
    measured = Measurement(figures, {}, "", programs={"kubernetes": program_cache.VERSION})
    merged = results.merged(results.read(), CLUSTER, measured, results.where(measured, others_share))
    results.write(merged)
    report.write(merged)


def _block(run: dict[str, Any]) -> str:
    """Format a run for NOTES."""
    machine = run["machine"]
    heading = f"{run['nodes']} nodes, {run['pods']} pods a round, {run['date']}: {machine['cpu']}, {machine['cores']}"
    rounds = [f"| {name} | {_rates(series)} |" for name, series in run["rounds"].items()]
    return "\n".join(
        [
            f"{heading} cores; other programs took {machine['others_share']:.0%} of the machine.",
            "",
            *("| figure | |", "|---|---|"),
            *(f"| `{key}` | {value:g} |" for key, value in run.items() if key.startswith("cluster_")),
            "",
            *("| rounds | pods a second |", "|---|---|", *rounds),
        ]
    )


def _rates(series: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each['rate']:g}" for each in series)


if __name__ == "__main__":
    main()
