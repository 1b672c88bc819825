"""Filter and prioritize with whole nodes, 52 MB a request, against doing nothing with the same bytes."""

from bench import alternating_rounds, bench_processes, cluster_data, node_names, results
from bench.load_clients import HttpLoad
from bench.node_names import NODES, PATHS, Bench
from bench.progress_lines import told
from bench.results import WHOLE, Measured

BODIES = 3
WARMUP = 2


def measure(ground: bench_processes.Ground, times: int, requests: int) -> Measured:
    """`times` rounds of so many requests each."""
    told(f"making {BODIES} requests with {NODES} whole nodes")
    bodies = node_names.write(
        ground.folder / "whole", cluster_data.whole_requests(cluster_data.names(NODES), BODIES)
    )
    load = HttpLoad("", bodies, warmup=WARMUP, requests=requests)
    with (
        bench_processes.apiserver(ground.folder, ground.papers, NODES) as kubeconfig,
        bench_processes.extender(ground.folder, ground.papers, kubeconfig, "1h") as extender,
    ):
        bench = Bench(ground.folder, ground.papers, ground.client, kubeconfig, load, times)
        client = bench.answers(extender.url)
        saved = {PATHS[verb]: bench.saved(verb) for verb in PATHS}
        with bench_processes.nothing(bench.folder, bench.papers, saved) as nothing:
            asks = {
                prefix + WHOLE + verb: ask
                for verb in PATHS
                for prefix, ask in bench.series(extender.url, nothing, verb).items()
            }
            measured = alternating_rounds.alternate(times, asks, told)
    return Measured(results.figures_of_whole(measured), measured, client)
