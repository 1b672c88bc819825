"""The cards of all nodes as arrays, so that a pod is fitted to thousands of nodes at once.

The axis of cards comes first: a step over cards is a few passes over all nodes. Every array has one column more than
there are nodes with cards; the last one has none and stands for every other node. Nothing is changed in place: what
one bind changes is copied, which takes some tens of microseconds an array at 5,000 nodes of 8 cards.
"""

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu.cards import NodeCards

Amounts = NDArray[np.int64]
Mask = NDArray[np.bool_]
Codes = NDArray[np.int32]
Bits = NDArray[np.uint64]
"""A set of numbers below 64: of cards by position, or of tiles."""

MAX_CARDS: Final = 64
MAX_TILES: Final = 64
"""Named tiles of a card; of a garbage capacity of more, these are used. Real cards have up to eight."""
MAX_LINKS: Final = 1024
"""Links of a node; eight cards of two tiles, all linked with each other in both directions, have 224."""
MAX_GROUPS: Final = 64
MAX_AMOUNT: Final = 2**63 - 1

ABSENT: Final = -1
"""Free amount of a resource that a card does not have: not even nothing of it fits."""

_STEP: Final = 32
"""Nodes laid out between two yields: about a millisecond."""

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_NO_TILES: Final[frozenset[int]] = frozenset()


class Usage(Protocol):
    """What pods hold of one node's cards (`books.NodeBooks`)."""

    @property
    def amounts(self) -> Mapping[str, Mapping[str, int]]:
        """By card and resource."""
        ...

    @property
    def tiles(self) -> Mapping[str, frozenset[int]]:
        """Named tiles in use, by card."""
        ...

    @property
    def ledger_bytes(self) -> int:
        """Size of the node's ledger."""
        ...


class Layout(NamedTuple):
    """All cards. C: most cards of a node, N: nodes with cards, G: most NUMA groups, L: most links."""

    rows: NDArray[np.intp]
    """By node number: the node's column here, N for a node that has none."""
    names: tuple[str, ...]
    """Card names by code."""
    name_codes: Codes
    """(C, N+1); cards of a node are in their order, -1 after the last one."""
    capacity: Mapping[str, Amounts]
    """By resource (C, N+1); 0 where a card does not have it."""
    free: Mapping[str, Amounts]
    """By resource (C, N+1): capacity less what is held, negative where more is held; `ABSENT` without capacity."""
    usable: Mask
    """(C, N+1): the card exists, and is neither disabled nor descheduled."""
    models: tuple[str, ...]
    """Model names by code; the first one is the unknown one."""
    model_codes: Codes
    """(C, N+1)."""
    preferred: NDArray[np.int16]
    """(1, N+1): position of the preferred card, -1 for none."""
    groups: Bits
    """(G, N+1): the positions of the cards of each NUMA group; 0 where there is no such group."""
    group_states: NDArray[np.int8]
    """(1, N+1): `ONE_GROUP`, `GROUPED` or `BROKEN`."""
    links: Codes
    """(L, N+1): `pack`ed links in the order in which they are tried, -1 for none."""
    free_tiles: Bits
    """(C, N+1): tiles that may take part in a link: neither in use nor off. Without named tiles all of them."""
    ledger_bytes: Amounts
    """(1, N+1): size of the node's ledger."""
    tiles: str
    """The resource that counts tiles."""

    @property
    def size(self) -> int:
        """N."""
        width: int = self.name_codes.shape[1]
        return width - 1

    @property
    def most_cards(self) -> int:
        """C."""
        return len(self.name_codes)

    def cards(self, row: int) -> tuple[str, ...]:
        """The names of a node's cards, in order."""
        return tuple(self.names[code] for code in self.name_codes[:, row].tolist() if code >= 0)


ONE_GROUP: Final = 0
"""The node tells of no NUMA nodes: all its cards are one group."""
GROUPED: Final = 1
BROKEN: Final = 2
"""What it tells cannot be read."""


