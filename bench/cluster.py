"""`python -m bench.cluster`: how many pods per second a real kube-scheduler binds, with and without nodewise.

It runs a control plane of its own: etcd, kube-apiserver and kube-scheduler, no kubelets. It compares extenders with
each other, and native mode with a scheduler without any policy, with kube-scheduler's default client limits and with
raised ones. Writes cluster-results.json, which keeps the last run of each comparison and number of nodes, and prints
tables.
"""

import argparse
import contextlib
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.cluster import (
    child_processes,
    controlplane,
    fake_custom_metrics_server,
    kubernetes_objects,
    namespace_sandboxes,
    program_cache,
)
from tests.cluster.namespace_sandboxes import Sandbox

from bench import (
    batching_rounds,
    compared_extenders,
    etcd_population,
    generated_cluster_objects,
    native_label_latency,
    native_mode_rounds,
    report,
    requirement_form_rounds,
    results,
    scheduler_bind_rounds,
    waiting_pod_rounds,
)
from bench.compared_extenders import ADMITTING, ALL, HALF, NODEWISE, NONE, NOTHING
from bench.progress_lines import report_progress_line
from bench.results import CLUSTER, FIGURES, NATIVE, NATIVE_LABELS, Measurement
from bench.scheduler_bind_rounds import DEFAULT_LIMITS, RAISED_LIMITS, BindBench, BindSummary, Rounds

PATH: Final = Path(__file__).parent / "cluster-results.json"
NOTES: Final = PATH.with_name("cluster.md")
BEGIN: Final = "<!-- figures: written by `make bench-cluster` from cluster-results.json -->\n"
END: Final = "<!-- end of figures -->\n"
MERGED_NODES: Final = 5000
"""A run with this number of nodes updates results.json."""
EXTENDERS, EXTENDERS_RAISED = "extenders", "extenders-raised"
NATIVE_MODE, NATIVE_RAISED = "native", "native-raised"
WAITING, LABELS, BATCHING, FORMS = "waiting", "labels", "batching", "forms"
"""Comparisons. The rounds of a comparison alternate; `labels` has no rounds."""
_RAISED: Final = (EXTENDERS_RAISED, NATIVE_RAISED, BATCHING, FORMS)
"""Comparisons with raised client limits of kube-scheduler; the others have the default ones."""
PARTS: Final = {
    EXTENDERS: "",
    EXTENDERS_RAISED: CLUSTER,
    NATIVE_MODE: NATIVE,
    NATIVE_RAISED: results.NATIVE_RAISED,
    WAITING: results.NATIVE_WAITING,
    LABELS: NATIVE_LABELS,
    BATCHING: "",
    FORMS: "",
}
"""The parts of results.json that the comparisons measure; empty for none."""

Run = dict[str, Any]
"""Results of a comparison: where it was measured, its figures and all rounds."""


