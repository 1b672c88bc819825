"""Who holds what of a node's cards: a function of the node's ledger and of the pods, whatever happened before.

Two records say it. An entry in the ledger was written before its pod was bound, by us, and no tenant can write there.
It counts until the pods show that it does not: the pod has ended, is bound to another node, or is gone, that is: we
know of everything until a version at which it still existed, and not of the pod. Where none of that is known it
counts, so that no card is given twice. What does not count will never count again, so whoever writes the ledger leaves
it out.

The annotations `gas-container-cards` and `gas-container-tiles` are the older system's record. They count for bound pods
without an entry. A pod holds its cards until it has ended or is gone; while it terminates it still uses them.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from nodewise.agent import ObjectKey
from nodewise.agents.gpu import amounts as quantities
from nodewise.agents.gpu import demand
from nodewise.agents.gpu import ledger as ledgers
from nodewise.agents.gpu.cards import NodeCards
from nodewise.agents.gpu.ledger import Cards, Entry, Ledger
from nodewise.agents.gpu.pods import BookedPod
from nodewise.agents.gpu.profile import Profile
from nodewise.errors import shown

CARDS: Final = "gas-container-cards"
TILES: Final = "gas-container-tiles"
_MOST_CARDS: Final = 1024
"""That one pod's annotation names; tenants write it, and no pod that asks for more than some hundred is placed."""
_MOST_CONFLICTS: Final = 16
_ENDED: Final = frozenset({"Succeeded", "Failed"})

Amounts = Mapping[str, Mapping[str, int]]
"""By card and full resource name."""


class Held(msgspec.Struct, frozen=True, gc=False):
    """What one pod holds."""

    uid: str
    pod: str
    """`namespace/name`."""
    cards: Cards
    amounts: Amounts
    tiles: Mapping[str, frozenset[int]]
    """Those that have numbers."""
    source: Literal["ledger", "annotations"]


class NodeBooks(NamedTuple):
    """What all pods hold on one node."""

    amounts: Amounts
    tiles: Mapping[str, frozenset[int]]
    held: Mapping[str, Held]
    """By pod uid."""
    stale: frozenset[str]
    """Pod uids whose entries in the ledger do not count any more, and never will."""
    undecided: bool
    """Whether a newer version of the pods alone may end an entry."""
    problems: tuple[str, ...]
    ledger_bytes: int = 0
    """Size of the node's ledger."""


class Pods(NamedTuple):
    """What is known of all pods."""

    by_key: Mapping[ObjectKey, BookedPod]
    version: str
    """All that happened until then is known; empty if nobody says."""


EMPTY: Final = NodeBooks({}, {}, {}, frozenset(), undecided=False, problems=())

Fate = Literal["counts", "undecided", "stale"]
"""Of an entry; `undecided` counts as well."""


def may_hold_cards(pod: BookedPod) -> bool:
    """Whether a pod asks for any device, or says that it has cards.

    Whose devices are cards is a setting, and this is asked before settings.
    """
    if CARDS in (pod.metadata.annotations or ()):
        return True
    containers = (*(pod.spec.containers or ()), *(pod.spec.initContainers or ()))
    asked = (one.resources for one in containers if one.resources is not None)
    return any(
        "/" in resource and not resource.partition("/")[0].endswith("kubernetes.io")
        for one in asked
        for resource in (*(one.requests or ()), *(one.limits or ()))
    )


def fate(uid: str, entry: Entry, node: str, pods: Pods) -> Fate:
    """Whether an entry counts."""
    pod = pods.by_key.get(entry.key)
    if pod is None or pod.metadata.uid != uid:
        known, seen = ledgers.number(pods.version), ledgers.number(entry.seen)
        return "stale" if known is not None and seen is not None and known >= seen else "undecided"
    if has_ended(pod) or pod.spec.nodeName not in {"", node}:
        return "stale"
    return "counts"


def has_ended(pod: BookedPod) -> bool:
    """Whether none of its containers runs or will ever run."""
    return pod.status.phase in _ENDED


def of_node(node: str, ledger: Ledger, bound: Iterable[BookedPod], pods: Pods, profile: Profile) -> NodeBooks:
    """The books of a node; `bound` are the pods that `spec.nodeName` says are there, in any order. The size of the
    ledger is the caller's to add.
    """
    problems: list[str] = _unreadable(ledger)
    fates = {uid: fate(uid, entry, node, pods) for uid, entry in ledger.entries.items()}
    stale = frozenset(uid for uid, pod_fate in fates.items() if pod_fate == "stale")
    held = {
        uid: _by_entry(uid, entry, pods, profile, problems)
        for uid, entry in ledger.entries.items()
        if uid not in stale
    }
    held |= _held_without_entry((pod for pod in bound if pod.metadata.uid not in held), profile, problems)
    ordered = {uid: held[uid] for uid in sorted(held)}
    return NodeBooks(
        _sum(one.amounts for one in ordered.values()),
        _union(one.tiles for one in ordered.values()),
        ordered,
        stale,
        undecided="undecided" in fates.values(),
        problems=tuple(sorted(problems)),
    )


def _held_without_entry(pods: Iterable[BookedPod], profile: Profile, problems: list[str]) -> dict[str, Held]:
    """By uid, what bound pods hold by their annotations."""
    by_annotations = (_by_annotations(pod, profile, problems) for pod in pods if not has_ended(pod))
    return {held.uid: held for held in by_annotations if held is not None}


