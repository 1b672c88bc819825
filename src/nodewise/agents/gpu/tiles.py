"""Which tiles of its cards a pod gets, on the node it is bound to.

Source: GPU Aware Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go`; free tiles are taken in ascending order, so that
the same pod on the same node gets the same tiles.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nodewise.agents.gpu.cards import NodeCards
from nodewise.agents.gpu.layout import MAX_TILES, Usage

Tiles = tuple[int, ...]


class Taken(NamedTuple):
    """A card that a container takes."""

    card: str
    tiles: int
    """How many tiles of it are wanted."""
    linked: int = -1
    """The tile that has the link; -1 without one."""


def assign(
    cards: NodeCards, usage: Usage, resource: str, containers: Sequence[Sequence[Taken]]
) -> tuple[tuple[Tiles, ...], ...]:
    """Tile numbers by container and card, in the order in which they are taken; `resource` counts tiles.

    Linked tiles are set aside for all containers first. Where the pod fits there are enough for everybody.
    """
    left = {taken.card: _free(cards, usage, resource, taken.card) for one in containers for taken in one}
    for taken in (taken for one in containers for taken in one):
        if taken.tiles and taken.linked in left[taken.card]:
            left[taken.card].remove(taken.linked)
    return tuple(tuple(_take(cards, left[taken.card], taken) for taken in one) for one in containers)


def reorder(tiles: Sequence[int], preferred: Sequence[int]) -> list[int]:
    """Preferred tiles come first: each changes places with the one that stands there."""
    ordered = list(tiles)
    found = [tile for tile in dict.fromkeys(preferred) if tile in ordered]
    for place, tile in enumerate(found):
        at = ordered.index(tile)
        if at > place:
            ordered[at], ordered[place] = ordered[place], ordered[at]
    return ordered


def _free(cards: NodeCards, usage: Usage, resource: str, card: str) -> list[int]:
    amounts = cards.capacity.get(resource)
    capacity = min(amounts[cards.cards.index(card)], MAX_TILES) if amounts else 0
    gone = usage.tiles.get(card, frozenset()) | cards.tiles_off.get(card, frozenset())
    return [tile for tile in range(capacity) if tile not in gone]


def _take(cards: NodeCards, left: list[int], taken: Taken) -> Tiles:
    """Take them out of what is left of a card."""
    if not taken.tiles:
        return ()
    linked = (taken.linked,) if taken.linked >= 0 else ()
    wanted = taken.tiles - len(linked)
    others = reorder(left, cards.tiles_preferred.get(taken.card, ()))[:wanted]
    left[:] = [tile for tile in left if tile not in others]
    return (*linked, *others)
