"""Generated clusters with devices: nodewise rejects no node to which kube-scheduler without nodewise would bind."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import short_and_long_case_counts
from tests.cluster import (
    device_clusters,
    device_objects,
    gpu_cluster,
    namespace_sandboxes,
    recording_extender,
)
from tests.cluster.api_client import Object, folder_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.device_clusters import ClusterBatch
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.recording_extender import RecordingExtender

BATCHES, CLUSTERS = short_and_long_case_counts.of(4, 20), short_and_long_case_counts.of(12, 50)
"""The number of batches, and of clusters in a batch."""
SETTLED_S = 4.0
"""kube-scheduler has tried every pod again after this time without a call: longer than the first backoff of a pod."""


@pytest.fixture
def created(plane: ControlPlane) -> Iterator[Sandbox]:
    """A namespace. All nodes, slices and classes of the control plane are deleted after the test."""
    with namespace_sandboxes.created(plane) as sandbox:
        yield sandbox
        plane.stop_others()
        paths = ("/api/v1/nodes", device_objects.SLICE_PATH, device_objects.CLASS_PATH)
        for path in (*paths, folder_of(device_objects.taint_rule("all", driver="x"))):
            plane.api.delete(path)


def place_pods(sandbox: Sandbox, batch: ClusterBatch, folder: Path) -> RecordingExtender:
    """Creates the clusters of a batch, and lets kube-scheduler place their pods."""
    admin = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    sandbox.api.patch(f"/api/v1/namespaces/{sandbox.namespace}", admin)
    for item in batch.classes:
        sandbox.api.create(item)
    for cluster in batch.clusters:
        for item in (*cluster.nodes.values(), *cluster.objects):
            namespace = {"namespace": sandbox.namespace} if item["kind"] == "ResourceClaim" else {}
            sandbox.api.create(item | {"metadata": item["metadata"] | namespace})
    profile = f"--gpu-profile={batch.profile}"
    with (
        gpu_cluster.extender(sandbox.plane, folder, profile) as nodewise,
        recording_extender.serving(nodewise) as recorder,
    ):
        path = f"/api/v1/namespaces/{sandbox.namespace}/pods"
        for cluster in batch.clusters:
            for pod in cluster.pods:
                sandbox.api.request("POST", path, json=pod)
        sandbox.plane.start_scheduler({"extenders": recorder.entries(device_clusters.COUNTS[batch.profile])})

        def decided() -> list[Object] | None:
            pods = sandbox.api.get(path)["items"]
            return pods if all(map(namespace_sandboxes.scheduled, pods)) else None

        pods = wait("kube-scheduler has seen every pod", decided, 240)
        if batch.late_classes:
            for item in batch.late_classes:
                sandbox.api.create(item)
            calls, began_s = -1, time.monotonic()
            while time.monotonic() < began_s + SETTLED_S:
                if len(recorder.filtered) != calls:
                    calls, began_s = len(recorder.filtered), time.monotonic()
                time.sleep(0.1)
            pods = sandbox.api.get(path)["items"]
            recorder.drop_rejections_by_older_state(
                [name for item in batch.late_classes for name in device_objects.resources_of_class(item)]
            )
        recorder.bound = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}
        return recorder


def is_stricter_rule(kind: str, reason: str) -> bool:
    """Whether the reason is a rule of GPU Aware Scheduling, which nodewise keeps where a device plugin has the GPUs: an
    init container needs no more GPUs than the containers after it.
    """
    return kind in {"plugin", "mixed"} and "bad args: init container" in reason


@pytest.mark.parametrize("seed", range(BATCHES))
def test_node_that_kube_scheduler_would_choose_is_not_rejected(
    seed: int, created: Sandbox, tmp_path: Path
) -> None:
    batch = device_clusters.batch(seed, CLUSTERS)
    recorder = place_pods(created, batch, tmp_path)
    kinds = {node: kind for cluster in batch.clusters for node, kind in cluster.kinds.items()}
    seen = Counter(kinds[node] for record in recorder.filtered for node in record.nodes)
    rejections = [
        (record.pod["metadata"]["name"], node, kinds[node], reason)
        for record in recorder.filtered
        for node, reason in record.rejected.items()
        if not is_stricter_rule(kinds[node], reason)
    ]
    bound = sum(map(bool, recorder.bound.values()))
    print(
        f"seed {seed}, {batch.profile}: {bound} of {len(recorder.bound)} pods bound, candidates {dict(seen)}"
    )
    assert not rejections
    assert not [refusal for refusal in recorder.refused if refusal[1] != "bad args"]
    assert {"driver", "former plugin", "mixed", "network", "one pool"} <= seen.keys()
    assert bound > CLUSTERS // 2
