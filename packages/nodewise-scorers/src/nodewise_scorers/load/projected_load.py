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

from typing import Final, NamedTuple

import numpy as np

from nodewise.agent import MAX_SCORE
from nodewise_scorers.load.usage_profiles import Floats, Forecast, Ints

DEVIATIONS: Final = 2.0
"""Standard deviations in the projected load."""
SHELTERED_SHARE: Final = 0.25
"""The share of nodes, those with the highest load, that is assumed to keep the free requests of the whole cluster."""
POWER: Final = 4
"""Exponent of the convex function: so large that overloaded nodes matter most, and mean differences still count."""


def filled_share(requested_share: float) -> float:
    """The share of a loaded node's free requests that is expected to be taken.

    If a quarter of the nodes keeps all free requests, four times the free share of the cluster is free there: the
    rest is taken, which is 92 % of the requests with 98 % requested, and nothing with 75 %.
    """
    return min(max(1 - (1 - requested_share) / SHELTERED_SHARE, 0.0), 1.0)


class Room(NamedTuple):
    """Usage of average pods per requested core."""

    mean: float
    variance: float


class ProjectedLoad:
    """The forecast of all nodes, by node number; `capacity` are their allocatable cores.

    Placed and removed pods change it at once, so that pods that are bound between two statistics count.
    """

    def __init__(self, capacity: Floats, applications: int) -> None:
        nodes = len(capacity)
        self._capacity = capacity
        self._requested = np.zeros(nodes)
        self._total_requested, self._total_capacity = 0.0, float(capacity.sum())
        self._by_application = np.zeros((applications, nodes))
        """Requested cores by application and node."""
        self._squares = np.zeros((applications, nodes))
        """The sum of the squares of the requests of single pods."""
        self._mean = np.zeros(nodes)
        self._variance = np.zeros(nodes)
        self._room = Room(0.0, 0.0)
        unused = np.zeros(applications)
        self._forecast = Forecast(unused, unused, unused, 0.0, 0.0)

    @property
    def requested_by_application(self) -> Floats:
        """Requested cores of running pods."""
        requested: Floats = self._by_application.sum(axis=1)
        return requested

    def update(self, forecast: Forecast) -> None:
        """Take new estimates of all applications."""
        self._forecast = forecast
        self._mean = forecast.mean @ self._by_application
        # what pods have in common grows with the square of their number, the rest with their number
        self._variance = forecast.common @ self._by_application**2 + forecast.independent @ self._squares
        requested = self._total_requested
        typical_request = self._squares.sum() / requested if requested > 0 else 0.0
        self._room = Room(forecast.general_mean, forecast.general_variance * typical_request)

    def add(self, node: int, application: int, request: float) -> None:
        """A pod was bound to a node."""
        self._change(node, application, request, 1)

    def remove(self, node: int, application: int, request: float) -> None:
        """A pod left its node."""
        self._change(node, application, request, -1)

    def _change(self, node: int, application: int, request: float, sign: int) -> None:
        there = self._by_application[application, node]
        before = self._forecast.common[application] * there**2
        there = self._by_application[application, node] = max(there + sign * request, 0.0)
        self._squares[application, node] += sign * request**2
        self._mean[node] += sign * self._forecast.mean[application] * request
        independent = sign * self._forecast.independent[application] * request**2
        self._variance[node] += self._forecast.common[application] * there**2 - before + independent
        self._requested[node] += sign * request
        self._total_requested += sign * request

    def costs(self, candidates: Ints, application: int, request: float) -> Floats:
        """By how much a pod raises the cost of each candidate; negative where it lowers it."""
        capacity = self._capacity[candidates]
        filled = filled_share(self._total_requested / self._total_capacity)
        free = filled * (capacity - self._requested[candidates])
        mean = self._mean[candidates] + self._room.mean * free
        variance = self._variance[candidates] + self._room.variance * free
        replaced = filled * request
        there = self._by_application[application, candidates]
        more = self._forecast.mean[application] * request - self._room.mean * replaced
        wider = self._forecast.common[application] * (2 * there + request) * request
        wider += self._forecast.independent[application] * request**2
        after = variance + wider - self._room.variance * replaced
        before_cost = _overload_cost(mean, variance, capacity)
        return _overload_cost(mean + more, after, capacity) - before_cost


def _overload_cost(mean: Floats, variance: Floats, capacity: Floats) -> Floats:
    share = (mean + DEVIATIONS * np.sqrt(np.maximum(variance, 0.0))) / capacity
    cost: Floats = capacity * np.maximum(share, 0.0) ** POWER
    return cost


def points(costs: Floats) -> Ints:
    """Scores of the candidates from 0 to 10: 10 for the lowest cost only, and the rest of the range in even steps."""
    least, most = costs.min(), costs.max()
    if least == most:
        return np.full(len(costs), MAX_SCORE, np.int64)
    scores: Ints = np.floor(MAX_SCORE * (most - costs) / (most - least)).astype(np.int64)
    return scores
