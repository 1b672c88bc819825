"""A node's cards: which there are, what each has, which of them may be used, and how they are joined.

They come from the node annotation `nodewise.io/gpu-cards`, where cards may differ, or else from labels or counts (see
`profile.py`); then the node's allocatable amounts are divided evenly, and what is left over belongs to no card. Labels
of telemetry policies take cards and tiles out. What cannot be read is left out with a problem in words, and never with
an exception; where it is open which cards there are, there are none.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agents.gpu import amounts, labels, marks
from nodewise.agents.gpu.labels import LONGEST_NAME, Link
from nodewise.agents.gpu.profile import Profile
from nodewise.errors import UNREADABLE, shown

__all__ = ["CARDS", "MOST_CARDS", "GpuNode", "Link", "NodeCards", "read"]

CARDS: Final = "nodewise.io/gpu-cards"
"""The node annotation: `[{"name": "card0", "model": "V100M32", "capacity": {"nvidia.com/gpu": 1}}]`."""

MOST_CARDS: Final = 64
MOST_RESOURCES: Final = 64
MOST_TILES: Final = 64
"""Of a card; real ones have up to eight."""
MOST_LINKS: Final = 1024
MOST_GROUPS: Final = 64
_MOST_PROBLEMS: Final = 16


class NodeAnnotations(msgspec.Struct, frozen=True, gc=False):
    gpu_cards: str | None = msgspec.field(default=None, name=CARDS)


class NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    labels: msgspec.Raw = msgspec.Raw(b"null")
    annotations: NodeAnnotations | None = None


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: msgspec.Raw = msgspec.Raw(b"null")


class GpuNode(msgspec.Struct, frozen=True, gc=False):
    """What is read of a node."""

    metadata: NodeMetadata = NodeMetadata()
    status: NodeStatus = NodeStatus()


class NodeCards(NamedTuple):
    """The cards of one node. `cards` fixes their order; what is by card is in that order."""

    cards: tuple[str, ...] = ()
    """Distinct names, in the order of their characters: card10 comes before card2."""
    capacity: Mapping[str, tuple[int, ...]] = {}
    """By full resource name, by card; 0 where a card has none, and no resource that no card has."""
    models: tuple[str, ...] = ()
    """By card; empty where unknown."""
    unusable: frozenset[str] = frozenset()
    """Cards that no new pod gets: disabled or descheduled."""
    descheduled: frozenset[str] = frozenset()
    """Cards whose pods are to be marked; they may be gone from `cards`."""
    tiles_off: Mapping[str, frozenset[int]] = {}
    """By card: existing tiles that no new pod gets, disabled or descheduled."""
    tiles_descheduled: Mapping[str, frozenset[int]] = {}
    """By card: tiles whose pods are to be marked; they may not exist any more."""
    tiles_preferred: Mapping[str, tuple[int, ...]] = {}
    """By card: tiles to take first, in the order of the policies' names."""
    preferred: str = ""
    """The card that a policy prefers; empty: none. Of several policies the first by name that names a card of ours."""
    numa: tuple[frozenset[str], ...] = ()
    """The cards of each NUMA node, in the order of the label, only those in `cards`; () without the label."""
    numa_problem: str = ""
    """Why the label cannot be read; empty: it can."""
    links: tuple[Link, ...] = ()
    """In the order of the label, between cards in `cards`."""
    problems: tuple[str, ...] = ()
    """What could not be read, in words."""


def read(node: GpuNode, profile: Profile) -> NodeCards:
    """The cards of a node. The order of its labels does not matter."""
    notes = _Notes()
    tags = _texts(node.metadata.labels)
    found = _found(node, tags, profile, notes)
    capacity = _capacity(found, profile, notes)
    if len(found) > MOST_CARDS or len(capacity) > MOST_RESOURCES:
        notes.add(
            f"{len(found)} cards of {len(capacity)} resources; at most {MOST_CARDS} of {MOST_RESOURCES} count"
        )
        found, capacity = {}, {}
    cards = tuple(found)
    tiles = dict(zip(cards, capacity.get(profile.tiles, (0,) * len(cards)), strict=True))
    marked = marks.read(tags, _buses(tags, profile, notes), tiles, notes.add)
    numa, numa_problem = _numa(tags, profile, tiles, notes)
    return NodeCards(
        cards=cards,
        capacity=capacity,
        models=tuple(card.model for card in found.values()),
        unusable=marked.unusable,
        descheduled=marked.descheduled,
        tiles_off=marked.tiles_off,
        tiles_descheduled=marked.tiles_descheduled,
        tiles_preferred=marked.tiles_preferred,
        preferred=marked.preferred,
        numa=numa,
        numa_problem=numa_problem,
        links=_links(tags, profile, tiles, notes),
        problems=notes.texts(),
    )


