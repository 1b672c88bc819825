"""The projected load of nodes, and what a pod adds to it.

Kube-scheduler fills nodes by requests. The least loaded node is therefore a bad choice for a pod: whatever room the
loaded nodes have is filled later anyway, and the pods that fit only there may be the busiest. The *projected load* of a
node is what it uses once its free requests are taken by average pods:

    mean of its pods + average usage per requested core * share * free requests + two standard deviations

where the share is how much of the free requests of the cluster is expected to be taken.

What the pods of one application have in common adds up: two of them on one node add more to the deviation than two of
different ones. A pod that uses more than the average for its request raises the projected load and goes where it is
low, a pod that uses less lowers it and goes where it is high. The cost of a placement is by how much it raises a convex
function of the projected load.
"""

import copy
from collections.abc import Generator
from typing import Any, Final, NamedTuple

import numpy as np

from nodewise.agent import MAX_SCORE
from nodewise_scorers.load.usage_profiles import Floats, Forecast, Ints

DEVIATIONS: Final = 2.0
"""Standard deviations in the projected load."""
SHELTERED_SHARE: Final = 0.25
"""The share of nodes, those with the highest load, that is assumed to keep the free requests of the whole cluster."""
POWER: Final = 4
"""Exponent of the convex function: so large that overloaded nodes matter most, and mean differences still count."""
OTHERS: Final = -1
"""The number of pods whose application has none. They count with the means of all applications."""
_ROUNDING: Final = 1e-9
"""Costs that differ by less, relative to their range, are equal: kube-scheduler's own scores decide."""
_NEGLIGIBLE: Final = 1e-9
"""Requested cores below which no pod is left."""


def filled_share(requested_share: float) -> float:
    """The share of a loaded node's free requests that is expected to be taken.

    If a quarter of the nodes keeps all free requests, four times the free share of the cluster is free there: the
    rest is taken, which is 92 % of the requests with 98 % requested, and nothing with 75 %.
    """
    return min(max(1 - (1 - requested_share) / SHELTERED_SHARE, 0.0), 1.0)


def load_cost(share: Floats) -> Floats:
    """The convex function of a load, which is a share of the capacity.

    By multiplications, because a power of numpy is rounded differently on CPUs with AVX-512.
    """
    share = np.maximum(share, 0.0)
    cost = share
    for _ in range(POWER - 1):
        cost = cost * share
    return cost


class Room(NamedTuple):
    """Usage of average pods per requested core."""

    mean: float
    variance: float


class _Row(NamedTuple):
    """The pods of one application: the nodes they are on, in order, and sums by node. It does not change."""

    nodes: Ints
    requested: Floats
    squares: Floats
    """The sums of the squares of the requests of single pods."""


