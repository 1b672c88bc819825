"""The events of a pod that gets no GPU: `kubectl describe pod` shows each reason once, with its number of nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import gpu_cluster, kubernetes_objects
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox

WHY = "Not enough GPU-resources for deployment"


@pytest.fixture
def running(plane: ControlPlane, sandbox: Sandbox, tmp_path: Path) -> Iterator[ExtenderProcess]:
    """nodewise with two nodes whose GPUs are more than half full, one node whose GPUs are disabled, and a scheduler."""
    sandbox.nodes(
        *(gpu_cluster.node(name, cards=2, shares=10, millicores=1000) for name in ("g1", "g2", "g3"))
    )
    for name in ("g1", "g2"):
        made = gpu_cluster.pod(f"half-{name}", 2, millicores=1200)
        made["metadata"]["annotations"] = {gpu_cluster.CARDS: "card0,card1"}
        sandbox.pods(kubernetes_objects.running_on(name, made))
    off = {f"telemetry.aware.scheduling.hot/gas-disable-card{number}": "true" for number in range(2)}
    sandbox.api.patch("/api/v1/nodes/g3", {"metadata": {"labels": off}})
    with (
        gpu_cluster.extender(plane, tmp_path) as served,
        plane.start_scheduler({"extenders": [gpu_cluster.entry(served)]}),
    ):
        yield served


def test_reasons_are_grouped(sandbox: Sandbox, running: ExtenderProcess) -> None:
    sandbox.pods(gpu_cluster.pod("train", 1, millicores=600))
    assert sandbox.expect_event("train", "NoNodePasses") == (
        "none of 3 candidates passes: "
        f"2 {WHY}: will not fit: container main: no GPU has 600 gpu.intel.com/millicores left; "
        f"1 {WHY}: will not fit: container main: no GPU may be used"
    )


def test_a_problem_of_all_nodes_is_reported_once(sandbox: Sandbox, running: ExtenderProcess) -> None:
    made = gpu_cluster.pod("early", 1)
    made["spec"]["initContainers"] = [{**made["spec"]["containers"][0], "name": "first"}]
    made["spec"]["containers"][0] = kubernetes_objects.pod("early")["spec"]["containers"][0]
    sandbox.pods(made)
    message = sandbox.expect_event("early", "NoNodePasses")
    assert message.startswith(
        f"none of 3 candidates passes: 3 {WHY}: bad args: "
        "init container first asks for 1 GPU; the containers after it have none"
    )
