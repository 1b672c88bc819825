"""A real single-node VictoriaMetrics with the interface of `PrometheusProcess`."""

import time
from collections.abc import Iterable
from pathlib import Path

import yaml

from tests.cluster import child_processes, prometheus_process
from tests.cluster.api_client import Object
from tests.cluster.child_processes import Process
from tests.cluster.prometheus_process import RestartableServer
from tests.unit.metrics.fake_prometheus import SeriesSamples


class VictoriaMetricsProcess(RestartableServer):
    """A VictoriaMetrics server with its own folder, and the default settings of queries. After a restart it has the
    same address and data. A kill may lose samples of the last five seconds.

    `config` is a Prometheus configuration, of which VictoriaMetrics reads the scrape part.
    """

    def __init__(self, program: Path, folder: Path, config: Object, flags: Iterable[str] = ()) -> None:
        super().__init__(folder)
        self.url = f"http://127.0.0.1:{child_processes.free_port()}"
        self._program = program
        self._flags = tuple(flags)
        self._pending: list[str] = []
        (folder / "scrape.yml").write_text(yaml.safe_dump(config))

    def start(self) -> None:
        """Starts the server unless it runs, waits until it is ready, and imports the samples that were given before."""
        if self.is_running:
            return
        arguments: list[str | Path] = [
            self._program,
            f"-storageDataPath={self.folder / 'data'}",
            f"-httpListenAddr={self.url.removeprefix('http://')}",
            f"-promscrape.config={self.folder / 'scrape.yml'}",
            # a fixed amount, because several tests share a machine
            "-memory.allowedBytes=256MB",
            "-loggerLevel=WARN",
            *self._flags,
        ]
        self._process = Process(arguments, self.folder / "victoria-metrics.log")
        with child_processes.stopped_on_error(self._process):
            self._process.wait_ready(lambda: prometheus_process.answers(f"{self.url}/health", self.client))
            self._import()

    def hold(self, series: SeriesSamples) -> None:
        """Writes samples into the server's data. Queries are evaluated at full seconds, so now is a full second."""
        self.hold_samples(prometheus_process.sample_lines(series, int(time.time())))

    def hold_samples(self, lines: Iterable[str]) -> None:
        """Writes samples in the OpenMetrics format, `series value time` with the time in seconds. Before a start they
        are kept until then. Queries include them afterwards.
        """
        self._pending += [_with_milliseconds(line) for line in lines]
        if self.is_running:
            self._import()

    def ask(self, query: str) -> list[Object]:
        """The result of a query at the current time, without the delays of VictoriaMetrics."""
        self._flush()
        parameters = {"query": query, "nocache": "1"}
        response = self.client.get(f"{self.url}/api/v1/query", params=parameters)
        result: list[Object] = response.raise_for_status().json()["data"]["result"]
        return result

    def _import(self) -> None:
        if self._pending:
            body = "\n".join(self._pending) + "\n"
            self.client.post(f"{self.url}/api/v1/import/prometheus", content=body).raise_for_status()
            self._pending.clear()
        self._flush()

    def _flush(self) -> None:
        """Makes new samples visible to queries, which takes seconds otherwise."""
        self.client.get(f"{self.url}/internal/force_flush").raise_for_status()


def _with_milliseconds(line: str) -> str:
    """A sample whose time is in milliseconds, as the import endpoint expects."""
    sample, _, time_s = line.rpartition(" ")
    return f"{sample} {round(float(time_s) * 1000)}"
