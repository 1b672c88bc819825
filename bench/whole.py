"""Filter and prioritize with whole nodes, 52 MB a request, against doing nothing with the same bytes."""

from bench import fleet, names, results, rounds, stage
from bench.clients import HttpLoad
from bench.names import NODES, PATHS, Bench
from bench.progress import told
from bench.results import WHOLE, Measured

BODIES = 3
WARMUP = 2


def measure(ground: stage.Ground, times: int, requests: int) -> Measured:
    """`times` rounds of so many requests each."""
    told(f"making {BODIES} requests with {NODES} whole nodes")
    bodies = names.write(ground.folder / "whole", fleet.whole_requests(fleet.names(NODES), BODIES))
    load = HttpLoad("", bodies, warmup=WARMUP, requests=requests)
    with (
        stage.apiserver(ground.folder, ground.papers, NODES) as kubeconfig,
        stage.extender(ground.folder, ground.papers, kubeconfig, "1h") as extender,
    ):
        bench = Bench(ground.folder, ground.papers, ground.client, kubeconfig, load, times)
        client = bench.answers(extender.url)
        saved = {PATHS[verb]: bench.saved(verb) for verb in PATHS}
        with stage.nothing(bench.folder, bench.papers, saved) as nothing:
            asks = {
                prefix + WHOLE + verb: ask
                for verb in PATHS
                for prefix, ask in bench.series(extender.url, nothing, verb).items()
            }
            measured = rounds.alternate(times, asks, told)
    return Measured(results.figures_of_whole(measured), measured, client)
