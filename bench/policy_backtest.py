"""Time and memory of `nodewise policy backtest`: 1,000 nodes, 7 days in steps of a minute, three rules.

    python -m bench.policy_backtest [--real] [--no-write]

The values come from a process with Prometheus' API for range queries, which computes and encodes them while nodewise
evaluates; with `--real`, from a Prometheus, into whose data they are written before (30 million samples, 4 minutes).
The command writes a page (`--html`). With `--real` the time is that of the processor, without Prometheus.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import numpy as np
from numpy.typing import NDArray
from tests.cluster import debian_packages
from tests.cluster.prometheus_process import PrometheusProcess

from bench import benchmark_servers, report
from bench.results import BACKTEST, BACKTEST_REAL, MachineLoad, Measurement
from nodewise.base.clock import format_rfc3339

NODES: Final = 1000
DAYS: Final = 7
BLOCK_S: Final = 7200
"""The time of one block of Prometheus."""
POLICY: Final = """
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: cool, namespace: web}
spec:
  podSelector: {}
  avoid:
  - {metric: temp, above: 77}
  - {metric: load, above: "7.8"}
  - {metric: power, above: 80, whenMissing: Reject}
"""


METRICS: Final = ("temp", "load", "power")
_OFFSETS: Final = np.random.default_rng(3).normal(0, 4, NODES)


def _values(metric: str, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values by time and node: a daily wave, an offset of each node, and noise."""
    wave = 66 + 6 * np.sin(2 * np.pi * times / 86400)[:, np.newaxis] + _OFFSETS
    values: NDArray[np.float64] = wave + np.random.default_rng(int(times[0])).normal(0, 2.5, wave.shape)
    return values / (10 if metric == "load" else 1)


def _node(number: int) -> str:
    return f"node-{number:04d}"


class _Prometheus(BaseHTTPRequestHandler):
    """The API for range queries, with computed values."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: texts[0] for name, texts in parse_qs(url.query).items()}
        if not url.path.endswith("query_range"):
            series = (
                [{"metric": {}, "value": [time.time(), f"{time.time():.3f}"]}]
                if "time()" in query["query"]
                else []
            )
            self._send(json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}}))
            return
        metric = re.search(r'__name__="(\w+)"', query["query"])[1]
        start, end, step = (float(query[name]) for name in ("start", "end", "step"))
        times = start + step * np.arange(int((end - start) / step) + 1)
        values = _values(metric, times)
        pairs = [f'[{int(at)},"%.2f"]' for at in times.tolist()]
        series = [
            f'{{"metric":{{"instance":"{_node(node)}:9100"}},"values":[{",".join(pairs) % tuple(column)}]}}'
            for node, column in enumerate(values.T.tolist())
        ]
        self._send(f'{{"status":"success","data":{{"resultType":"matrix","result":[{",".join(series)}]}}}}')

    def _send(self, body: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


def _samples(start: float) -> Iterator[str]:
    """The values of a block of Prometheus, in the OpenMetrics format."""
    times = start + 60 * np.arange(BLOCK_S // 60)
    for metric in METRICS:
        for node, column in enumerate(_values(metric, times).T.tolist()):
            head = f'{metric}{{instance="{_node(node)}:9100"}}'
            yield from (f"{head} {value:.2f} {at:.0f}" for value, at in zip(column, times, strict=True))


def measure_real() -> Measurement:
    """Run the command once with a Prometheus that has the values in its data."""
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as folder:
        server = PrometheusProcess(debian_packages.get(), Path(folder) / "prometheus", {})
        end = int(time.time()) // BLOCK_S * BLOCK_S
        try:
            # promtool reads its whole input again for each block, so each block has an input of its own
            for start in range(end - DAYS * 86400, end, BLOCK_S):
                server.hold_samples(_samples(start))
            server.start()
            took_s, usage = _measure(Path(folder), server.url, f"--until={format_rfc3339(end - 60)}")
        finally:
            server.stop()
    figures = {
        "backtest_prometheus_s": round(took_s, 1),
        "backtest_prometheus_mib": round(usage.ru_maxrss / 1024),
    }
    return Measurement(figures, {}, "")


def measure() -> Measurement:
    """Run the command once in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as folder:
        server = subprocess.Popen(
            [sys.executable, "-m", "bench.policy_backtest", "--serve"], stdout=subprocess.PIPE, text=True
        )
        try:
            took_s, usage = _measure(Path(folder), server.stdout.readline().strip())
        finally:
            server.terminate()
            server.wait()
    figures = {
        "backtest_1000_nodes_7d_s": round(took_s, 1),
        "backtest_1000_nodes_7d_mib": round(usage.ru_maxrss / 1024),
    }
    return Measurement(figures, {}, "")


def _measure(folder: Path, url: str, *options: str) -> tuple[float, resource.struct_rusage]:
    """The seconds that the command takes, and what it uses."""
    nodes = "".join(
        f"---\n{{apiVersion: v1, kind: Node, metadata: {{name: {_node(node)}}}}}\n" for node in range(NODES)
    )
    (folder / "policy.yaml").write_text(POLICY + nodes)
    command = [
        benchmark_servers.PROGRAM,
        *("policy", "backtest", str(folder / "policy.yaml"), f"--since={DAYS}d", f"--prometheus-url={url}"),
        f"--html={folder / 'page.html'}",
        *options,
    ]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    took_s = time.monotonic() - began
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return took_s, usage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the figures only")
    parser.add_argument("--real", action="store_true", help="read from a real Prometheus")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Prometheus)
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
    machine_load = MachineLoad()
    part, measured = (BACKTEST_REAL, measure_real()) if options.real else (BACKTEST, measure())
    print(json.dumps(measured.figures))
    if options.write:
        report.update(part, measured, machine_load.others_share())


if __name__ == "__main__":
    main()
