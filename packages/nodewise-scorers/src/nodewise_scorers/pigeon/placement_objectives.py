"""The objectives for a cluster, evaluated for each node that a pod may be placed on, and their values as scores.

Each objective is prepared once for a state of the cluster, and then evaluated for many pods. Its table has a row for
each resource and a column for each node: the requested share of the node's capacity. The sums are not repeated for a
pod: with the deviation x of a column from the mean, a growth d of the column changes the mean to m + d/n, and the
covariance to C + (d xᵀ + x dᵀ)/n + d dᵀ(n - 1)/n². All nodes together take O(nodes · resources²).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise_scorers.pigeon.options import NAMES, Objective, Scaling

Floats = NDArray[np.float64]
Points = NDArray[np.int64]
Bits = NDArray[np.uint8]
"""By candidate or node: bit r for resource r."""

ROUNDING: Final = 1e-9
"""A mean share that differs less from 0 or 1 is 0 or 1: CONSOLIDATE is not continuous there, and sums are rounded."""
_MIN_SCORE: Final = 1  # the score of the worst node that the pod fits
_NOISE: Final = 1e-10
"""Values that differ by less, relative to the largest, count as equal: rounding errors must not be stretched."""


class TableMoments(NamedTuple):
    """Mean and covariance of a table with n columns."""

    mean: Floats
    """(R)"""
    covariance: Floats
    """(R, R): the population covariance."""
    deviations: Floats
    """(R, n): each column minus the mean."""


def mean_and_covariance(table: Floats) -> TableMoments:
    """The moments of a table; zeros for a table without columns."""
    resources, count = table.shape
    if not count:
        return TableMoments(np.zeros(resources), np.zeros((resources, resources)), table)
    mean = table.mean(axis=1)
    deviations = table - mean[:, None]
    return TableMoments(mean, deviations @ deviations.T / count, deviations)


def variance_after_growth(
    before: TableMoments, columns: NDArray[np.intp], growth: Floats, along: Floats
) -> Floats:
    """The variance aᵀΣa (k) along directions a (R, k), with the covariance Σ after one column has grown.

    There are k alternative cases: which of the `columns` (k) grows, and its `growth` (R, k).
    """
    count = before.deviations.shape[1]
    steps = (along * growth).sum(axis=0)
    crossed = (along * before.deviations[:, columns]).sum(axis=0)
    grown = 2 * steps * crossed / count + steps**2 * ((count - 1) / count**2)
    variance: Floats = np.maximum((along * (before.covariance @ along)).sum(axis=0) + grown, 0.0)
    return variance


def variability(mean: Floats, variance: Floats) -> Floats:
    """The multivariate coefficient of variation: √(µᵀΣµ) / µᵀµ, and 0 where either is 0.

    The arguments are µ (R, k) and µᵀΣµ (k), which is not negative. Albert and Zhang, Biometrical Journal 52(5), 2010.
    """
    length = (mean * mean).sum(axis=0)
    coefficients: Floats = np.divide(np.sqrt(variance), length, out=np.zeros_like(variance), where=length > 0)
    return coefficients


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
        self._moments: TableMoments = mean_and_covariance(_prime_resource_shares(table, prime)[None])

    def evaluate(self, columns: NDArray[np.intp], demand: Floats) -> Floats:
        growth = (demand[self._prime] * self._per_unit[columns])[None]
        variance = variance_after_growth(self._moments, columns, growth, np.ones_like(growth))
        deviation: Floats = np.sqrt(variance)
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
        downwards = self._ordered[::-1]
        self._above = _cumulative_sums(downwards)[::-1], _cumulative_sums(downwards**2)[::-1]

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
        # the distances of the node's share from the mean, relative to the largest possible ones
        before, after = (
            np.where(offset < 0, -offset / low, offset / high)
            for offset in (self._offsets[columns] - move, self._offsets[columns] + growths - move)
        )
        mean_square = np.maximum(below + above - before**2 + after**2, 0.0) / count
        return np.where(is_inside, 1.0 - np.sqrt(mean_square), 0.0)


class BinpackObjective:
    """A_BINPACK: the variability of shares among nodes, which should equal that of requests among pods."""

    follows_demand = True

    def __init__(self, table: NodeTable, prime: int) -> None:  # noqa: ARG002 - all resources count
        self._per_unit = _per_unit(table.capacity)
        shares = np.clip(table.used * self._per_unit, 0.0, 1.0)
        shares = np.where(table.capacity <= 0, table.used > 0, shares)
        self._moments = mean_and_covariance(shares)

    def evaluate(self, columns: NDArray[np.intp], demand: Floats) -> Floats:
        growth = demand[:, None] * self._per_unit[:, columns]
        mean = self._moments.mean[:, None] + growth / self._moments.deviations.shape[1]
        return variability(mean, variance_after_growth(self._moments, columns, growth, mean))


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


class PigeonDetails(NamedTuple):
    """Details of one response (`agent.Details`)."""

    objective: Objective
    cluster_values: Floats
    """By candidate: the cluster's value with the pod on it; NaN where the pod does not fit."""
    variability: float | None
    """The variability of pod requests; None where the objective does not use it."""
    lacking: Bits
    """By candidate: the resources of which too little is left."""
    missing: Bits | None
    """By candidate: the resources whose requested amount is unknown; None if all are known."""

    @property
    def nbytes(self) -> int:
        return sum(
            array.nbytes for array in (self.cluster_values, self.lacking, self.missing) if array is not None
        )

    def text(self, candidate: int) -> str:
        """`A_BINPACK 0.287820; memory: no statistics`, or `does not fit: cpu`."""
        value = self._value(candidate)
        lacking = ", ".join(_unpack_resource_names(self.lacking, candidate))
        text = f"does not fit: {lacking}" if np.isnan(value) else f"{self.objective} {value:.6f}"
        missing = ", ".join(_unpack_resource_names(self.missing, candidate))
        return f"{text}; {missing}: no statistics" if missing else text

    def distances(self) -> Floats:
        """1: no candidate is rejected by these values."""
        return np.ones(len(self.cluster_values))

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """`objective`, null if the pod does not fit, and for A_BINPACK the variabilities that it is computed from.

        `missing` lists the resources whose requested amount is unknown, if there are any.
        """
        numbers: dict[str, Any] = {"objective": self._value(candidate)}
        if missing := _unpack_resource_names(self.missing, candidate):
            numbers["missing"] = missing
        if self.variability is not None:
            numbers["demand_variability"] = self.variability
            numbers["system_variability"] = float(self.cluster_values[candidate])
        return numbers

    def _value(self, candidate: int) -> float:
        value = float(self.cluster_values[candidate])
        return value if self.variability is None else abs(value - self.variability)

    def values(self) -> Floats:
        """The objective by candidate, the lower the better; NaN where the pod does not fit."""
        values = self.cluster_values
        return values if self.variability is None else np.abs(values - self.variability)


