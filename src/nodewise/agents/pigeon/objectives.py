"""What a cluster is to be like: how far it is from that if a pod goes to this node or to that one.

Each objective is laid out once for a state of the cluster, and then asked for many pods.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.pigeon import mean_covariance
from nodewise.agents.pigeon.mean_covariance import Floats, Growth, Moments

Objective = Literal["A_BINPACK", "LOAD_BALANCE", "CONSOLIDATE"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)
A_BINPACK: Final[Objective] = "A_BINPACK"


class Table(NamedTuple):
    """All nodes that count."""

    capacity: Floats
    """(R, n)"""
    used: Floats
    """(R, n), 0 at least."""


class Layout(Protocol):
    """One objective over one table."""

    follows_demand: bool
    """Whether what is measured is to be like the variability of demands; else it is to be small."""

    def measured(self, columns: NDArray[np.intp], demand: Floats) -> Floats:
        """By column, what the cluster is like if that node takes the demand (R), for which it must have the room.

        One column at least.
        """
        ...


class Balance:
    """LOAD_BALANCE: the standard deviation of the prime resource's shares."""

    follows_demand = False

    def __init__(self, table: Table, prime: int) -> None:
        self._prime = prime
        self._per_unit = _per_unit(table.capacity[prime])
        self._moments: Moments = mean_covariance.of(_shares(table, prime)[None])

    def measured(self, columns: NDArray[np.intp], demand: Floats) -> Floats:
        growth = Growth(columns, (demand[self._prime] * self._per_unit[columns])[None])
        deviation: Floats = np.sqrt(
            mean_covariance.grown_variance(self._moments, growth, np.ones_like(growth.by))
        )
        return deviation


class Consolidation:
    """CONSOLIDATE: 1 less the root mean square of how far the prime resource's shares are from their mean.

    The distance counts as a part of the most that there can be on its side of the mean, which is another one for each
    node that the pod may go to. Sums over the shares in their order tell those below and above it.
    """

    follows_demand = False

    def __init__(self, table: Table, prime: int) -> None:
        self._prime = prime
        self._per_unit = _per_unit(table.capacity[prime])
        shares = _shares(table, prime)
        self._mean = float(shares.mean()) if len(shares) else 0.0
        self._offsets = shares - self._mean
        """From the mean before: the sums stay small, and exact."""
        self._ordered = np.sort(self._offsets)
        self._below = _running(self._ordered), _running(self._ordered**2)
        self._above = tuple(
            sums[::-1] for sums in (_running(self._ordered[::-1]), _running(self._ordered[::-1] ** 2))
        )

    def measured(self, columns: NDArray[np.intp], demand: Floats) -> Floats:
        count = len(self._offsets)
        growths = demand[self._prime] * self._per_unit[columns]
        move = growths / count
        mean = self._mean + move
        is_inside = (mean > 0) & (mean < 1)
        low, high = np.where(is_inside, mean, 1.0), np.where(is_inside, 1.0 - mean, 1.0)
        at = np.searchsorted(self._ordered, move)
        below = _squares(at, move, *(sums[at] for sums in self._below)) / low**2
        above = _squares(count - at, move, *(sums[at] for sums in self._above)) / high**2
        before, after = (_part(self._offsets[columns] + more - move, low, high) for more in (0.0, growths))
        mean_square = np.maximum(below + above - before**2 + after**2, 0.0) / count
        return np.where(is_inside, 1.0 - np.sqrt(mean_square), 0.0)


class Fit:
    """A_BINPACK: the variability of shares among nodes, which is to be that of demands among pods."""

    follows_demand = True

    def __init__(self, table: Table, prime: int) -> None:  # noqa: ARG002 - all resources count
        has_none = table.capacity <= 0
        shares = np.where(has_none, table.used > 0, np.clip(table.used * _per_unit(table.capacity), 0.0, 1.0))
        self._per_unit = _per_unit(table.capacity)
        self._moments = mean_covariance.of(shares)

    def measured(self, columns: NDArray[np.intp], demand: Floats) -> Floats:
        growth = Growth(columns, demand[:, None] * self._per_unit[:, columns])
        mean = mean_covariance.grown_mean(self._moments, growth)
        return mean_covariance.variability(mean, mean_covariance.grown_variance(self._moments, growth, mean))


LAYOUTS: Final[Mapping[Objective, Callable[[Table, int], Layout]]] = {
    "A_BINPACK": Fit,
    "LOAD_BALANCE": Balance,
    "CONSOLIDATE": Consolidation,
}


def _per_unit(capacity: Floats) -> Floats:
    """The share that one unit is; 0 of nothing, where only a demand for nothing fits."""
    return np.divide(1.0, capacity, out=np.zeros_like(capacity), where=capacity > 0)


def _shares(table: Table, prime: int) -> Floats:
    """Of the prime resource: more than 1 where more is used than there is, 1 where there is nothing."""
    capacity = table.capacity[prime]
    return np.where(capacity > 0, table.used[prime] * _per_unit(capacity), 1.0)


def _running(values: Floats) -> Floats:
    """Sums of the first none, first one, first two, …"""
    return np.concatenate([[0.0], np.cumsum(values)])


def _squares(count: NDArray[np.intp], at: Floats, sums: Floats, square_sums: Floats) -> Floats:
    """The sum of the squares of (at - x) over so many x, of their sum and the sum of their squares."""
    return count * at**2 - 2 * at * sums + square_sums


def _part(offset: Floats, low: Floats, high: Floats) -> Floats:
    """How far a share is from the mean, as a part of what it can be."""
    return np.where(offset < 0, -offset / low, offset / high)
