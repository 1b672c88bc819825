"""The load of nodes as the safe agent uses it: the mean and the deviation, as shares of a node's capacity."""

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ClusterState, Inputs, MetricRequest, ObjectKey, StateBuilder
from nodewise.kube.pod_requests import PodRequest
from nodewise_scorers.safe.options import SafeOptions
from nodewise_scorers.statistics.missing_statistics import StatisticStatus
from nodewise_scorers.statistics.node_usage_reader import LoadReader, NodeLoads, Table


class SafeState(NamedTuple):
    """The load of all nodes without the pod, by resource and node number. NaN where there are no statistics."""

    used: Table
    """The mean, combined with the forecast; never below 0."""
    capacity: Table
    deviation: Table
    """A share, from 0 to 1; 0 where there is none."""
    missing: NDArray[np.uint8]
    """`StatisticStatus`."""


class Shares(NamedTuple):
    """The load with the pod, by resource and candidate: from 0 to 1, NaN where there are no statistics."""

    mean: Table
    deviation: Table
    missing: NDArray[np.uint8]
    """`StatisticStatus`."""

    @property
    def nbytes(self) -> int:
        return self.mean.nbytes + self.deviation.nbytes + self.missing.nbytes


class SafeStateBuilder(StateBuilder[SafeState | None]):
    """Computes what does not depend on the pod, for all nodes."""

    def __init__(self, options: SafeOptions) -> None:
        self.inputs = Inputs(frozenset(), node_objects=True, metrics=options.statistics == "metrics")
        self._forecast_weight = options.safe_forecast_weight / 100
        self._reader = LoadReader(options)

    def metric_requests(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[MetricRequest]:  # noqa: ARG002
        """The metrics of the nodes' load, for any objects."""
        return self._reader.metric_requests

    def build(self, cluster_state: ClusterState) -> Generator[None, None, SafeState | None]:
        """The load of all nodes; None before its metrics were requested, because they are not missing yet."""
        if not all(
            cluster_state.metrics.was_fetched(metric_request.key)
            for metric_request in self._reader.metric_requests
        ):
            return None
        load = yield from self._reader.read(cluster_state)
        yield
        return combine_load_and_forecast(load, self._forecast_weight)


def combine_load_and_forecast(load: NodeLoads, forecast_weight: float) -> SafeState:
    """The load combined with the forecast, whose weight is from 0 to 1.

    A pod adds its request to the mean and nothing to the deviation, so only the deviation is divided here already.
    """
    is_absent = load.missing > 0
    capacity = np.where(is_absent, np.nan, load.capacity)
    with np.errstate(over="ignore"):
        expected = (1 - forecast_weight) * load.used + forecast_weight * load.forecast
        used = np.maximum(np.where(np.isnan(load.forecast), load.used, expected), 0.0)
        has_no_deviation = np.isnan(load.deviation) & ~is_absent
        deviation = np.clip(np.nan_to_num(load.deviation, nan=0.0) / capacity, 0.0, 1.0)
    missing = np.where(has_no_deviation, np.uint8(StatisticStatus.NO_DEVIATION), load.missing)
    return SafeState(used, capacity, deviation, missing)


def usage_shares_with_pod(before: SafeState, numbers: NDArray[np.intp], request: PodRequest) -> Shares:
    """The shares of the nodes with these numbers, with the pod."""
    demand = np.array(request, np.float64)[:, np.newaxis]
    mean = (before.used.take(numbers, axis=1) + demand) / before.capacity.take(numbers, axis=1)
    return Shares(
        np.clip(mean, 0.0, 1.0),
        before.deviation.take(numbers, axis=1),
        before.missing.take(numbers, axis=1),
    )
