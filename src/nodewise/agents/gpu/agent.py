"""Answers requests from the gpu slot: whether a pod's cards fit, and which ones it gets where it is bound.

Filter reserves nothing; a pod holds its cards from the entry on that `bind` plans. Preempt fits the pod to the books
without those of the victims.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import compress
from typing import Final, Literal, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nodewise.agent import (
    FilterPlugin,
    Names,
    Reason,
    ScorePlugin,
    Scores,
    Snapshot,
    StateExporter,
    Verdict,
    Victims,
)
from nodewise.agents.gpu import books as accounts
from nodewise.agents.gpu import demand as demands
from nodewise.agents.gpu import details, fragmentation, reasons, showing, tiles
from nodewise.agents.gpu import layout as layouts
from nodewise.agents.gpu import ledger as ledgers
from nodewise.agents.gpu import score as placements
from nodewise.agents.gpu import typical as typicals
from nodewise.agents.gpu.cards import NodeCards
from nodewise.agents.gpu.demand import Demand
from nodewise.agents.gpu.fit import Fitted, Order, fit
from nodewise.agents.gpu.layout import Layout
from nodewise.agents.gpu.ledger import Cards, Entry
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.pods import BookedPod, GpuPod, cpu_milli
from nodewise.agents.gpu.profile import Profile
from nodewise.agents.gpu.reasons import Kind
from nodewise.agents.gpu.score import Means
from nodewise.agents.gpu.state import LEDGERS, PODS, NodeSlot, Slot
from nodewise.agents.gpu.tiles import Taken
from nodewise.binder import BindPlan, BindPlugin, Refusal

_T = TypeVar("_T")

STAMP: Final = "gas-ts"
"""The annotation by which the older device plugin tells which of several pods was bound first: Unix time in ns."""
TOLD: Final = "cards.nodewise.io/"
"""The annotation `cards.nodewise.io/<container>`: the numbers of its cards, for the downward API."""
_NUMBERED: Final = "card"


class GpuAgent(
    FilterPlugin[GpuPod, Slot],
    ScorePlugin[GpuPod, Slot],
    BindPlugin[GpuPod, Slot],
    StateExporter[GpuPod, Slot],
):
    """The agent `gpu`."""

    name = "gpu"
    reason_marks = reasons.SIGNS
    ledgers = LEDGERS
    pods = PODS

    def __init__(self, options: GpuOptions, profile: Profile) -> None:
        self._options = options
        self._profile = profile
        self._means = _means(options, profile)

    @property
    def bind_errors(self) -> Literal["status", "field"]:
        return self._options.bind_errors

    def equivalence_key(self, pod: GpuPod) -> Demand:
        """What the pod wants; equal for pods that fit the same nodes."""
        return demands.read(pod, self._profile, self._options)

    def filter(self, pod: GpuPod, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        """Where some node fits with a card that a telemetry policy prefers, only such nodes pass."""
        demand = self.equivalence_key(pod)
        if not demand.wants_cards:
            return None
        agent_state = self.state(snapshot)
        if agent_state is None:
            return Verdict(np.ones(len(candidates), np.int16), (reasons.NotReady(),))
        rows = agent_state.layout.rows[candidates.numbers]
        order = placements.fitting(self._going_by(agent_state), demand)
        verdict, fitted = _judged(agent_state.layout, rows, demand, order)
        verdict = _unknown(verdict, candidates)
        if not fitted.preferred.any():
            return verdict
        over = (verdict.codes == 0) & ~fitted.preferred
        codes = np.where(over, np.int16(len(verdict.reasons) + 1), verdict.codes)
        return replace(verdict, codes=codes, reasons=(*verdict.reasons, reasons.PassedOver()))

    def score(self, pod: GpuPod, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """As the placement has it, which may like nodes for pods without cards as well."""
        demand = self.equivalence_key(pod)
        agent_state = self.state(snapshot)
        if agent_state is None or demand.problem is not None:
            return None
        means = self._going_by(agent_state)
        if not means.likes(demand):
            return None
        rows, fitted = agent_state.layout.rows[candidates.numbers], None
        if demand.wants_cards:
            fitted = fit(agent_state.layout, rows, demand, placements.order(means, demand))
        else:
            demand = Demand(cpu_milli=cpu_milli(pod))
        points = placements.points(means, agent_state.layout, rows, demand, fitted)
        if points is None:
            return None
        told = None if fitted is None else details.of(agent_state.layout, rows, demand, fitted)
        return Scores(points, details=told)

    def preempt(self, pod: GpuPod, candidates: Names, snapshot: Snapshot, victims: Victims) -> Verdict | None:
        demand = self.equivalence_key(pod)
        if not demand.wants_cards:
            return None
        agent_state = self.state(snapshot)
        if agent_state is None:
            return Verdict(np.ones(len(candidates), np.int16), (reasons.NotReady(),))
        asked = frozenset(resource for one in demand.containers for resource in one.per_card)
        asked |= {self._profile.tiles, *self._means.balanced_by, *self._means.typical.shared}
        left = [
            _without(agent_state.nodes.get(name), victims.get(name, frozenset()), asked)
            for name in candidates
        ]
        numbers = np.arange(len(left) + 1)
        layout = layouts.build(left, numbers, self._profile.tiles)
        order = placements.fitting(self._means, demand)
        return _unknown(_judged(layout, numbers[:-1], demand, order)[0], candidates)

    def bind(self, pod: BookedPod, node: str, snapshot: Snapshot, now: float) -> BindPlan | Refusal | None:
        """The cards that the pod holds there already, or else those that it gets."""
        demand = self.equivalence_key(pod)
        if not demand.wants_cards:
            return None
        agent_state = self.state(snapshot)
        if agent_state is None:
            return _refusal(reasons.NotReady())
        if node not in snapshot.nodes:
            missing = f'error reading node {node}: node fetch error: node "{node}" not found'
            return Refusal(missing, reasons.UnknownNode())
        there = agent_state.nodes.get(node)
        entry = self._held(pod, there, now) if there is not None else None
        if entry is None:
            rows = agent_state.layout.rows[snapshot.nodes.numbers([node])]
            fitted = fit(
                agent_state.layout, rows, demand, placements.order(self._going_by(agent_state), demand)
            )
            if there is None or fitted.codes[0]:
                return _refusal(fitted.reasons[fitted.codes[0] - 1])
            entry = self._planned(pod, demand, fitted, there)
        seen = ledgers.newer(entry.seen, pod.metadata.resourceVersion)
        entry = msgspec.structs.replace(entry, seen=seen, at=entry.at or now)
        return self._plan(pod, entry, [bool(one.count) for one in demand.containers], there, now)

    def export(self, state: Slot, query: Mapping[str, str]) -> Generator[None, None, bytes]:
        """The books."""
        return showing.state(state, query)

    def _going_by(self, agent_state: Slot) -> Means:
        """What placements go by now; a file of typical pods wins over those that were counted."""
        return self._means._replace(
            typical=self._means.typical or agent_state.typical, cpu_free=agent_state.cpu_free
        )

    def _held(self, pod: BookedPod, there: NodeSlot, now: float) -> Entry | None:
        """The pod's entry that counts, as of the version that it is planned on; None where it has none."""
        held = there.books.held.get(pod.metadata.uid)
        if held is None or held.source != "ledger":
            return None
        entry = ledgers.read_text(there.holdings).entries[pod.metadata.uid]
        is_same = entry.seen == pod.metadata.resourceVersion
        return entry if is_same else msgspec.structs.replace(entry, at=now)

    def _planned(self, pod: BookedPod, demand: Demand, fitted: Fitted, there: NodeSlot) -> Entry:
        """What the pod gets, of the one candidate."""
        names = there.cards.cards
        cards = tuple(tuple(names[at] for at in one) for one in fitted.cards(0))
        taken = self._taken(demand, cards, fitted)
        numbers = tiles.assign(there.cards, there.books, self._profile.tiles, taken)
        tiled = [self._profile.tiles in one.per_card for one in demand.containers]
        with_cards = [bool(one.count) for one in demand.containers]
        named = list(compress(_only(cards, tiled), with_cards))
        return Entry(
            pod=f"{pod.metadata.namespace}/{pod.metadata.name}",
            cards=ledgers.cards_text(list(compress(cards, with_cards))),
            tiles=ledgers.tiles_text(named, list(compress(_only(numbers, tiled), with_cards))),
            charged=tuple(dict(one.per_card) for one in demand.containers if one.count),
        )

    def _taken(self, demand: Demand, cards: Cards, fitted: Fitted) -> list[list[Taken]]:
        """Each container's cards, and how many tiles of them it takes."""
        wanted = [one.per_card.get(self._profile.tiles, 0) for one in demand.containers]
        linked = fitted.tiles(0)
        return [
            [Taken(card, amount, tile) for card, tile in zip(names, ends or (-1,) * len(names), strict=True)]
            for names, amount, ends in zip(cards, wanted, linked, strict=True)
        ]

    def _plan(
        self, pod: BookedPod, written: Entry, with_cards: Sequence[bool], there: NodeSlot | None, now: float
    ) -> BindPlan:
        entry = ledgers.positional(written, with_cards)
        names = [container.name for container in pod.spec.containers or ()]
        cards = dict(zip(names, ledgers.read_cards(entry.cards), strict=False))
        annotations = {STAMP: str(int(now * 1e9)), accounts.CARDS: entry.cards}
        if entry.tiles or accounts.TILES in (pod.metadata.annotations or {}):
            annotations[accounts.TILES] = entry.tiles
        annotations |= {TOLD + name: _numbers(held) for name, held in cards.items() if held}
        stale = there.books.stale if there is not None else frozenset[str]()
        return BindPlan(ledgers.wire(written), annotations, stale, _told(cards, entry))


