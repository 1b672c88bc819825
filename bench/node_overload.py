"""Bursty pods on 200 nodes: how long nodes are overloaded, with each scoring agent and without agents.

This runs `nodewise simulate bursts` with its defaults. The figures do not depend on the machine.
"""

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from bench import benchmark_servers
from bench.alternating_rounds import of_rounds
from bench.progress_lines import report_progress_line
from bench.results import BURST_AGENTS, Measurement, bursts_key

SEED: Final = 1
COUNTED: Final = (
    "node_minutes",
    "cpu_node_minutes",
    "memory_node_minutes",
    "restarts",
    "unplaced_pods",
    "waited_minutes",
)
"""Counts of each run, for README.md."""

Row = dict[str, Any]


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    """Run the simulation once per round and group of agents, with consecutive seeds."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(lambda agents: _row(agents, context.scale), BURST_AGENTS))
    figures = {bursts_key(row["agents"]): of_rounds(row["node_minutes"], 1, statistics.mean) for row in rows}
    return Measurement(figures, {}, "", more={"bursts": rows})


def _row(agents: str, scale: benchmark_servers.Scale) -> Row:
    """The counts of each run, by seed."""
    settings = {
        "agents": agents,
        "seed": SEED,
        "runs": scale.rounds,
        "hours": scale.hours,
        "nodes": scale.burst_nodes,
        "output": "json",
    }
    words = ["simulate", "bursts", *(f"--{name}={value}" for name, value in settings.items())]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NODEWISE_")}
    ended = subprocess.run(
        [benchmark_servers.PROGRAM, *words], capture_output=True, text=True, check=False, env=kept
    )
    if ended.returncode:
        raise RuntimeError(f"nodewise {' '.join(words)}: {ended.stderr[-500:]}")
    results: Sequence[Mapping[str, Any]] = json.loads(ended.stdout)["runs"]
    report_progress_line(f"{agents}: {[run['node_minutes'] for run in results]} node-minutes")
    counts = {name: [run[name] for run in results] for name in COUNTED}
    return {"agents": agents, "all_node_minutes": results[0]["all_node_minutes"], **counts}
