"""docs/learn/devices.md, followed literally with the real example driver, Prometheus, scheduler and controllers.

The installations by images are replaced: Helm's by drivers, the Deployments' by a Prometheus and a controller.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import docs_page_code_blocks, docs_page_runner
from tests.cluster import (
    debian_packages,
    device_objects,
    extender_process,
    fake_kubelets,
    kubernetes_objects,
    native_mode,
)
from tests.cluster.controlplane import ControlPlane
from tests.cluster.example_driver import ExampleDrivers
from tests.cluster.extender_process import NODEWISE
from tests.cluster.prometheus_process import PrometheusProcess
from tests.docs_page_runner import PageReader

PAGE = docs_page_code_blocks.LEARN / "devices.md"
WITHOUT_KUBELETS = {"kubectl delete -f": "kubectl delete --wait=false -f"}
"""Pods of the page run on no kubelet, which would end their deletion."""
WORKERS = ("nodewise-worker", "nodewise-worker2")


@pytest.fixture
def prometheus(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> Iterator[PrometheusProcess]:
    server = PrometheusProcess(prometheus_programs, tmp_path / "prometheus", {})
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def reader(plane: ControlPlane, tmp_path: Path) -> Iterator[PageReader]:
    """A reader with the cluster of the page before."""
    for name in WORKERS:
        plane.api.create(kubernetes_objects.node(name, labels={"kubernetes.io/os": "linux"}))
    plain = docs_page_runner.plain_environment()
    environment = {
        **plain,
        "PATH": f"{plane.kubectl_program.parent}:{NODEWISE.parent}:{plain['PATH']}",
        "KUBECONFIG": str(plane.admin.kubeconfig),
    }
    with (
        plane.start_controller_manager(),
        plane.start_scheduler({}),
        docs_page_runner.reading(tmp_path, environment, WITHOUT_KUBELETS) as reader,
        fake_kubelets.running_kubelets(plane.api, native_mode.NAMESPACE),
    ):
        reader.types("nodewise configure --mode native | kubectl apply --server-side -f -")
        yield reader


def test_devices_page_works_as_written(
    plane: ControlPlane,
    reader: PageReader,
    drivers: ExampleDrivers,
    prometheus: PrometheusProcess,
    tmp_path: Path,
) -> None:
    install, *requests = docs_page_code_blocks.section(PAGE, "## 1.", "\n## 3. ")
    taints = docs_page_code_blocks.section(PAGE, "## 3.")
    end = docs_page_code_blocks.section(PAGE, "## 4.")
    assert install.text.startswith("helm install dra-example-driver oci://registry.k8s.io/")
    for node in WORKERS:
        drivers.start(node)
    plane.api.create(device_objects.device_class(extended_resource="example.com/gpu"))
    reader.follows(requests)
    account = native_mode.install_with_account(plane)
    reader.follows(taints[:2])
    flags = [
        "--metrics=prometheus",
        f"--prometheus-url={prometheus.url}",
        f"--namespace={native_mode.NAMESPACE}",
    ]
    with extender_process.controller(account, tmp_path, *flags):
        reader.follows(taints[2:])
    deletion = end[0].text.partition("helm uninstall")
    assert deletion[1]
    reader.types(deletion[0])
