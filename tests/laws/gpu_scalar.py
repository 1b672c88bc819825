"""How one pod is fitted to one node, card by card: section 8 of the specification, its bugs mended, told plainly."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nodewise.agents.gpu.cards import NodeCards
from nodewise.agents.gpu.demand import ContainerDemand, Demand

TILES = "gpu.intel.com/tiles"


@dataclass
class Usage:
    """What is held, as the fit wants to know it."""

    amounts: Mapping[str, Mapping[str, int]]
    tiles: Mapping[str, frozenset[int]]
    ledger_bytes: int = 0


@dataclass
class Outcome:
    """Where a pod fits: cards and linked tiles by container."""

    cards: list[list[str]] = field(default_factory=list)
    links: list[list[int]] = field(default_factory=list)
    preferred: bool = False


class DoesNotFit(Exception):
    """This node does not."""


@dataclass
class Node:
    """A node while a pod takes of it."""

    cards: NodeCards
    demand: Demand
    balanced: str
    used: dict[str, Counter[str]]
    gone: dict[str, set[int]]
    """Tiles that cannot be linked."""

    def capacity(self, card: str, resource: str) -> int:
        amounts = self.cards.capacity.get(resource)
        return amounts[self.cards.cards.index(card)] if amounts else 0

    def order(self) -> list[str]:
        names = list(self.cards.cards)
        if self.balanced:
            return sorted(names, key=self.load)
        if self.cards.preferred in names:
            at = names.index(self.cards.preferred)
            names[0], names[at] = names[at], names[0]
        return names

    def load(self, card: str) -> int:
        """What is used of what there is: amounts held of a resource that the card lacks are garbage."""
        return self.used[card][self.balanced] if self.capacity(card, self.balanced) else 0

    def may_be_used(self, card: str) -> bool:
        demand = self.demand
        model = self.cards.models[self.cards.cards.index(card)]
        return (
            card not in self.cards.unusable
            and card not in demand.deny
            and (demand.allow is None or card in demand.allow)
            and (demand.models is None or model in demand.models)
        )

    def has(self, card: str, wanted: Mapping[str, int]) -> bool:
        return all(
            0 < self.capacity(card, name) >= self.used[card][name] + amount for name, amount in wanted.items()
        )

    def take(self, card: str, wanted: Mapping[str, int]) -> None:
        self.used[card].update(wanted)

    def is_open(self, card: str, tile: int) -> bool:
        count = self.capacity(card, TILES)
        return tile not in self.gone[card] and (count == 0 or tile < count)


def fit(cards: NodeCards, usage: Usage, demand: Demand, balanced: str = "") -> Outcome:
    """DoesNotFit if it does not."""
    if not cards.cards or (demand.single_numa and cards.numa_problem):
        raise DoesNotFit
    node = begun(cards, usage, demand, balanced)
    found = Outcome([[] for _ in demand.containers], [[] for _ in demand.containers])
    for numbers, wanted in steps(demand):
        pairs = taken(node, wanted)
        for number in numbers:
            found.cards[number] = [card for card, _ in pairs]
            found.links[number] = [tile for _, tile in pairs if tile >= 0]
        first = pairs[:1] if demand.linked else pairs
        if not balanced and any(card == cards.preferred for card, _ in first):
            found.preferred = True
    return found


def begun(cards: NodeCards, usage: Usage, demand: Demand, balanced: str) -> Node:
    used = {card: Counter(usage.amounts.get(card, {})) for card in cards.cards}
    gone = {card: set(usage.tiles.get(card, ())) | cards.tiles_off.get(card, set()) for card in cards.cards}
    for card in cards.cards:
        without_name = max(0, used[card][TILES] - len(usage.tiles.get(card, ())))
        used[card][TILES] = len(gone[card]) + without_name
    return Node(cards, demand, balanced, used, gone)


def steps(demand: Demand) -> Iterable[tuple[Sequence[int], ContainerDemand]]:
    if demand.same_card:
        total = Counter[str]()
        for number in demand.same_card:
            total.update(demand.containers[number].per_card)
        yield demand.same_card, ContainerDemand("group", 1, total)
    for number, container in enumerate(demand.containers):
        if container.count and number not in demand.same_card:
            yield [number], container


def taken(node: Node, wanted: ContainerDemand) -> list[tuple[str, int]]:
    """Cards, with their linked tiles or -1, of the first group that has them."""
    groups = [frozenset(node.cards.cards)]
    if node.demand.single_numa and node.cards.numa:
        groups = [*node.cards.numa]
    for group in groups:
        found = (linked if node.demand.linked else single)(node, wanted, group)
        if len(found) == wanted.count:
            for card, tile in found:
                node.take(card, wanted.per_card)
                node.gone[card].add(tile)
            return found
    raise DoesNotFit


def able(node: Node, wanted: ContainerDemand, group: frozenset[str]) -> list[str]:
    return [
        card
        for card in node.order()
        if card in group and node.may_be_used(card) and node.has(card, wanted.per_card)
    ]


def single(node: Node, wanted: ContainerDemand, group: frozenset[str]) -> list[tuple[str, int]]:
    return [(card, -1) for card in able(node, wanted, group)[: wanted.count]]


def linked(node: Node, wanted: ContainerDemand, group: frozenset[str]) -> list[tuple[str, int]]:
    left, found = able(node, wanted, group), list[tuple[str, int]]()
    while len(found) < wanted.count:
        pair = first_pair(node, left)
        if pair is None:
            break
        found += pair
        left = [card for card in left if card not in dict(pair)]
    return found


def first_pair(node: Node, left: list[str]) -> list[tuple[str, int]] | None:
    for card in left:
        for link in sorted(node.cards.links, key=lambda link: link.left_tile):
            is_one = link.left == card != link.right and link.right in left
            if is_one and node.is_open(card, link.left_tile) and node.is_open(link.right, link.right_tile):
                return [(card, link.left_tile), (link.right, link.right_tile)]
    return None
