"""The versions of Prometheus and VictoriaMetrics that tests of metric sources run: the matrix of metric back ends.

A test with the fixture `metric_back_end` runs once with each of them:

    def test_rule(metric_back_end: MetricBackEnd) -> None:
        server = metric_back_end.start(series={'temp{node="a"}': ("41", 30.0)})
        assert values(fetch(server.url)) == {"a": 41.0}
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from _pytest.mark import ParameterSet

from tests.cluster import debian_packages
from tests.cluster.api_client import Object
from tests.cluster.debian_packages import PrometheusPrograms, UnpackedPackages
from tests.cluster.prometheus_process import PrometheusProcess
from tests.cluster.victoria_metrics_process import VictoriaMetricsProcess
from tests.unit.metrics.fake_prometheus import SeriesSamples

Server = PrometheusProcess | VictoriaMetricsProcess

PROMETHEUS: Final = "Prometheus"
VICTORIA_METRICS: Final = "VictoriaMetrics"


class Version(NamedTuple):
    """One version of a metric back end. `program` finds or fetches it, and raises MissingError."""

    product: str
    number: str
    program: Callable[[], Path]
    is_in_every_run: bool = True
    """Whether `make test-cluster` runs it; otherwise only `make test-long`."""

    @property
    def name(self) -> str:
        return f"{self.product} {self.number}"


def _from_package(package: UnpackedPackages) -> Callable[[], Path]:
    return lambda: package.get() / package.proof


VERSIONS: Final = (
    # the version of Debian bookworm, or the one that this machine has
    Version(PROMETHEUS, "of the system", lambda: debian_packages.get().prometheus),
    Version(PROMETHEUS, "2.53.3", _from_package(debian_packages.PROMETHEUS_2_53)),
    Version(VICTORIA_METRICS, "1.112.0", _from_package(debian_packages.VICTORIA_METRICS_1_112)),
    Version(PROMETHEUS, "3.5.3", _from_package(debian_packages.PROMETHEUS_3_5), is_in_every_run=False),
    Version(
        VICTORIA_METRICS,
        "1.145.0",
        _from_package(debian_packages.VICTORIA_METRICS_1_145),
        is_in_every_run=False,
    ),
)


def parameters(*products: str) -> list[ParameterSet]:
    """The parameters of a fixture that runs a test with each version of these products."""
    return [
        pytest.param(version, id=version.name, marks=() if version.is_in_every_run else pytest.mark.long)
        for version in VERSIONS
        if version.product in products
    ]


class MetricBackEnd:
    """One version, and the servers of it that a test starts."""

    def __init__(self, version: Version, program: Path, folder: Path) -> None:
        self.version = version
        self._program = program
        self._folder = folder
        self._servers: list[Server] = []

    @property
    def is_victoria_metrics(self) -> bool:
        return self.version.product == VICTORIA_METRICS

    def start(
        self,
        config: Object | None = None,
        series: SeriesSamples | None = None,
        samples: Iterable[str] = (),
    ) -> Server:
        """A running server with a Prometheus configuration (empty by default) and imported samples.

        `series` are values with their ages in seconds, `samples` lines in the OpenMetrics format in order of time.
        """
        server = self.create(config)
        self._servers.append(server)
        if series:
            server.hold(series)
        if lines := list(samples):
            server.hold_samples(lines)
        server.start()
        return server

    def create(self, config: Object | None = None) -> Server:
        """A server that is not running. The caller stops it."""
        folder = self._folder / f"{len(self._servers)}"
        if self.is_victoria_metrics:
            return VictoriaMetricsProcess(self._program, folder, config or {})
        # the exporter is not used here
        return PrometheusProcess(PrometheusPrograms(self._program, self._program), folder, config or {})

    def stop(self) -> None:
        """Stops all servers."""
        for server in self._servers:
            server.stop()
