"""Filter and prioritize with names, without and with metric refreshes."""

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import alternating_rounds, benchmark_servers, generated_cluster_objects, results
from bench.alternating_rounds import Rounds
from bench.load_clients import HttpLoad, LoadClient
from bench.progress_lines import report_progress_line
from bench.results import FILTER, NOTHING, PRIORITIZE, REFRESH, Measurement

PODS = 16
PERIOD_S = 2
PATHS = {FILTER: "/scheduler/filter", PRIORITIZE: "/scheduler/prioritize"}


class NamesBench(NamedTuple):
    """Inputs of every step."""

    folder: Path
    client: LoadClient
    load: HttpLoad
    """Without a URL."""
    times: int

    def saved(self, verb: str) -> Path:
        """The file of a response of the extender."""
        return self.folder / f"{verb}.json"

    def series(
        self, url: str, null_server: str, verb: str, seconds: float = 0.0
    ) -> dict[str, alternating_rounds.Measure]:
        """A verb of the extender, and of the no-op server, by the prefix of the series."""
        load = self.load._replace(seconds=seconds)
        return {
            prefix: partial(self.client.ask, load._replace(url=at + PATHS[verb]))
            for prefix, at in ((NOTHING, null_server), ("", url))
        }

    def answers(self, url: str) -> str:
        """Save and verify a response of each verb. Return the name of the client."""
        for verb, path in PATHS.items():
            load = self.load._replace(url=url + path, save=self.saved(verb), requests=1, warmup=0)
            taken = self.client.ask(load)
            report_progress_line(f"{verb} answers {taken.answer_bytes} bytes")
        _check(json.loads(self.saved(FILTER).read_bytes()), json.loads(self.saved(PRIORITIZE).read_bytes()))
        return taken.client


def write(folder: Path, bodies: list[bytes]) -> Path:
    """Write the requests to files of a new folder."""
    folder.mkdir()
    for number, body in enumerate(bodies):
        (folder / f"{number:03d}.json").write_bytes(body)
    return folder


def _check(filtered: Mapping[str, Any], prioritized: list[dict[str, Any]]) -> None:
    """RuntimeError if the responses are wrong: then the measurement is invalid."""
    rejected = len(filtered["FailedNodes"] or ()) + len(filtered["FailedAndUnresolvableNodes"] or ())
    scores = {entry["Score"] for entry in prioritized}
    requests = len(prioritized)
    if rejected != requests * generated_cluster_objects.REJECTED_SHARE or scores != set(range(11)):
        raise RuntimeError(
            f"{rejected} nodes of {requests} rejected, scores {sorted(scores)}: wrong responses"
        )


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    """Measure rounds of requests without metric refreshes, and rounds of some seconds while metrics refresh."""
    folder, certificates, scale = context.folder, context.certificates, context.scale
    requests = generated_cluster_objects.requests(generated_cluster_objects.names(scale.nodes), PODS)
    load = HttpLoad(
        "", write(folder / "names", requests), warmup=scale.requests // 5, requests=scale.requests
    )
    bench = NamesBench(folder, context.client, load, scale.rounds)
    saved = {path: bench.saved(verb) for verb, path in PATHS.items()}
    with benchmark_servers.apiserver(folder, certificates, scale.nodes) as kubeconfig:
        report_progress_line("starting the extender, its metrics at rest")
        with benchmark_servers.extender(folder, certificates, kubeconfig, "1h") as extender:
            client = bench.answers(extender.url)
            with benchmark_servers.null_server(folder, certificates, saved) as null_server:
                measured = _quiet(bench, extender.url, null_server)
        report_progress_line(
            f"starting the extender, {len(generated_cluster_objects.METRICS)} metrics every {PERIOD_S} s"
        )
        with (
            benchmark_servers.null_server(folder, certificates, saved) as null_server,
            benchmark_servers.extender(folder, certificates, kubeconfig, f"{PERIOD_S}s") as extender,
        ):
            measured |= _refreshing(bench, extender, null_server, scale.seconds)
            rss_mib = extender.rss_mib()
    return Measurement(results.figures_of_names(measured) | {"rss_mib": round(rss_mib, 1)}, measured, client)


def _quiet(bench: NamesBench, url: str, null_server: str) -> Rounds:
    asks = {
        prefix + verb: ask for verb in PATHS for prefix, ask in bench.series(url, null_server, verb).items()
    }
    return alternating_rounds.alternate(bench.times, asks, report_progress_line)


def _refreshing(
    bench: NamesBench, extender: benchmark_servers.MeasuredServer, null_server: str, seconds: float
) -> Rounds:
    """RuntimeError if metric fetches failed or fell behind during the measurement."""
    asks = {
        prefix + REFRESH: ask
        for prefix, ask in bench.series(extender.url, null_server, FILTER, seconds).items()
    }
    before, began = extender.fetches(), time.monotonic()
    measured = alternating_rounds.alternate(bench.times, asks, report_progress_line)
    periods = (time.monotonic() - began) / PERIOD_S
    good, bad = (now - then for now, then in zip(extender.fetches(), before, strict=True))
    report_progress_line(f"{good} metric responses in {periods:.0f} periods, {bad} failed")
    # the first or last period may be incomplete
    if bad or good < 0.9 * len(generated_cluster_objects.METRICS) * (periods - 1):
        raise RuntimeError(f"{good} good and {bad} bad metric responses in {periods:.0f} periods")
    return measured