class Column(NamedTuple):
    """One node, ready to be laid out; the same fields by card, link or group."""

    names: Sequence[str]
    capacity: Mapping[str, Sequence[int]]
    free: Mapping[str, Sequence[int]]
    usable: Sequence[bool]
    models: Sequence[str]
    preferred: int
    groups: Sequence[int]
    group_state: int
    links: Sequence[int]
    free_tiles: Sequence[int]
    ledger_bytes: int


def pack(left: int, left_tile: int, right: int, right_tile: int) -> int:
    """A link as one number; each part is below 64."""
    return left | left_tile << 6 | right << 12 | right_tile << 18


def unpack(links: Codes) -> tuple[Codes, Codes, Codes, Codes]:
    """Left card, left tile, right card, right tile of packed links."""
    return links & 63, links >> 6 & 63, links >> 12 & 63, links >> 18 & 63


def build(nodes: Sequence[tuple[NodeCards, Usage]], rows: NDArray[np.intp], tiles: str) -> Layout:
    """Lay out nodes, in this order; `rows` leads from a node's number to its place among them."""
    steps = building(nodes, rows, tiles)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            layout: Layout = done.value
            return layout


def building(
    nodes: Sequence[tuple[NodeCards, Usage]], rows: NDArray[np.intp], tiles: str
) -> Generator[None, None, Layout]:
    """Like `build`, with a pause after some nodes each."""
    size, parts = _Size(), deque[list[Column]]()
    for start in range(0, len(nodes), _STEP):
        yield
        parts.append([column(cards, usage, tiles) for cards, usage in nodes[start : start + _STEP]])
        size.hold(parts[-1])
    layout = yield from _empty(len(nodes) + 1, size, rows, tiles)
    codes = _Codes(layout)
    for start in range(0, len(nodes), _STEP):
        yield
        _fill(
            layout, start, parts.popleft(), codes
        )  # let go here and not all at once, which takes milliseconds
    return layout._replace(names=tuple(codes.names), models=tuple(codes.models))


def with_row(layout: Layout, row: int, cards: NodeCards, usage: Usage) -> Layout:
    """The same with one node anew. Arrays in which nothing changes are shared."""
    one = column(cards, usage, layout.tiles)
    grown = _grown(layout, one)
    codes = _Codes(grown)
    plain: dict[str, Any] = {
        name: _put(getattr(grown, name), row, cells, _ARRAYS[name][0])
        for name, cells in _plain(one, codes).items()
    }
    return grown._replace(
        **plain,
        capacity={
            name: _put(have, row, one.capacity.get(name, ()), 0) for name, have in grown.capacity.items()
        },
        free={name: _put(have, row, one.free.get(name, ()), ABSENT) for name, have in grown.free.items()},
        names=tuple(codes.names) if len(codes.names) > len(grown.names) else grown.names,
        models=tuple(codes.models) if len(codes.models) > len(grown.models) else grown.models,
    )


def column(cards: NodeCards, usage: Usage, tiles: str) -> Column:
    """One node's cards, less what is held of them."""
    at = {name: position for position, name in enumerate(cards.cards[:MAX_CARDS])}
    named = [_named(cards, usage, name) for name in at]
    capacity = _capacity(cards, len(at), tiles)
    free = _free_amounts(capacity, [usage.amounts.get(name, _NOTHING) for name in at])
    if tiles in capacity:
        held_tiles = [_held_tiles(usage, name, tiles, taken) for name, taken in zip(at, named, strict=True)]
        free[tiles] = [*map(_free, capacity[tiles], held_tiles)]
    counts = capacity.get(tiles, (0,) * len(at))
    return Column(
        names=tuple(at),
        capacity=capacity,
        free=free,
        usable=[name not in cards.unusable for name in at],
        models=cards.models[: len(at)],
        preferred=at.get(cards.preferred, -1),
        groups=_groups(cards, at),
        group_state=BROKEN if cards.numa_problem else GROUPED if cards.numa else ONE_GROUP,
        links=_links(cards, at),
        free_tiles=[_tile_bits(count, taken) for count, taken in zip(counts, named, strict=True)],
        ledger_bytes=usage.ledger_bytes,
    )


