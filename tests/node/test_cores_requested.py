"""From a pod that only requests a core to a node on which nothing is left: all parts are real."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodewise.cpu import names
from tests.cluster import test_cpu_webhook as webhooks
from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.sandbox import Sandbox, wait
from tests.cluster.served import manifest
from tests.node import image, managed, workloads
from tests.node.kubelet import Kubelet
from tests.node.managed import EXCLUSIVE, ISOLATE, Manager

pytestmark = pytest.mark.cluster


@pytest.fixture
def manager(
    plane: ControlPlane, corner: Sandbox, node: Kubelet, program: Path, tmp_path: Path
) -> Iterator[Manager]:
    with managed.managed(corner, node, program, tmp_path, plane.admin) as made:
        yield made


def plain(name: str, *command: str) -> Object:
    """A pod as its user writes it, without a node, a mount or a toleration."""
    container = {
        "name": "main",
        "image": image.NAME,
        "command": [*ISOLATE.split(), "--", *command],
        "resources": {"limits": {names.EXCLUSIVE_CORES: "1"}},
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_a_pod_that_only_requests_a_core_is_mutated_scheduled_and_pinned(
    plane: ControlPlane, corner: Sandbox, node: Kubelet, manager: Manager, tmp_path: Path
) -> None:
    with (
        manager.agent("--no-publish", "--enforce=cgroup"),
        webhooks.running(corner, tmp_path, "--insecure=True"),
        plane.start_scheduler({}),
    ):
        corner.pods(plain("wants-one", "busybox", "sleep", "1000"), plain("waits", "busybox", "true"))
        assert corner.expect_bound("wants-one") == node.name
        pod = workloads.running(corner, "wants-one")
        manager.wait_held(pod)
        wait("its command runs", lambda: True if len(manager.masks(pod)) == 2 else None)
        assert set(manager.masks(pod).values()) == {EXCLUSIVE}
        corner.expect_rejected("waits")
        # not at once: its object would go before its processes do, and the next pod come while they still run
        corner.api.request("DELETE", f"/api/v1/namespaces/{corner.namespace}/pods/wants-one")
        pod = workloads.ended(corner, "waits")
        assert workloads.exit_code(pod) == 0, node.log(pod, "main")


def traces(corner: Sandbox, node: Kubelet) -> Object:
    """All that could tell of the CPU manager: what the node says, files on it, objects in the cluster."""
    found = corner.api.get(node.path)
    own = f"namespaces/{corner.namespace}"
    kinds = [f"/api/v1/{own}/{kind}" for kind in ("configmaps", "pods", "secrets", "services")]
    kinds += [f"/apis/apps/v1/{own}/{kind}" for kind in ("daemonsets", "deployments")]
    kinds += [webhooks.REGISTRATIONS, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"]
    folders = [node.runtime.inside(path) for path in ("/opt/bin", "/run/nodewise")]
    return {
        "labels": found["metadata"]["labels"],
        "annotations": found["metadata"].get("annotations", {}),
        "taints": found["spec"].get("taints", []),
        "capacity": sorted(found["status"]["capacity"]),
        "files": [str(path) for folder in folders if folder.is_dir() for path in folder.rglob("*")],
        "objects": {
            kind: [one["metadata"]["name"] for one in corner.api.get(kind)["items"]] for kind in kinds
        },
    }


def test_nothing_is_left_of_a_node_that_was_left(
    plane: ControlPlane, corner: Sandbox, node: Kubelet, program: Path, tmp_path: Path
) -> None:
    earlier = Manager(corner, node, plane.admin, tmp_path)
    earlier.run("uninstall", *earlier.place, "--proc-fs=/proc")
    before = traces(corner, node)
    with managed.managed(corner, node, program, tmp_path, plane.admin) as manager:
        for definition in manifest("crds/cmk-reports.yaml"):
            corner.api.create(definition)
        with manager.agent("--enforce=cgroup"):
            corner.pods(managed.pod("holds", f"exec {ISOLATE} -- busybox sleep 1000", node.name))
            pod = workloads.running(corner, "holds")
            manager.wait_held(pod)
            report = f"/apis/intel.com/v1/namespaces/{corner.namespace}/cmk-nodereports/{node.name}"
            wait("the node's report is there", lambda: corner.api.find(report))
        options = [*manager.place, "--proc-fs=/proc", "--crds"]
        refused = manager.tried("uninstall", *options)
        assert refused.returncode == 1
        assert f"running tasks on node {node.name}" in refused.stderr
        corner.api.delete(f"/api/v1/namespaces/{corner.namespace}/pods/holds")
        manager.wait_gone(pod)
        manager.run("uninstall", *options)
    wait(
        "nothing is left",
        lambda: True if traces(corner, node) == before else None,
        show=lambda: (before, traces(corner, node)),
    )
