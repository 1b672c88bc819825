"""The migration from kube-safe-scheduler, followed literally, and back.

Its containers do nothing; its objects and annotations are as it leaves them. The second scheduler that replaces it, the
kubelet, the API server, the controllers, nodewise's image and kubectl are real.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import docs_page_code_blocks
from tests.cluster import fake_metrics_server
from tests.cluster.api_client import Object
from tests.cluster.namespace_sandboxes import wait
from tests.docs_page_runner import PageReader
from tests.node import busybox_image, host_with_kubelet, migration_page_reader
from tests.node.host_with_kubelet import KubernetesHost

pytestmark = pytest.mark.cluster

PAGE = docs_page_code_blocks.HOW_TO / "migrate-from-kube-safe-scheduler.md"
SYSTEM = "kube-system"
OLDER = {"my-scheduler": {"app": "my-scheduler"}} | {
    name: {"daemon": name} for name in ("node-annotator", "k8s-assessor")
}
"""Its Deployments, and the label of each one's pods."""
WRITTEN = {
    "mean-free-cpu": "1000.0",
    "std-free-cpu": "10.0",
    "mean-free-memory": "4000000000.0",
    "std-free-memory": "1000000.0",
    "congestion-factor": "3",
    "requested-cpu": "100",
}
"""Annotations of its node."""


def deployment(name: str) -> Object:
    labels = OLDER[name]
    container = {"name": name, "image": busybox_image.NAME, "command": ["busybox", "sleep", "1000000000"]}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": SYSTEM, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


@pytest.fixture
def safe(kube_host: KubernetesHost, cluster_scheduler: None, tmp_path: Path) -> Iterator[None]:
    """kube-safe-scheduler and metrics-server, running."""
    api, folder = kube_host.plane.api, tmp_path / "metrics"
    folder.mkdir()
    for name, labels in OLDER.items():
        api.create(deployment(name))
        kube_host.wait_ready(SYSTEM, **labels)
    api.patch(kube_host.node.path, {"metadata": {"annotations": WRITTEN}})
    with fake_metrics_server.behind(api, folder) as metrics:
        metrics.cpu = {host_with_kubelet.NAME: "500m"}
        yield
    for name in OLDER:
        api.delete(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{name}")


@pytest.fixture
def operator(
    kube_host: KubernetesHost, image: str, safe: None, control_plane_programs: Path, tmp_path: Path
) -> Iterator[PageReader]:
    with migration_page_reader.operator(kube_host, control_plane_programs, tmp_path) as typing:
        yield typing
        files = "-f deploy/annotator.yaml -f deploy/test-pod.yaml -f deploy/rbac.yaml -f deploy/scoring.yaml"
        typing.types(f"kubectl delete --ignore-not-found {files}")


def test_annotations_and_the_scheduler_change_hands_and_change_back(
    kube_host: KubernetesHost, operator: PageReader
) -> None:
    look, annotator, (pair, _), seen, back = (
        docs_page_code_blocks.section(PAGE, f"## {title}") for title in ("1.", "2.", "3.", "4.", "Roll back")
    )
    operator.follows(look)
    operator.follows(annotator)
    for name in ("node-annotator", "k8s-assessor"):
        assert kube_host.pods(SYSTEM, **OLDER[name]) == []

    wait("nodewise writes", lambda: annotations(kube_host).get("requested-pods"))
    operator.follows([pair])
    (pod,) = kube_host.pods(SYSTEM, **OLDER["my-scheduler"])
    assert [container["name"] for container in pod["spec"]["containers"]] == ["scheduler", "nodewise"]
    operator.follows(seen)
    operator.follows(back)
    for labels in OLDER.values():
        (pod,) = kube_host.wait_ready(SYSTEM, **labels)
        (container,) = pod["spec"]["containers"]
        assert container["image"] == busybox_image.NAME
    assert kube_host.pods("nodewise", app="nodewise-annotator") == []


def annotations(kube_host: KubernetesHost) -> dict[str, str]:
    """The annotations of the node."""
    annotations: dict[str, str] = kube_host.plane.api.get(kube_host.node.path)["metadata"]["annotations"]
    return annotations
