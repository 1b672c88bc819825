"""Filter and prioritize with whole nodes, 52 MB per request, compared with the no-op server."""

from bench import (
    alternating_rounds,
    benchmark_servers,
    generated_cluster_objects,
    requests_with_node_names,
    results,
)
from bench.load_clients import HttpLoad
from bench.progress_lines import report_progress_line
from bench.requests_with_node_names import PATHS, NamesBench
from bench.results import WHOLE, Measurement

BODIES = 3
WARMUP = 2


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    """Measure rounds of requests; there are a hundredth as many as of those with names."""
    nodes, times = context.scale.nodes, context.scale.rounds
    report_progress_line(f"making {BODIES} requests with {nodes} whole nodes")
    bodies = requests_with_node_names.write(
        context.folder / "whole",
        generated_cluster_objects.whole_requests(generated_cluster_objects.names(nodes), BODIES),
    )
    load = HttpLoad("", bodies, warmup=WARMUP, requests=max(context.scale.requests // 100, 5))
    with (
        benchmark_servers.apiserver(context.folder, context.certificates, nodes) as kubeconfig,
        benchmark_servers.extender(context.folder, context.certificates, kubeconfig, "1h") as extender,
    ):
        bench = NamesBench(context.folder, context.client, load, times)
        client = bench.answers(extender.url)
        saved = {PATHS[verb]: bench.saved(verb) for verb in PATHS}
        with benchmark_servers.null_server(bench.folder, context.certificates, saved) as null_server:
            asks = {
                prefix + WHOLE + verb: ask
                for verb in PATHS
                for prefix, ask in bench.series(extender.url, null_server, verb).items()
            }
            measured = alternating_rounds.alternate(times, asks, report_progress_line)
    return Measurement(results.figures_of_whole(measured), measured, client)
