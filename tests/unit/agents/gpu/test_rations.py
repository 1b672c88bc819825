"""Which resources are kept where nodes invent them."""

import pytest

from nodewise.agents.gpu import rations
from nodewise.agents.gpu.cards import NodeCards
from nodewise.agents.gpu.rations import Rations


def node(*resources: str, cards: int = 1) -> NodeCards:
    return NodeCards(
        cards=tuple(f"card{number}" for number in range(cards)),
        capacity=dict.fromkeys(resources, (1,) * cards),
    )


def invented(place: int, count: int) -> NodeCards:
    return node("common", *(f"n{place}-{number}" for number in range(count)))


def of(nodes: dict[str, NodeCards]) -> Rations:
    found = Rations()
    for name, cards in nodes.items():
        found.put(name, cards)
    found.settle()
    return found


def test_few_resources_are_all_kept() -> None:
    cards = node("a", "b")
    assert of({"n": cards}).limited(cards) is cards


def test_those_of_most_nodes_are_kept_whatever_the_order_and_the_others_are_a_problem_of_their_nodes() -> (
    None
):
    nodes = {f"n{place}": invented(place, 64) for place in range(20)}
    limited = {name: of(nodes).limited(cards) for name, cards in nodes.items()}
    assert len(set().union(*(one.capacity for one in limited.values()))) == rations.MOST
    assert all("common" in one.capacity for one in limited.values())
    (said,) = next(one.problems for one in limited.values() if one.problems)
    assert "which count as absent" in said
    assert len(said) < 300
    again = of(dict(reversed(nodes.items())))
    assert {name: again.limited(cards) for name, cards in nodes.items()} == limited


def test_one_node_of_many_cards_leaves_the_arrays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rations, "CELLS", 64 * 11 * 20)
    nodes = {f"n{place}": invented(place, 10) for place in range(9)}
    nodes["wide"] = node("common", cards=64)
    found = of(nodes)
    kept = set().union(*(found.limited(cards).capacity for cards in nodes.values()))
    assert len(kept) == 20


def test_when_there_is_room_again_the_nodes_that_gain_are_named() -> None:
    found = of({"a": node("x", "y"), **{f"n{place}": invented(place, 64) for place in range(20)}})
    assert "x" not in found.limited(node("x", "y")).capacity
    for place in range(20):
        found.put(f"n{place}", None)
    assert found.settle() == ["a"]
    assert found.limited(node("x", "y")) == node("x", "y")
    assert found.settle() == []
