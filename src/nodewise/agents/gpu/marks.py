"""What telemetry policies say of a node's cards and tiles, by labels `telemetry.aware.scheduling.<policy>/<name>`.

| name | value | meaning |
|---|---|---|
| `gas-disable-<card>` | any, or `PCI_GROUP` | no new pod gets the card |
| `gas-deschedule-pods-<card>` | any, or `PCI_GROUP` | the same, and its pods are marked |
| `gas-prefer-gpu` | a card | it is tried first |
| `gas-tile-disable-<card>_gt<n>` | any | no new pod gets the tile |
| `gas-tile-deschedule-<card>_gt<n>` | any | the same, and its pods are marked |
| `gas-tile-preferred-<card>` | `gt<n>` | it is taken first |

Several policies add up. Names are compared as they are: `gas-disable-xcard0` says nothing of card0.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.agents.gpu import labels
from nodewise.agents.gpu.labels import PCI_GROUP, Rule
from nodewise.errors import shown

Groups = Mapping[str, frozenset[str]]
Tiles = Mapping[str, frozenset[int]]

_DISABLE: Final = "gas-disable-"
_DESCHEDULE: Final = "gas-deschedule-pods-"
_PREFER: Final = "gas-prefer-gpu"
_TILE_DISABLE: Final = "gas-tile-disable-"
_TILE_DESCHEDULE: Final = "gas-tile-deschedule-"
_TILE_PREFERRED: Final = "gas-tile-preferred-"


class Marks(NamedTuple):
    """The fields of the same names of `NodeCards`."""

    unusable: frozenset[str]
    descheduled: frozenset[str]
    tiles_off: Tiles
    tiles_descheduled: Tiles
    tiles_preferred: Mapping[str, tuple[int, ...]]
    preferred: str


def read(
    tags: Mapping[str, str], groups: Groups, tiles: Mapping[str, int], note: Callable[[str], None]
) -> Marks:
    """What the labels say of the cards in `tiles`, which has how many tiles each of them has."""
    rules = labels.rules(tags)
    disabled = _cards(rules, _DISABLE, groups)
    descheduled = _cards(rules, _DESCHEDULE, groups)
    for name in sorted(disabled - tiles.keys()):
        note(f"{_DISABLE}{shown(name)}: the node has no such card")
    tiles_descheduled = _tiles(rules, _TILE_DESCHEDULE)
    return Marks(
        unusable=frozenset((disabled | descheduled) & tiles.keys()),
        descheduled=descheduled,
        tiles_off=_existing(_tiles(rules, _TILE_DISABLE, _TILE_DESCHEDULE), tiles, note),
        tiles_descheduled=tiles_descheduled,
        tiles_preferred=_preferred_tiles(rules),
        preferred=_preferred(rules, tiles, note),
    )


def _named(rules: Sequence[Rule], start: str) -> list[tuple[str, str]]:
    """The rest of the names that begin so, with their values."""
    return [(rule.name.removeprefix(start), rule.value) for rule in rules if rule.name.startswith(start)]


def _cards(rules: Sequence[Rule], start: str, groups: Groups) -> frozenset[str]:
    named = _named(rules, start)
    alone = {card for card, value in named if value != PCI_GROUP}
    grouped = labels.with_groups({card for card, value in named if value == PCI_GROUP}, groups)
    return frozenset(filter(labels.is_name, alone | grouped))


def _tiles(rules: Sequence[Rule], *starts: str) -> Tiles:
    found: dict[str, set[int]] = {}
    for start in starts:
        for text, _ in _named(rules, start):
            if tile := labels.tile(text):
                found.setdefault(tile[0], set()).add(tile[1])
    return {card: frozenset(numbers) for card, numbers in sorted(found.items())}


def _existing(found: Tiles, tiles: Mapping[str, int], note: Callable[[str], None]) -> Tiles:
    """Those that the cards have: one tile that two labels name is one tile."""
    kept = {}
    for card, numbers in found.items():
        existing = frozenset(number for number in numbers if number < tiles.get(card, 0))
        for number in sorted(numbers - existing):
            note(f"labels of telemetry policies take {card}_gt{number} out: the node has no such tile")
        if existing:
            kept[card] = existing
    return kept


def _preferred_tiles(rules: Sequence[Rule]) -> dict[str, tuple[int, ...]]:
    found: dict[str, dict[int, None]] = {}
    for card, value in _named(rules, _TILE_PREFERRED):
        if tile := labels.tile(f"{card}_{value}"):
            found.setdefault(tile[0], {})[tile[1]] = None
    return {card: tuple(numbers) for card, numbers in sorted(found.items())}


def _preferred(rules: Sequence[Rule], tiles: Mapping[str, int], note: Callable[[str], None]) -> str:
    wishes = [rule.value for rule in rules if rule.name == _PREFER]
    for name in wishes:
        if name not in tiles:
            note(f"{_PREFER}: {shown(name)}: the node has no such card")
    return next((name for name in wishes if name in tiles), "")