_EMPTY_ROW: Final = _Row(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
_ROWS_PER_PART: Final = 64
"""Applications that are summed up between two yields: less than a third of a millisecond unless they are very large."""


class ProjectedLoad:
    """The forecast of all nodes, by node number; `capacity` are their allocatable cores.

    Placed and removed pods change it at once, so that pods that are bound between two statistics count. The memory is
    that of the pairs of applications and nodes with pods. The last application of a forecast stands for `OTHERS`.
    """

    def __init__(self, capacity: Floats) -> None:
        nodes = len(capacity)
        self._capacity = capacity
        self._requested = np.zeros(nodes)
        self._total_requested, self._total_capacity = 0.0, float(capacity.sum())
        self._rows: dict[int, _Row] = {}
        """By application, those with pods."""
        self._total_squares = 0.0
        self._background = np.zeros(nodes)
        self._mean = np.zeros(nodes)
        self._variance = np.zeros(nodes)
        self._room = Room(0.0, 0.0)
        unused = np.zeros(1)
        self._forecast = Forecast(unused, unused, unused, 0.0, 0.0)

    def requested_by_application(self, applications: int) -> Floats:
        """Requested cores of running pods."""
        requested = np.zeros(applications)
        for application, row in self._rows.items():
            if application != OTHERS:
                requested[application] = row.requested.sum()
        return requested

    def copy(self) -> "ProjectedLoad":
        """The same load, which does not change with this one."""
        copied = copy.copy(self)
        changed: dict[str, Any] = {"_rows": dict(self._rows)}
        changed |= {name: getattr(self, name).copy() for name in ("_requested", "_mean", "_variance")}
        vars(copied).update(changed)
        return copied

    @property
    def mean(self) -> Floats:
        """The expected usage of each node's pods, in cores."""
        return self._mean

    @property
    def peak(self) -> Floats:
        """The mean and two standard deviations."""
        peak: Floats = self._mean + DEVIATIONS * np.sqrt(np.maximum(self._variance, 0.0))
        return peak

    @property
    def requested(self) -> Floats:
        """The cores that each node's pods request."""
        return self._requested

    def set_forecast(self, peaks: Floats, included: Floats) -> None:
        """Take the forecast peak of each node, in cores, in place of the estimates of the pods that it includes.

        `included` is the share of the node's requests whose pods the statistics include. NaN for an unknown peak.
        """
        explained = included * self._mean + DEVIATIONS * np.sqrt(np.maximum(included * self._variance, 0.0))
        self._background = np.where(np.isnan(peaks), 0.0, peaks - explained)

    def update(self, forecast: Forecast) -> None:
        """As `update_parts`, without pauses."""
        for _ in self.update_parts(forecast):
            pass

    def update_parts(self, forecast: Forecast) -> Generator[None, None, None]:
        """Take new estimates of all applications; yields between parts."""
        mean, variance = np.zeros_like(self._mean), np.zeros_like(self._variance)
        rows = list(self._rows.items())
        for start in range(0, len(rows), _ROWS_PER_PART):
            part = rows[start : start + _ROWS_PER_PART]
            lengths = [len(row.nodes) for _, row in part]
            applications = np.repeat(np.array([application for application, _ in part]), lengths)
            nodes, requested, squares = (
                np.concatenate([row[column] for _, row in part]) for column in range(len(_EMPTY_ROW))
            )
            mean += np.bincount(nodes, forecast.mean[applications] * requested, len(mean))
            # what pods have in common grows with the square of their number, the rest with their number
            own = forecast.common[applications] * requested**2 + forecast.independent[applications] * squares
            variance += np.bincount(nodes, own, len(mean))
            yield
        self._forecast, self._mean, self._variance = forecast, mean, variance
        requested_cores = self._total_requested
        typical_request = self._total_squares / requested_cores if requested_cores > 0 else 0.0
        self._room = Room(forecast.general_mean, forecast.general_variance * typical_request)

    def add(self, node: int, application: int, request: float) -> None:
        """A pod was bound to a node."""
        self._change(node, application, request, 1)

    def remove(self, node: int, application: int, request: float) -> None:
        """A pod left its node."""
        self._change(node, application, request, -1)

    def set_capacity(self, capacity: Floats) -> None:
        """Take the allocatable cores of nodes, which may be more than before; 0 for a number that is not used."""
        more = np.zeros(len(capacity) - len(self._capacity))
        self._capacity, self._total_capacity = capacity, float(capacity.sum())
        self._requested, self._background, self._mean, self._variance = (
            np.concatenate([values, more])
            for values in (self._requested, self._background, self._mean, self._variance)
        )

    def spread(self, nodes: Ints, application: int, request: float) -> None:
        """A pod goes to one of these nodes: each gets an equal part of its request. A negative request undoes that."""
        part, size = request / len(nodes), len(self._capacity)
        row = self._rows.get(application, _EMPTY_ROW)
        requested, squares = np.zeros(size), np.zeros(size)
        requested[row.nodes], squares[row.nodes] = row.requested, row.squares
        before = requested[nodes]
        after = requested[nodes] = np.maximum(before + part, 0.0)
        square = part * abs(part)
        squares[nodes] += square
        forecast, known = self._forecast, self._known(application)
        self._mean[nodes] += forecast.mean[known] * part
        common = forecast.common[known] * (after**2 - before**2)
        self._variance[nodes] += common + forecast.independent[known] * square
        self._requested[nodes] += part
        self._total_requested += request
        kept = np.flatnonzero(requested > _NEGLIGIBLE)
        self._rows[application] = _Row(kept, requested[kept], squares[kept])

    def add_to_others(self, application: int) -> None:
        """The application lost its number: its pods count with `OTHERS`, from the next update on."""
        rows = [self._rows.pop(number) for number in (application, OTHERS) if number in self._rows]
        if rows:
            size = len(self._capacity)
            requested, squares = np.zeros(size), np.zeros(size)
            for row in rows:
                requested[row.nodes] += row.requested
                squares[row.nodes] += row.squares
            nodes = np.flatnonzero(requested > 0)
            self._rows[OTHERS] = _Row(nodes, requested[nodes], squares[nodes])

    def _change(self, node: int, application: int, request: float, sign: int) -> None:
        row = self._rows.get(application, _EMPTY_ROW)
        at = int(np.searchsorted(row.nodes, node))
        is_known = at < len(row.nodes) and row.nodes[at] == node
        before, squares = (float(row.requested[at]), float(row.squares[at])) if is_known else (0.0, 0.0)
        there = max(before + sign * request, 0.0)
        squares = max(squares + sign * request**2, 0.0)
        if there <= _NEGLIGIBLE:
            if is_known:
                row = _Row(np.delete(row.nodes, at), np.delete(row.requested, at), np.delete(row.squares, at))
        elif is_known:
            row = _Row(row.nodes, row.requested.copy(), row.squares.copy())
            row.requested[at], row.squares[at] = there, squares
        else:
            row = _Row(
                np.insert(row.nodes, at, node),
                np.insert(row.requested, at, there),
                np.insert(row.squares, at, squares),
            )
        self._rows[application] = row
        if not len(row.nodes):
            del self._rows[application]
        forecast, known = self._forecast, self._known(application)
        common = forecast.common[known] * (there**2 - before**2)
        self._mean[node] += sign * forecast.mean[known] * request
        self._variance[node] += common + sign * forecast.independent[known] * request**2
        self._requested[node] += sign * request
        self._total_requested += sign * request
        self._total_squares += sign * request**2

    def _known(self, application: int) -> int:
        """The application in the forecast, `OTHERS` for one that is newer than that."""
        return application if application < len(self._forecast.mean) - 1 else OTHERS

    def costs(self, candidates: Ints, application: int, request: float) -> Floats:
        """By how much a pod raises the cost of each candidate; negative where it lowers it."""
        capacity = self._capacity[candidates]
        filled = filled_share(self._total_requested / max(self._total_capacity, 1e-9))
        free = filled * (capacity - self._requested[candidates])
        mean = self._mean[candidates] + self._background[candidates] + self._room.mean * free
        variance = self._variance[candidates] + self._room.variance * free
        replaced = filled * request
        row = self._rows.get(application)
        there = np.zeros(len(candidates))
        if row is not None:
            by_node = np.zeros(len(self._capacity))
            by_node[row.nodes] = row.requested
            there = by_node[candidates]
        known = self._known(application)
        own = self._forecast.mean[known] * request - self._room.mean * replaced
        wider = self._forecast.common[known] * (2 * there + request) * request
        wider += self._forecast.independent[known] * request**2
        after = variance + wider - self._room.variance * replaced
        before_cost = _overload_cost(mean, variance, capacity)
        return _overload_cost(mean + own, after, capacity) - before_cost


def _overload_cost(mean: Floats, variance: Floats, capacity: Floats) -> Floats:
    cost: Floats = capacity * load_cost((mean + DEVIATIONS * np.sqrt(np.maximum(variance, 0.0))) / capacity)
    return cost


def points(costs: Floats) -> Ints:
    """Scores of the candidates from 0 to 10: 10 for the lowest cost only, and the rest of the range in even steps."""
    least, most = costs.min(), costs.max()
    costs = np.where(costs - least <= _ROUNDING * max(most - least, abs(least)), least, costs)
    if least == most:
        return np.full(len(costs), MAX_SCORE, np.int64)
    scores: Ints = np.floor(MAX_SCORE * (most - costs) / (most - least)).astype(np.int64)
    return scores
