"""`python -m bench`: measures, prints a table, writes results.json and the figures of README.md."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import clients, fleet, report, results, rounds, stage
from bench.clients import Client, Question
from bench.results import FILTER, NOTHING, PRIORITIZE, REFRESH
from bench.rounds import Rounds

NODES = 5000
PODS = 16
PERIOD_S = 2
PATHS = {FILTER: "/scheduler/filter", PRIORITIZE: "/scheduler/prioritize"}


class Bench(NamedTuple):
    """What every step needs."""

    folder: Path
    papers: stage.Papers
    client: Client
    kubeconfig: Path
    question: Question
    """Without an address."""
    times: int
    seconds: float
    """Of one round while metrics refresh."""

    def saved(self, verb: str) -> Path:
        """An answer of the extender."""
        return self.folder / f"{verb}.json"

    def series(self, url: str, nothing: str, verb: str, seconds: float = 0.0) -> dict[str, rounds.Ask]:
        """A verb of the extender, and the same asked of the do-nothing server; by their prefixes."""
        asked = self.question._replace(seconds=seconds)
        return {
            prefix: partial(self.client.ask, asked._replace(url=at + PATHS[verb]))
            for prefix, at in ((NOTHING, nothing), ("", url))
        }


def main() -> None:
    given = _arguments()
    began, spent = time.monotonic(), results.Spent()
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as name:
        folder = Path(name)
        told("building the client (Go, the first time a minute)")
        papers = stage.papers(folder)
        client = Client(clients.program(folder), papers.server_ca, papers.scheduler)
        question = Question("", _bodies(folder), warmup=given.requests // 5, requests=given.requests)
        told(f"starting an API server's double with {NODES} nodes")
        with stage.apiserver(folder, papers, NODES) as kubeconfig:
            bench = Bench(folder, papers, client, kubeconfig, question, given.rounds, given.seconds)
            measured, rss_mib, kind = _measured(bench)
    found = results.made(measured, rss_mib, kind, spent.others_share())
    if given.write:
        results.write(found)
        report.write(found)
    told(f"done in {time.monotonic() - began:.0f} s")
    print(report.table(found))


def _bodies(folder: Path) -> Path:
    """The requests of all pods, a file each."""
    bodies = folder / "requests"
    bodies.mkdir()
    for number, body in enumerate(fleet.requests(fleet.names(NODES), PODS)):
        (bodies / f"{number:03d}.json").write_bytes(body)
    return bodies


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1000, help="measured requests of a series in a round")
    parser.add_argument("--seconds", type=float, default=12.0, help="of a round while metrics refresh")
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the table only")
    return parser.parse_args()


def _measured(bench: Bench) -> tuple[Rounds, float, str]:
    """All rounds, the extender's memory at the end, and which client it was."""
    told("starting the extender, its metrics at rest")
    with stage.extender(bench.folder, bench.papers, bench.kubeconfig, "1h") as extender:
        kind = _answers(bench, extender.url)
        with stage.nothing(bench.folder, bench.papers, {PATHS[v]: bench.saved(v) for v in PATHS}) as nothing:
            measured = _quiet(bench, extender.url, nothing)
    told(f"starting the extender, {len(fleet.METRICS)} metrics every {PERIOD_S} s")
    period = f"{PERIOD_S}s"
    with (
        stage.nothing(bench.folder, bench.papers, {PATHS[FILTER]: bench.saved(FILTER)}) as nothing,
        stage.extender(bench.folder, bench.papers, bench.kubeconfig, period) as extender,
    ):
        measured |= _refreshing(bench, extender, nothing)
        return measured, extender.rss_mib(), kind


def _answers(bench: Bench, url: str) -> str:
    """Keep an answer of each verb, after a look whether it is right; which client asked."""
    for verb, path in PATHS.items():
        taken = bench.client.ask(bench.question._replace(url=url + path, save=bench.saved(verb), requests=1))
        told(f"{verb} answers {taken.answer_bytes} bytes")
    _check(json.loads(bench.saved(FILTER).read_bytes()), json.loads(bench.saved(PRIORITIZE).read_bytes()))
    return taken.client


def _check(filtered: Mapping[str, object], prioritized: list[dict[str, object]]) -> None:
    """RuntimeError if the answers are not those of this fleet: then there is nothing to measure."""
    rejected = len(filtered["FailedNodes"] or ())  # type: ignore[arg-type]
    scores = {entry["Score"] for entry in prioritized}
    if rejected != NODES * fleet.REJECTED_SHARE or scores != set(range(11)) or len(prioritized) != NODES:
        raise RuntimeError(
            f"{rejected} nodes rejected, scores {sorted(map(str, scores))}: not this fleet's answers"
        )


def _quiet(bench: Bench, url: str, nothing: str) -> Rounds:
    asks = {prefix + verb: ask for verb in PATHS for prefix, ask in bench.series(url, nothing, verb).items()}
    return rounds.alternate(bench.times, asks, told)


def _refreshing(bench: Bench, extender: stage.Extender, nothing: str) -> Rounds:
    """RuntimeError if the metrics did not really come in at their pace all the while."""
    asks = {
        prefix + REFRESH: ask
        for prefix, ask in bench.series(extender.url, nothing, FILTER, bench.seconds).items()
    }
    before, began = extender.fetches(), time.monotonic()
    found = rounds.alternate(bench.times, asks, told)
    periods = (time.monotonic() - began) / PERIOD_S
    good, bad = (now - then for now, then in zip(extender.fetches(), before, strict=True))
    told(f"{good} answers about metrics in {periods:.0f} periods, {bad} failed")
    if bad or good < 0.9 * len(fleet.METRICS) * periods:
        raise RuntimeError(f"{good} good and {bad} bad answers about metrics in {periods:.0f} periods")
    return found


def told(text: str) -> None:
    """Progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
