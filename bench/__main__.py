"""`python -m bench`: measures, prints a table, writes results.json, the figures of README.md and its plots."""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tests.cluster.toolchain import MissingError

from bench import (
    bench_processes,
    bursty_pods,
    gpu_agent,
    isolate_times,
    load_clients,
    node_names,
    report,
    results,
    scaling,
    scoring_agents,
    startup,
    whole_nodes,
)
from bench.bench_processes import Ground
from bench.load_clients import Client
from bench.progress_lines import told
from bench.results import (
    BURSTS,
    GPU,
    GROWTH,
    ISOLATE,
    NAMES,
    SCORING,
    START,
    WHOLE_NODES,
    Measured,
    Results,
    Spent,
)

Part = Callable[[Ground], Measured]

QUICK: Final = {"rounds": 3, "requests": 100, "seconds": 3.0, "hours": 0.1}
"""To see that everything works; the figures are worth nothing."""


def main() -> None:
    options = _arguments()
    began = time.monotonic()
    wanted = {name: part for name, part in _parts(options).items() if name in options.parts}
    known: Results = results.read() if results.PATH.exists() else {}
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as folder:
        told("building the client (Go, the first time a minute)")
        papers = bench_processes.papers(Path(folder))
        client = Client(load_clients.program(Path(folder)), papers.server_ca, papers.scheduler)
        for name, part in wanted.items():
            known = _measured(name, part, Ground(_inside(folder, name), papers, client), known)
            if options.write:
                results.write(known)
                report.write(known)
    told(f"done in {time.monotonic() - began:.0f} s")
    print(report.table(known))


def _inside(folder: str, name: str) -> Path:
    inner = Path(folder, f"part-{name}")
    inner.mkdir()
    return inner


def _measured(name: str, part: Part, ground: Ground, known: Results) -> Results:
    """The results with a part measured anew, or as they were where this machine cannot have what the part needs."""
    told(f"part {name}")
    began, spent = time.monotonic(), Spent()
    try:
        measured = part(ground)
    except MissingError as missing:
        told(f"part {name} was not measured: {missing}")
        return known
    told(f"part {name} took {time.monotonic() - began:.0f} s")
    return results.merged(known, name, measured, results.where(measured, spent.others_share()))


def _parts(options: argparse.Namespace) -> dict[str, Part]:
    """All that can be measured here, in order."""
    times, requests, seconds = options.rounds, options.requests, options.seconds
    return {
        NAMES: partial(node_names.measure, times=times, requests=requests, seconds=seconds),
        WHOLE_NODES: partial(whole_nodes.measure, times=times, requests=max(requests // 100, 5)),
        GPU: partial(gpu_agent.measure, times=times, requests=requests),
        SCORING: partial(scoring_agents.measure, times=times, requests=requests),
        START: partial(startup.measure, times=times),
        GROWTH: partial(scaling.measure, requests=max(requests // 10, 30), periods=2),
        ISOLATE: partial(isolate_times.measure, times=times, requests=requests, seconds=seconds),
        BURSTS: partial(bursty_pods.measure, runs=times, hours=options.hours),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all of them if none is named")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1000, help="measured requests of a series in a round")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round while metrics refresh")
    parser.add_argument("--hours", type=float, default=2.0, help="that bursty pods are simulated for")
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the table only")
    parser.add_argument(
        "--quick", action="store_true", help="see that it works; the figures are worth nothing"
    )
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
