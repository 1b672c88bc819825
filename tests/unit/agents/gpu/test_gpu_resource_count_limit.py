"""The resources that are kept if nodes declare arbitrary ones."""

import pytest

from nodewise.agents.gpu import gpu_arrays
from nodewise.agents.gpu.gpu_arrays import ResourceCap
from nodewise.agents.gpu.node_gpus import NodeGpus


def node(*resources: str, gpus: int = 1) -> NodeGpus:
    return NodeGpus(
        names=tuple(f"card{number}" for number in range(gpus)),
        capacity=dict.fromkeys(resources, (1,) * gpus),
    )


def invented(place: int, count: int) -> NodeGpus:
    return node("common", *(f"n{place}-{number}" for number in range(count)))


def of(nodes: dict[str, NodeGpus]) -> ResourceCap:
    cap = ResourceCap()
    for name, gpus in nodes.items():
        cap.put(name, gpus)
    cap.settle()
    return cap


def test_few_resources_are_all_kept() -> None:
    gpus = node("a", "b")
    assert of({"n": gpus}).limited(gpus) is gpus


def test_those_of_most_nodes_are_kept_whatever_the_order_and_the_others_are_a_problem_of_their_nodes() -> (
    None
):
    nodes = {f"n{place}": invented(place, 64) for place in range(20)}
    limited = {name: of(nodes).limited(gpus) for name, gpus in nodes.items()}
    assert len(set().union(*(gpus.capacity for gpus in limited.values()))) == gpu_arrays.MOST
    assert all("common" in gpus.capacity for gpus in limited.values())
    (problem,) = next(gpus.problems for gpus in limited.values() if gpus.problems)
    assert "which count as absent" in problem
    assert len(problem) < 300
    again = of(dict(reversed(nodes.items())))
    assert {name: again.limited(gpus) for name, gpus in nodes.items()} == limited


def test_one_node_of_many_cards_leaves_the_arrays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_arrays, "CELLS", 64 * 11 * 20)
    nodes = {f"n{place}": invented(place, 10) for place in range(9)}
    nodes["wide"] = node("common", gpus=64)
    cap = of(nodes)
    kept = set().union(*(cap.limited(gpus).capacity for gpus in nodes.values()))
    assert len(kept) == 20


def test_when_there_is_room_again_the_nodes_that_gain_are_named() -> None:
    cap = of({"a": node("x", "y"), **{f"n{place}": invented(place, 64) for place in range(20)}})
    assert "x" not in cap.limited(node("x", "y")).capacity
    for place in range(20):
        cap.put(f"n{place}", None)
    assert cap.settle() == ["a"]
    assert cap.limited(node("x", "y")) == node("x", "y")
    assert cap.settle() == []
