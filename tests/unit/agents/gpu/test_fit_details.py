"""Details of each node: the GPUs that a pod would get, or the amount that is lacking."""

import numpy as np
import pytest

from nodewise.agent import Details, Snapshot
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from tests.unit.agents.gpu.gpu_cluster_state_builders import node, pod
from tests.unit.agents.gpu.test_agent import agent, new, snapshot

LINKED = {"gpu.intel.com/xe-links": "0.0-1.0"}
NODES = {
    "plain": node("", ""),
    "n1": node("i915=20 mc=2000 t=4"),
    "n2": node("i915=20 mc=2000 t=4", **LINKED),
}
HELD = [pod("a", "n1", "card0", ["i915=1 mc=700"]), pod("b", "n1", "card1", ["i915=1 mc=900"])]


def details(gpu_pod: AllocatedPod, cluster_snapshot: Snapshot, **options: str) -> Details:
    verdict = agent(**options).filter(
        gpu_pod, cluster_snapshot.nodes.named(["plain", "n1", "n2"]), cluster_snapshot
    )
    assert verdict is not None
    assert verdict.details is not None
    return verdict.details


@pytest.mark.parametrize(
    ("gpu_pod", "expected"),
    [
        (
            new("p", "i915=1 mc=400"),
            [
                "",
                "card0 has 300 gpu.intel.com/millicores left, 400 wanted: 100 too little",
                "c0: card0",
            ],
        ),
        (
            new("p", "i915=2", "", "i915=1"),
            ["", "c0: card0, card1; c2: card0", "c0: card0, card1; c2: card0"],
        ),
        (new("p", "i915=2 t=2", gas_allocate_xelink="x"), ["", "", "c0: card0 gt0, card1 gt0"]),
    ],
    ids=["what is lacking", "by container", "linked tiles"],
)
def test_text_is_the_gpus_or_the_shortfall(gpu_pod: AllocatedPod, expected: list[str]) -> None:
    fit_details = details(gpu_pod, snapshot(HELD, nodes=NODES))
    assert [fit_details.text(candidate) for candidate in range(3)] == expected


def test_the_distance_is_the_share_that_is_lacking() -> None:
    fit_details = details(new("p", "i915=1 mc=400"), snapshot(HELD, nodes=NODES))
    assert fit_details.distances()[:2].tolist() == pytest.approx([1.0, 0.25])
    assert fit_details.nbytes >= sum(array.nbytes for array in (np.zeros(3), np.zeros(3)))


def test_text_names_gpus_only_if_they_are_chosen() -> None:
    """Filter only determines whether a pod fits if the placement does not affect that; scores determine the GPUs."""
    gpu_pod, cluster_snapshot = new("p", "i915=1 mc=50"), snapshot(HELD, nodes=NODES)
    assert details(gpu_pod, cluster_snapshot, gpu_placement="spread").text(1) == ""
    scores = agent(gpu_placement="spread").score(
        gpu_pod, cluster_snapshot.nodes.named(["n1", "n2"]), cluster_snapshot
    )
    assert scores is not None
    assert scores.details is not None
    assert [scores.details.text(candidate) for candidate in range(2)] == ["c0: card0", "c0: card0"]
    packed = agent(gpu_placement="pack").score(
        gpu_pod, cluster_snapshot.nodes.named(["n1"]), cluster_snapshot
    )
    assert packed is not None
    assert packed.details is not None
    assert packed.details.text(0) == "c0: card1"


def test_demand_with_a_problem_has_no_details() -> None:
    cluster_snapshot = snapshot(HELD, nodes=NODES)
    verdict = agent().filter(new("p", "i915=-1"), cluster_snapshot.nodes.named(["n1"]), cluster_snapshot)
    assert verdict is not None
    assert verdict.details is None
