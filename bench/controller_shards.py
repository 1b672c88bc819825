"""Replicas of `nodewise controller` in a large cluster, by number of shards: processor time, memory and bytes while 1 %
of the nodes change per minute, and the rate of label writes when all nodes change at once.

The fake API server sends each replica the nodes of its shards. On few cores processor times count, not durations.
"""

import contextlib
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench import benchmark_servers, generated_cluster_objects
from bench.alternating_rounds import of_rounds, scaled
from bench.benchmark_servers import MeasuredServer
from bench.fake_api_server import ROLL, SENT
from bench.progress_lines import report_progress_line
from bench.results import Measurement
from nodewise.kube import shard_election

QUANTITIES: Final[Mapping[str, tuple[str, str]]] = {
    "listed_mib": ("lists of nodes since the start, largest replica", "MiB"),
    "watched_kib_per_s": ("watch of nodes, largest replica", "KiB/s"),
    "cpu_share": ("processor time, largest replica: share of a core", ""),
    "rss_mib": ("resident memory, largest replica", "MiB"),
    "writes_per_min": ("label writes per minute, all replicas", ""),
    "burst_writes_per_s": ("label writes per second when all nodes change, all replicas", ""),
}
"""The quantities of each number of shards, with units."""
_MOST_WRITES_PER_S: Final = 40
_LIST_BYTES_PER_S: Final = 2**19
"""More bytes per second are those of a list; of changes, a replica receives 0.3 MiB/s at most."""
_LIST_PAUSE_S: Final = 4.0
Row = dict[str, float]
"""One number of shards: `nodes`, `shards` and the quantities."""


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    """Measure each number of replicas, with as many shards."""
    rows = [_with_shards(context, shards) for shards in context.scale.shards]
    return Measurement(figures(rows), {}, "", {"shards": rows})


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """What one of four shards uses, as a share of what one process uses; empty if only one process was measured."""
    by_shards = {row["shards"]: row for row in rows}
    if not by_shards.keys() >= {1, 4}:
        return {}
    single, shard = by_shards[1], by_shards[4]
    return {
        "shards_4_memory_ratio": scaled(shard["rss_mib"], 1 / single["rss_mib"], 2),
        "shards_4_watched_ratio": scaled(shard["watched_kib_per_s"], 1 / single["watched_kib_per_s"], 2),
        "shards_4_label_rate_ratio": round(shard["burst_writes_per_s"] / single["burst_writes_per_s"], 2),
    }


def _with_shards(context: benchmark_servers.BenchContext, shards: int) -> Row:
    count, seconds = context.scale.shard_nodes, context.scale.rolling_s
    options = ("--rolling", f"--ports={shards}")
    with contextlib.ExitStack() as stack:
        kubeconfigs = stack.enter_context(
            benchmark_servers.apiserver_with_ports(context.folder, context.certificates, count, *options)
        )
        server = FakeServer(kubeconfigs[0], context)
        contexts = [_replica(context, path, shards) for path in kubeconfigs]
        # at the same time, so that none holds all shards at first; a replica ends with the thread that started it
        pool = stack.enter_context(ThreadPoolExecutor(shards))
        replicas = list(pool.map(stack.enter_context, contexts))
        if shards > 1:
            _wait_until("each replica holds a shard", lambda: server.holders(shards) == shards)
        label_count = round(generated_cluster_objects.ROLLING_SHARE * count)
        _wait_until("the first labels are written", lambda: server.report()["patches"] >= label_count, 180.0)
        _wait_until("the lists have ended", server.are_lists_complete, 180.0)
        time.sleep(seconds / 2)
        listed = server.sent_bytes()
        server.roll(generated_cluster_objects.ROLLING_SHARE)
        time.sleep(seconds / 2)  # then each period changes as many nodes
        before, cpu_s = server.report(), [replica.cpu_s() for replica in replicas]
        begun = server.sent_bytes()
        time.sleep(seconds)
        after = server.report()
        spent_s = [replica.cpu_s() - start_s for replica, start_s in zip(replicas, cpu_s, strict=True)]
        rss_mib = [replica.rss_mib() for replica in replicas]
        rolled = server.sent_bytes()
        rates = server.burst_rates(seconds)
        row: Row = {
            "nodes": count,
            "shards": shards,
            "listed_mib": of_rounds((sent / 2**20 for sent in listed), 1, max),
            "watched_kib_per_s": of_rounds(
                ((now - then) / 1024 / seconds for now, then in zip(rolled, begun, strict=True)), 1, max
            ),
            "cpu_share": of_rounds((spent / seconds for spent in spent_s), 2, max),
            "rss_mib": of_rounds(rss_mib, 1, max),
            "writes_per_min": round((after["patches"] - before["patches"]) * 60 / seconds, 1),
            "burst_writes_per_s": round(rates, 1),
        }
    report_progress_line(f"{row}")
    return row


