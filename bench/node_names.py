"""Filter and prioritize with names: the extender with its metrics at rest, and while they refresh."""

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import alternating_rounds, bench_processes, cluster_data, results
from bench.alternating_rounds import Rounds
from bench.load_clients import Client, HttpLoad
from bench.progress_lines import told
from bench.results import FILTER, NOTHING, PRIORITIZE, REFRESH, Measured

NODES = 5000
PODS = 16
PERIOD_S = 2
PATHS = {FILTER: "/scheduler/filter", PRIORITIZE: "/scheduler/prioritize"}


class Bench(NamedTuple):
    """What every step needs."""

    folder: Path
    papers: bench_processes.Papers
    client: Client
    kubeconfig: Path
    load: HttpLoad
    """Without an address."""
    times: int

    def saved(self, verb: str) -> Path:
        """An answer of the extender."""
        return self.folder / f"{verb}.json"

    def series(
        self, url: str, nothing: str, verb: str, seconds: float = 0.0
    ) -> dict[str, alternating_rounds.Ask]:
        """A verb of the extender, and the same asked of the do-nothing server; by their prefixes."""
        load = self.load._replace(seconds=seconds)
        return {
            prefix: partial(self.client.ask, load._replace(url=at + PATHS[verb]))
            for prefix, at in ((NOTHING, nothing), ("", url))
        }

    def answers(self, url: str) -> str:
        """Keep an answer of each verb, after a look whether it is right; which client asked."""
        for verb, path in PATHS.items():
            load = self.load._replace(url=url + path, save=self.saved(verb), requests=1, warmup=0)
            taken = self.client.ask(load)
            told(f"{verb} answers {taken.answer_bytes} bytes")
        _check(json.loads(self.saved(FILTER).read_bytes()), json.loads(self.saved(PRIORITIZE).read_bytes()))
        return taken.client


def write(folder: Path, bodies: list[bytes]) -> Path:
    """The requests, a file each."""
    folder.mkdir()
    for number, body in enumerate(bodies):
        (folder / f"{number:03d}.json").write_bytes(body)
    return folder


def _check(filtered: Mapping[str, Any], prioritized: list[dict[str, Any]]) -> None:
    """RuntimeError if the answers are not those of this fleet: then there is nothing to measure."""
    rejected = len(filtered["FailedNodes"] or ())
    scores = {entry["Score"] for entry in prioritized}
    requests = len(prioritized)
    if rejected != requests * cluster_data.REJECTED_SHARE or scores != set(range(11)):
        raise RuntimeError(
            f"{rejected} nodes of {requests} rejected, scores {sorted(scores)}: not this fleet's answers"
        )


def measure(ground: bench_processes.Ground, times: int, requests: int, seconds: float) -> Measured:
    """`times` rounds of so many requests, and rounds of so many seconds while metrics refresh."""
    folder = ground.folder / "names"
    bodies = write(folder, cluster_data.requests(cluster_data.names(NODES), PODS))
    load = HttpLoad("", bodies, warmup=requests // 5, requests=requests)
    with bench_processes.apiserver(ground.folder, ground.papers, NODES) as kubeconfig:
        bench = Bench(ground.folder, ground.papers, ground.client, kubeconfig, load, times)
        told("starting the extender, its metrics at rest")
        with bench_processes.extender(bench.folder, bench.papers, bench.kubeconfig, "1h") as extender:
            client = bench.answers(extender.url)
            with bench_processes.nothing(
                bench.folder, bench.papers, {PATHS[v]: bench.saved(v) for v in PATHS}
            ) as nothing:
                measured = _quiet(bench, extender.url, nothing)
        told(f"starting the extender, {len(cluster_data.METRICS)} metrics every {PERIOD_S} s")
        with (
            bench_processes.nothing(
                bench.folder, bench.papers, {PATHS[FILTER]: bench.saved(FILTER)}
            ) as nothing,
            bench_processes.extender(
                bench.folder, bench.papers, bench.kubeconfig, f"{PERIOD_S}s"
            ) as extender,
        ):
            measured |= _refreshing(bench, extender, nothing, seconds)
            rss_mib = extender.rss_mib()
    return Measured(results.figures_of_names(measured) | {"rss_mib": round(rss_mib, 1)}, measured, client)


def _quiet(bench: Bench, url: str, nothing: str) -> Rounds:
    asks = {prefix + verb: ask for verb in PATHS for prefix, ask in bench.series(url, nothing, verb).items()}
    return alternating_rounds.alternate(bench.times, asks, told)


def _refreshing(bench: Bench, extender: bench_processes.Extender, nothing: str, seconds: float) -> Rounds:
    """RuntimeError if the metrics did not really come in at their pace all the while."""
    asks = {
        prefix + REFRESH: ask for prefix, ask in bench.series(extender.url, nothing, FILTER, seconds).items()
    }
    before, began = extender.fetches(), time.monotonic()
    measured = alternating_rounds.alternate(bench.times, asks, told)
    periods = (time.monotonic() - began) / PERIOD_S
    good, bad = (now - then for now, then in zip(extender.fetches(), before, strict=True))
    told(f"{good} answers about metrics in {periods:.0f} periods, {bad} failed")
    if bad or good < 0.9 * len(cluster_data.METRICS) * periods:
        raise RuntimeError(f"{good} good and {bad} bad answers about metrics in {periods:.0f} periods")
    return measured
