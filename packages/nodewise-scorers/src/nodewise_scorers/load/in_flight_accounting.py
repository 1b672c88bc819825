"""Pods in flight for the other scoring agents: `--in-flight`.

Their states have other statistics than those of the agent load, so each says until when its own include a pod.
"""

from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE, ClusterState, MetricRequest, ObjectKey, StateBuilder
from nodewise.agent.state import NODES, StateT
from nodewise_scorers.load.bound_load import POD_REQUESTS, BoundLoad, EstimateFunction
from nodewise_scorers.load.bound_pods import BOUND_PODS, OwnedPod, PodAmounts
from nodewise_scorers.load.in_flight import Amount, PrioritizedPods, StatisticsWindow
from nodewise_scorers.load.owner_usage import Owner
from nodewise_scorers.statistics import load_annotations

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_STRIDE: Final = 16
"""Nodes between two yields."""
AT_ONCE_S: Final = 0.001
"""The window of statistics that are of one time."""


class InFlight(NamedTuple):
    """The expected usage of pods in flight, part of an agent's state."""

    amounts: Floats
    """By resource and number in the index, in milli-CPU and bytes."""
    prioritized: PrioritizedPods
    """Changes with each prioritized pod, also after the state was computed."""
    numbers: Ints
    """By number in the index: the number in `prioritized`."""
    capacity_milli: Floats
    """Allocatable CPU by number in the index; 0 where unknown."""

    def of(self, nodes: Ints) -> Floats:
        """By resource and candidate."""
        prioritized = self.prioritized.amounts.take(self.numbers.take(nodes), axis=1)
        amounts: Floats = self.amounts.take(nodes, axis=1) + prioritized
        return amounts


class InFlightAccounting:
    """Counts the pods in flight of cluster states."""

    def __init__(self, estimate: EstimateFunction | None = None, *, from_binding: bool = False) -> None:
        """`estimate` is by default that of a pod's owner, from the usage of pods.

        With `from_binding` statistics include a pod from its binding on, and not from its start on.
        """
        self.metric_requests: frozenset[MetricRequest] = frozenset(() if estimate else POD_REQUESTS)
        self._bound = BoundLoad(estimate, from_binding=from_binding)
        self._capacity_milli = np.zeros(1)

    def count(
        self, cluster_state: ClusterState, ends: Floats | float, window_s: float, used: Floats | None = None
    ) -> Generator[None, None, InFlight]:
        """Take a cluster state. `ends` is when the windows of statistics end, by number in the index.

        `used` is the usage in the statistics, by resource, from which the mean of the cluster follows. An unknown end
        is that of statistics without a time, which count as current.
        """
        bound, now = self._bound, cluster_state.now
        yield from bound.apply(cluster_state, window_s)
        yield from bound.take_pod_samples(cluster_state)
        yield from self._take_capacity(cluster_state)
        by_number = np.full(bound.size, np.nan)
        by_number[bound.numbers] = np.minimum(np.nan_to_num(ends, nan=now), now)
        window = StatisticsWindow(by_number, np.full(bound.size, window_s))
        amounts, missing_requests = yield from bound.in_flight.count(window, now)
        if used is not None:
            known = np.full((2, bound.size), np.nan)
            known[:, bound.numbers[:-1]] = used[:, :-1]
            bound.take_node_usage(known, missing_requests)
        numbers = bound.numbers
        return InFlight(amounts[:, numbers], bound.prioritized, numbers, self._capacity_milli[numbers])

    def _take_capacity(self, cluster_state: ClusterState) -> Generator[None, None, None]:
        more = self._bound.size - len(self._capacity_milli)
        self._capacity_milli = np.concatenate([self._capacity_milli, np.zeros(more)])
        self._capacity_milli[self._bound.new_nodes] = 0.0
        for count, ((_, name), change) in enumerate(cluster_state.changes_of(NODES), 1):
            if change.new is not None:
                [number] = self._bound.numbers[cluster_state.nodes.numbers([name])]
                capacity = load_annotations.parse_capacity(change.new.status.allocatable)
                self._capacity_milli[number] = capacity.cpu_milli if number else 0.0
            if not count % _STRIDE:
                yield

    def count_prioritized(self, pod: OwnedPod, nodes: Ints) -> None:
        """The pod was prioritized, and these nodes got the best score."""
        self._bound.count_prioritized(pod, nodes)


def estimate_requests(_owner: Owner, amounts: PodAmounts, _age_s: float) -> Amount:
    """The requests of a pod, for agents that count requests."""
    return amounts.requests


class CountingStateBuilder(StateBuilder[StateT]):
    """Counts pods in flight if there is an accounting."""

    def __init__(self, accounting: InFlightAccounting | None) -> None:
        self._accounting = accounting
        self.counted_objects = frozenset({BOUND_PODS} if accounting is not None else ())
        """For `Inputs.objects`."""

    def metric_requests(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[MetricRequest]:  # noqa: ARG002
        """The usage of pods, if those in flight are counted."""
        return self._accounting.metric_requests if self._accounting is not None else frozenset()

    def count_prioritized(self, pod: OwnedPod, nodes: Ints) -> None:
        """Count a pod that is on its way to one of these nodes."""
        if self._accounting is not None:
            self._accounting.count_prioritized(pod, nodes)


def lower_scores(points: NDArray[np.int64], in_flight: InFlight | None, nodes: Ints) -> NDArray[np.int64]:
    """Scores without a unit of their own, less ten times the share of the node's CPU that pods in flight will use.

    Rounded up, so that any pod in flight lowers a score. A node of unknown capacity keeps its score.
    """
    if in_flight is None:
        return points
    capacity = in_flight.capacity_milli.take(nodes)
    known = capacity > 0
    share = np.divide(in_flight.of(nodes)[0], capacity, out=np.zeros(len(nodes)), where=known)
    lowered: NDArray[np.int64] = np.maximum(points - np.ceil(MAX_SCORE * np.clip(share, 0, 1)), 0).astype(
        np.int64
    )
    return lowered
