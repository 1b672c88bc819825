"""Fixtures: one control plane for all files, cleaned after each of them, and a namespace for each test.

A test that needs a program which is not available on this machine is skipped by `skip_conditions.not_run`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.cluster import (
    debian_packages,
    example_driver,
    fake_custom_metrics_server,
    fake_scheduler_extender,
    health_example_manifests,
    metric_back_ends,
    metrics_pipeline,
    namespace_sandboxes,
    native_mode,
    program_cache,
    prometheus_and_exporters,
    shipped_installation,
    skip_conditions,
)
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.controlplane import ControlPlane
from tests.cluster.example_driver import ExampleDrivers
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.fake_scheduler_extender import FakeExtenderServer
from tests.cluster.go_toolchain import MissingError
from tests.cluster.metric_back_ends import MetricBackEnd
from tests.cluster.metrics_pipeline import MetricsPipeline, MetricsServices
from tests.cluster.namespace_sandboxes import Sandbox
from tests.cluster.scheduler_interface import RealScheduler, SchedulerUnderTest
from tests.cluster.shared_control_plane import SHARED, SharedControlPlane
from tests.cluster.shipped_installation import ShippedInstallation
from tests.cluster.simulated_scheduler import SimulatedScheduler

Got = TypeVar("Got")


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("kubernetes_versions")
    oldest = marker.kwargs.get("oldest", program_cache.MINOR) if marker else program_cache.MINOR
    if oldest > program_cache.MINOR:
        pytest.skip(f"needs Kubernetes 1.{oldest}")


@pytest.fixture(scope="session")
def control_plane_programs(request: pytest.FixtureRequest) -> Path:
    """The folder with the control plane programs. They are built if necessary, and the progress is shown."""
    return get_or_skip(request, program_cache.folder)


def get_or_skip(request: pytest.FixtureRequest, get: Callable[[], Got]) -> Got:
    """The result of `get`, which finds or builds a program and shows its progress. Skips the test if there is none."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            return get()
    except MissingError as missing:
        why = str(missing)
    return skip_conditions.not_run(f"{why}; then `{program_cache.SET_UP}`")


@pytest.fixture(scope="session")
def shared_control_plane() -> Iterator[SharedControlPlane]:
    """The control plane of this process, for all files."""
    yield SHARED
    SHARED.stop()


@pytest.fixture(scope="module")
def plane(control_plane_programs: Path, shared_control_plane: SharedControlPlane) -> Iterator[ControlPlane]:
    """A control plane without nodes or other objects. The objects that a test file creates are deleted after it."""
    with shared_control_plane.use(control_plane_programs) as plane:
        yield plane


@pytest.fixture(scope="module")
def audit_log(plane: ControlPlane, shared_control_plane: SharedControlPlane) -> AuditLog:
    """The requests to the control plane since the test file began."""
    return shared_control_plane.audit_log()


@pytest.fixture(scope="module")
def shipped(
    plane: ControlPlane, audit_log: AuditLog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShippedInstallation]:
    """An installation with the manifests and the rights that ship."""
    with shipped_installation.installed(plane, audit_log, tmp_path_factory.mktemp("shipped")) as shipped:
        yield shipped


@pytest.fixture
def sandbox(plane: ControlPlane) -> Iterator[Sandbox]:
    """A namespace for one test. Nodes and all other objects that are created through it are deleted afterwards."""
    with namespace_sandboxes.created(plane) as own:
        yield own


@pytest.fixture
def metrics(sandbox: Sandbox, tmp_path: Path) -> Iterator[FakeCustomMetricsApi]:
    """The custom metrics API of the control plane, served by a fake server."""
    with fake_custom_metrics_server.behind(sandbox, tmp_path) as serving:
        yield serving


@pytest.fixture(scope="session")
def prometheus_programs(request: pytest.FixtureRequest) -> debian_packages.PrometheusPrograms:
    """Prometheus and its node exporter."""
    return get_or_skip(request, debian_packages.get)