class _Card(NamedTuple):
    capacity: Mapping[str, int]
    model: str = ""


class _Notes:
    """Problems, each once; of very many only some."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    def add(self, text: str) -> None:
        self._texts[text] = None

    def texts(self) -> tuple[str, ...]:
        kept, more = list(self._texts)[:_MOST_PROBLEMS], len(self._texts) - _MOST_PROBLEMS
        return tuple(kept) if more <= 0 else (*kept, f"and {more} more")


def _mapping(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(raw)
    except UNREADABLE:
        return {}
    return found if isinstance(found, dict) else {}


def _texts(raw: msgspec.Raw) -> dict[str, str]:
    return {key: value for key, value in _mapping(raw).items() if isinstance(value, str)}


def _amounts(given: Mapping[str, Any], profile: Profile, where: str, notes: _Notes) -> dict[str, int]:
    """The amounts above 0 of resources that are ours; one that cannot be read is absent."""
    found = {}
    for resource in sorted(filter(profile.has, given)):
        try:
            amount = amounts.exact(given[resource])
        except ValueError as error:
            notes.add(f"{where} {_cut(resource)}: {error}; it counts as absent")
            continue
        if amount:
            found[resource] = amount
    return found


def _found(node: GpuNode, tags: Mapping[str, str], profile: Profile, notes: _Notes) -> dict[str, _Card]:
    """The cards by name, in their order."""
    allocatable = _amounts(_mapping(node.status.allocatable), profile, "allocatable", notes)
    annotations = node.metadata.annotations
    if annotations is not None and annotations.gpu_cards is not None:
        found = _annotated(annotations.gpu_cards, allocatable, profile, notes)
        return {name: found[name] for name in sorted(found)}
    names = (
        _labelled(tags, profile, notes) if profile.labelled else _counted(tags, allocatable, profile, notes)
    )
    if allocatable and not names:
        notes.add(f"{_cut(min(allocatable))} is allocatable, and nothing says which cards the node has")
    share = _Card(amounts.divided(allocatable, max(len(names), 1)))
    return dict.fromkeys(sorted(names), share)


def _labelled(tags: Mapping[str, str], profile: Profile, notes: _Notes) -> set[str]:
    """Names of cards by labels: their numbers, or else the older label with their names."""
    key, old = f"{profile.prefix}gpu-numbers", f"{profile.prefix}cards"
    try:
        text = labels.joined(tags, key)
    except ValueError as error:
        notes.add(str(error))
        text = ""
    given = [number and f"card{number}" for number in labels.numbers(text)]
    if not text and old in tags:
        key, given = old, tags[old].split(".")
    names = set(filter(labels.is_name, given))
    if len(names) < len(given):
        notes.add(f"label {key}: empty, double or odd names in {shown(text or tags[key])} do not count")
    return names


def _counted(
    tags: Mapping[str, str], allocatable: Mapping[str, int], profile: Profile, notes: _Notes
) -> set[str]:
    """Names of cards by their number: what a label says, or else the resource that counts them."""
    text = tags.get(profile.count_label)
    try:
        count = (
            next((allocatable[resource] for resource in profile.counts if resource in allocatable), 0)
            if text is None
            else amounts.exact(text)
        )
    except ValueError as error:
        notes.add(f"label {profile.count_label}: {error}")
        return set()
    if count > MOST_CARDS:
        notes.add(f"{count} cards; at most {MOST_CARDS} can be kept, so there are none")
        return set()
    return {f"card{number}" for number in range(count)}


def _annotated(
    text: str, allocatable: Mapping[str, int], profile: Profile, notes: _Notes
) -> dict[str, _Card]:
    """Cards of the annotation, an even share of what is allocatable for those without a capacity of their own."""
    try:
        given = msgspec.json.decode(text)
    except UNREADABLE as error:
        notes.add(f"annotation {CARDS}: {_cut(str(error))}")
        return {}
    if not isinstance(given, list) or len(given) > MOST_CARDS:
        notes.add(f"annotation {CARDS}: {shown(given)}; wanted a list of at most {MOST_CARDS} cards")
        return {}
    share = amounts.divided(allocatable, max(len(given), 1))
    found: dict[str, _Card] = {}
    for one in given:
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(name, str) or not labels.is_name(name) or name in found:
            notes.add(f"annotation {CARDS}: {shown(one)}; wanted a card with a name of its own")
            continue
        found[name] = _entry(one, f"annotation {CARDS}: {name}:", share, profile, notes)
    return found


def _entry(
    one: Mapping[str, Any], where: str, share: Mapping[str, int], profile: Profile, notes: _Notes
) -> _Card:
    model, capacity = one.get("model") or "", one.get("capacity")
    if not isinstance(model, str) or len(model) > LONGEST_NAME:
        notes.add(f"{where} model {shown(model)}; wanted a text of at most {LONGEST_NAME} characters")
        model = ""
    if capacity is None:
        return _Card(share, model)
    if not isinstance(capacity, dict):
        notes.add(f"{where} capacity {shown(capacity)}; wanted amounts by resource")
        return _Card({}, model)
    for resource in sorted(capacity):
        if not profile.has(resource):
            notes.add(
                f"{where} {_cut(resource)} is no resource of these cards; they begin with {profile.prefix}"
            )
    return _Card(_amounts(capacity, profile, where, notes), model)


def _capacity(found: Mapping[str, _Card], profile: Profile, notes: _Notes) -> dict[str, tuple[int, ...]]:
    """Amounts by resource, by card; resources that no card has are left out."""
    resources = sorted({resource for card in found.values() for resource in card.capacity})
    rows = {name: tuple(card.capacity.get(name, 0) for card in found.values()) for name in resources}
    tiles = rows.get(profile.tiles, ())
    if tiles and max(tiles) > MOST_TILES:
        notes.add(f"{max(tiles)} tiles on a card; at most {MOST_TILES} count")
        rows[profile.tiles] = tuple(min(amount, MOST_TILES) for amount in tiles)
    return {resource: row for resource, row in rows.items() if any(row)}


def _buses(tags: Mapping[str, str], profile: Profile, notes: _Notes) -> dict[str, frozenset[str]]:
    try:
        return labels.groups(labels.joined(tags, f"{profile.prefix}pci-groups"))
    except ValueError as error:
        notes.add(str(error))
        return {}


def _numa(
    tags: Mapping[str, str], profile: Profile, tiles: Mapping[str, int], notes: _Notes
) -> tuple[tuple[frozenset[str], ...], str]:
    """The NUMA nodes, or what is wrong with their label."""
    key = f"{profile.prefix}numa-gpu-map"
    try:
        groups = labels.numa(labels.joined(tags, key))
    except ValueError as error:
        notes.add(f"label {key}: {error}")
        return (), str(error)
    if len(groups) > MOST_GROUPS:
        notes.add(f"label {key}: {len(groups)} NUMA nodes; at most {MOST_GROUPS} count")
    return tuple(frozenset(group & tiles.keys()) for group in groups[:MOST_GROUPS]), ""


def _links(
    tags: Mapping[str, str], profile: Profile, tiles: Mapping[str, int], notes: _Notes
) -> tuple[Link, ...]:
    """The links between the node's cards. Where tiles are counted, only between tiles that are there."""
    key = f"{profile.prefix}xe-links"
    try:
        text = labels.joined(tags, key)
        by_index = labels.devices(labels.joined(tags, f"{profile.prefix}gpu-numbers")) if text else ()
    except ValueError as error:
        notes.add(f"label {key}: {error}")
        return ()
    given, stopped = labels.links(text, by_index)
    if stopped:
        notes.add(f"label {key}: {stopped}")
    found = [link for link in given if _ends_exist(link, tiles)]
    if len(found) < len(given):
        notes.add(
            f"label {key}: {len(given) - len(found)} links to cards or tiles that the node does not have"
        )
    if len(found) > MOST_LINKS:
        notes.add(f"label {key}: {len(found)} links; at most {MOST_LINKS} count")
    return tuple(found[:MOST_LINKS])


def _ends_exist(link: Link, tiles: Mapping[str, int]) -> bool:
    left, right = tiles.get(link.left, -1), tiles.get(link.right, -1)
    known = left >= 0 and right >= 0
    return known and link.left_tile < (left or MOST_TILES) and link.right_tile < (right or MOST_TILES)


def _cut(text: str) -> str:
    """A text that others chose, short enough for a problem."""
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"
