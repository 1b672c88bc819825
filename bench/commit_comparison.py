"""`python -m bench compare COMMIT`: measures another commit and this checkout in alternating rounds.

The benchmarks of this checkout measure the installed program of both states; of the other commit they use only its
Makefile and the command `nodewise`. Prints a table. With `--write`, the ratios to the build of 21 November 2026 are
written into results.json. The exit code is 1 if a part was not measured or a ratio is worse than the limit, and 2 if
the commit cannot be built.
"""

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.cluster import (
    label_watch,
)
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.go_toolchain import MissingError
from tests.cluster.label_watch import LabelWatch
from tests.cluster.namespace_sandboxes import wait

from bench import (
    alternating_rounds,
    benchmark_servers,
    commit_build,
    comparison_table,
    generated_cluster_objects,
    gpu_agent,
    gpu_binds,
    load_clients,
    native_label_latency,
    native_mode_rounds,
    report,
    requests_with_node_names,
    results,
)
from bench.benchmark_servers import BenchContext, MeasuredServer, Scale
from bench.commit_build import BuildError
from bench.comparison_table import ComparedFigure, Comparison
from bench.load_clients import HttpLoad, LoadClient
from bench.progress_lines import report_progress_line
from bench.requests_with_node_names import PATHS, NamesBench
from bench.results import NOVEMBER, MachineLoad, Measurement

FULL: Final = Scale(rounds=5)
QUICK: Final = Scale(rounds=2, requests=200, nodes=1000, bound_pods=100)
"""Sizes for a first impression, in two minutes."""
SLICES: Final = 4
"""A round of requests alternates between the states this many times, so that a short disturbance affects both."""
WHOLE_BODIES: Final = 3
REST_PERIODS: Final = 3
"""Metric periods from readiness until the memory at rest is read."""
PERIOD_S: Final = 5.0
CHANGING_NODES: Final = 100
LABEL_POLICIES: Final = 10
LABEL_CHANGES: Final = 4
"""Changes of verdicts in a round."""
STARTS: Final = 5
_METRIC: Final = "node_changing"

EXTENDER_REST = ComparedFigure("extender: memory at rest", "MiB")
EXTENDER_MEMORY = ComparedFigure("extender: memory after requests with names", "MiB")
CONTROLLER_MEMORY = ComparedFigure("controller: memory at rest", "MiB")
CONTROLLER_CPU = ComparedFigure("controller: processor time per period at rest", "ms")
BIND_RATES: Final = {
    count: ComparedFigure(f"pods with GPUs bound, {replicas}", "1/s", is_rate=True)
    for count, replicas in ((1, "one replica"), (2, "two replicas"))
}
BIND_CPU = ComparedFigure("processor time per bound pod, one replica", "ms")
LABEL_MEDIAN = ComparedFigure("native mode: metric value to label, median", "ms")
LABEL_LAST = ComparedFigure("native mode: metric value to label, last of 1,000", "ms")
LABEL_CPU = ComparedFigure("native mode: processor time for 1,000 labels", "ms")


class State(NamedTuple):
    """A state of the program: the other commit, or this checkout."""

    program: Path
    is_after: bool

    @property
    def name(self) -> str:
        return "after" if self.is_after else "before"


class CompareBench(NamedTuple):
    """Inputs of every part."""

    context: BenchContext
    states: Sequence[State]
    comparison: Comparison

    def rounds(self) -> Iterator[Sequence[State]]:
        """The states of each round; every other round uses the reverse order."""
        for number in range(self.context.scale.rounds):
            report_progress_line(f"round {number + 1} of {self.context.scale.rounds}")
            yield self.states if number % 2 == 0 else self.states[::-1]

    def add(self, figure: ComparedFigure, state: State, value: float) -> None:
        self.comparison.add(figure, is_after=state.is_after, value=value)


def _compare_starts(bench: CompareBench) -> None:
    """The processor time of commands that only print."""
    for order in bench.rounds():
        for option in ("--version", "--help"):
            times_ms: dict[State, list[float]] = {state: [] for state in order}
            for _ in range(STARTS):
                for state in order:
                    times_ms[state].append(_child_cpu_ms([state.program, option]))
            for state in order:
                figure = ComparedFigure(f"nodewise {option}: processor time", "ms")
                bench.add(figure, state, statistics.median(times_ms[state]))