def main() -> None:
    options = _arguments()
    began, machine_load = time.monotonic(), results.MachineLoad()
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as name:
        report_progress_line("finding the control plane (where it has to be built: five minutes)")
        with _prepared(options, program_cache.folder(), Path(name)) as bench:
            runs = [_measure(comparison, bench, options.rounds) for comparison in options.comparisons]
    share = round(machine_load.others_share(), 2)  # only now, because programs that still run count as others
    for run in runs:
        run["machine"]["others_share"] = share
    if options.write:
        _write(runs)
        for run in runs:
            _merge(run)
    report_progress_line(f"done in {time.monotonic() - began:.0f} s")
    print("\n\n".join(map(table, runs)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    default = [comparison for comparison in PARTS if comparison not in {BATCHING, FORMS}]
    parser.add_argument("comparisons", nargs="*", choices=[[], *PARTS], help=f"default: {' '.join(default)}")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000, help="pods per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the table only")
    options = parser.parse_args()
    options.comparisons = options.comparisons or default
    return options


@contextlib.contextmanager
def _prepared(options: argparse.Namespace, programs: Path, folder: Path) -> Iterator[BindBench]:
    """Run a control plane with the nodes, and metrics that change."""
    names = generated_cluster_objects.names(options.nodes)
    with controlplane.running(programs, folder) as plane, namespace_sandboxes.created(plane) as sandbox:
        report_progress_line(f"creating {options.nodes} nodes")
        etcd_population.fill(
            plane.etcd,
            etcd_population.nodes(names),
            lambda count: report_progress_line(f"{count} created"),
        )
        with (
            fake_custom_metrics_server.behind(sandbox, folder, ("v1beta2",)) as metrics,
            compared_extenders.feeding(metrics, names),
        ):
            yield BindBench(plane, metrics, folder, names, options.pods, DEFAULT_LIMITS)


def _measure(comparison: str, bench: BindBench, rounds: int) -> Run:
    """Measure and summarize one comparison."""
    measured: Rounds = {}
    bench = bench._replace(limits=RAISED_LIMITS if comparison in _RAISED else DEFAULT_LIMITS)
    if comparison == EXTENDERS:
        measured = _measure_extenders(bench, rounds, (NONE, NODEWISE))
        figures = default_extender_figures(measured, len(bench.names))
    elif comparison == EXTENDERS_RAISED:
        measured = _measure_extenders(bench, rounds, (NONE, NOTHING, NODEWISE, ADMITTING))
        figures = extender_figures(measured, len(bench.names))
    elif comparison == LABELS:
        figures = native_label_latency.measure(bench)
    elif comparison == NATIVE_MODE:
        measured = _measure_native(bench, rounds, native_mode_rounds.DEFAULT_ORDER)
        figures = native_mode_rounds.figures(measured, len(bench.names))
    elif comparison == BATCHING:
        measured = batching_rounds.measure(bench, rounds)
        figures = batching_rounds.figures(measured, len(bench.names))
    elif comparison == FORMS:
        measured, figures = requirement_form_rounds.measure(bench, rounds), {}
    elif comparison == NATIVE_RAISED:
        measured = _measure_native(bench, rounds, native_mode_rounds.RAISED_ORDER)
        figures = native_mode_rounds.raised_figures(measured, len(bench.names))
    else:
        with native_mode_rounds.prepared(bench) as cluster:
            measured = waiting_pod_rounds.measure(cluster, rounds)
        figures = waiting_pod_rounds.figures(measured, len(bench.names))
    return {
        "comparison": comparison,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": results.machine(),
        "versions": results.versions() | {"kubernetes": program_cache.VERSION},
        "nodes": len(bench.names),
        "pods": bench.pods,
        "figures": figures,
        "rounds": {name: [each._asdict() for each in series] for name, series in measured.items()},
    }


def _measure_native(bench: BindBench, rounds: int, order: Sequence[str]) -> Rounds:
    with native_mode_rounds.prepared(bench) as cluster:
        bind_round = functools.partial(native_mode_rounds.bind_round, cluster)
        return scheduler_bind_rounds.alternate(order, rounds, bind_round)


def _measure_extenders(bench: BindBench, rounds: int, order: Sequence[str]) -> Rounds:
    with namespace_sandboxes.created(bench.plane) as sandbox:
        compared_extenders.policies(sandbox)
        bind_round = functools.partial(_extender_round, bench, sandbox)
        return scheduler_bind_rounds.alternate(order, rounds, bind_round)


def _extender_round(bench: BindBench, sandbox: Sandbox, name: str) -> BindSummary:
    """Measure one round. RuntimeError if a pod violates nodewise's policy: then the measurement is invalid."""
    labels = {"app": "web", "telemetry-policy": ALL if name == ADMITTING else HALF}
    folder = bench.folder / f"extender-{child_processes.number()}"
    with compared_extenders.extenders(name, bench.plane, folder) as extenders:
        scheduler = scheduler_bind_rounds.new_scheduler(bench, {"extenders": extenders})
        pod = functools.partial(kubernetes_objects.pod, labels=labels)
        watch = scheduler_bind_rounds.bind_pods(sandbox, bench.pods, pod, scheduler)
    if name == NODEWISE and (wrong := scheduler_bind_rounds.count_rejected_nodes(watch, bench.names)):
        raise RuntimeError(f"{wrong} pods are on nodes that the policy rejects")
    return scheduler_bind_rounds.summary(watch)


def default_extender_figures(measured: Rounds, nodes: int) -> dict[str, float]:
    """Figures of rounds with kube-scheduler's default client limits."""
    return {
        "cluster_default_bind_rate_none": scheduler_bind_rounds.median_rate(measured, NONE),
        f"cluster_default_bind_rate_{nodes}": scheduler_bind_rounds.median_rate(measured, NODEWISE),
        f"cluster_default_bind_ratio_none_{nodes}": scheduler_bind_rounds.median_ratio(
            measured, NODEWISE, NONE
        ),
        "cluster_default_cpu_none_ms": scheduler_bind_rounds.median_cpu_ms(measured, NONE),
        f"cluster_default_cpu_{nodes}_ms": scheduler_bind_rounds.median_cpu_ms(measured, NODEWISE),
    }


def extender_figures(measured: Rounds, nodes: int) -> dict[str, float]:
    """Figures of rounds with raised client limits: rates, and ratios as the medians of the rounds' ratios."""
    rate = functools.partial(scheduler_bind_rounds.median_rate, measured)
    ratio = functools.partial(scheduler_bind_rounds.median_ratio, measured)
    return {
        "cluster_bind_rate_none": rate(NONE),
        "cluster_bind_rate_nothing": rate(NOTHING),
        f"cluster_bind_rate_{nodes}": rate(NODEWISE),
        f"cluster_bind_ratio_{nodes}": ratio(NODEWISE, NOTHING),
        f"cluster_bind_ratio_none_{nodes}": ratio(NODEWISE, NONE),
        f"cluster_bind_rate_admitting_{nodes}": rate(ADMITTING),
        f"cluster_bind_ratio_admitting_{nodes}": ratio(ADMITTING, NOTHING),
    }


def table(run: Run) -> str:
    """Format the results of a comparison for a terminal."""
    rows = [(name, _rates(series)) for name, series in run["rounds"].items()]
    rows += [
        (f"{name}: {title}", value)
        for name, series in run["rounds"].items()
        for title, value in _cpu_columns(series).items()
    ]
    rows += [(key, f"{value:g}") for key, value in run["figures"].items()]
    rows.append(("other programs' share of the machine", f"{run['machine']['others_share']:.0%}"))
    width = max(len(name) for name, _ in rows) + 2
    lines = (f"{name:<{width}}{value}" for name, value in rows)
    return "\n".join([f"{run['nodes']} nodes, {run['pods']} pods a round", *lines])


def _write(runs: Sequence[Run]) -> None:
    """Store runs, keep those of other comparisons and numbers of nodes, and update NOTES."""
    known: dict[str, Run] = json.loads(PATH.read_text())
    known |= {f"{run['comparison']} {run['nodes']}": run for run in runs}
    kept = dict(sorted(known.items(), key=lambda entry: (entry[1]["comparison"], entry[1]["nodes"])))
    PATH.write_text(json.dumps(kept, indent=2) + "\n")
    before, begin, rest = NOTES.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    shown = "\n\n".join(_block(each) for each in kept.values())
    NOTES.write_text(f"{before}{begin}\n{shown}\n\n{END}{after}")


def _merge(run: Run) -> None:
    """Update results.json if the run has the number of nodes of its keys."""
    part = PARTS[run["comparison"]]
    if run["nodes"] != MERGED_NODES or not part:
        return
    figures = {
        key: run["figures"][key]
        for key, figure in FIGURES.items()
        if figure.part == part and key in run["figures"]
    }
    measured = Measurement(figures, {}, "", programs={"kubernetes": program_cache.VERSION})
    report.update(part, measured, run["machine"]["others_share"])


def _block(run: Run) -> str:
    """Format a run for NOTES: its figures, the rates of all rounds, and medians of processor time where measured."""
    machine = run["machine"]
    size = f"`{run['comparison']}`, {run['nodes']} nodes, {run['pods']} pods a round"
    heading = f"{size}, {run['date']}: {machine['cpu']}, {machine['cores']}"
    figures = [f"| `{key}` | {value:g} |" for key, value in run["figures"].items()]
    costs = {name: _cpu_columns(series) for name, series in run["rounds"].items()}
    titles = list(dict.fromkeys(title for row in costs.values() for title in row))
    header = ("rounds", "pods a second", *titles)
    rounds = [
        "".join(
            f"| {cell} "
            for cell in (name, _rates(run["rounds"][name]), *(row.get(title, "") for title in titles))
        )
        + "|"
        for name, row in costs.items()
    ]
    return "\n".join(
        [
            f"{heading} cores; other programs took {machine['others_share']:.0%} of the machine.",
            *(("", "| figure | |", "|---|---|", *figures) if figures else ()),
            "",
            *((f"| {' | '.join(header)} |", "|---" * len(header) + "|") if rounds else ()),
            *rounds,
        ]
    )


def _cpu_columns(series: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By title of a column, the median of the rounds: processor time per pod, and the part of the plugin NodeAffinity
    in that of kube-scheduler.
    """

    def median(values: Iterable[float]) -> str:
        return f"{statistics.median(values):.2f}"

    columns = {}
    if all(each.get("cpu_ms") for each in series):
        columns["kube-scheduler, CPU ms"] = median(each["cpu_ms"] for each in series)
    if all(each.get("profile") for each in series):
        for step in series[0]["profile"]:
            columns[f"of it {step}"] = median(each["profile"][step] * each["cpu_ms"] for each in series)
    if all(each.get("api_server_ms") for each in series):
        columns["API server, CPU ms"] = median(each["api_server_ms"] for each in series)
    if all(each.get("controller_ms") for each in series):
        columns["nodewise, CPU ms"] = median(each["controller_ms"] for each in series)
    return columns


def _rates(series: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{each['rate']:g}" for each in series)


if __name__ == "__main__":
    main()
