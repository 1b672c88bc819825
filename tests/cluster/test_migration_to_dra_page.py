"""docs/how-to/migrate-to-dra.md, followed on a real control plane with the example driver.

The device plugin is the allocatable amount of a node, as the kubelet reports it.
"""

from pathlib import Path

import pytest
import yaml

from tests import docs_page_code_blocks, docs_page_runner
from tests.cluster import device_objects, fake_kubelets, gpu_cluster, kubernetes_objects
from tests.cluster.controlplane import ControlPlane
from tests.cluster.example_driver import ExampleDrivers
from tests.cluster.extender_process import NODEWISE, ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox

PAGE = docs_page_code_blocks.HOW_TO / "migrate-to-dra.md"
NODE, RESOURCE = "node1", "nvidia.com/gpu"
pytestmark = pytest.mark.kubernetes_versions(oldest=36)

POD = kubernetes_objects.pod("train", limits={RESOURCE: "1"})


def own_words(nodewise: ExtenderProcess) -> dict[str, str]:
    """The pod of the page belongs to no controller, and the extender is not in the cluster."""
    return {
        "kubectl drain": "kubectl drain --force",
        "nodewise explain": f"nodewise explain --server={nodewise.health}",
    }


def test_migration_page_works_as_written(
    plane: ControlPlane, sandbox: Sandbox, drivers: ExampleDrivers, tmp_path: Path
) -> None:
    slices, drain, allocatable, patch, pods = docs_page_code_blocks.section(PAGE, "## Move the nodes")
    (roll_back,) = docs_page_code_blocks.section(PAGE, "## Roll back")
    sandbox.nodes(kubernetes_objects.node(NODE, extra={RESOURCE: "2"}))
    plain = docs_page_runner.plain_environment()
    environment = {
        **plain,
        "PATH": f"{plane.kubectl_program.parent}:{NODEWISE.parent}:{plain['PATH']}",
        "KUBECONFIG": str(plane.admin.kubeconfig),
    }
    managed = [{"name": RESOURCE}]
    with (
        gpu_cluster.extender(plane, tmp_path, "--gpu-profile=nvidia") as nodewise,
        plane.start_scheduler({"extenders": [nodewise.entry(bindVerb="bind", managedResources=managed)]}),
        fake_kubelets.running_kubelets(plane.api, sandbox.namespace),
        docs_page_runner.reading(tmp_path, environment, own_words(nodewise)) as reader,
    ):
        reader.types(f"kubectl config set-context --current --namespace={sandbox.namespace}")
        (tmp_path / "pod.yaml").write_text(yaml.safe_dump(POD))
        reader.types("kubectl apply -f pod.yaml")
        assert sandbox.expect_bound("train") == NODE
        (record,) = gpu_cluster.allocation_record(sandbox, NODE).values()
        assert record
        drivers.start(NODE, 2)
        plane.api.create(device_objects.device_class())
        reader.follows([slices, drain])
        plane.api.patch(
            f"/api/v1/nodes/{NODE}/status",
            {"status": {"allocatable": {RESOURCE: "0"}, "capacity": {RESOURCE: "0"}}},
        )
        reader.follows([allocatable, patch, pods])
        assert sandbox.expect_bound("train") == NODE
        claims = plane.api.get(
            f"/apis/{device_objects.VERSION}/namespaces/{sandbox.namespace}/resourceclaims"
        )["items"]
        assert [each["metadata"]["annotations"] for each in claims]
        reader.follows([drain])
        drivers.processes.pop((NODE, device_objects.DRIVER)).stop()
        reader.follows([roll_back])
        plane.api.patch(
            f"/api/v1/nodes/{NODE}/status",
            {"status": {"allocatable": {RESOURCE: "2"}, "capacity": {RESOURCE: "2"}}},
        )
        reader.types("kubectl uncordon node1 && kubectl apply -f pod.yaml")
        assert sandbox.expect_bound("train") == NODE
        assert gpu_cluster.allocation_record(sandbox, NODE)
