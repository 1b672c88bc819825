"""The real descheduler takes the health example's pods off a node that is labelled as violating, and only then.

The label is set by hand here; kube-scheduler and the controllers behind a Deployment are the real ones.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import descheduling, example, extender_double, objects, served
from tests.cluster.controlplane import ControlPlane
from tests.cluster.example import LABEL, NODES
from tests.cluster.extender_double import Double
from tests.cluster.sandbox import Sandbox

ADVERTISED = {"telemetry/scheduling": "1000"}


@pytest.fixture
def replicas(plane: ControlPlane) -> Iterator[None]:
    """The controllers that make a Deployment's pods, and make them again."""
    with plane.start_controller_manager("deployment-controller,replicaset-controller"):
        yield


@pytest.fixture
def scheduled(plane: ControlPlane, double: Double) -> Iterator[None]:
    """kube-scheduler, which leaves telemetry/scheduling to an extender, as nodewise has it do."""
    with plane.start_scheduler(
        {"extenders": [extender_double.entry(double.url, managedResources=served.MANAGED)]}
    ):
        yield


def label(corner: Sandbox, node: str) -> None:
    corner.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": LABEL}})


@pytest.mark.usefixtures("replicas", "scheduled")
class TestDemoApplication:
    def test_it_moves_off_a_node_that_is_labelled(
        self, plane: ControlPlane, corner: Sandbox, descheduler_program: Path
    ) -> None:
        corner.nodes(*(objects.node(name, extra=ADVERTISED) for name in NODES))
        corner.put(example.deployment())
        first = example.placed(corner)
        assert descheduling.once(plane, descheduler_program).evicted == 0
        label(corner, first)
        assert descheduling.once(plane, descheduler_program).evicted == 1
        assert example.placed(corner) != first

    def test_it_stays_where_no_node_has_the_resource_that_it_asks_for(
        self, plane: ControlPlane, corner: Sandbox, descheduler_program: Path
    ) -> None:
        """Whether a pod fits elsewhere is always asked, and the descheduler knows of no extender."""
        corner.nodes(*(objects.node(name) for name in NODES))
        corner.put(example.deployment())
        first = example.placed(corner)
        label(corner, first)
        said = descheduling.once(plane, descheduler_program)
        assert said.evicted == 0
        assert "insufficient telemetry/scheduling" in said.log
        assert example.placed(corner) == first

    def test_it_stays_where_every_node_is_labelled(
        self, plane: ControlPlane, corner: Sandbox, descheduler_program: Path
    ) -> None:
        corner.nodes(*(objects.node(name, extra=ADVERTISED) for name in NODES))
        corner.put(example.deployment())
        first = example.placed(corner)
        for node in NODES:
            label(corner, node)
        assert descheduling.once(plane, descheduler_program).evicted == 0
        assert example.placed(corner) == first


def test_a_resource_that_is_advertised_through_the_status_counts(
    plane: ControlPlane, corner: Sandbox, descheduler_program: Path
) -> None:
    """As `--advertise-resource` does it: a patch of each node's status."""
    corner.nodes(*(objects.node(name) for name in NODES))
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "demo-app",
        "uid": "0",
        "controller": True,
    }
    pod = objects.running_on(NODES[0], example.pod("demo"))
    corner.pods(pod | {"metadata": pod["metadata"] | {"ownerReferences": [owner]}})
    label(corner, NODES[0])
    assert descheduling.once(plane, descheduler_program).evicted == 0
    for node in NODES:
        status = {"capacity": ADVERTISED, "allocatable": ADVERTISED}
        corner.api.patch(f"/api/v1/nodes/{node}/status", {"status": status})
    assert descheduling.once(plane, descheduler_program).evicted == 1
    corner.expect_gone("demo")