def _replica(
    context: benchmark_servers.BenchContext, kubeconfig: Path, shards: int
) -> contextlib.AbstractContextManager[MeasuredServer]:
    # four replicas of one machine fetch the metrics of all nodes, so the period is twice the default
    period_s = context.scale.rolling_s / 2
    words = ["controller", f"--kubeconfig={kubeconfig}", "--health-port=0", f"--sync-period={period_s:g}s"]
    # the limit of each replica is measured, not the cores that they share
    words += [f"--kube-qps={_MOST_WRITES_PER_S}", f"--kube-burst={_MOST_WRITES_PER_S}"]
    words += ["--log-format=json", "--metrics-timeout=30s", *([f"--shards={shards}"] if shards > 1 else [])]
    return benchmark_servers.serving(
        benchmark_servers.PROGRAM, words, context.folder / f"controller-{shards}-{kubeconfig.name}.log"
    )


def _wait_until(what: str, is_done: Callable[[], bool], deadline_s: float = 90.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not is_done():
        if time.monotonic() > end_s:
            raise RuntimeError(f"not done after {deadline_s:g} s: {what}")
        time.sleep(0.5)


class FakeServer:
    """The paths of the fake API server that control it and report what it sent."""

    def __init__(self, kubeconfig: Path, context: benchmark_servers.BenchContext) -> None:
        self._url = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        self._tls = ssl.create_default_context(cafile=context.certificates.server_ca)

    def _request(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(self._url + path, method=method)
        with urllib.request.urlopen(request, context=self._tls) as answer:
            return json.loads(answer.read())

    def report(self) -> Mapping[str, Any]:
        report: Mapping[str, Any] = self._request(SENT)
        return report

    def sent_bytes(self) -> list[int]:
        """The bytes of lists and watches of nodes, by port."""
        return [sent for place, sent in sorted(self.report()["sent"].items()) if place.endswith(" nodes")]

    def are_lists_complete(self) -> bool:
        """Whether no replica receives nodes faster than they change."""
        before = self.sent_bytes()
        time.sleep(_LIST_PAUSE_S)
        pairs = zip(self.sent_bytes(), before, strict=True)
        return all(now - then < _LIST_BYTES_PER_S * _LIST_PAUSE_S for now, then in pairs)

    def roll(self, share: float) -> None:
        self._request(f"{ROLL}?share={share}", "POST")

    def holders(self, shards: int) -> int:
        """The number of replicas that hold one of the shards."""
        leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        with contextlib.suppress(urllib.error.HTTPError):  # one of the Leases does not exist yet
            objects = [
                self._request(f"{leases}/{shard_election.shard_lease(shard)}") for shard in range(shards)
            ]
            return len({lease["spec"].get("holderIdentity") for lease in objects} - {None, ""})
        return 0

    def burst_rates(self, seconds: float) -> float:
        """The labels written per second while all nodes change, from the first one on."""
        before = self.report()["patches"]
        self.roll(1.0)
        _wait_until("labels are written", lambda: self.report()["patches"] > before + 100)
        first, begun_s = self.report()["patches"], time.monotonic()
        time.sleep(seconds / 2)
        return float(self.report()["patches"] - first) / (time.monotonic() - begun_s)
