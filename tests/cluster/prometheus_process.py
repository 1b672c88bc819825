"""A real Prometheus that scrapes targets or has series loaded into it."""

import contextlib
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.cluster import child_processes, debian_packages
from tests.cluster.api_client import Object
from tests.cluster.child_processes import Process
from tests.unit.metrics.fake_prometheus import SeriesSamples


class RestartableServer:
    """A server of metrics with its own folder and a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.client = httpx2.Client(trust_env=False, timeout=60)
        self._process: Process | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def process(self) -> Process:
        """The process of the latest start."""
        assert self._process, "the server was never started"
        return self._process

    def stop(self) -> None:
        """Stops the server and closes the client."""
        if self._process:
            self._process.stop()
        self.client.close()

    def kill(self) -> None:
        """Kills the server (SIGKILL); `start` restarts it."""
        self.process.kill()


class PrometheusProcess(RestartableServer):
    """A Prometheus server with its own folder. After a restart it has the same address and data.

    `web` is its web configuration, with TLS and authentication. A caller that sets it must also set a matching
    `client`.
    """

    def __init__(
        self,
        programs: debian_packages.PrometheusPrograms,
        folder: Path,
        config: Object,
        web: Object | None = None,
    ) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        port = child_processes.free_port()
        self.url = f"{'https' if web and 'tls_server_config' in web else 'http'}://127.0.0.1:{port}"
        self._programs = programs
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (folder / "web.yml").write_text(yaml.safe_dump(web or {}))

    def start(self) -> None:
        """Starts the server unless it runs, and waits until it is ready."""
        if self.is_running:
            return
        arguments = [
            self._programs.prometheus,
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--web.config.file={self.folder / 'web.yml'}",
            f"--storage.tsdb.path={self.data}",
            f"--web.listen-address={self.url.rpartition('/')[2]}",
            "--log.level=warn",
        ]
        self._process = Process(arguments, self.folder / "prometheus.log")
        with child_processes.stopped_on_error(self._process):
            self._process.wait_ready(lambda: answers(f"{self.url}/-/ready", self.client))

    def hold(self, series: SeriesSamples) -> None:
        """Writes samples into the server's data. Call this before the server starts."""
        self.hold_samples(sample_lines(series, time.time()))

    def hold_samples(self, lines: Iterable[str]) -> None:
        """Writes samples in the OpenMetrics format, `series value time`. The samples of a series must be in order of
        time.
        """
        file = self.folder / "samples"
        file.write_text("\n".join([*lines, "# EOF\n"]))
        promtool = self._programs.prometheus.parent / "promtool"
        command = [promtool, "tsdb", "create-blocks-from", "openmetrics", file, self.data]
        subprocess.run(command, check=True, capture_output=True)

    def ask(self, query: str) -> list[Object]:
        """The result of a query: series with their labels and newest values."""
        answer = self.client.get(f"{self.url}/api/v1/query", params={"query": query})
        result: list[Object] = answer.raise_for_status().json()["data"]["result"]
        return result

    def targets(self) -> Any:
        """The labels of each active target, and the error of its last scrape."""
        answer = self.client.get(f"{self.url}/api/v1/targets").json()["data"]
        return [(target["labels"], target["lastError"]) for target in answer["activeTargets"]]


@contextlib.contextmanager
def prometheus_with_series(
    programs: debian_packages.PrometheusPrograms,
    folder: Path,
    series: SeriesSamples,
    web: Object | None = None,
    client: httpx2.Client | None = None,
) -> Iterator[PrometheusProcess]:
    """Runs a Prometheus that has exactly these series and scrapes nothing."""
    server = PrometheusProcess(programs, folder, {}, web)
    server.client = client or server.client
    try:
        server.hold(series)
        server.start()
        yield server
    finally:
        server.stop()


def sample_lines(series: SeriesSamples, now: float) -> Iterator[str]:
    """Samples in the OpenMetrics format, `series value time` with the time in seconds."""
    for text, sample in series.items():
        value, age_s = sample if isinstance(sample, tuple) else (sample, 0.0)
        yield f"{text} {value} {now - age_s:.3f}"


def answers(url: str, client: httpx2.Client) -> bool:
    """Whether a URL returns a success status now."""
    with contextlib.suppress(httpx2.TransportError):
        return client.get(url, timeout=10).is_success
    return False
