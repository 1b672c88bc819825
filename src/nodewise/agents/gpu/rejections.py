"""Who is rejected why, while a pod is fitted: one reason each, the first that is found, and what is lacking."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Reason
from nodewise.agents.gpu import reasons
from nodewise.agents.gpu.demand import ContainerDemand
from nodewise.agents.gpu.layout import Mask
from nodewise.agents.gpu.reasons import Shortfall
from nodewise.agents.gpu.working import Working

_NEVER: Final = np.iinfo(np.int16).max
"""More than a container can lack."""


class Lacks(NamedTuple):
    """Which amount the rejected candidates lack, by candidate; values that hold no layout."""

    names: tuple[str, ...]
    """Card names by code."""
    resources: tuple[str, ...]
    cards: NDArray[np.int32]
    """Index into `names`: the card that comes closest; -1 where no amount is lacking."""
    lacking: NDArray[np.int16]
    """Index into `resources`."""
    free: NDArray[np.int64]
    wanted: NDArray[np.int64]

    def at(self, candidate: int) -> Shortfall | None:
        """What one candidate lacks; None where it fits, or where it is not for an amount that it does not."""
        card = int(self.cards[candidate])
        if card < 0:
            return None
        resource = self.resources[int(self.lacking[candidate])]
        return Shortfall(self.names[card], resource, int(self.free[candidate]), int(self.wanted[candidate]))

    def some(self, candidates: NDArray[np.intp]) -> "Lacks":
        """Those of some candidates."""
        cards, lacking = self.cards[candidates], self.lacking[candidates]
        return Lacks(
            self.names, self.resources, cards, lacking, self.free[candidates], self.wanted[candidates]
        )


class Rejections:
    """Collects codes and what is lacking."""

    def __init__(self, working: Working) -> None:
        candidates = len(working)
        self.codes = np.zeros(candidates, np.int16)
        self.reasons: list[Reason] = []
        self._names = working.layout.names
        self._resources: list[str] = []
        self._cards = np.full(candidates, -1, np.int32)
        self._lacking = np.full(candidates, -1, np.int16)
        self._free = np.zeros(candidates, np.int64)
        self._wanted = np.zeros(candidates, np.int64)

    def reject(self, where: Mask, reason: Reason) -> NDArray[np.intp]:
        """Reject those that are not yet; gives back which ones."""
        at = np.flatnonzero(where & (self.codes == 0))
        if len(at):
            self.reasons.append(reason)
            self.codes[at] = len(self.reasons)
        return at

    def lack(
        self,
        at: NDArray[np.intp],
        cards: NDArray[np.int32],
        free: NDArray[np.int64],
        resource: str,
        wanted: int,
    ) -> None:
        """Some candidates lack an amount of one resource, on these cards."""
        if resource not in self._resources:
            self._resources.append(resource)
        self._cards[at] = cards
        self._lacking[at] = self._resources.index(resource)
        self._free[at] = free
        self._wanted[at] = wanted

    @property
    def lacks(self) -> Lacks:
        return Lacks(
            self._names, tuple(self._resources), self._cards, self._lacking, self._free, self._wanted
        )


def blame(
    found: Rejections,
    working: Working,
    container: ContainerDemand,
    allowed: Mask,
    enough: Mapping[str, Mask],
    failed: Mask,
) -> None:
    """Say why a container does not fit the failed candidates (M), as far as cards and their amounts are the reason.

    `allowed` (C, M) are the cards that the pod may use, `enough` those that have as much of one resource left.
    """
    count = container.count
    found.reject(failed & (_count(allowed) < count), reasons.NoneUsable(container.name, count))
    together = allowed
    for resource, mask in enough.items():
        amount = container.per_card[resource]
        few = failed & (_count(allowed & mask) < count)
        at = found.reject(few, reasons.TooLittle(container.name, count, resource, amount))
        _say_lack(found, working, allowed & ~mask, resource, amount, at)
        together = together & mask
    at = found.reject(failed & (_count(together) < count), reasons.NotTogether(container.name, count))
    closest = _fewest(allowed[:, at] & ~together[:, at], [mask[:, at] for mask in enough.values()])
    for resource, mask in reversed([*enough.items()]):
        short = ~mask[closest, at]
        _record(found, working, resource, container.per_card[resource], at[short], closest[short])


def _fewest(among: Mask, enough: Sequence[Mask]) -> NDArray[np.intp]:
    """(m): the card that lacks the fewest resources."""
    lacking = np.full(among.shape, _NEVER, np.int16)
    lacking[among] = sum((~mask[among]).astype(np.int16) for mask in enough)
    fewest: NDArray[np.intp] = lacking.argmin(axis=0)
    return fewest


def _say_lack(
    found: Rejections, working: Working, lacking: Mask, resource: str, amount: int, at: NDArray[np.intp]
) -> None:
    """Name the card that has most of the resource among those that have too little."""
    if len(at):
        free = np.where(lacking[:, at], working.free(resource)[:, at], np.iinfo(np.int64).min)
        _record(found, working, resource, amount, at, free.argmax(axis=0))


def _record(
    found: Rejections,
    working: Working,
    resource: str,
    amount: int,
    at: NDArray[np.intp],
    cards: NDArray[np.intp],
) -> None:
    names = working.layout.name_codes[cards, working.rows[at]]
    found.lack(at, names, working.free(resource)[cards, at], resource, amount)


def _count(cards: Mask) -> NDArray[np.int8]:
    counted: NDArray[np.int8] = np.add.reduce(cards.view(np.int8), axis=0, dtype=np.int8)
    return counted
