"""What is told of each node besides: the cards that a pod would get, or what is lacking."""

import numpy as np
import pytest

from nodewise.agent import Details, Snapshot
from nodewise.agents.gpu.pods import AllocatedPod
from tests.unit.agents.gpu.gpu_snapshots import node, pod
from tests.unit.agents.gpu.test_agent import agent, new, snapshot

LINKED = {"gpu.intel.com/xe-links": "0.0-1.0"}
NODES = {
    "plain": node("", ""),
    "n1": node("i915=20 mc=2000 t=4"),
    "n2": node("i915=20 mc=2000 t=4", **LINKED),
}
HELD = [pod("a", "n1", "card0", ["i915=1 mc=700"]), pod("b", "n1", "card1", ["i915=1 mc=900"])]


def details(asked: AllocatedPod, given: Snapshot, **options: str) -> Details:
    verdict = agent(**options).filter(asked, given.nodes.named(["plain", "n1", "n2"]), given)
    assert verdict is not None
    assert verdict.details is not None
    return verdict.details


@pytest.mark.parametrize(
    ("asked", "told"),
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
def test_the_cards_or_what_is_lacking(asked: AllocatedPod, told: list[str]) -> None:
    found = details(asked, snapshot(HELD, nodes=NODES))
    assert [found.text(candidate) for candidate in range(3)] == told


def test_the_distance_is_the_share_that_is_lacking() -> None:
    found = details(new("p", "i915=1 mc=400"), snapshot(HELD, nodes=NODES))
    assert found.distances()[:2].tolist() == pytest.approx([1.0, 0.25])
    assert found.nbytes >= sum(one.nbytes for one in (np.zeros(3), np.zeros(3)))


def test_cards_are_told_where_they_are_chosen() -> None:
    """Filter asks only whether a pod fits where the placement makes no difference to that; the scores know more."""
    asked, given = new("p", "i915=1 mc=50"), snapshot(HELD, nodes=NODES)
    assert details(asked, given, gpu_placement="spread").text(1) == ""
    scores = agent(gpu_placement="spread").score(asked, given.nodes.named(["n1", "n2"]), given)
    assert scores is not None
    assert scores.details is not None
    assert [scores.details.text(candidate) for candidate in range(2)] == ["c0: card0", "c0: card0"]
    packed = agent(gpu_placement="pack").score(asked, given.nodes.named(["n1"]), given)
    assert packed is not None
    assert packed.details is not None
    assert packed.details.text(0) == "c0: card1"


def test_a_demand_that_nobody_can_answer_has_none() -> None:
    given = snapshot(HELD, nodes=NODES)
    verdict = agent().filter(new("p", "i915=-1"), given.nodes.named(["n1"]), given)
    assert verdict is not None
    assert verdict.details is None
