"""Growth with the number of nodes: which quantities grow faster than the number of nodes.

Each size has its own fake API server and extender. The cost of metric refreshes is measured without requests; then
follow requests with names.
"""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from bench import alternating_rounds, benchmark_servers, generated_cluster_objects, requests_with_node_names
from bench.load_clients import HttpLoad
from bench.progress_lines import report_progress_line
from bench.requests_with_node_names import PATHS
from bench.results import FILTER, PRIORITIZE, Measurement

PERIOD_S: Final = 5
PODS: Final = 4
PERIODS: Final = 2
"""Periods without requests, in which the CPU time is measured."""
FASTER: Final = 1.15
"""Threshold of the amount per node at the largest size relative to the one before: less is noise."""

QUANTITIES: Final[Mapping[str, tuple[str, str]]] = {
    "filter_ms": ("filter, names: median", "ms"),
    "prioritize_ms": ("prioritize, names: median", "ms"),
    "refresh_cpu_ms": ("CPU time to refresh ten metrics once", "ms"),
    "ready_s": ("start to ready, fake API server", "s"),
    "rss_mib": ("resident memory before requests", "MiB"),
}
"""The quantities of each size, with units."""

Row = dict[str, float]
"""One size: `nodes` and the quantities."""


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    rows = []
    for count in context.scale.growth_nodes:
        report_progress_line(f"{count} nodes: starting")
        rows.append(_at(context, count))
        report_progress_line(f"{count} nodes: {rows[-1]}")
    return Measurement({}, {}, "", {"growth": rows})


def _at(context: benchmark_servers.BenchContext, count: int) -> Row:
    requests = max(context.scale.requests // 10, 30)
    bodies = requests_with_node_names.write(
        context.folder / f"growth-{count}",
        generated_cluster_objects.requests(generated_cluster_objects.names(count), PODS),
    )
    with (
        benchmark_servers.apiserver(context.folder, context.certificates, count) as kubeconfig,
        benchmark_servers.extender(
            context.folder, context.certificates, kubeconfig, f"{PERIOD_S}s"
        ) as extender,
    ):
        refresh_cpu_s = _refresh_cpu_s(extender)
        rss_mib = extender.rss_mib()  # before requests fill the decision store, which has its own limit
        load = HttpLoad("", bodies, requests // 5, requests)
        asks = {
            verb: partial(context.client.ask, load._replace(url=extender.url + PATHS[verb]))
            for verb in (FILTER, PRIORITIZE)
        }
        measured = alternating_rounds.alternate(context.scale.rounds, asks, report_progress_line)
        return {
            "nodes": count,
            **{
                f"{verb}_ms": alternating_rounds.median(series, "p50_ms") for verb, series in measured.items()
            },
            "refresh_cpu_ms": round(refresh_cpu_s * 1000, 1),
            "ready_s": round(extender.ready_s, 2),
            "rss_mib": round(rss_mib, 1),
        }


def _refresh_cpu_s(extender: benchmark_servers.MeasuredServer) -> float:
    """CPU time of one refresh of all metrics and of the snapshots, without requests. RuntimeError if none arrived."""
    (before, _), cpu_s = extender.fetches(), extender.cpu_s()
    time.sleep(PERIODS * PERIOD_S)
    (after, _), spent_s = extender.fetches(), extender.cpu_s() - cpu_s
    if after == before:
        raise RuntimeError(f"no metric came in within {PERIODS} periods")
    return spent_s * len(generated_cluster_objects.METRICS) / (after - before)


def exponent(rows: Sequence[Mapping[str, Any]], quantity: str) -> float:
    """The exponent of the growth of a quantity between the two largest sizes: 1 is proportional to the nodes."""
    less, most = rows[-2], rows[-1]
    return math.log(most[quantity] / less[quantity]) / math.log(most["nodes"] / less["nodes"])


def per_node(rows: Sequence[Mapping[str, Any]], quantity: str) -> float:
    """The ratio of the amounts per node at the largest size and at the one before."""
    less, most = rows[-2], rows[-1]
    return float(most[quantity] / less[quantity] * less["nodes"] / most["nodes"])


def faster(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The quantities that grow faster than the nodes."""
    return [quantity for quantity in QUANTITIES if per_node(rows, quantity) > FASTER]
