"""The same with ever more nodes: what grows faster than their number?

Each size has an API server's double and an extender of its own. First nobody asks, and what refreshing costs is
measured; then names are asked for.
"""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from bench import alternating_rounds, bench_processes, cluster_data, node_names
from bench.load_clients import HttpLoad
from bench.node_names import PATHS
from bench.progress_lines import told
from bench.results import FILTER, PRIORITIZE, Measured

SIZES: Final = (500, 1000, 5000, 20_000)
PERIOD_S: Final = 5
PODS: Final = 4
TIMES: Final = 3
"""Rounds of requests at each size."""
FASTER: Final = 1.15
"""So many times as much per node at the largest size as at the one before: less is noise."""

QUANTITIES: Final[Mapping[str, tuple[str, str]]] = {
    "filter_ms": ("filter, names: median", "ms"),
    "prioritize_ms": ("prioritize, names: median", "ms"),
    "refresh_cpu_ms": ("processor time to refresh ten metrics once", "ms"),
    "ready_s": ("start to ready, API server's double", "s"),
    "rss_mib": ("resident memory, before it is asked", "MiB"),
}
"""What is measured at each size, and its unit."""

Row = dict[str, float]
"""One size: `nodes` and the quantities."""


def measure(ground: bench_processes.Ground, requests: int, periods: int) -> Measured:
    rows = []
    for count in SIZES:
        told(f"{count} nodes: starting")
        rows.append(_at(ground, count, requests, periods))
        told(f"{count} nodes: {rows[-1]}")
    return Measured({}, {}, "", {"growth": rows})


def _at(ground: bench_processes.Ground, count: int, requests: int, periods: int) -> Row:
    bodies = node_names.write(
        ground.folder / f"growth-{count}", cluster_data.requests(cluster_data.names(count), PODS)
    )
    with (
        bench_processes.apiserver(ground.folder, ground.papers, count) as kubeconfig,
        bench_processes.extender(ground.folder, ground.papers, kubeconfig, f"{PERIOD_S}s") as extender,
    ):
        refresh_cpu_s = _refresh_cpu_s(extender, periods)
        rss_mib = extender.rss_mib()  # before the decisions that it keeps, which have a limit of their own
        load = HttpLoad("", bodies, requests // 5, requests)
        asks = {
            verb: partial(ground.client.ask, load._replace(url=extender.url + PATHS[verb]))
            for verb in (FILTER, PRIORITIZE)
        }
        measured = alternating_rounds.alternate(TIMES, asks, told)
        return {
            "nodes": count,
            **{
                f"{verb}_ms": alternating_rounds.median(series, "p50_ms") for verb, series in measured.items()
            },
            "refresh_cpu_ms": round(refresh_cpu_s * 1000, 1),
            "ready_s": round(extender.ready_s, 2),
            "rss_mib": round(rss_mib, 1),
        }


def _refresh_cpu_s(extender: bench_processes.Extender, periods: int) -> float:
    """What all metrics once cost, with the views that follow; nobody asks meanwhile. RuntimeError if none came in."""
    (before, _), cpu_s = extender.fetches(), extender.cpu_s()
    time.sleep(periods * PERIOD_S)
    (after, _), spent_s = extender.fetches(), extender.cpu_s() - cpu_s
    if after == before:
        raise RuntimeError(f"no metric came in within {periods} periods")
    return spent_s * len(cluster_data.METRICS) / (after - before)


def exponent(rows: Sequence[Mapping[str, Any]], quantity: str) -> float:
    """Of the power of the nodes by which a quantity grows between the two largest sizes: 1 is as the nodes."""
    less, most = rows[-2], rows[-1]
    return math.log(most[quantity] / less[quantity]) / math.log(most["nodes"] / less["nodes"])


def per_node(rows: Sequence[Mapping[str, Any]], quantity: str) -> float:
    """How many times as much per node at the largest size as at the one before."""
    less, most = rows[-2], rows[-1]
    return float(most[quantity] / less[quantity] * less["nodes"] / most["nodes"])


def faster(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The quantities that grow faster than the nodes."""
    return [quantity for quantity in QUANTITIES if per_node(rows, quantity) > FASTER]