def _only(parts: Sequence[_T], where: Sequence[bool]) -> list[_T | tuple[()]]:
    """The parts of containers that ask for tiles; nothing for the others."""
    return [part if is_tiled else () for part, is_tiled in zip(parts, where, strict=True)]


def _means(options: GpuOptions, profile: Profile) -> Means:
    """What placements go by: typical pods are those of the file, where there is one."""
    path = options.gpu_typical_pods
    typical = fragmentation.NOBODY
    if path:
        typical = fragmentation.tables(typicals.load(path, profile, options), profile.counts)
    return Means(options.placement, profile.counts, options.balanced_by(profile), typical)


def _judged(layout: Layout, rows: NDArray[np.intp], demand: Demand, order: Order) -> tuple[Verdict, Fitted]:
    fitted = fit(layout, rows, demand, order)
    names_cards = not isinstance(order, placements.AnyCard)
    told = details.of(layout, rows, demand, fitted, names_cards=names_cards)
    return Verdict(fitted.codes, fitted.reasons, details=told), fitted


def _refusal(reason: Reason) -> Refusal:
    """With the older system's words for the reason alone."""
    kind: Kind | None = getattr(reason, "kind", None)
    return Refusal(kind.value if kind is not None else reason.text(), reason)


def _unknown(verdict: Verdict, candidates: Names) -> Verdict:
    """With a reason of their own for nodes that we do not know."""
    strange = candidates.numbers == len(candidates.index)
    if not strange.any():
        return verdict
    codes = np.where(strange, np.int16(len(verdict.reasons) + 1), verdict.codes)
    return replace(verdict, codes=codes, reasons=(*verdict.reasons, reasons.UnknownNode()))


