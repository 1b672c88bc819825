"""Growth with the number of nodes: which quantities grow faster than the number of nodes.

Each size has its own fake API server and extender. The cost of metric refreshes is measured without requests; then
follow requests with names of all nodes and of 5,000.
"""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from bench import alternating_rounds, benchmark_servers, generated_cluster_objects, requests_with_node_names
from bench.alternating_rounds import RoundFigure, of_rounds, scaled
from bench.benchmark_servers import MeasuredServer
from bench.load_clients import HttpLoad
from bench.progress_lines import report_progress_line
from bench.requests_with_node_names import PATHS
from bench.results import FILTER, PRIORITIZE, Measurement

PERIOD_S: Final = 5
PODS: Final = 4
PODS_PER_NODE: Final = 2
SAMPLED: Final = 5000
"""Candidates of the requests with the names of a part of the nodes."""
LARGE: Final = 50_000
"""The size of the figures."""
FASTER: Final = 1.15
"""Threshold of the amount per node at the largest size relative to the one before: less is noise."""

QUANTITIES: Final[Mapping[str, tuple[str, str]]] = {
    "filter_ms": ("filter, names: median", "ms"),
    "prioritize_ms": ("prioritize, names: median", "ms"),
    "sampled_filter_ms": ("filter, names of at most 5,000 nodes: median", "ms"),
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
    return Measurement(figures(rows), {}, "", {"growth": rows})


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """The figures of `LARGE` nodes; empty without that size."""
    by_nodes = {row["nodes"]: row for row in rows}
    if LARGE not in by_nodes or SAMPLED not in by_nodes:
        return {}
    row, base_ms = by_nodes[LARGE], by_nodes[SAMPLED]["sampled_filter_ms"]
    return {
        "filter_names_50000_p50_ms": row["sampled_filter_ms"],
        "filter_names_50000_ratio": scaled(row["sampled_filter_ms"], 1 / base_ms, 2),
        "filter_names_50000_all_p50_ms": row["filter_ms"],
        "refresh_50000_cpu_share": scaled(row["refresh_cpu_ms"], 1 / (1000 * PERIOD_S), 3),
        "ready_50000_s": row["ready_s"],
        "rss_50000_mib": row["rss_mib"],
    }


def _at(context: benchmark_servers.BenchContext, count: int) -> Row:
    names = generated_cluster_objects.names(count)
    requests = max(context.scale.requests // 10, 30)
    loads = {}
    for prefix, candidates in (("", names), ("sampled_", names[:: max(count // SAMPLED, 1)][:SAMPLED])):
        bodies = requests_with_node_names.write(
            context.folder / f"growth-{prefix}{count}", generated_cluster_objects.requests(candidates, PODS)
        )
        # a whole period, because requests take longer while metrics are refreshed
        seconds = min(PERIOD_S, context.scale.seconds)
        loads[prefix] = HttpLoad("", bodies, requests // 5, requests, seconds)
    series = {f"{verb}_ms": (loads[""], verb) for verb in (FILTER, PRIORITIZE)}
    series["sampled_filter_ms"] = (loads["sampled_"], FILTER)
    pods = f"--pods={PODS_PER_NODE * count}"
    with benchmark_servers.apiserver(context.folder, context.certificates, count, pods) as kubeconfig:
        starts = []
        for number in range(context.scale.rounds):
            with benchmark_servers.extender(
                context.folder, context.certificates, kubeconfig, f"{PERIOD_S}s"
            ) as extender:
                starts.append(extender.ready_s)
                if number + 1 < context.scale.rounds:
                    continue
                refresh_cpu_ms = _refresh_cpu_ms(extender, context.scale.rounds)
                rss_mib = (
                    extender.rss_mib()
                )  # before requests fill the decision store, which has its own limit
                asks = {
                    quantity: partial(context.client.ask, load._replace(url=extender.url + PATHS[verb]))
                    for quantity, (load, verb) in series.items()
                }
                measured = alternating_rounds.alternate(context.scale.rounds, asks, report_progress_line)
        return {
            "nodes": count,
            **{
                quantity: alternating_rounds.median(rounds, "p50_ms") for quantity, rounds in measured.items()
            },
            "refresh_cpu_ms": refresh_cpu_ms,
            "ready_s": of_rounds(starts, 2),
            "rss_mib": round(rss_mib, 1),
        }


def _refresh_cpu_ms(extender: MeasuredServer, periods: int) -> RoundFigure:
    """CPU time of one refresh of all metrics and of the snapshots, in periods without requests. RuntimeError if no
    metric arrived in one of them.
    """
    times_ms = []
    for _ in range(periods):
        (before, _), cpu_s = extender.fetches(), extender.cpu_s()
        time.sleep(PERIOD_S)
        (after, _), spent_s = extender.fetches(), extender.cpu_s() - cpu_s
        if after == before:
            raise RuntimeError("no metric came in within a period")
        times_ms.append(1000 * spent_s * len(generated_cluster_objects.METRICS) / (after - before))
    return of_rounds(times_ms, 1)


def exponent(rows: Sequence[Mapping[str, Any]], quantity: str) -> float:
    """The exponent of the growth of a quantity between the two largest sizes: 1 is proportional to the nodes."""
    less, most = rows[-2], rows[-1]
    return math.log(most[quantity] / less[quantity]) / math.log(most["nodes"] / less["nodes"])


def per_node(rows: Sequence[Mapping[str, Any]], quantity: str) -> float:
    """The ratio of the amounts per node at the largest size and at the one before."""
    less, most = rows[-2], rows[-1]
    return float(most[quantity] / less[quantity] * less["nodes"] / most["nodes"])


def quantities(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The quantities that were measured at all sizes."""
    return [quantity for quantity in QUANTITIES if all(quantity in row for row in rows)]


def faster(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The quantities that grow faster than the nodes."""
    return [quantity for quantity in quantities(rows) if per_node(rows, quantity) > FASTER]
