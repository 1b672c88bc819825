"""A Prometheus and one node exporter for each node, which reads its values from text files.

A test says what a node measures (`set`, `set_health`); the value then travels as it does in a cluster. Prometheus
looks at its list of targets every five seconds only, so a node that is to be scraped at once is named at the start.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2

from tests.cluster import debian_packages, namespace_sandboxes, processes, prometheus_process
from tests.cluster.processes import Process
from tests.cluster.prometheus_process import PrometheusProcess

SCRAPE_INTERVAL = "500ms"
HEALTH = "node_health_metric"
"""The series of the health example, as the node exporter says it."""

JOB = {
    "job_name": "node-exporter",
    "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}],
}
"""The scraping of the exporters that `watch` starts."""


class NodeExporter:
    """The node exporter of one node, with the text-file collector alone."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
        self.port = processes.free_port()
        arguments = [
            program,
            "--collector.disable-defaults",
            "--collector.textfile",
            f"--collector.textfile.directory={folder}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.disable-exporter-metrics",
        ]
        self.process = Process(arguments, folder.with_suffix(".log"))
        metrics = f"http://127.0.0.1:{self.port}/metrics"
        with processes.stopped_on_error(self.process), httpx2.Client(trust_env=False) as client:
            self.process.wait_ready(lambda: prometheus_process.answers(metrics, client))

    def write(self, series: str, value: float | str) -> None:
        """A value from now on; in one step, so that no scrape reads half a file."""
        part = self.folder / f"{series}.part"
        part.write_text(f"# TYPE {series} gauge\n{series} {value}\n")
        part.rename(self.folder / f"{series}.prom")

    def remove(self, series: str) -> None:
        """Remove a series from all exporters and from Prometheus."""
        (self.folder / f"{series}.prom").unlink(missing_ok=True)


class Monitoring:
    """Prometheus and the exporters it scrapes, from `start` to `stop`; `with running(...)` does both."""

    def __init__(
        self,
        programs: debian_packages.PrometheusPrograms,
        folder: Path,
        jobs: Sequence[Mapping[str, Any]] = (JOB,),
    ) -> None:
        config = {"global": {"scrape_interval": SCRAPE_INTERVAL}, "scrape_configs": list(jobs)}
        self.prometheus = PrometheusProcess(programs, folder, config)
        self.folder = folder
        self._program = programs.node_exporter
        self._exporters: dict[str, NodeExporter] = {}
        self._write_targets()

    @property
    def url(self) -> str:
        """Where Prometheus answers."""
        return self.prometheus.url

    def start(self) -> None:
        """Starts Prometheus; one that runs is left alone."""
        self.prometheus.start()

    def stop(self) -> None:
        """Ends Prometheus and every exporter."""
        self.prometheus.stop()
        self.forget(*self._exporters)

    @contextlib.contextmanager
    def without_prometheus(self) -> Iterator[None]:
        """A stretch of time with Prometheus killed; when the block is left it is back, with the data it had."""
        self.prometheus.kill()
        try:
            yield
        finally:
            self.start()

    def watch(self, *nodes: str) -> None:
        """Starts an exporter for each node that has none; Prometheus hears of it within five seconds or so."""
        for node in nodes:
            if node not in self._exporters:
                folder = self.folder / f"{node}-{processes.number()}"
                self._exporters[node] = NodeExporter(self._program, folder)
        self._write_targets()

    def forget(self, *nodes: str) -> None:
        """Ends the exporters of nodes."""
        for node in nodes:
            self._exporters.pop(node).process.stop()
        self._write_targets()

    def exporter(self, node: str) -> NodeExporter:
        """The exporter of a node that is watched."""
        return self._exporters[node]

    def set(self, series: str, values: Mapping[str, float | str]) -> None:
        """What the nodes measure from now on; `series` with its `node_`, values as Prometheus writes them."""
        for node, value in values.items():
            self._exporters[node].write(series, value)

    def set_health(self, node: str, value: float) -> None:
        """The health of one node: 0 is well, in the example."""
        self.set(HEALTH, {node: value})

    def clear(self) -> None:
        """No node measures anything any more."""
        for exporter in self._exporters.values():
            for file in exporter.folder.glob("*.prom"):
                exporter.remove(file.stem)

    def values(self, series: str) -> dict[str, float]:
        """The newest value of each node."""
        return {
            sample["metric"]["instance"]: float(sample["value"][1]) for sample in self.prometheus.ask(series)
        }

    def wait_scraped(
        self, series: str, values: Mapping[str, float], deadline_s: float = namespace_sandboxes.PATIENCE_S
    ) -> None:
        """Waits until Prometheus has these values, and of no other node."""
        namespace_sandboxes.wait(
            f"Prometheus has {series} {dict(values)}",
            lambda: self.values(series) == dict(values) or None,
            deadline_s,
            lambda: (self.values(series), self.prometheus.targets()),
        )

    def _write_targets(self) -> None:
        targets = [
            {"targets": [f"127.0.0.1:{exporter.port}"], "labels": {"instance": node}}
            for node, exporter in self._exporters.items()
        ]
        part = self.folder / "targets.part"
        part.write_text(json.dumps(targets))
        part.rename(self.folder / "targets.json")


@contextlib.contextmanager
def running(
    programs: debian_packages.PrometheusPrograms,
    folder: Path,
    nodes: Sequence[str] = (),
    jobs: Sequence[Mapping[str, Any]] = (JOB,),
) -> Iterator[Monitoring]:
    """Prometheus with an exporter for each of `nodes`, gone at the end."""
    monitoring = Monitoring(programs, folder, jobs)
    try:
        monitoring.watch(*nodes)
        monitoring.start()
        yield monitoring
    finally:
        monitoring.stop()