def _child_cpu_ms(command: Sequence[str | Path]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _compare_requests(bench: CompareBench) -> None:
    """Filter and prioritize with names and with whole nodes, and the memory of the extender."""
    context, requests = bench.context, bench.context.scale.requests
    nodes = generated_cluster_objects.names(context.scale.nodes)
    bodies = generated_cluster_objects.requests(nodes, requests_with_node_names.PODS)
    load = HttpLoad("", requests_with_node_names.write(context.folder / "names", bodies))
    bodies = generated_cluster_objects.whole_requests(nodes, WHOLE_BODIES)
    whole = HttpLoad("", requests_with_node_names.write(context.folder / "whole", bodies))
    with _api_servers(bench) as kubeconfigs:
        for order in bench.rounds():
            with contextlib.ExitStack() as stack:
                extenders = {}
                for state in order:
                    extender = benchmark_servers.extender(
                        kubeconfigs[state].parent,
                        context.certificates,
                        kubeconfigs[state],
                        "1h",
                        state.program,
                    )
                    extenders[state] = stack.enter_context(extender)
                time.sleep(PERIOD_S)
                for state, extender in extenders.items():
                    bench.add(EXTENDER_REST, state, extender.rss_mib())
                    NamesBench(kubeconfigs[state].parent, context.client, load, 1).answers(extender.url)
                for verb, path in PATHS.items():
                    _compare_series(bench, f"{verb}, names", extenders, path, load, requests)
                for state, extender in extenders.items():
                    bench.add(EXTENDER_MEMORY, state, extender.rss_mib())
                for verb, path in PATHS.items():
                    _compare_series(bench, f"{verb}, whole nodes", extenders, path, whole, requests // 60)


@contextlib.contextmanager
def _api_servers(bench: CompareBench) -> Iterator[Mapping[State, Path]]:
    """A fake API server for each state, because each has a leader; yields kubeconfigs in folders of their own."""
    with contextlib.ExitStack() as stack:
        kubeconfigs = {}
        for state in bench.states:
            folder = bench.context.folder / state.name
            folder.mkdir()
            server = benchmark_servers.apiserver(
                folder, bench.context.certificates, bench.context.scale.nodes
            )
            kubeconfigs[state] = stack.enter_context(server)
        yield kubeconfigs


def _compare_series(
    bench: CompareBench,
    meaning: str,
    extenders: Mapping[State, MeasuredServer],
    path: str,
    load: HttpLoad,
    requests: int,
) -> None:
    """Measure the duration and the processor time of requests in slices, which alternate between the states."""
    count = max(requests // SLICES, 3)
    load = load._replace(requests=count, warmup=max(count // 5, 1))
    order = list(extenders)
    micros: dict[State, list[float]] = {state: [] for state in order}
    cpu_s = dict.fromkeys(order, 0.0)
    for number in range(SLICES):
        for state in order if number % 2 == 0 else order[::-1]:
            extender = extenders[state]
            before_s = extender.cpu_s()
            micros[state] += bench.context.client.ask(load._replace(url=extender.url + path)).micros
            cpu_s[state] += extender.cpu_s() - before_s
    for state in order:
        latency_ms = statistics.median(micros[state]) / 1000
        cpu_ms = 1000 * cpu_s[state] / SLICES / (load.requests + load.warmup)
        bench.add(ComparedFigure(f"{meaning}: median", "ms"), state, latency_ms)
        bench.add(ComparedFigure(f"{meaning}: processor time", "ms"), state, cpu_ms)
        report_progress_line(f"{meaning}, {state.name}: median {latency_ms:.3f} ms, CPU {cpu_ms:.3f} ms")


def _compare_gpu_filter(bench: CompareBench) -> None:
    context = bench.context
    words, load = gpu_agent.prepare_filter(context)
    for order in bench.rounds():
        with contextlib.ExitStack() as stack:
            extenders = {
                state: stack.enter_context(
                    benchmark_servers.serving(state.program, words, context.folder / f"{state.name}.log")
                )
                for state in order
            }
            for extender in extenders.values():
                gpu_agent.check_filter(context, load._replace(url=extender.url + gpu_agent.PATH))
            _compare_series(bench, "GPU filter", extenders, gpu_agent.PATH, load, load.requests)


def _compare_controllers(bench: CompareBench) -> None:
    """The memory and the processor time of controllers that fetch metrics and change nothing."""
    with _api_servers(bench) as kubeconfigs:
        for order in bench.rounds():
            with contextlib.ExitStack() as stack:
                controllers = {}
                for state in order:
                    words = ["controller", f"--kubeconfig={kubeconfigs[state]}", "--health-port=0"]
                    words += [f"--sync-period={PERIOD_S:g}s", "--log-format=json"]
                    log = kubeconfigs[state].with_name("controller.log")
                    server = benchmark_servers.serving(state.program, words, log)
                    controllers[state] = stack.enter_context(server)
                time.sleep(PERIOD_S)
                before_s = {state: controller.cpu_s() for state, controller in controllers.items()}
                time.sleep(REST_PERIODS * PERIOD_S)
                for state, controller in controllers.items():
                    spent_s = controller.cpu_s() - before_s[state]
                    bench.add(CONTROLLER_MEMORY, state, controller.rss_mib())
                    bench.add(CONTROLLER_CPU, state, 1000 * spent_s / REST_PERIODS)
                    report_progress_line(f"controller, {state.name}: {controller.rss_mib():.1f} MiB at rest")


def _compare_binds(bench: CompareBench) -> None:
    count = bench.context.scale.bound_pods
    with gpu_binds.bind_cluster(bench.context.folder) as cluster:
        for order in bench.rounds():
            for replicas, figure in BIND_RATES.items():
                for state in order:
                    with gpu_binds.replicas(cluster, state.program, replicas) as running:
                        bound = gpu_binds.bind_round(cluster, running, count)
                    bench.add(figure, state, bound.rate)
                    if replicas == 1:
                        bench.add(BIND_CPU, state, bound.cpu_ms)


def _compare_labels(bench: CompareBench) -> None:
    """Ten policies change their verdict on a hundred nodes at once. Labels are written without a rate limit."""
    folder, names = bench.context.folder, generated_cluster_objects.names(bench.context.scale.nodes)
    cluster = native_mode_rounds.cluster_of_equal_nodes(folder, names, _METRIC)
    with cluster as (plane, sandbox, metrics, account):
        policies = [
            native_mode_rounds.put_policy(sandbox, f"pol-{number}", {"app": "web"}, _rule(number))
            for number in range(LABEL_POLICIES)
        ]
        with label_watch.watch_labels(plane) as labels:
            for number, order in enumerate(bench.rounds()):
                for state in order:
                    with _controller(account, folder, state) as running:
                        if number == 0:
                            native_mode_rounds.wait_active(plane.api, policies)
                        running.wait_settled(_METRIC)
                        _compare_label_times(bench, state, metrics, names, labels, running.process)


def _rule(number: int) -> dict[str, object]:
    return {"metric": _METRIC, "above": 50 + number}


def _controller(
    account: User, folder: Path, state: State
) -> contextlib.AbstractContextManager[native_mode_rounds.RunningController]:
    options = ("--sync-period=1s", *native_mode_rounds.UNLIMITED)
    return native_mode_rounds.controller(account, folder, *options, program=state.program)


def _compare_label_times(
    bench: CompareBench,
    state: State,
    metrics: FakeCustomMetricsApi,
    names: Sequence[str],
    labels: LabelWatch,
    controller: Process,
) -> None:
    """Measure the time from the values to the labels. A request waits for the values, so that the time does not
    depend on the phase of the period.
    """
    medians_ms, last_ms, cpu_ms = list[float](), list[float](), list[float]()
    for change in range(LABEL_CHANGES):
        values = dict.fromkeys(names, 10) | dict.fromkeys(names[:CHANGING_NODES], (90, 10)[change % 2])
        metrics.hang(_METRIC)
        metrics.asked.clear()
        wait("the controller requests the metric", lambda: _METRIC in metrics.asked or None)
        before, before_s = len(labels.changes), benchmark_servers.cpu_s(controller)
        metrics.set(_METRIC, values)
        times_s = native_label_latency.change_times(labels, before, CHANGING_NODES * LABEL_POLICIES, 120.0)
        medians_ms.append(1000 * alternating_rounds.percentile(times_s, 0.5))
        last_ms.append(1000 * times_s[-1])
        cpu_ms.append(1000 * (benchmark_servers.cpu_s(controller) - before_s))
    bench.add(LABEL_MEDIAN, state, statistics.median(medians_ms))
    bench.add(LABEL_LAST, state, statistics.median(last_ms))
    bench.add(LABEL_CPU, state, statistics.median(cpu_ms))


PARTS: Final[Mapping[str, Callable[[CompareBench], None]]] = {
    "start": _compare_starts,
    "requests": _compare_requests,
    "gpu": _compare_gpu_filter,
    "controller": _compare_controllers,
    "binds": _compare_binds,
    "labels": _compare_labels,
}


NOVEMBER_COMMIT: Final = "ea8d466d"
NOVEMBER_KEYS: Final[Mapping[str, str]] = {
    "filter, names: median": "filter_names_5000_november",
    "prioritize, names: median": "prioritize_names_5000_november",
    "GPU filter: median": "gpu_filter_names_5000_november",
}
"""Keys of results.json, by the meaning of the compared figure."""


def main(arguments: Sequence[str]) -> int:
    """Compare, print the table and return the exit code."""
    options = _options(arguments)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        with commit_build.built(options.commit, options.keep) as folder:
            states = (
                State(commit_build.program(folder), is_after=False),
                State(commit_build.program(commit_build.ROOT), is_after=True),
            )
            print(f"before: {commit_build.describe(folder)}")
            print(f"after:  {commit_build.describe(commit_build.ROOT)}", flush=True)
            return _compare(states, options)
    except BuildError as error:
        report_progress_line(str(error))
        return 2


def _compare(states: Sequence[State], options: argparse.Namespace) -> int:
    comparison, machine_load, missing = Comparison(), MachineLoad(), list[str]()
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as folder:
        certificates = benchmark_servers.create_certificates(Path(folder))
        client = LoadClient(load_clients.build(Path(folder)), certificates.server_ca, certificates.scheduler)
        for name in options.parts:
            report_progress_line(f"part {name}")
            context = BenchContext(Path(folder, f"part-{name}"), certificates, client, options.scale)
            context.folder.mkdir()
            try:
                PARTS[name](CompareBench(context, states, comparison))
            except MissingError as error:
                missing.append(name)
                report_progress_line(f"part {name} was not measured: {error}")
    scale, share = options.scale, machine_load.others_share()
    print(f"{scale.rounds} rounds, {scale.nodes} nodes; other programs took {share:.0%} of the machine\n")
    print(comparison_table.table(comparison.rounds()))
    if options.write:
        figures = {
            NOVEMBER_KEYS[rounds.figure.meaning]: alternating_rounds.of_rounds(rounds.ratios(), 2)
            for rounds in comparison.rounds()
            if rounds.figure.meaning in NOVEMBER_KEYS
        }
        measured = Measurement(figures, {}, "")
        place = results.where(measured, share)
        known = results.merged(results.read(), NOVEMBER, measured, place)
        results.write(known)
        report.write(known)
    worse = comparison_table.worse_than(comparison.rounds(), options.limit) if options.limit else []
    for meaning in worse:
        report_progress_line(f"worse than the limit {options.limit:g}: {meaning}")
    return 1 if worse or missing else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=__doc__)
    parser.add_argument("commit", help="the other commit, as git names it")
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--rounds", type=int, help=f"default: {FULL.rounds}, with --quick {QUICK.rounds}")
    parser.add_argument("--quick", action="store_true", help="fewer nodes, requests and rounds")
    parser.add_argument(
        "--limit", type=float, help="largest ratio, such as 1.05; for rates, of their inverse"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the other commit's build, or use it again"
    )
    parser.add_argument(
        "--write", action="store_true", help=f"write ratios to {NOVEMBER_COMMIT} into results.json"
    )
    options = parser.parse_args(arguments)
    if options.write and (options.quick or options.commit != NOVEMBER_COMMIT):
        parser.error(f"--write is for the commit {NOVEMBER_COMMIT} without --quick")
    if unknown := set(options.parts).difference(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    options.parts = options.parts or list(PARTS)
    scale = QUICK if options.quick else FULL
    options.scale = scale._replace(rounds=options.rounds or scale.rounds)
    return options
