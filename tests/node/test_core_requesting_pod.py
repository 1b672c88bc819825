"""From a pod that only requests a core to a node without traces of the CPU manager, with real programs."""

from pathlib import Path

import pytest

from nodewise_cpu import cmk_names
from tests.cluster import test_cpu_webhook as webhooks
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import manifest
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.node import busybox_image, cpu_manager_on_real_node, script_pods
from tests.node.cpu_manager_on_real_node import EXCLUSIVE, ISOLATE, CpuManagerOnNode
from tests.node.kubelet import Kubelet

pytestmark = pytest.mark.cluster


def plain(name: str, *command: str) -> Object:
    """A pod as a user writes it, without a node, mounts or tolerations."""
    container = {
        "name": "main",
        "image": busybox_image.NAME,
        "command": [*ISOLATE.split(), "--", *command],
        "resources": {"limits": {cmk_names.EXCLUSIVE_CORES: "1"}},
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_a_pod_that_only_requests_a_core_is_mutated_scheduled_and_pinned(
    plane: ControlPlane, sandbox: Sandbox, node: Kubelet, manager: CpuManagerOnNode, tmp_path: Path
) -> None:
    with (
        manager.agent("--no-publish", "--enforce=cgroup"),
        webhooks.running(sandbox, tmp_path, "--insecure=True"),
        plane.start_scheduler({}),
    ):
        sandbox.pods(plain("wants-one", "busybox", "sleep", "1000"), plain("waits", "busybox", "true"))
        assert sandbox.expect_bound("wants-one") == node.name
        pod = script_pods.running(sandbox, "wants-one")
        manager.wait_held(pod)
        wait("its command runs", lambda: True if len(manager.masks(pod)) == 2 else None)
        assert set(manager.masks(pod).values()) == {EXCLUSIVE}
        sandbox.expect_rejected("waits")
        # not at once: its object would go before its processes do, and the next pod come while they still run
        sandbox.api.request("DELETE", f"/api/v1/namespaces/{sandbox.namespace}/pods/wants-one")
        pod = script_pods.ended(sandbox, "waits")
        assert script_pods.exit_code(pod) == 0, node.log(pod, "main")


def traces(sandbox: Sandbox, node: Kubelet) -> Object:
    """All traces of the CPU manager: fields of the Node, files, objects in the cluster."""
    node_object = sandbox.api.get(node.path)
    own = f"namespaces/{sandbox.namespace}"
    kinds = [f"/api/v1/{own}/{kind}" for kind in ("configmaps", "pods", "secrets", "services")]
    kinds += [f"/apis/apps/v1/{own}/{kind}" for kind in ("daemonsets", "deployments")]
    kinds += [webhooks.REGISTRATIONS, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"]
    folders = [node.runtime.inside(path) for path in ("/opt/bin", "/run/nodewise")]
    return {
        "labels": node_object["metadata"]["labels"],
        "annotations": node_object["metadata"].get("annotations", {}),
        "taints": node_object["spec"].get("taints", []),
        "capacity": sorted(node_object["status"]["capacity"]),
        "files": [str(path) for folder in folders if folder.is_dir() for path in folder.rglob("*")],
        "objects": {
            kind: [obj["metadata"]["name"] for obj in sandbox.api.get(kind)["items"]] for kind in kinds
        },
    }


def test_removal_leaves_no_traces_on_the_node(
    plane: ControlPlane, sandbox: Sandbox, node: Kubelet, program: Path, tmp_path: Path
) -> None:
    earlier = CpuManagerOnNode(sandbox, node, plane.admin, tmp_path)
    earlier.run("uninstall", *earlier.place, "--proc-fs=/proc")
    before = traces(sandbox, node)
    with cpu_manager_on_real_node.node_with_cpu_manager(
        sandbox, node, program, tmp_path, plane.admin
    ) as manager:
        for definition in manifest("crds/cmk-reports.yaml"):
            sandbox.api.create(definition)
        with manager.agent("--enforce=cgroup"):
            sandbox.pods(
                cpu_manager_on_real_node.pod("holds", f"exec {ISOLATE} -- busybox sleep 1000", node.name)
            )
            pod = script_pods.running(sandbox, "holds")
            manager.wait_held(pod)
            report = f"/apis/intel.com/v1/namespaces/{sandbox.namespace}/cmk-nodereports/{node.name}"
            wait("the node's report is there", lambda: sandbox.api.find(report))
        options = [*manager.place, "--proc-fs=/proc", "--crds"]
        refused = manager.try_run("uninstall", *options)
        assert refused.returncode == 1
        assert f"running tasks on node {node.name}" in refused.stderr
        sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/holds")
        manager.wait_gone(pod)
        manager.run("uninstall", *options)
    wait(
        "nothing is left",
        lambda: True if traces(sandbox, node) == before else None,
        show=lambda: (before, traces(sandbox, node)),
    )