def _capacity(cards: NodeCards, count: int, tiles: str) -> dict[str, list[int]]:
    """By resource, the amount of each of the first cards, as far as an array can hold it."""
    return {
        name: [min(amount, MAX_TILES if name == tiles else MAX_AMOUNT) for amount in amounts[:count]]
        for name, amounts in cards.capacity.items()
    }


def _free_amounts(
    capacity: Mapping[str, Sequence[int]], held: Sequence[Mapping[str, int]]
) -> dict[str, list[int]]:
    """By resource, what is free of each card."""
    return {
        name: [
            _free(amount, amounts_held.get(name, 0))
            for amount, amounts_held in zip(amounts, held, strict=True)
        ]
        for name, amounts in capacity.items()
    }


def _named(cards: NodeCards, usage: Usage, card: str) -> frozenset[int]:
    """Tiles that nobody else may be given: in use, or off."""
    return usage.tiles.get(card, _NO_TILES) | cards.tiles_off.get(card, _NO_TILES)


def _held_tiles(usage: Usage, card: str, tiles: str, taken: frozenset[int]) -> int:
    """A tile that is in use and off counts once, and one that is charged without a name counts as well."""
    charged = usage.amounts.get(card, _NOTHING).get(tiles, 0)
    return len(taken) + max(0, charged - len(usage.tiles.get(card, _NO_TILES)))


def _free(capacity: int, held: int) -> int:
    """Within int64 whatever the books say."""
    return capacity - min(held, MAX_AMOUNT) if capacity > 0 else ABSENT


def _tile_bits(count: int, taken: Iterable[int]) -> int:
    everything = (1 << (count or MAX_TILES)) - 1
    if not taken:
        return everything
    return everything & ~sum(1 << tile for tile in set(taken) if 0 <= tile < MAX_TILES)


def _groups(cards: NodeCards, at: Mapping[str, int]) -> list[int]:
    """As bits. A group that an earlier one equals changes nothing."""
    sets = (sum(1 << at[name] for name in group if name in at) for group in cards.numa)
    return list(dict.fromkeys(filter(None, sets)))[:MAX_GROUPS]


def _links(cards: NodeCards, at: Mapping[str, int]) -> list[int]:
    """In the order in which they are tried: by tile of the left card, then as the label has them."""
    known = [
        link
        for link in cards.links[:MAX_LINKS]
        if link.left in at and link.right in at and link.left != link.right
        if 0 <= link.left_tile < MAX_TILES and 0 <= link.right_tile < MAX_TILES
    ]
    known.sort(key=lambda link: link.left_tile)
    return [pack(at[link.left], link.left_tile, at[link.right], link.right_tile) for link in known]


class _Codes:
    """Gives names and models their codes; tables only grow."""

    def __init__(self, layout: Layout) -> None:
        self.names = {name: code for code, name in enumerate(layout.names)}
        self.models = {model: code for code, model in enumerate(layout.models)}

    def name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def model(self, model: str) -> int:
        return self.models.setdefault(model, len(self.models))


_ARRAYS: Final[Mapping[str, tuple[int, Any]]] = {
    "name_codes": (-1, np.int32),
    "usable": (0, np.bool_),
    "model_codes": (0, np.int32),
    "preferred": (-1, np.int16),
    "groups": (0, np.uint64),
    "group_states": (ONE_GROUP, np.int8),
    "links": (-1, np.int32),
    "free_tiles": (0, np.uint64),
    "ledger_bytes": (0, np.int64),
}
"""What stands where a node has fewer cards, groups or links than others, and the type."""


def _heights(cards: int, groups: int, links: int) -> Mapping[str, int]:
    by_card = dict.fromkeys(("name_codes", "usable", "model_codes", "free_tiles"), cards)
    return by_card | {"preferred": 1, "group_states": 1, "ledger_bytes": 1, "groups": groups, "links": links}


