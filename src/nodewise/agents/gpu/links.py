"""Pairs of linked cards: which pair a container takes, and which tiles of it are linked.

Source: GPU Aware Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go`. A link leads from its left card to its right one;
unlike there, all links of a tile are tried and not only the first.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu import layout as layouts
from nodewise.agents.gpu.choosing import Choice, Keys, Order, Positions, first, taken_from
from nodewise.agents.gpu.demand import ContainerDemand
from nodewise.agents.gpu.layout import Bits, Codes, Mask
from nodewise.agents.gpu.working import Working

Numbers = NDArray[np.intp] | Codes


class Links(NamedTuple):
    """All links of the candidates, one entry each, in the order in which a candidate's links are tried."""

    candidate: Numbers
    left: Numbers
    left_tile: Numbers
    right: Numbers
    right_tile: Numbers

    def some(self, which: Mask) -> "Links":
        return Links(*(part[which] for part in self))


class Linking:
    """The links of a pod's candidates, and which of their tiles are free."""

    def __init__(self, working: Working) -> None:
        packed = working.layout.links[:, working.columns]
        at = np.nonzero(packed >= 0)
        self._links = Links(at[1], *layouts.unpack(packed[at]))
        self._free = working.layout.free_tiles[:, working.columns]
        self._existing = np.ones(self._free.shape, bool)

    def reserve(self, choice: Choice) -> None:
        """Linked tiles are not free for the rest of the pod."""
        self._free = _without(self._free, choice)
        self._links = self._links.some(_open(self._existing, self._links, self._free))

    def pairs(self, working: Working, able: Mask, container: ContainerDemand, order: Order) -> Choice:
        """Linked pairs of able cards (C, M): of the left card that comes first by order, the first free link."""
        able = able.copy()
        free, links = self._free, self._links
        keys = order.keys(working, container)
        chosen: list[Choice] = []
        for number in range(container.count // 2):
            if number and not order.steady:
                working = taken_from(working, chosen[-1], container)
                keys = order.keys(working, container)
            links = links.some(_open(able, links, free))  # what is not open will not be for a later pair
            chosen.append(_pair(able, keys, links))
            able &= ~chosen[-1].mask(len(able))
            free = _without(free, chosen[-1])
        cards = np.concatenate([pair.cards for pair in chosen])
        tiles = np.concatenate([pair.tiles for pair in chosen if pair.tiles is not None])
        return Choice(cards, tiles)


def _without(free: Bits, choice: Choice) -> Bits:
    if choice.tiles is None:  # nobody has so many cards, and nothing is taken anywhere
        return free
    free = free.copy()
    for cards, tiles in zip(choice.cards, choice.tiles, strict=True):
        at = np.flatnonzero(cards >= 0)
        free[cards[at], at] &= ~(np.uint64(1) << tiles[at].astype(np.uint64))
    return free


def _open(able: Mask, links: Links, free: Bits) -> Mask:
    """Links whose cards would do and whose tiles are free."""
    one = np.uint64(1)
    at = links.candidate
    left = free[links.left, at] >> links.left_tile.astype(np.uint64)
    right = free[links.right, at] >> links.right_tile.astype(np.uint64)
    both: Mask = (left & right & one) == one
    return both & able[links.left, at] & able[links.right, at]


def _pair(able: Mask, keys: Keys | None, links: Links) -> Choice:
    """(2, M): one pair for each candidate that has one."""
    lefts = np.zeros_like(able)
    lefts[links.left, links.candidate] = True
    left = first(lefts, keys)
    # Of several values for one place numpy keeps the last: backwards, that is the link to be tried first.
    mine = np.flatnonzero(links.left == left[links.candidate])[::-1]
    taken = np.full(able.shape[1], -1, np.intp)
    taken[links.candidate[mine]] = mine
    none = taken < 0
    cards = np.stack([left, _at(links.right, taken, none)])
    return Choice(cards, np.stack([_at(links.left_tile, taken, none), _at(links.right_tile, taken, none)]))


def _at(values: Numbers, taken: NDArray[np.intp], none: Mask) -> Positions:
    if not len(values):
        return np.full(len(taken), -1, np.int8)
    return np.where(none, -1, values[taken]).astype(np.int8)