def pack_resource_bits(table: NDArray[np.bool_]) -> Bits:
    """Pack a table (R, n) into one number per column (n)."""
    packed: Bits = np.packbits(table, axis=0, bitorder="little")[0]
    return packed


def _unpack_resource_names(bits: Bits | None, candidate: int) -> list[str]:
    mask = 0 if bits is None else int(bits[candidate])
    return [name for number, name in enumerate(NAMES) if mask >> number & 1]


def stretch(values: Floats) -> Points:
    """By candidate: 10 for the smallest value, 1 for the largest, in proportion between them; 0 for NaN.

    All scores are 10 if the values are equal.
    """
    scores = np.zeros(len(values), np.int64)
    fits = ~np.isnan(values)
    if not fits.any():
        return scores
    measured = values[fits]
    lowest, highest = float(measured.min()), float(measured.max())
    if highest - lowest <= _NOISE * max(1.0, abs(highest), abs(lowest)):
        scores[fits] = MAX_SCORE
        return scores
    scores[fits] = _round_half_up(
        _MIN_SCORE + (MAX_SCORE - _MIN_SCORE) * (highest - measured) / (highest - lowest)
    )
    return scores


def scale_absolute(values: Floats) -> Points:
    """By candidate: 10 for 0 or less, 0 for 1 or more, in proportion between them; 0 for NaN."""
    return _round_half_up(MAX_SCORE * (1 - np.nan_to_num(values, nan=1.0)))


SCALINGS: Final[Mapping[Scaling, Callable[[Floats], Points]]] = {
    "stretch": stretch,
    "absolute": scale_absolute,
}


def _round_half_up(points: Floats) -> Points:
    """Round halves up, including those that are slightly less because of rounding errors."""
    scores: Points = np.clip(np.floor(points + 0.5 + _NOISE), 0, MAX_SCORE).astype(np.int64)
    return scores