@pytest.fixture(
    params=metric_back_ends.parameters(metric_back_ends.PROMETHEUS, metric_back_ends.VICTORIA_METRICS)
)
def metric_back_end(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetricBackEnd]:
    """Each metric back end of the matrix, which a test starts with its own data and scrape configuration."""
    version: metric_back_ends.Version = request.param
    back_end = MetricBackEnd(version, get_or_skip(request, version.program), tmp_path / "back-end")
    yield back_end
    back_end.stop()


@pytest.fixture(scope="session")
def otelcol_program(request: pytest.FixtureRequest) -> Path:
    """The OpenTelemetry Collector."""
    return get_or_skip(request, program_cache.otelcol)


@pytest.fixture(scope="session")
def descheduler_program(request: pytest.FixtureRequest) -> Path:
    """The descheduler; see `descheduler_run`."""
    return get_or_skip(request, program_cache.descheduler)


@pytest.fixture(scope="session")
def karpenter_folder(request: pytest.FixtureRequest) -> Path:
    """The folder with Karpenter; see `karpenter_process`."""
    return get_or_skip(request, program_cache.karpenter_folder)


@pytest.fixture(scope="session")
def adapter_program(request: pytest.FixtureRequest) -> Path:
    """prometheus-adapter; see `metrics_pipeline`."""
    return get_or_skip(request, program_cache.prometheus_adapter)


@pytest.fixture(scope="module")
def measuring(
    plane: ControlPlane, prometheus_programs: debian_packages.PrometheusPrograms, adapter_program: Path
) -> Iterator[MetricsServices]:
    """Exporters of the example's nodes, a Prometheus that scrapes them, and an adapter that queries Prometheus."""
    with (
        prometheus_and_exporters.running(
            prometheus_programs, plane.folder / "monitoring", health_example_manifests.NODES
        ) as scraping,
        metrics_pipeline.running_adapter(plane, adapter_program, scraping.url) as adapting,
    ):
        yield MetricsServices(scraping, adapting)


@pytest.fixture(name="pipeline")
def _pipeline(measuring: MetricsServices, sandbox: Sandbox) -> Iterator[MetricsPipeline]:
    """The custom metrics API of the control plane, with values from text files. The test creates the nodes."""
    with metrics_pipeline.registered(sandbox.api, *measuring) as both_ends:
        yield both_ends


@pytest.fixture(scope="session")
def example_driver_program(request: pytest.FixtureRequest) -> Path:
    """The DRA example driver; see `example_driver`."""
    return get_or_skip(request, program_cache.example_driver)


@pytest.fixture(scope="module")
def drivers(plane: ControlPlane, example_driver_program: Path) -> Iterator[ExampleDrivers]:
    """DRA example drivers, which tests start by node."""
    with example_driver.running(plane, example_driver_program) as drivers:
        yield drivers


@pytest.fixture(scope="module")
def native_account(plane: ControlPlane) -> User:
    """nodewise's account with the shipped rights, and native mode installed."""
    return native_mode.install_with_account(plane)


@pytest.fixture
def fake_extender() -> Iterator[FakeExtenderServer]:
    """A fake extender that accepts everything until a test changes it."""
    with fake_scheduler_extender.serving() as serving:
        yield serving


@pytest.fixture(params=["kube-scheduler", "simulated"])
def scheduler(request: pytest.FixtureRequest) -> SchedulerUnderTest:
    """Each scheduler that must follow the scheduling rules: kube-scheduler, and the simulated scheduler, which follows
    the version that all tests run on.
    """
    if request.param == "simulated" and program_cache.RELEASE != program_cache.DEFAULT:
        pytest.skip("the simulated scheduler follows one version")
    made: dict[str, Callable[[], SchedulerUnderTest]] = {
        "kube-scheduler": lambda: RealScheduler(request.getfixturevalue("plane")),
        "simulated": SimulatedScheduler,
    }
    return made[request.param]()
