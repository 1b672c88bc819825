"""The objectives for a cluster, evaluated for each node that a pod may be placed on.

Each objective is prepared once for a state of the cluster, and then evaluated for many pods.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from nodewise_scorers.pigeon import mean_covariance
from nodewise_scorers.pigeon.mean_covariance import ColumnGrowth, Floats, TableMoments

Objective = Literal["A_BINPACK", "LOAD_BALANCE", "CONSOLIDATE"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)
A_BINPACK: Final[Objective] = "A_BINPACK"


ROUNDING: Final = 1e-9
"""A mean share that differs less from 0 or 1 is 0 or 1: CONSOLIDATE is not continuous there, and sums are rounded."""


class NodeTable(NamedTuple):
    """Capacity and requested amounts of all nodes."""

    capacity: Floats
    """(R, n)"""
    used: Floats
    """(R, n), not negative."""


class ObjectiveLayout(Protocol):
    """An objective, prepared for a table of nodes."""

    follows_demand: bool
    """Whether values should equal the variability of pod requests; otherwise they should be small."""

    def evaluate(self, columns: NDArray[np.intp], demand: Floats) -> Floats:
        """The value for the cluster by column, with the demand (R) added to that node.

        The demand must fit each of the nodes, of which there must be at least one.
        """
        ...


class LoadBalanceObjective:
    """LOAD_BALANCE: the standard deviation of the prime resource's shares."""

    follows_demand = False

    def __init__(self, table: NodeTable, prime: int) -> None:
        self._prime = prime
        self._per_unit = _per_unit(table.capacity[prime])
        self._moments: TableMoments = mean_covariance.mean_and_covariance(
            _prime_resource_shares(table, prime)[None]
        )

    def evaluate(self, columns: NDArray[np.intp], demand: Floats) -> Floats:
        growth = ColumnGrowth(columns, (demand[self._prime] * self._per_unit[columns])[None])
        deviation: Floats = np.sqrt(
            mean_covariance.variance_after_growth(self._moments, growth, np.ones_like(growth.by))
        )
        return deviation


class ConsolidateObjective:
    """CONSOLIDATE: 1 minus the root mean square of the prime resource's relative distances from the mean share.

    A distance is relative to the largest possible one on its side of the mean. The mean differs for each node that the
    pod may be placed on, so running sums over the sorted shares yield the sums below and above it.
    """

    follows_demand = False

    def __init__(self, table: NodeTable, prime: int) -> None:
        self._prime = prime
        self._per_unit = _per_unit(table.capacity[prime])
        shares = _prime_resource_shares(table, prime)
        self._mean = float(shares.mean()) if len(shares) else 0.0
        self._offsets = shares - self._mean
        """Relative to the mean without the pod, so that the sums stay small and exact."""
        self._ordered = np.sort(self._offsets)
        self._below = _cumulative_sums(self._ordered), _cumulative_sums(self._ordered**2)
        self._above = tuple(
            sums[::-1]
            for sums in (_cumulative_sums(self._ordered[::-1]), _cumulative_sums(self._ordered[::-1] ** 2))
        )

    def evaluate(self, columns: NDArray[np.intp], demand: Floats) -> Floats:
        count = len(self._offsets)
        growths = demand[self._prime] * self._per_unit[columns]
        move = growths / count
        mean = self._mean + move
        is_inside = (mean > ROUNDING) & (mean < 1 - ROUNDING)
        low, high = np.where(is_inside, mean, 1.0), np.where(is_inside, 1.0 - mean, 1.0)
        at = np.searchsorted(self._ordered, move)
        below = _sum_of_squared_deviations(at, move, *(sums[at] for sums in self._below)) / low**2
        above = _sum_of_squared_deviations(count - at, move, *(sums[at] for sums in self._above)) / high**2
        before, after = (
            _share_of_largest_distance(self._offsets[columns] + more - move, low, high)
            for more in (0.0, growths)
        )
        mean_square = np.maximum(below + above - before**2 + after**2, 0.0) / count
        return np.where(is_inside, 1.0 - np.sqrt(mean_square), 0.0)


class BinpackObjective:
    """A_BINPACK: the variability of shares among nodes, which should equal that of requests among pods."""

    follows_demand = True

    def __init__(self, table: NodeTable, prime: int) -> None:  # noqa: ARG002 - all resources count
        has_no_capacity = table.capacity <= 0
        shares = np.where(
            has_no_capacity, table.used > 0, np.clip(table.used * _per_unit(table.capacity), 0.0, 1.0)
        )
        self._per_unit = _per_unit(table.capacity)
        self._moments = mean_covariance.mean_and_covariance(shares)

    def evaluate(self, columns: NDArray[np.intp], demand: Floats) -> Floats:
        growth = ColumnGrowth(columns, demand[:, None] * self._per_unit[:, columns])
        mean = mean_covariance.mean_after_growth(self._moments, growth)
        return mean_covariance.variability(
            mean, mean_covariance.variance_after_growth(self._moments, growth, mean)
        )


LAYOUTS: Final[Mapping[Objective, Callable[[NodeTable, int], ObjectiveLayout]]] = {
    "A_BINPACK": BinpackObjective,
    "LOAD_BALANCE": LoadBalanceObjective,
    "CONSOLIDATE": ConsolidateObjective,
}


def _per_unit(capacity: Floats) -> Floats:
    """The share of one unit; 0 for a capacity of 0, which only a demand of 0 fits."""
    return np.divide(1.0, capacity, out=np.zeros_like(capacity), where=capacity > 0)


def _prime_resource_shares(table: NodeTable, prime: int) -> Floats:
    """Shares of the prime resource: above 1 if overcommitted, 1 for a capacity of 0."""
    capacity = table.capacity[prime]
    return np.where(capacity > 0, table.used[prime] * _per_unit(capacity), 1.0)


def _cumulative_sums(values: Floats) -> Floats:
    """The sums of the first 0, 1, 2, … values."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _sum_of_squared_deviations(
    count: NDArray[np.intp], at: Floats, sums: Floats, square_sums: Floats
) -> Floats:
    """The sum of (at - x)² over `count` values x, from their sum and the sum of their squares."""
    return count * at**2 - 2 * at * sums + square_sums


def _share_of_largest_distance(offset: Floats, low: Floats, high: Floats) -> Floats:
    """The distance of a share from the mean, relative to the largest possible one."""
    return np.where(offset < 0, -offset / low, offset / high)
