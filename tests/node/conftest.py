"""Fixtures: a control plane with a real node."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster import (
    debian_packages,
    fake_custom_metrics_server,
    image_archive,
    namespace_sandboxes,
    program_cache,
)
from tests.cluster.conftest import control_plane_programs, get_or_skip, plane, sandbox, shared_control_plane
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox
from tests.cluster.virtual_machine import FileEntry
from tests.node import (
    cpu_manager_on_real_node,
    host_program_installation,
    host_with_kubelet,
    kubelet,
    virtual_cpu_machine,
)
from tests.node.cpu_manager_on_real_node import CpuManagerOnNode
from tests.node.host_with_kubelet import KubernetesHost
from tests.node.kubelet import Kubelet
from tests.node.virtual_cpu_machine import VirtualCpuMachine

__all__ = ["control_plane_programs", "plane", "sandbox", "shared_control_plane"]


@pytest.fixture(scope="session")
def kubelet_program(request: pytest.FixtureRequest) -> Path:
    return get_or_skip(request, program_cache.kubelet)


@pytest.fixture(scope="session")
def container_programs(request: pytest.FixtureRequest) -> debian_packages.ContainerPrograms:
    """containerd and the programs that it needs."""
    return get_or_skip(request, debian_packages.containers)


@pytest.fixture(scope="session")
def program() -> Path:
    """The bundle of the program that is installed on nodes; it runs in any image."""
    return host_program_installation.ready()


@pytest.fixture(scope="session")
def machine_packages(request: pytest.FixtureRequest) -> debian_packages.MachinePackages:
    """The emulated machine and its kernel."""
    return get_or_skip(request, debian_packages.machine)


@pytest.fixture(scope="session")
def machine_files(program: Path) -> Mapping[str, FileEntry]:
    """The files of an emulated machine with the installed program."""
    return virtual_cpu_machine.files(program)


@pytest.fixture(scope="module")
def machine(
    machine_packages: debian_packages.MachinePackages,
    machine_files: Mapping[str, FileEntry],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[VirtualCpuMachine]:
    """An emulated machine for the tests of a file."""
    folder = tmp_path_factory.mktemp("machine")
    with virtual_cpu_machine.running(machine_packages, machine_files, folder) as machine:
        yield machine


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """The option that selects the test's store."""
    return f"--conf-dir={virtual_cpu_machine.STATE}/{abs(hash(request.node.name))}"


@pytest.fixture(scope="module")
def node(
    plane: ControlPlane,
    kubelet_program: Path,
    container_programs: debian_packages.ContainerPrograms,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Kubelet]:
    """A node whose kubelet runs the pods that are bound to it."""
    folder = tmp_path_factory.mktemp("node")
    with kubelet.running(plane, kubelet_program, container_programs, folder, "real") as running:
        yield running


@pytest.fixture
def manager(
    plane: ControlPlane, sandbox: Sandbox, node: Kubelet, program: Path, tmp_path: Path
) -> Iterator[CpuManagerOnNode]:
    """The node with the CPU manager installed and its pools created."""
    with cpu_manager_on_real_node.node_with_cpu_manager(
        sandbox, node, program, tmp_path, plane.admin
    ) as made:
        yield made


@pytest.fixture(scope="session")
def kube_host(
    control_plane_programs: Path,
    kubelet_program: Path,
    container_programs: debian_packages.ContainerPrograms,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KubernetesHost]:
    """A control plane with a real node whose pods have full network access."""
    folder = tmp_path_factory.mktemp("whole")
    with host_with_kubelet.running(
        control_plane_programs, kubelet_program, container_programs, folder
    ) as running:
        yield running


@pytest.fixture
def cluster_scheduler(kube_host: KubernetesHost) -> Iterator[None]:
    """The scheduler of the cluster, not configured."""
    process = kube_host.plane.start_scheduler({})
    yield
    process.stop()


@pytest.fixture
def host_sandbox(kube_host: KubernetesHost) -> Iterator[Sandbox]:
    """A namespace of the test on the host."""
    with namespace_sandboxes.created(kube_host.plane) as own:
        host_with_kubelet.wait_admitted(own)
        yield own


@pytest.fixture
def metrics_api(host_sandbox: Sandbox, tmp_path: Path) -> Iterator[FakeCustomMetricsApi]:
    """The custom metrics API on the host."""
    with fake_custom_metrics_server.behind(host_sandbox, tmp_path) as serving:
        yield serving


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest, kube_host: KubernetesHost) -> str:
    """The name of nodewise's image, which is loaded on the host."""
    kube_host.node.runtime.load(get_or_skip(request, image_archive.archive))
    return image_archive.NAME
