"""The real descheduler evicts the health example's pods from a node that is labelled as violating, and from no other.

The test sets the label; kube-scheduler and the controllers for Deployments are real.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import (
    descheduler_run,
    extender_process,
    fake_scheduler_extender,
    health_example_manifests,
    kubernetes_objects,
    native_mode,
)
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_scheduler_extender import FakeExtenderServer
from tests.cluster.health_example_manifests import LABEL, NODES
from tests.cluster.namespace_sandboxes import Sandbox

ADVERTISED = {"telemetry/scheduling": "1000"}


@pytest.fixture
def replicas(plane: ControlPlane) -> Iterator[None]:
    """Runs the controllers that create a Deployment's pods."""
    with plane.start_controller_manager("deployment-controller,replicaset-controller"):
        yield


@pytest.fixture
def scheduled(plane: ControlPlane, fake_extender: FakeExtenderServer) -> Iterator[None]:
    """Runs kube-scheduler with an extender that manages telemetry/scheduling, like nodewise."""
    with plane.start_scheduler(
        {
            "extenders": [
                fake_scheduler_extender.entry(fake_extender.url, managedResources=extender_process.MANAGED)
            ]
        }
    ):
        yield


def label(sandbox: Sandbox, node: str) -> None:
    sandbox.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": LABEL}})


@pytest.mark.usefixtures("replicas", "scheduled")
class TestDemoApplication:
    def test_it_moves_off_a_node_that_is_labelled(
        self, plane: ControlPlane, sandbox: Sandbox, descheduler_program: Path
    ) -> None:
        sandbox.nodes(*(kubernetes_objects.node(name, extra=ADVERTISED) for name in NODES))
        sandbox.put(health_example_manifests.deployment(extender_process.LIMITS))
        first = health_example_manifests.placed(sandbox)
        assert descheduler_run.once(plane, descheduler_program).evicted == 0
        label(sandbox, first)
        assert descheduler_run.once(plane, descheduler_program).evicted == 1
        assert health_example_manifests.placed(sandbox) != first

    def test_it_stays_where_no_node_has_the_resource_that_it_asks_for(
        self, plane: ControlPlane, sandbox: Sandbox, descheduler_program: Path
    ) -> None:
        """The descheduler always checks whether a pod fits on another node, and it does not know extenders."""
        sandbox.nodes(*(kubernetes_objects.node(name) for name in NODES))
        sandbox.put(health_example_manifests.deployment(extender_process.LIMITS))
        first = health_example_manifests.placed(sandbox)
        label(sandbox, first)
        report = descheduler_run.once(plane, descheduler_program)
        assert report.evicted == 0
        assert "insufficient telemetry/scheduling" in report.log
        assert health_example_manifests.placed(sandbox) == first

    def test_it_stays_where_every_node_is_labelled(
        self, plane: ControlPlane, sandbox: Sandbox, descheduler_program: Path
    ) -> None:
        sandbox.nodes(*(kubernetes_objects.node(name, extra=ADVERTISED) for name in NODES))
        sandbox.put(health_example_manifests.deployment(extender_process.LIMITS))
        first = health_example_manifests.placed(sandbox)
        for node in NODES:
            label(sandbox, node)
        assert descheduler_run.once(plane, descheduler_program).evicted == 0
        assert health_example_manifests.placed(sandbox) == first


def test_a_resource_that_is_advertised_through_the_status_counts(
    plane: ControlPlane, sandbox: Sandbox, descheduler_program: Path
) -> None:
    """`--advertise-resource` patches the status of each node in the same way."""
    sandbox.nodes(*(kubernetes_objects.node(name) for name in NODES))
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "demo-app",
        "uid": "0",
        "controller": True,
    }
    pod = kubernetes_objects.running_on(
        NODES[0], health_example_manifests.pod("demo", extender_process.LIMITS)
    )
    sandbox.pods(pod | {"metadata": pod["metadata"] | {"ownerReferences": [owner]}})
    label(sandbox, NODES[0])
    assert descheduler_run.once(plane, descheduler_program).evicted == 0
    for node in NODES:
        status = {"capacity": ADVERTISED, "allocatable": ADVERTISED}
        sandbox.api.patch(f"/api/v1/nodes/{node}/status", {"status": status})
    assert descheduler_run.once(plane, descheduler_program).evicted == 1
    sandbox.expect_gone("demo")


OWN_TERM: Final = {
    "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [*NODES]}]
}


@pytest.mark.parametrize(
    ("missing", "terms", "evicted"),
    [("Allow", [], 1), ("Reject", [], 0), ("Reject", [OWN_TERM], 1)],
    ids=["node affinity", "node selector", "node selector and own node affinity"],
)
@pytest.mark.usefixtures("replicas")
def test_pods_of_native_mode_with_node_affinity_move_off_a_node_that_violates_their_policy(
    plane: ControlPlane,
    sandbox: Sandbox,
    descheduler_program: Path,
    missing: str,
    terms: list[Object],
    evicted: int,
) -> None:
    """The API server added the requirement; the Deployment has none, and neither has the pod of another one."""
    native_mode.install(plane.api)
    key = native_mode.key_of_active_policy(sandbox, {"app": "demo-app"}, whenMissing=missing)
    sandbox.nodes(*(kubernetes_objects.node(name, labels={key: "ok"}) for name in NODES))
    deployment = health_example_manifests.deployment()
    template = deployment["spec"]["template"]
    template["spec"] = {"containers": [{"name": "main", "image": "none"}], "terminationGracePeriodSeconds": 0}
    if terms:
        required = {native_mode.REQUIRED: {"nodeSelectorTerms": terms}}
        template["spec"]["affinity"] = {"nodeAffinity": required}
    with plane.start_scheduler({}):
        sandbox.put(deployment)
        first = health_example_manifests.placed(sandbox)
        sandbox.pods(kubernetes_objects.running_on(first, kubernetes_objects.pod("other")))
        assert descheduler_run.once(plane, descheduler_program).evicted == 0
        sandbox.api.patch(f"/api/v1/nodes/{first}", {"metadata": {"labels": {key: "violating"}}})
        assert descheduler_run.once(plane, descheduler_program).evicted == evicted
        assert (health_example_manifests.placed(sandbox) == first) is (not evicted)