def without(books: NodeBooks, uids: Collection[str]) -> NodeBooks:
    """The books as if these pods were gone."""
    held = {uid: one for uid, one in books.held.items() if uid not in uids}
    if len(held) == len(books.held):
        return books
    return books._replace(
        amounts=_sum(one.amounts for one in held.values()),
        tiles=_union(one.tiles for one in held.values()),
        held=held,
    )


def _unreadable(ledger: Ledger) -> list[str]:
    found = [f"the ledger's entry for pod uid {uid}: {why}" for uid, why in ledger.unreadable.items()]
    return [*found, f"the ledger: {ledger.problem}"] if ledger.problem else found


def _by_entry(uid: str, entry: Entry, pods: Pods, profile: Profile, problems: list[str]) -> Held:
    """Its pod's own requests are what is charged; where the pod is not known, what the entry says."""
    cards = ledgers.read_cards(entry.cards)
    pod = pods.by_key.get(entry.key)
    known = pod is not None and pod.metadata.uid == uid
    requests = demand.whole(pod, profile) if pod is not None and known else ()
    if len(requests) != len(cards):  # an entry lists containers with cards only; older ones list all
        requests = tuple(asked for asked in requests if any(asked.get(one, 0) > 0 for one in profile.counts))
    charged = _shares(requests, cards) if len(requests) == len(cards) else entry.charged
    if len(charged) != len(cards):
        problems.append(
            f"pod {entry.pod}: its entry has {len(cards)} containers, and amounts of {len(charged)}"
        )
    amounts = _charge(charged, cards)
    return Held(uid, entry.pod, cards, amounts, ledgers.read_tiles(entry.tiles), "ledger")


def _by_annotations(pod: BookedPod, profile: Profile, problems: list[str]) -> Held | None:
    """What the older system wrote; None for a pod that asks for no card, or of which nobody knows what it holds."""
    requests = demand.whole(pod, profile)
    if not any(amount for asked in requests for amount in asked.values()):
        return None
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    annotations = pod.metadata.annotations or {}
    if CARDS not in annotations:
        problems.append(f"pod {name} asks for cards, and nothing says which it has")
        return None
    cards = ledgers.read_cards(annotations[CARDS])
    if sum(map(len, cards)) > _MOST_CARDS:
        problems.append(f"pod {name}: {CARDS} names more than {_MOST_CARDS} cards; they do not count")
        return None
    if len(cards) != len(requests):
        seen = f"{shown(annotations[CARDS])}, of {len(cards)} containers"
        problems.append(f"pod {name}: {CARDS} is {seen}; it has {len(requests)}")
        return None
    tiles = ledgers.read_tiles(annotations.get(TILES, ""))
    return Held(pod.metadata.uid, name, cards, _charge(_shares(requests, cards), cards), tiles, "annotations")


def _shares(requests: Iterable[Mapping[str, int]], cards: Cards) -> tuple[Mapping[str, int], ...]:
    """By container: what each of its cards is charged. What is left over is charged to none, as it always was."""
    return tuple(
        quantities.divided(asked, len(names)) if names else {}
        for asked, names in zip(requests, cards, strict=True)
    )


def _charge(charged: Iterable[Mapping[str, int]], cards: Cards) -> Amounts:
    """By card; one that stands there twice is charged twice."""
    return _sum({name: share} for share, names in zip(charged, cards, strict=False) for name in names)


def _sum(parts: Iterable[Amounts]) -> Amounts:
    """No more than the largest amount, whatever somebody wrote; nothing below 0."""
    sums: dict[str, dict[str, int]] = {}
    for part in parts:
        for card, amounts in part.items():
            book = sums.setdefault(card, {})
            for resource, amount in amounts.items():
                if amount > 0:
                    book[resource] = min(book.get(resource, 0) + amount, quantities.LARGEST)
    return {card: book for card, book in sums.items() if book}


def _union(parts: Iterable[Mapping[str, frozenset[int]]]) -> Mapping[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for part in parts:
        for card, tiles in part.items():
            found[card] = found.get(card, frozenset()) | tiles
    return found


def conflicts(books: NodeBooks, cards: NodeCards) -> Iterator[str]:
    """Where the books and the node do not agree: cards that it does not have, more held than there is.

    Of very many only the first.
    """
    found = _conflicts(books, cards)
    yield from itertools.islice(found, _MOST_CONFLICTS)
    if next(found, None) is not None:
        yield "pods hold more than there is of further cards or resources as well"


def _conflicts(books: NodeBooks, cards: NodeCards) -> Iterator[str]:
    for card, amounts in books.amounts.items():
        if card not in cards.cards:
            yield f"{_holders(books, card)} hold {shown(card)}, which the node does not have"
            continue
        place = cards.cards.index(card)
        for resource, amount in amounts.items():
            there = cards.capacity[resource][place] if resource in cards.capacity else 0
            if amount > there:
                yield f"{_holders(books, card)} hold {amount} {resource} of {card}, which has {there}"


_NAMED: Final = 5


def _holders(books: NodeBooks, card: str) -> str:
    names = [one.pod for one in books.held.values() if card in one.amounts]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
