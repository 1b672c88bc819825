"""Two tenants against each other on a real API server: nothing of the other tenant changes.

See `tenants.py` for the stage. A test creates what a tenant may create, calls `stage.settle()` and compares.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.hostile import tenants
from tests.hostile.tenants import HOT, NODES, Stage


@pytest.fixture(scope="module")
def shared_stage(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with tenants.running(plane, tmp_path_factory.mktemp("tenants")) as stage:
        yield stage


@pytest.fixture
def stage(shared_stage: Stage) -> Iterator[Stage]:
    """The stage with the victim's GPU pod on the first node; policies and pods are gone afterwards."""
    shared_stage.victim.gpu_pod("victim", NODES[0], "card0")
    yield shared_stage
    for tenant in (shared_stage.attacker, shared_stage.victim):
        tenant.delete_policies()
        tenant.corner.api.delete(f"/api/v1/namespaces/{tenant.namespace}/pods")
    shared_stage.settle()


GPU_RULES = {
    "all GPUs disabled": [f"gas-disable-card{number}=true" for number in range(2)],
    "pods marked for eviction": ["gas-deschedule-pods-card0=PCI_GROUP", "gas-deschedule-pods-card1=true"],
}


@pytest.mark.parametrize("labels", GPU_RULES.values(), ids=list(GPU_RULES))
def test_a_policy_of_a_tenant_does_not_reach_gpus(stage: Stage, labels: list[str]) -> None:
    with stage.unchanged():
        stage.attacker.policy("evil", labeling=[HOT | {"labels": labels}])
        stage.settle()


def test_a_policy_of_a_tenant_does_not_label_nodes(stage: Stage) -> None:
    """By its own name, and by the name of the other tenant's policy."""
    stage.victim.policy("shared", dontschedule=[HOT])
    with stage.unchanged():
        stage.attacker.policy("evil", deschedule=[HOT])
        stage.attacker.policy("shared", deschedule=[HOT], labeling=[HOT | {"labels": ["a=b"]}])
        stage.settle()
