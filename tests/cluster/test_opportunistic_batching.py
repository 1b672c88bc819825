"""Which configurations permit opportunistic batching: an extender entry does not, the affinity of native mode does."""

from collections.abc import Mapping
from typing import Any

import pytest

from nodewise.policies.node_labels import VERDICT_LABEL_PREFIX
from tests.cluster import child_processes, fake_scheduler_extender, kubernetes_objects, scheduler_batching
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_scheduler_extender import FakeExtenderServer
from tests.cluster.namespace_sandboxes import Sandbox
from tests.cluster.scheduler_batching import BATCHING

pytestmark = pytest.mark.kubernetes_versions(oldest=36)
PODS = 24


def batched(
    plane: ControlPlane, sandbox: Sandbox, config: Mapping[str, Any], affinity: Object | None = None
) -> int:
    """How many of equal pods, of which one fits on a node, are placed by the result of the pod before."""
    sandbox.nodes(*kubernetes_objects.nodes(" ".join(f"n{number}" for number in range(PODS + 6))))
    pods = [kubernetes_objects.pod(f"equal-{number}", cpu="3") for number in range(PODS)]
    for pod in pods:
        pod["spec"] |= {"affinity": affinity} if affinity else {}
    sandbox.pods(*pods)
    port = child_processes.free_port()
    with plane.start_scheduler(config, more={"secure-port": str(port)}):
        for pod in pods:
            sandbox.expect_bound(pod["metadata"]["name"])
        return scheduler_batching.batched_pods(port)


def test_default_topology_spreading_prevents_batching(plane: ControlPlane, sandbox: Sandbox) -> None:
    assert batched(plane, sandbox, {}) == 0


def test_without_it_equal_pods_are_batched(plane: ControlPlane, sandbox: Sandbox) -> None:
    assert batched(plane, sandbox, BATCHING) > 0


def test_the_requirement_of_native_mode_keeps_batching(plane: ControlPlane, sandbox: Sandbox) -> None:
    violating = {"key": f"{VERDICT_LABEL_PREFIX}77aa", "operator": "NotIn", "values": ["violating"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [violating]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert batched(plane, sandbox, BATCHING, affinity) > 0


@pytest.mark.parametrize("resource", ["", "telemetry/scheduling"], ids=["all pods", "no pod of this profile"])
def test_an_extender_entry_prevents_batching(
    plane: ControlPlane, sandbox: Sandbox, fake_extender: FakeExtenderServer, resource: str
) -> None:
    """Also if the entry's managedResources select none of the pods."""
    managed = [{"name": resource, "ignoredByScheduler": True}] if resource else []
    entry = fake_scheduler_extender.entry(fake_extender.url, managedResources=managed)
    assert batched(plane, sandbox, {**BATCHING, "extenders": [entry]}) == 0
