"""A real Prometheus, with targets to scrape or with series that are loaded into it."""

import contextlib
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.cluster import debian_packages, processes
from tests.cluster.api_client import Object
from tests.cluster.processes import Process
from tests.unit.metrics.prometheus_double import SeriesSamples


class PrometheusProcess:
    """One server with a folder of its own; it may end and start again, at the same address and with its data.

    `web` is its web configuration: how it is called over TLS, and by whom. Who sets it brings the client to ask with.
    """

    def __init__(
        self,
        programs: debian_packages.PrometheusPrograms,
        folder: Path,
        config: Object,
        web: Object | None = None,
    ) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        self.client = httpx2.Client(trust_env=False)
        port = processes.free_port()
        self.url = f"{'https' if web and 'tls_server_config' in web else 'http'}://127.0.0.1:{port}"
        self._programs = programs
        self._process: Process | None = None
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (folder / "web.yml").write_text(yaml.safe_dump(web or {}))

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def process(self) -> Process:
        """The program as it was started last."""
        assert self._process, "Prometheus was never started"
        return self._process

    def start(self) -> None:
        """Starts it, ready to answer; one that runs is left alone."""
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
        with processes.stopped_on_error(self._process):
            self._process.wait_ready(lambda: answers(f"{self.url}/-/ready", self.client))

    def stop(self) -> None:
        """Ends it."""
        if self._process:
            self._process.stop()
        self.client.close()

    def kill(self) -> None:
        """Ends it as a crash would; `start` has it back."""
        self.process.kill()

    def hold(self, series: SeriesSamples) -> None:
        """Writes samples into its data; before it starts."""
        now = time.time()
        aged = {
            text: samples if isinstance(samples, tuple) else (samples, 0.0)
            for text, samples in series.items()
        }
        self.hold_samples(f"{text} {value} {now - age_s:.3f}" for text, (value, age_s) in aged.items())

    def hold_samples(self, lines: Iterable[str]) -> None:
        """The same, of samples as OpenMetrics has them: `series value time`, those of one series in order of time."""
        file = self.folder / "samples"
        file.write_text("\n".join([*lines, "# EOF\n"]))
        promtool = self._programs.prometheus.parent / "promtool"
        command = [promtool, "tsdb", "create-blocks-from", "openmetrics", file, self.data]
        subprocess.run(command, check=True, capture_output=True)

    def ask(self, query: str) -> list[Object]:
        """What it answers to a query: series with their labels and their newest value."""
        answer = self.client.get(f"{self.url}/api/v1/query", params={"query": query})
        result: list[Object] = answer.raise_for_status().json()["data"]["result"]
        return result

    def targets(self) -> Any:
        """What it scrapes, and what went wrong with it."""
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
    """A Prometheus that has these series and no others, and scrapes nothing."""
    server = PrometheusProcess(programs, folder, {}, web)
    server.client = client or server.client
    try:
        server.hold(series)
        server.start()
        yield server
    finally:
        server.stop()


def answers(url: str, client: httpx2.Client) -> bool:
    """Whether an address answers with success now."""
    with contextlib.suppress(httpx2.TransportError):
        return client.get(url, timeout=10).is_success
    return False
