"""A Prometheus, and a node exporter for each node, which reads its values from text files.

A test sets the values of a node (`set`, `set_health`); Prometheus scrapes them as in a cluster. Prometheus applies
changes of its targets only every five seconds, so name a node at the start if it is to be scraped at once.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2

from tests.cluster import child_processes, debian_packages, namespace_sandboxes, prometheus_process
from tests.cluster.child_processes import Process
from tests.cluster.prometheus_process import PrometheusProcess

SCRAPE_INTERVAL = "500ms"
HEALTH = "node_health_metric"
"""The series of the health example, as the node exporter names it."""

JOB = {
    "job_name": "node-exporter",
    "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}],
}
"""The scrape configuration for the exporters that `watch` starts."""


class NodeExporter:
    """The node exporter of one node, with only the textfile collector."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
        self.port = child_processes.free_port()
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
        with child_processes.stopped_on_error(self.process), httpx2.Client(trust_env=False) as client:
            self.process.wait_ready(lambda: prometheus_process.answers(metrics, client))

    def write(self, series: str, value: float | str) -> None:
        """Sets the value of a series. The file is replaced by a rename, so that no scrape reads half a file."""
        part = self.folder / f"{series}.part"
        part.write_text(f"# TYPE {series} gauge\n{series} {value}\n")
        part.rename(self.folder / f"{series}.prom")

    def remove(self, series: str) -> None:
        """Removes a series from this exporter."""
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
        """The URL of Prometheus."""
        return self.prometheus.url

    def start(self) -> None:
        """Starts Prometheus unless it runs."""
        self.prometheus.start()

    def stop(self) -> None:
        """Stops Prometheus and all exporters."""
        self.prometheus.stop()
        self.forget(*self._exporters)

    @contextlib.contextmanager
    def without_prometheus(self) -> Iterator[None]:
        """Kills Prometheus while the context is open, and restarts it with its data afterwards."""
        self.prometheus.kill()
        try:
            yield
        finally:
            self.start()

    def watch(self, *nodes: str) -> None:
        """Starts an exporter for each node that has none. Prometheus scrapes it after about five seconds at most."""
        for node in nodes:
            if node not in self._exporters:
                folder = self.folder / f"{node}-{child_processes.number()}"
                self._exporters[node] = NodeExporter(self._program, folder)
        self._write_targets()

    def forget(self, *nodes: str) -> None:
        """Stops the exporters of nodes."""
        for node in nodes:
            self._exporters.pop(node).process.stop()
        self._write_targets()

    def exporter(self, node: str) -> NodeExporter:
        """The exporter of a node that `watch` has started."""
        return self._exporters[node]

    def set(self, series: str, values: Mapping[str, float | str]) -> None:
        """Sets the values of nodes. `series` includes the prefix `node_`; text values are in Prometheus' format."""
        for node, value in values.items():
            self._exporters[node].write(series, value)

    def set_health(self, node: str, value: float) -> None:
        """Sets the health of a node; in the example, 0 means healthy."""
        self.set(HEALTH, {node: value})

    def clear(self) -> None:
        """Removes all series from all exporters."""
        for exporter in self._exporters.values():
            for file in exporter.folder.glob("*.prom"):
                exporter.remove(file.stem)

    def values(self, series: str) -> dict[str, float]:
        """The newest value of a series for each node in Prometheus."""
        return {
            sample["metric"]["instance"]: float(sample["value"][1]) for sample in self.prometheus.ask(series)
        }

    def wait_scraped(
        self, series: str, values: Mapping[str, float], deadline_s: float = namespace_sandboxes.PATIENCE_S
    ) -> None:
        """Waits until Prometheus has exactly these values, and none of other nodes."""
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
    """Runs Prometheus and an exporter for each of `nodes` while the context is open."""
    monitoring = Monitoring(programs, folder, jobs)
    try:
        monitoring.watch(*nodes)
        monitoring.start()
        yield monitoring
    finally:
        monitoring.stop()
