"""`python -m bench`: measures, prints a table, and writes results.json, the figures of README.md and the plots."""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tests.cluster.go_toolchain import MissingError

from bench import (
    benchmark_servers,
    gpu_agent,
    isolate_startup_and_jitter,
    load_clients,
    node_count_scaling,
    node_overload,
    report,
    requests_with_node_names,
    requests_with_whole_nodes,
    results,
    scoring_agents,
    startup_and_memory,
)
from bench.benchmark_servers import BenchContext
from bench.load_clients import LoadClient
from bench.progress_lines import report_progress_line
from bench.results import (
    BURSTS,
    GPU,
    GROWTH,
    ISOLATE,
    NAMES,
    SCORING,
    START,
    WHOLE_NODES,
    MachineLoad,
    Measurement,
    Results,
)

Part = Callable[[BenchContext], Measurement]

QUICK: Final = {"rounds": 3, "requests": 100, "seconds": 3.0, "hours": 0.1}
"""Settings for a quick check; the figures are meaningless."""


def main() -> None:
    options = _arguments()
    began = time.monotonic()
    wanted = {name: part for name, part in _parts(options).items() if name in options.parts}
    known: Results = results.read() if results.PATH.exists() else {}
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as folder:
        report_progress_line("building the client (Go, a minute for the first time)")
        certificates = benchmark_servers.create_certificates(Path(folder))
        client = LoadClient(
            load_clients.program(Path(folder)), certificates.server_ca, certificates.scheduler
        )
        for name, part in wanted.items():
            known = _measured(name, part, BenchContext(_inside(folder, name), certificates, client), known)
            if options.write:
                results.write(known)
                report.write(known)
    report_progress_line(f"done in {time.monotonic() - began:.0f} s")
    print(report.table(known))


def _inside(folder: str, name: str) -> Path:
    inner = Path(folder, f"part-{name}")
    inner.mkdir()
    return inner


def _measured(name: str, part: Part, context: BenchContext, known: Results) -> Results:
    """The results with a part measured again; unchanged if the part's requirements are missing on this machine."""
    report_progress_line(f"part {name}")
    began, machine_load = time.monotonic(), MachineLoad()
    try:
        measured = part(context)
    except MissingError as missing:
        report_progress_line(f"part {name} was not measured: {missing}")
        return known
    report_progress_line(f"part {name} took {time.monotonic() - began:.0f} s")
    return results.merged(known, name, measured, results.where(measured, machine_load.others_share()))


def _parts(options: argparse.Namespace) -> dict[str, Part]:
    """All parts, in order."""
    times, requests, seconds = options.rounds, options.requests, options.seconds
    return {
        NAMES: partial(requests_with_node_names.measure, times=times, requests=requests, seconds=seconds),
        WHOLE_NODES: partial(
            requests_with_whole_nodes.measure, times=times, requests=max(requests // 100, 5)
        ),
        GPU: partial(gpu_agent.measure, times=times, requests=requests),
        SCORING: partial(scoring_agents.measure, times=times, requests=requests),
        START: partial(startup_and_memory.measure, times=times),
        GROWTH: partial(node_count_scaling.measure, requests=max(requests // 10, 30), periods=2),
        ISOLATE: partial(isolate_startup_and_jitter.measure, times=times, requests=requests, seconds=seconds),
        BURSTS: partial(node_overload.measure, runs=times, hours=options.hours),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1000, help="measured requests per series and round")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="duration of a round while metrics refresh"
    )
    parser.add_argument("--hours", type=float, default=2.0, help="simulated hours of bursty pods")
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the table only")
    parser.add_argument("--quick", action="store_true", help="quick check; the figures are meaningless")
    options = parser.parse_args()
    if unknown := set(options.parts).difference(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    options.parts = options.parts or list(PARTS)
    if options.quick:
        vars(options).update(QUICK)
    return options


PARTS: Final = (NAMES, WHOLE_NODES, GPU, SCORING, START, GROWTH, ISOLATE, BURSTS)

if __name__ == "__main__":
    main()