class _Size:
    """What the largest nodes need. One card at least, so that no reduction over cards is empty."""

    def __init__(self) -> None:
        self.cards, self.groups, self.links = 1, 0, 0
        self.resources: dict[str, None] = {}

    def hold(self, columns: Iterable[Column]) -> None:
        for one in columns:
            self.cards = max(self.cards, len(one.names))
            self.groups = max(self.groups, len(one.groups))
            self.links = max(self.links, len(one.links))
            self.resources.update(dict.fromkeys(one.capacity))


def _empty(width: int, size: _Size, rows: NDArray[np.intp], tiles: str) -> Generator[None, None, Layout]:
    """Arrays of the right size."""
    plain = {}
    for name, height in _heights(size.cards, size.groups, size.links).items():
        yield
        plain[name] = np.full((height, width), *_ARRAYS[name])
    capacity, free = {}, {}
    for name in size.resources:
        yield
        capacity[name] = np.zeros((size.cards, width), np.int64)
        free[name] = np.full((size.cards, width), ABSENT, np.int64)
    return Layout(rows=rows, names=(), models=("",), capacity=capacity, free=free, tiles=tiles, **plain)


def _plain(one: Column, codes: _Codes) -> dict[str, Sequence[int]]:
    """The node's part of each array that is not by resource."""
    return {
        "name_codes": [*map(codes.name, one.names)],
        "usable": one.usable,
        "model_codes": [*map(codes.model, one.models)],
        "preferred": (one.preferred,),
        "groups": one.groups,
        "group_states": (one.group_state,),
        "links": one.links,
        "free_tiles": one.free_tiles,
        "ledger_bytes": (one.ledger_bytes,),
    }


def _fill(layout: Layout, start: int, columns: Sequence[Column], codes: _Codes) -> None:
    """Write some nodes into arrays that nobody else has yet."""
    plain = [_plain(one, codes) for one in columns]
    for name, (fill, _) in _ARRAYS.items():
        _write(getattr(layout, name), start, [one[name] for one in plain], fill)
    for name, capacity in layout.capacity.items():
        _write(capacity, start, [one.capacity.get(name, ()) for one in columns], 0)
        _write(layout.free[name], start, [one.free.get(name, ()) for one in columns], ABSENT)


def _write(array: NDArray[Any], start: int, cells: Sequence[Sequence[int]], fill: int) -> None:
    if len(array):
        padded = [_padded(one, len(array), fill) for one in cells]
        array[:, start : start + len(cells)] = np.array(padded, array.dtype).T


def _padded(cells: Sequence[int], height: int, fill: int) -> Sequence[int]:
    return cells if len(cells) == height else [*cells, *[fill] * (height - len(cells))]


def _put(array: NDArray[Any], row: int, cells: Sequence[int], fill: int) -> NDArray[Any]:
    padded = _padded(cells, len(array), fill)
    if array[:, row].tolist() == [*padded]:
        return array
    array = array.copy()
    array[:, row] = padded
    return array


def _grown(layout: Layout, one: Column) -> Layout:
    """With room for a node of more cards, groups, links or resources than any before."""
    cards = max(layout.most_cards, len(one.names))
    heights = _heights(
        cards, max(len(layout.groups), len(one.groups)), max(len(layout.links), len(one.links))
    )
    arrays: dict[str, Any] = {
        name: _taller(getattr(layout, name), height, _ARRAYS[name][0]) for name, height in heights.items()
    }
    resources = [*layout.capacity, *(name for name in one.capacity if name not in layout.capacity)]
    nothing = np.zeros((0, layout.size + 1), np.int64)
    return layout._replace(
        **arrays,
        capacity={name: _taller(layout.capacity.get(name, nothing), cards, 0) for name in resources},
        free={name: _taller(layout.free.get(name, nothing), cards, ABSENT) for name in resources},
    )


def _taller(array: NDArray[Any], height: int, fill: int) -> NDArray[Any]:
    missing = height - len(array)
    return np.pad(array, ((0, missing), (0, 0)), constant_values=fill) if missing else array
