"""Whether a pod fits a node's cards and which ones it gets, for all candidates at once.

Source of the order of checks: GPU Aware Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go`. Containers take cards one
after another, those that share a card first; a pod fits where each of its containers does. Nothing is reserved.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Reason
from nodewise.agents.gpu import choosing, limits, links, reasons
from nodewise.agents.gpu.choosing import Balanced, Choice, FirstFit, Group, Order
from nodewise.agents.gpu.demand import ContainerDemand, Demand
from nodewise.agents.gpu.layout import BROKEN, GROUPED, MAX_AMOUNT, Layout, Mask
from nodewise.agents.gpu.reasons import Kind, Unusable
from nodewise.agents.gpu.rejections import Lacks, Rejections, blame
from nodewise.agents.gpu.working import Working

__all__ = ["Balanced", "Choice", "FirstFit", "Fitted", "Lacks", "Order", "fit"]


class Fitted(NamedTuple):
    """The answer, by candidate (M of them)."""

    codes: NDArray[np.int16]
    """0 fits, k does not for `reasons[k - 1]`."""
    reasons: tuple[Reason, ...]
    containers: tuple[Choice, ...]
    """By container of the demand; -1 where the pod does not fit."""
    preferred: Mask
    """Fits, and takes the card that a telemetry policy prefers."""
    lacks: Lacks
    """What the rejected ones lack."""

    def some(self, candidates: NDArray[np.intp]) -> "Fitted":
        """Those of some candidates, in any order."""
        containers = tuple(choice.some(candidates) for choice in self.containers)
        preferred, lacks = self.preferred[candidates], self.lacks.some(candidates)
        return Fitted(self.codes[candidates], self.reasons, containers, preferred, lacks)

    def cards(self, candidate: int) -> tuple[tuple[int, ...], ...]:
        """The positions of the cards that a candidate gives each container; empty tuples where it does not fit."""
        return tuple(_column(choice.cards, candidate) for choice in self.containers)

    def tiles(self, candidate: int) -> tuple[tuple[int, ...], ...]:
        """The linked tile of each card, likewise; empty tuples without links."""
        return tuple(
            () if choice.tiles is None else _column(choice.tiles, candidate) for choice in self.containers
        )


def fit(layout: Layout, rows: NDArray[np.intp], demand: Demand, order: Order) -> Fitted:
    """Fit a demand to candidates: columns of the layout, in any order, as often as one likes."""
    if len(rows) <= layout.size // 2:
        return _fit(Working(layout, rows), demand, order)
    # What is said of a node does not depend on the others: for most of them all is faster, as nothing is gathered.
    return _fit(Working(layout), demand, order).some(rows)


def merged(demand: Demand) -> ContainerDemand:
    """The containers that share a card, as one that wants all that they want."""
    among = [demand.containers[at] for at in demand.same_card]
    wanted = Counter[str]()
    for container in among:
        wanted.update(container.per_card)
    return ContainerDemand(", ".join(container.name for container in among), 1, wanted)


def _steps(demand: Demand) -> list[tuple[tuple[int, ...], ContainerDemand]]:
    """Who takes cards after whom, by number of the container: those that share a card first."""
    shared = [(demand.same_card, merged(demand))] if demand.same_card else []
    alone = enumerate(demand.containers)
    return shared + [((at,), one) for at, one in alone if one.count and at not in demand.same_card]


def _problem(demand: Demand) -> Unusable | None:
    """Why the demand can be answered nowhere."""
    if demand.problem is not None:
        return demand.problem
    for _, container in _steps(demand):
        for resource, amount in container.per_card.items():
            if not 0 <= amount <= MAX_AMOUNT:
                words = f"container {container.name}: {resource} on one card is more than 64 bits hold"
                return Unusable(Kind.OVERFLOW, words, "ask for less", at_once=False)
    return None


def _answer(found: Rejections, choices: Sequence[Choice], preferred: Mask | None = None) -> Fitted:
    fits = found.codes == 0
    if not fits.all():
        choices = [choice.only(fits) for choice in choices]
    preferred = fits & preferred if preferred is not None else np.zeros(len(fits), bool)
    return Fitted(found.codes, tuple(found.reasons), tuple(choices), preferred, found.lacks)


def _fit(working: Working, demand: Demand, order: Order) -> Fitted:
    found = Rejections(working)
    problem = _problem(demand)
    everywhere = np.ones(len(working), bool)
    if problem is not None and problem.at_once:
        found.reject(everywhere, problem)
    found.reject(working.layout.name_codes[0, working.columns] < 0, reasons.NoCards())
    if problem is not None:
        found.reject(everywhere, problem)
        return _answer(found, [choosing.nothing(0, len(working))] * len(demand.containers))
    room = limits.room_for(demand.containers, working.layout.tiles)
    found.reject(working.layout.ledger_bytes[0, working.columns] > room, reasons.LedgerFull())
    if demand.single_numa:
        found.reject(working.group_states() == BROKEN, reasons.BrokenMap())
    search = _Search(working, demand, order, found)
    choices = [choosing.nothing(0, len(working))] * len(demand.containers)
    preferred = np.zeros(len(working), bool)
    for number, (containers, wanted) in enumerate(search.steps):
        if found.codes.all():
            break
        choice = search.step(wanted, last=number == len(search.steps) - 1)
        choices = [choice if at in containers else one for at, one in enumerate(choices)]
        preferred |= search.takes_preferred(choice)
    return _answer(found, choices, preferred)


class _Search:
    """A pod's containers take cards, one after another."""

    def __init__(self, working: Working, demand: Demand, order: Order, found: Rejections) -> None:
        self.steps = _steps(demand)
        self._working = working
        self._order = order
        self._found = found
        self._allowed = _allowed(working, demand)
        self._groups = list(_groups(working)) if demand.single_numa else None
        self._links = links.Linking(working) if demand.linked else None

    def step(self, wanted: ContainerDemand, *, last: bool) -> Choice:
        """What one container takes; it is gone for the next one."""
        working = self._working
        enough = {name: working.free(name) >= amount for name, amount in wanted.per_card.items()}
        able = self._allowed.copy()
        for mask in enough.values():
            able &= mask
        choice = self._choose(wanted, able)
        failed = ~choice.found & (self._found.codes == 0)
        if failed.any():
            blame(self._found, working, wanted, self._allowed, enough, failed)
            self._found.reject(failed, self._other_reason(wanted))
        if not last:
            working.take(choice.mask(len(able)), wanted.per_card)
            if self._links is not None:
                self._links.reserve(choice)
        return choice

    def takes_preferred(self, choice: Choice) -> Mask:
        """(M): whether the preferred card is among them; of linked cards it has to be the first one."""
        if not self._order.prefers:
            return np.zeros(len(self._working), bool)
        preferred = self._working.preferred()
        cards = choice.cards if self._links is None else choice.cards[:1]
        taken: Mask = (cards == preferred).any(axis=0) & (preferred >= 0)
        return taken

    def _choose(self, wanted: ContainerDemand, able: Mask) -> Choice:
        if wanted.count > len(able):
            return choosing.nothing(1, len(self._working))
        if self._groups is None:
            return self._among(wanted, able)
        return choosing.within_one(self._groups, able, wanted.count, lambda cards: self._among(wanted, cards))

    def _among(self, wanted: ContainerDemand, able: Mask) -> Choice:
        if self._links is None:
            return choosing.by_order(self._working, able, wanted, self._order)
        return self._links.pairs(self._working, able, wanted, self._order)

    def _other_reason(self, wanted: ContainerDemand) -> Reason:
        """Why cards that would do do not, together."""
        if self._links is not None:
            return reasons.NotLinked(wanted.name, wanted.count // 2)
        return reasons.NotInOneGroup(wanted.name, wanted.count)


def _allowed(working: Working, demand: Demand) -> Mask:
    """(C, M): the cards that the pod may use, if they are free."""
    usable = working.usable()
    layout = working.layout
    if demand.allow is not None or demand.deny:
        listed = [
            name not in demand.deny and (demand.allow is None or name in demand.allow)
            for name in layout.names
        ]
        usable = usable & np.array([*listed, False])[working.name_codes()]
    if demand.models is not None:
        wanted = np.array([model in demand.models for model in layout.models])
        usable = usable & wanted[working.model_codes()]
    return usable


def _groups(working: Working) -> Iterator[Group]:
    """The first NUMA node of each candidate, the second one, …; the first one is all cards where there is no map."""
    ungrouped = working.group_states() != GROUPED
    bits = working.groups()
    first = bits[0] if len(bits) else np.zeros(len(working), np.uint64)
    for one in (np.where(ungrouped, ~np.uint64(0), first), *bits[1:]):
        yield Group(one, np.flatnonzero(one))


def _column(values: NDArray[np.int8], candidate: int) -> tuple[int, ...]:
    return tuple(at for at in values[:, candidate].tolist() if at >= 0)
