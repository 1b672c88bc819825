"""Pods on GPUs that are to be vacated get the label for the descheduler, on a real API server.

The tests set the node labels that a telemetry policy would set.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodewise.agents.gpu.controller import DESCHEDULE_LABEL
from tests.cluster import descheduler_run, gpu_cluster, kubernetes_objects
from tests.cluster.api_client import ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox, wait

POLICY = Path(__file__).parent / "gpu-descheduler-policy.yaml"
POLICIES = "telemetry.aware.scheduling.hot"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "0", "controller": True}


@pytest.fixture
def nodes(sandbox: Sandbox) -> None:
    labels = {f"{gpu_cluster.PREFIX}pci-groups": "0.1_2"}
    for name in ("g1", "g2"):
        made = gpu_cluster.node(name, cards=3, tiles=2)
        made["metadata"]["labels"] |= labels
        sandbox.nodes(made)


@pytest.fixture
def running(plane: ControlPlane, sandbox: Sandbox, nodes: None, tmp_path: Path) -> Iterator[ExtenderProcess]:
    with gpu_cluster.extender(plane, tmp_path) as served:
        served.wait_leading()
        yield served


def mark(sandbox: Sandbox, node: str, **labels: str | None) -> None:
    """Sets the labels that a telemetry policy sets for a node's GPUs."""
    named = {f"{POLICIES}/gas-{name.replace('__', '-')}": value for name, value in labels.items()}
    sandbox.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": named}})


def put(
    sandbox: Sandbox, name: str, cards: str, node: str = "g1", tiles: str = "", phase: str = "Running"
) -> None:
    """Creates a bound pod of the older system without labels."""
    made = gpu_cluster.pod(name, 1, **({"tiles": 1} if tiles else {}))
    del made["metadata"]["labels"]
    made["metadata"]["annotations"] = {gpu_cluster.CARDS: cards} | (
        {"gas-container-tiles": tiles} if tiles else {}
    )
    made["metadata"]["ownerReferences"] = [OWNER]
    sandbox.pods(kubernetes_objects.running_on(node, made))
    set_phase(sandbox, name, phase)


def set_phase(sandbox: Sandbox, name: str, phase: str) -> None:
    sandbox.api.patch(f"{path(sandbox, name)}/status", {"status": {"phase": phase}})


def path(sandbox: Sandbox, name: str) -> str:
    return f"/api/v1/namespaces/{sandbox.namespace}/pods/{name}"


def labelled_pods(sandbox: Sandbox) -> set[str]:
    pods: list[Object] = sandbox.api.get(f"/api/v1/namespaces/{sandbox.namespace}/pods")["items"]
    return {
        pod["metadata"]["name"]
        for pod in pods
        if pod["metadata"].get("labels", {}).get(DESCHEDULE_LABEL) == "gpu"
    }


def expect_labelled(sandbox: Sandbox, *names: str) -> None:
    wait(f"these are told to go: {names}", lambda: labelled_pods(sandbox) == set(names) or None)


def test_pods_of_a_failed_card_are_labelled_until_it_recovers(
    sandbox: Sandbox, running: ExtenderProcess
) -> None:
    for name, card in (("a", "card0"), ("b", "card1"), ("c", "card2")):
        put(sandbox, name, card)
    put(sandbox, "other-node", "card0", "g2")
    mark(sandbox, "g1", deschedule__pods__card0="true")
    expect_labelled(sandbox, "a")
    mark(sandbox, "g1", deschedule__pods__card0="PCI_GROUP")
    expect_labelled(sandbox, "a", "b")
    mark(sandbox, "g1", deschedule__pods__card0=None)
    expect_labelled(sandbox)


def test_pods_of_a_failed_tile_are_labelled(sandbox: Sandbox, running: ExtenderProcess) -> None:
    put(sandbox, "a", "card0", tiles="card0:gt0")
    put(sandbox, "b", "card0", tiles="card0:gt1")
    mark(sandbox, "g1", tile__deschedule__card0_gt1="true")
    expect_labelled(sandbox, "b")


def test_a_later_pod_of_a_failed_card_is_labelled_when_it_is_bound(
    sandbox: Sandbox, running: ExtenderProcess
) -> None:
    mark(sandbox, "g1", deschedule__pods__card0="true")
    put(sandbox, "late", "card0", phase="Pending")
    expect_labelled(sandbox, "late")
    put(sandbox, "later", "card0")
    expect_labelled(sandbox, "late", "later")


def test_a_label_that_a_tenant_takes_off_comes_back(sandbox: Sandbox, running: ExtenderProcess) -> None:
    put(sandbox, "a", "card0")
    mark(sandbox, "g1", deschedule__pods__card0="true")
    expect_labelled(sandbox, "a")
    sandbox.api.patch(path(sandbox, "a"), {"metadata": {"labels": {DESCHEDULE_LABEL: None}}})
    expect_labelled(sandbox, "a")


@pytest.mark.usefixtures("nodes")
def test_labels_from_before_a_restart_are_removed(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path
) -> None:
    put(sandbox, "a", "card0")
    sandbox.api.patch(
        path(sandbox, "a"), {"metadata": {"labels": {DESCHEDULE_LABEL: "gpu", "mine": "stays"}}}
    )
    with gpu_cluster.extender(plane, tmp_path):
        expect_labelled(sandbox)
    assert (sandbox.pod("a") or {})["metadata"]["labels"] == {"mine": "stays"}


def test_a_pod_made_anew_under_the_name_is_not_touched(sandbox: Sandbox) -> None:
    """The API server refuses the patch because of its UID."""
    sandbox.nodes(gpu_cluster.node("g1"))
    put(sandbox, "a", "card0")
    with pytest.raises(ApiError) as refused:
        sandbox.api.patch(
            path(sandbox, "a"), {"metadata": {"uid": "another", "labels": {DESCHEDULE_LABEL: "gpu"}}}
        )
    assert refused.value.code in {409, 422}
    assert labelled_pods(sandbox) == set()


def test_the_descheduler_evicts_labelled_pods(
    plane: ControlPlane, sandbox: Sandbox, running: ExtenderProcess, descheduler_program: Path
) -> None:
    put(sandbox, "stays", "card1")
    put(sandbox, "goes", "card0")
    assert descheduler_run.once(plane, descheduler_program, POLICY).evicted == 0
    mark(sandbox, "g1", deschedule__pods__card0="true")
    expect_labelled(sandbox, "goes")
    # the descheduler evicts a pod only when it is at least a second old
    wait("one is evicted", lambda: descheduler_run.once(plane, descheduler_program, POLICY).evicted or None)
    sandbox.expect_gone("goes")
    assert sandbox.pod("stays")
