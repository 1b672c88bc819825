"""A node's ledger as text: the annotation of its Lease, a JSON object of entries by pod uid.

    {"<pod uid>": {"pod": "web/train-0", "cards": "card0,card1", "tiles": "card0:gt0,card1:gt0", "at": 1795219200,
                   "seen": "4711", "charged": [{"gpu.intel.com/i915": 1, "gpu.intel.com/tiles": 1}]}}

Containers without cards have no part in an entry, or a tenant could fill the ledger with them; `positional` adds them
for the pod's annotations. Entries of older versions have a part for each.

Whoever writes a ledger keeps the entries that it cannot read as they are, byte for byte: they may be a newer
version's. Cards and tiles are written as in the pod's annotations (`cards_text`, `tiles_text`); their grammar is that
of GPU Aware Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.binder import HOLDINGS, LedgerLease
from nodewise.errors import UNREADABLE, shown

MOST_TILES: Final = 1024
"""Tiles of a card are numbered below; no card has as many."""

_LONGEST_VERSION: Final = 40
"""Digits; those of an API server have up to 20."""

Cards = tuple[tuple[str, ...], ...]
"""Card names by container, in the order of the pod's containers."""


class Entry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a pod holds on the node, written before it is bound there."""

    pod: str
    """`namespace/name`."""
    cards: str
    tiles: str = ""
    at: float = 0.0
    """Seconds since 1970 when it was written; nothing is decided by it."""
    seen: str = ""
    """The pod's resourceVersion when it was read for this entry, which its Binding is bound to."""
    charged: tuple[dict[str, int], ...] = ()
    """By container of `cards`: what each of its cards is charged, by full resource name. Counts where the pod is not
    known.
    """

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name of the pod."""
        namespace, _, name = self.pod.partition("/")
        return namespace, name


class Ledger(NamedTuple):
    """A ledger as it could be read."""

    entries: Mapping[str, Entry]
    """By pod uid."""
    unreadable: Mapping[str, str]
    """By pod uid: what is wrong with an entry that counts for nothing."""
    problem: str = ""
    """What is wrong with the whole, of which then nothing counts."""


EMPTY: Final = Ledger({}, {})

_raws: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_entries: Final = msgspec.json.Decoder(dict[str, Entry]).decode
_entry: Final = msgspec.json.Decoder(Entry).decode


def bytes_of(text: str, uids: Collection[str]) -> int:
    """So many bytes of a ledger are entries of these pods; 0 where it cannot be read."""
    try:
        raws = _raws(text) if text and uids else {}
    except UNREADABLE:
        return 0
    return sum(len(uid) + len(raw) for uid, raw in raws.items() if uid in uids)


def positional(entry: Entry, with_cards: Sequence[bool]) -> Entry:
    """The entry with a part for every container of the pod, as annotations have it; `with_cards` says by container
    which have cards. An entry of an older version, which has them already, stays as it is.
    """
    parts = entry.cards.split("|")
    if len(parts) == len(with_cards) or len(parts) != sum(with_cards):
        return entry
    tiles = entry.tiles.split("|") if entry.tiles else [""] * len(parts)
    return msgspec.structs.replace(
        entry,
        cards=_spread(parts, with_cards),
        tiles=_spread(tiles, with_cards) if len(tiles) == len(parts) else "",
    )


def _spread(parts: Sequence[str], with_cards: Sequence[bool]) -> str:
    left = iter(parts)
    return "|".join(next(left) if has_cards else "" for has_cards in with_cards)


def read(lease: LedgerLease | None) -> Ledger:
    """The entries of a node's ledger; no ledger has none."""
    return read_text((lease.metadata.annotations or {}).get(HOLDINGS, "") if lease is not None else "")


def read_text(text: str) -> Ledger:
    """The entries in the annotation; an empty one has none."""
    if not text:
        return EMPTY
    try:
        return Ledger(_entries(text), {})
    except UNREADABLE:
        return _read_singly(text)


def _read_singly(text: str) -> Ledger:
    try:
        raws = _raws(text)
    except UNREADABLE as error:
        return EMPTY._replace(problem=f"{HOLDINGS} cannot be read: {shown(str(error))}")
    entries: dict[str, Entry] = {}
    unreadable: dict[str, str] = {}
    for uid, raw in raws.items():
        try:
            entries[uid] = _entry(raw)
        except UNREADABLE as error:
            unreadable[uid] = shown(str(error))
    return Ledger(entries, unreadable)


def newer(before: str, now: str) -> str:
    """What an entry is planned on when it is written again: never an older version than before.

    Somebody who reads old pods may repeat a bind. Did the version go back, whoever made sure that no Binding of that
    older version will come would take out the entry of a pod that is bound.
    """
    old, new = number(before), number(now)
    return before if old is not None and new is not None and old > new else now


def number(version: str) -> int | None:
    """A resourceVersion as a number that can be compared; None where it is none."""
    is_number = version.isascii() and version.isdecimal() and len(version) <= _LONGEST_VERSION
    return int(version) if is_number else None


def wire(entry: Entry) -> Mapping[str, Any]:
    """The entry as JSON values."""
    built: Mapping[str, Any] = msgspec.to_builtins(entry)
    return built


def cards_text(cards: Sequence[Sequence[str]]) -> str:
    """`card0,card1|card0`: a part for each container, empty for one without cards."""
    return "|".join(",".join(names) for names in cards)


def read_cards(text: str) -> Cards:
    """Whatever stands between commas and bars is a name; a name that no card has is nobody's card."""
    return tuple(tuple(part.split(",")) if part else () for part in text.split("|"))


def tiles_text(cards: Sequence[Sequence[str]], tiles: Sequence[Sequence[Sequence[int]]]) -> str:
    """`card0:gt0+gt1,|`: beside each card its tiles. Empty for one container without tiles, as it always was."""
    return "|".join(
        ",".join(_tile_text(name, numbers) for name, numbers in zip(names, given, strict=True))
        for names, given in zip(cards, tiles, strict=True)
    )


def _tile_text(card: str, tiles: Sequence[int]) -> str:
    return f"{card}:{'+'.join(f'gt{tile}' for tile in tiles)}" if tiles else ""


def read_tiles(text: str) -> Mapping[str, frozenset[int]]:
    """The tiles named, by card; what is no tile is passed over."""
    found: dict[str, set[int]] = {}
    for part in text.replace("|", ",").split(","):
        card, colon, tiles = part.partition(":")
        if colon and ":" not in tiles:
            found.setdefault(card, set()).update(filter(_is_tile, map(_tile, tiles.split("+"))))
    return {card: frozenset(tiles) for card, tiles in found.items() if tiles}


def _tile(text: str) -> int:
    digits = text.removeprefix("gt")
    is_number = text.startswith("gt") and digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS
    return int(digits) if is_number else -1


_DIGITS: Final = 4


def _is_tile(number: int) -> bool:
    return 0 <= number < MOST_TILES
