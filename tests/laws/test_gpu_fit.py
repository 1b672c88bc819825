"""What holds for all nodes, books and demands: the fit of all at once is the fit of each, told plainly."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agents.gpu import layout as layouts
from nodewise.agents.gpu import tiles
from nodewise.agents.gpu.cards import Link, NodeCards
from nodewise.agents.gpu.demand import ContainerDemand, Demand
from nodewise.agents.gpu.fit import Balanced, FirstFit, Fitted, Order, fit
from nodewise.agents.gpu.layout import Layout
from nodewise.agents.gpu.tiles import Taken
from tests.laws import gpu_scalar as scalar
from tests.laws.gpu_scalar import TILES, DoesNotFit, Usage

NAMES = ("card0", "card1", "card10", "card2", "card3")
COUNT, MEMORY = "gpu.intel.com/i915", "gpu.intel.com/memory.max"
RESOURCES = (COUNT, MEMORY, TILES)
NAME = st.sampled_from(NAMES)
NUMBERS = st.frozensets(st.integers(0, 3), max_size=2)
HUGE = 2**63 - 1
Given = tuple[NodeCards, Usage]


def seldom(what: st.SearchStrategy[Any], otherwise: Any) -> st.SearchStrategy[Any]:
    """Most pods are to fit somewhere, or the laws would say little."""
    return st.sampled_from([*[False] * 5, True]).flatmap(lambda given: what if given else st.just(otherwise))


SOME = st.frozensets(NAME, max_size=2)
GROUP = st.frozensets(NAME, min_size=2, max_size=4)


@st.composite
def nodes(draw: Any) -> Given:
    names = NAMES[: draw(st.sampled_from([0, 1, 2, 3, 4, 5, 5]))]
    every = st.tuples(*[st.sampled_from([6, 4, 3, 2, 6, 4, 0])] * len(names))
    capacity = {name: draw(every) for name in RESOURCES if not draw(seldom(st.just(True), False))}
    if draw(seldom(st.just(True), False)):
        capacity[MEMORY] = (HUGE,) * len(names)
    counts = capacity.get(TILES, (0,) * len(names))
    off = draw(seldom(st.dictionaries(NAME, NUMBERS, max_size=2), {}))
    cards = NodeCards(
        cards=names,
        capacity=capacity,
        models=draw(st.tuples(*[st.sampled_from(["", "A", "B"])] * len(names))),
        unusable=draw(seldom(SOME, frozenset())),
        tiles_off={
            card: frozenset(tile for tile in off[card] if tile < count)
            for card, count in zip(names, counts, strict=True)
            if card in off
        },
        tiles_preferred=draw(st.dictionaries(NAME, st.tuples(st.integers(0, 3)), max_size=1)),
        preferred=draw(st.sampled_from(["", *names])),
        numa=draw(st.just(()) | st.tuples(GROUP, GROUP, SOME)),
        numa_problem=draw(seldom(st.just("bad"), "")),
        links=tuple(draw(st.just([]) | st.lists(links(names), min_size=4, max_size=12))),
    )
    amounts = draw(st.dictionaries(NAME, st.dictionaries(st.sampled_from(RESOURCES), held()), max_size=3))
    return cards, Usage(amounts, draw(seldom(st.dictionaries(NAME, NUMBERS, max_size=2), {})))


def held() -> st.SearchStrategy[int]:
    return st.sampled_from([0, 1, 1, 2, 2, 3, 4]).flatmap(
        lambda few: seldom(st.sampled_from([HUGE - 2, HUGE, 2**70]), few)
    )


def links(names: tuple[str, ...]) -> st.SearchStrategy[Link]:
    card = st.sampled_from(names or NAMES)
    return st.builds(Link, card, st.sampled_from([0, 1, 0, 1, 2]), card, st.integers(0, 1))


@st.composite
def demands(draw: Any) -> Demand:
    linked = draw(st.booleans())
    counts = [2, 0, 2, 4] if linked else [1, 1, 0, 2, 2, 3, 6]
    containers = tuple(
        ContainerDemand(f"c{number}", count, dict(draw(per_card())) if count else {})
        for number, count in enumerate(draw(st.lists(st.sampled_from(counts), min_size=1, max_size=3)))
    )
    ones = [number for number, one in enumerate(containers) if one.count == 1]
    shared = tuple(draw(st.permutations(ones))) if len(ones) > 1 and draw(st.booleans()) else ()
    return Demand(
        containers,
        same_card=shared,
        linked=linked,
        single_numa=draw(st.booleans()),
        allow=draw(seldom(st.frozensets(NAME, min_size=2), None)),
        deny=draw(seldom(SOME, frozenset())),
        models=draw(seldom(st.sampled_from([frozenset({"A"}), frozenset({"", "B"})]), None)),
    )


@st.composite
def per_card(draw: Any) -> dict[str, int]:
    wanted = {COUNT: 1}
    if draw(st.booleans()):
        wanted[TILES] = draw(st.integers(0, 2))
    if draw(st.booleans()):
        wanted[MEMORY] = draw(seldom(st.just(HUGE // 4), 2)) - draw(st.integers(0, 2))
    return wanted


ORDERS = st.sampled_from(["", "", MEMORY, TILES, "gpu.intel.com/nosuch"])
CLUSTERS = st.lists(nodes(), min_size=1, max_size=6)


def order_of(balanced: str) -> Order:
    return Balanced(balanced) if balanced else FirstFit()


def laid_out(given: list[Given]) -> Layout:
    return layouts.build(given, np.arange(len(given) + 1), TILES)


def told(fitted: Fitted, at: int, cards: NodeCards) -> Any:
    """As the plain one has it: None, or cards and linked tiles by container."""
    if fitted.codes[at]:
        return None
    return [[cards.cards[card] for card in one] for one in fitted.cards(at)], [*map(list, fitted.tiles(at))]


def plain(given: Given, demand: Demand, balanced: str) -> Any:
    try:
        found = scalar.fit(*given, demand, balanced)
    except DoesNotFit:
        return None
    return found.cards, found.links


def taken_of(demand: Demand, found: Any) -> list[list[Taken]]:
    return [
        [
            Taken(card, one.per_card.get(TILES, 0), tile)
            for card, tile in zip(cards, ends or [-1] * len(cards), strict=True)
        ]
        for one, cards, ends in zip(demand.containers, *found, strict=True)
    ]


@given(CLUSTERS, demands(), ORDERS)
def test_all_at_once_say_what_each_says_alone(cluster: list[Given], demand: Demand, balanced: str) -> None:
    fitted = fit(laid_out(cluster), np.arange(len(cluster)), demand, order_of(balanced))
    for at, one in enumerate(cluster):
        assert told(fitted, at, one[0]) == plain(one, demand, balanced)
        alone = fit(laid_out([one]), np.zeros(1, np.intp), demand, order_of(balanced))
        assert told(alone, 0, one[0]) == told(fitted, at, one[0])
        assert alone.preferred[0] == fitted.preferred[at]
        if not fitted.codes[at]:
            assert fitted.preferred[at] == scalar.fit(*one, demand, balanced).preferred


@given(CLUSTERS, demands(), ORDERS)
def test_a_rejected_node_has_a_reason_and_what_it_lacks_is_true(
    cluster: list[Given], demand: Demand, balanced: str
) -> None:
    fitted = fit(laid_out(cluster), np.arange(len(cluster)), demand, order_of(balanced))
    for at, (cards, _) in enumerate(cluster):
        lack = fitted.lacks.at(at)
        if fitted.codes[at]:
            assert (
                "will not fit" in (text := fitted.reasons[fitted.codes[at] - 1].text()) or "bad args" in text
            )
        assert lack is None or (fitted.codes[at] and lack.free < lack.wanted and lack.card in cards.cards)


@given(CLUSTERS, demands(), ORDERS)
def test_no_card_gives_more_than_it_has_and_no_tile_is_given_twice(
    cluster: list[Given], demand: Demand, balanced: str
) -> None:
    fitted = fit(laid_out(cluster), np.arange(len(cluster)), demand, order_of(balanced))
    for at, (cards, usage) in enumerate(cluster):
        found = told(fitted, at, cards)
        if found is None:
            continue
        total = {card: Counter(usage.amounts.get(card, {})) for card in cards.cards}
        for one, names in zip(demand.containers, found[0], strict=True):
            assert len(set(names)) == len(names) == one.count
            for name in names:
                total[name].update(one.per_card)
        for one, names in zip(demand.containers, found[0], strict=True):
            for name in names:
                for resource in one.per_card:
                    assert total[name][resource] <= cards.capacity[resource][cards.cards.index(name)]
        check_tiles(cards, usage, taken_of(demand, found))


def check_tiles(cards: NodeCards, usage: Usage, taken: list[list[Taken]]) -> None:
    given = tiles.assign(cards, usage, TILES, taken)
    seen = {card: {*usage.tiles.get(card, ())} | {*cards.tiles_off.get(card, ())} for card in cards.cards}
    counts = dict(zip(cards.cards, cards.capacity.get(TILES, (0,) * len(cards.cards)), strict=True))
    for one, numbers in zip(taken, given, strict=True):
        for card, found in zip(one, numbers, strict=True):
            assert len(found) == card.tiles
            assert seen[card.card].isdisjoint(found)
            assert all(0 <= tile < counts[card.card] for tile in found)
            assert card.linked in found or card.linked < 0 or not found
            seen[card.card].update(found)


@given(CLUSTERS, demands(), ORDERS, st.randoms(use_true_random=False))
def test_candidates_in_another_order_get_the_same_answers(
    cluster: list[Given], demand: Demand, balanced: str, chance: Any
) -> None:
    layout, order = laid_out(cluster), order_of(balanced)
    fitted = fit(layout, np.arange(len(cluster)), demand, order)
    asked = [chance.randrange(len(cluster)) for _ in range(chance.randrange(2 * len(cluster) + 1))]
    again = fit(layout, np.array(asked, np.intp), demand, order)
    for at, row in enumerate(asked):
        assert told(again, at, cluster[row][0]) == told(fitted, row, cluster[row][0])
        assert again.lacks.at(at) == fitted.lacks.at(row)
        if again.codes[at]:
            assert again.reasons[again.codes[at] - 1] == fitted.reasons[fitted.codes[row] - 1]


@given(CLUSTERS, CLUSTERS, demands(), ORDERS)
def test_a_layout_changed_row_by_row_is_one_built_anew(
    before: list[Given], after: list[Given], demand: Demand, balanced: str
) -> None:
    wanted = (after * len(before))[: len(before)]
    changed = laid_out(before)
    for row, (cards, usage) in enumerate(wanted):
        changed = layouts.with_row(changed, row, cards, usage)
    every = np.arange(len(before))
    one = fit(changed, every, demand, order_of(balanced))
    other = fit(laid_out(wanted), every, demand, order_of(balanced))
    for at, (cards, _) in enumerate(wanted):
        assert changed.cards(at) == cards.cards
        assert told(one, at, cards) == told(other, at, cards)
        assert one.lacks.at(at) == other.lacks.at(at)
