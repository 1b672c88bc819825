"""`python -m bench`: measures, prints a table, and writes results.json, the figures of README.md and the plots.

`python -m bench compare COMMIT` compares another commit with this checkout.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.cluster.go_toolchain import MissingError

from bench import (
    benchmark_servers,
    command_times,
    commit_comparison,
    controller_shards,
    gpu_agent,
    gpu_binds,
    isolate_startup_and_jitter,
    load_clients,
    node_count_scaling,
    recording_rules,
    report,
    requests_with_node_names,
    requests_with_whole_nodes,
    results,
    scoring_agents,
    startup_and_memory,
)
from bench.benchmark_servers import QUICK, BenchContext, Scale
from bench.load_clients import LoadClient
from bench.progress_lines import report_progress_line
from bench.results import (
    COMMANDS,
    DEVICES_LISTED,
    GPU,
    GPU_BINDS,
    GROWTH,
    ISOLATE,
    NAMES,
    RECORDING,
    SCORING,
    SHARDS,
    START,
    WHOLE_NODES,
    MachineLoad,
    Measurement,
    Results,
)

Part = Callable[[BenchContext], Measurement]
PARTS: Final[Mapping[str, Part]] = {
    NAMES: requests_with_node_names.measure,
    WHOLE_NODES: requests_with_whole_nodes.measure,
    GPU: gpu_agent.measure,
    GPU_BINDS: gpu_binds.measure,
    SCORING: scoring_agents.measure,
    START: startup_and_memory.measure,
    GROWTH: node_count_scaling.measure,
    SHARDS: controller_shards.measure,
    ISOLATE: isolate_startup_and_jitter.measure,
    COMMANDS: command_times.measure,
    DEVICES_LISTED: command_times.measure_devices,
    RECORDING: recording_rules.measure,
}
"""All parts, in order."""


def main() -> int:
    """The exit code: 1 if a part was not measured because its requirements are missing on this machine."""
    if sys.argv[1:2] == ["compare"]:
        return commit_comparison.main(sys.argv[2:])
    options = _arguments()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every measured process compiles all of its modules
    began, missing = time.monotonic(), list[str]()
    known: Results = results.read() if options.write else {}
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as folder:
        report_progress_line("building the client (Go, a minute for the first time)")
        certificates = benchmark_servers.create_certificates(Path(folder))
        client = LoadClient(load_clients.build(Path(folder)), certificates.server_ca, certificates.scheduler)
        for name in options.parts:
            place = Path(folder, f"part-{name}")
            context = BenchContext(place, certificates, client, options.scale, options.gas)
            context.folder.mkdir()
            try:
                known = _measured(name, context, known)
            except MissingError as error:
                missing.append(name)
                report_progress_line(f"part {name} was not measured: {error}")
            if options.write:
                results.write(known)
                report.write(known)
    report_progress_line(f"done in {time.monotonic() - began:.0f} s")
    if options.scale is not QUICK:
        print(report.table(known))
    if missing:
        report_progress_line(f"not measured: {', '.join(missing)}")
    return 1 if missing else 0


def _measured(name: str, context: BenchContext, known: Results) -> Results:
    """The results with a part measured again."""
    report_progress_line(f"part {name}")
    began, machine_load = time.monotonic(), MachineLoad()
    measured = PARTS[name](context)
    report_progress_line(f"part {name} took {time.monotonic() - began:.0f} s")
    return results.merged(known, name, measured, results.where(measured, machine_load.others_share()))


def _arguments() -> argparse.Namespace:
    full = Scale()
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--rounds", type=int, default=full.rounds)
    parser.add_argument(
        "--requests", type=int, default=full.requests, help="measured requests per series and round"
    )
    parser.add_argument(
        "--seconds", type=float, default=full.seconds, help="duration of a round while metrics refresh"
    )
    parser.add_argument(
        "--gas",
        type=Path,
        metavar="PATH",
        help="the program of GPU Aware Scheduling, whose binds the part gpu_binds measures as well",
    )
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the table only")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="check that every part can measure, with few nodes and one round; writes nothing",
    )
    options = parser.parse_args()
    if unknown := set(options.parts).difference(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    options.parts = options.parts or list(PARTS)
    options.write = options.write and not options.quick
    options.scale = (
        QUICK
        if options.quick
        else full._replace(rounds=options.rounds, requests=options.requests, seconds=options.seconds)
    )
    return options


if __name__ == "__main__":
    sys.exit(main())