def _without(
    there: NodeSlot | None, uids: frozenset[str], resources: frozenset[str]
) -> tuple[NodeCards, accounts.NodeBooks]:
    """A node less some pods, with as much of it as the question is about."""
    if there is None:
        return NodeCards(), accounts.EMPTY
    capacity = {name: row for name, row in there.cards.capacity.items() if name in resources}
    books = accounts.without(there.books, uids)
    if books is not there.books:
        books = books._replace(ledger_bytes=books.ledger_bytes - ledgers.bytes_of(there.holdings, uids))
    return there.cards._replace(capacity=capacity), books


def _numbers(cards: Sequence[str]) -> str:
    """`0,1` of card0 and card1; the name itself of a card that is called otherwise."""
    return ",".join(_number(card) for card in cards)


def _number(card: str) -> str:
    number = card.removeprefix(_NUMBERED)
    return number if number.isascii() and number.isdecimal() else card


def _told(cards: Mapping[str, Sequence[str]], entry: Entry) -> str:
    """`train: card0, card1; side: card0 gt1`."""
    parts = zip(cards.items(), _segments(entry, len(cards)), strict=True)
    return "; ".join(f"{name}: {', '.join(_with_tiles(held, part))}" for (name, held), part in parts if held)


def _segments(entry: Entry, count: int) -> list[str]:
    found = entry.tiles.split("|")
    return found if len(found) == count else [""] * count


def _with_tiles(cards: Sequence[str], segment: str) -> Iterator[str]:
    """A segment names, beside each card, its tiles: `card0:gt0+gt1,`."""
    tiled = dict(part.partition(":")[::2] for part in segment.split(",") if part)
    for card in cards:
        yield f"{card} {tiled[card]}" if tiled.get(card) else card
