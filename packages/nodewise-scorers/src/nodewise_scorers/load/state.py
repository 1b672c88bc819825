"""The state of the agent load: the predicted load of all nodes, computed from cluster states.

The predicted load of a node is the forecast of its peak over the next minutes, from its statistics, and the estimates
of its pods in flight. A controller can use the builder as an agent does: it needs only cluster states.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ClusterState, Inputs, MetricRequest, NodeIndex, ObjectKey, StateBuilder
from nodewise.agent.state import NODES
from nodewise.base.quantity import NANO
from nodewise.metrics.source_table import USAGE_MAX_AGE_S
from nodewise_scorers.load import node_forecasts
from nodewise_scorers.load.bound_load import POD_REQUESTS, BoundLoad, CountedPod, EstimateFunction
from nodewise_scorers.load.bound_pods import BOUND_PODS, OwnedPod
from nodewise_scorers.load.in_flight import PrioritizedPod, StatisticsWindow
from nodewise_scorers.load.node_forecasts import NodeForecasts
from nodewise_scorers.load.projected_load import ProjectedLoad
from nodewise_scorers.load.usage_profiles import UsageProfiles
from nodewise_scorers.statistics import load_annotations, node_usage_reader
from nodewise_scorers.statistics.node_usage_reader import UsageNode

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

NodeFields = UsageNode
CPU, MEMORY = range(2)
RATE_WINDOW_S: Final = 120.0
"""The window of Prometheus' rate of CPU seconds. metrics-server reports its own windows."""
NODE_REQUESTS: Final = (
    MetricRequest(
        "cpu_usage", max_age_s=USAGE_MAX_AGE_S, own_query=node_usage_reader.cpu_usage_query(RATE_WINDOW_S)
    ),
    MetricRequest(
        "memory_usage", max_age_s=USAGE_MAX_AGE_S, own_query=node_usage_reader.memory_usage_query()
    ),
)
"""Cores and bytes in use on each node."""
PRESSURE_REQUESTS: Final = tuple(
    MetricRequest(
        f"{resource}_pressure",
        max_age_s=USAGE_MAX_AGE_S,
        own_query=f"max by (node, instance) (rate(container_pressure_{resource}_waiting_seconds_total"
        f'{{id="/"}}[{RATE_WINDOW_S:.0f}s]))',
        empty_is_healthy=True,
        is_optional=True,
    )
    for resource in ("cpu", "memory")
)
"""The share of the time in which some task of the node waited, by the kubelet's PSI (cAdvisor)."""
_RESIDUAL_WEIGHT: Final = 0.1
"""Of a new sample in the usage that profiles do not explain."""
_STRIDE: Final = 64
"""Nodes between two yields."""
_PRIORITIZED_STRIDE: Final = 8
"""Pods that were just prioritized between two yields."""


class NodeSamples(NamedTuple):
    """One metric by number of a node; NaN where unknown."""

    values: Floats
    times: Floats
    windows_s: Floats


class LoadState(NamedTuple):
    """All nodes, by number in the index with one more for unknown nodes; NaN where there are no statistics."""

    nodes: NodeIndex
    predicted: Floats
    """By resource: the predicted load as a share of what is allocatable."""
    used: Floats
    """By resource: the last sample, in milli-CPU and bytes."""
    deviation: Floats
    """By resource: the deviation of samples, as a share of what is allocatable."""
    capacity: Floats
    """By resource: what is allocatable, in milli-CPU and bytes; 0 where unknown."""
    in_flight: Floats
    """By resource: the estimates of pods in flight, without those that were just prioritized."""
    shares: NDArray[np.float32]
    """What details show, by resource: `predicted`, `used` and `in_flight` as shares of what is allocatable. Decisions
    refer to these numbers as long as they are stored, and not to the state."""
    methods: NDArray[np.int8]
    """The method of the CPU's forecast, by number in `node_forecasts.METHODS`."""
    requested: Floats
    """By resource: what the pods request, in milli-CPU and bytes."""
    limits: Floats
    """By resource: the limits of the pods; a pod without a limit counts with its request."""
    projected: ProjectedLoad
    numbers: Ints
    """By number in the index: the number in `projected` and in `bound.prioritized`."""
    bound: BoundLoad
    """Changes later; only `owners` and `prioritized` are read."""


class LoadStateBuilder(StateBuilder[LoadState]):
    """Follows pods and statistics."""

    inputs = Inputs(frozenset({BOUND_PODS}), node_objects=True)

    def __init__(self, estimate: EstimateFunction | None = None) -> None:
        """`estimate` replaces the estimate of pods in flight by their owners."""
        self._bound = BoundLoad(estimate)
        self._profiles = UsageProfiles(self._bound.owners.most)
        self._projected = ProjectedLoad(np.zeros(1))
        self._published = self._projected
        """Of the newest state; it includes the pods that were just prioritized."""
        self._newly_prioritized: list[tuple[PrioritizedPod, int]] = []
        """What requests change in `_published` while the next one is computed; -1 for what no longer counts."""
        self._forecasts = (NodeForecasts(1), NodeForecasts(1))
        self._residuals = np.zeros(1)
        """The usage of each node that the profiles of its pods do not explain, in milli-CPU; decaying mean."""
        self._capacity = np.zeros((2, 1))
        self._limits = np.zeros((2, 1))
        self._series: tuple[Any, ...] = ()
        """Of the last statistics."""
        self._samples: tuple[NodeSamples, ...] = ()

    def metric_requests(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[MetricRequest]:  # noqa: ARG002
        """The usage of nodes and pods, and the pressure of nodes."""
        return frozenset((*NODE_REQUESTS, *POD_REQUESTS, *PRESSURE_REQUESTS))

    def build(self, cluster_state: ClusterState) -> Generator[None, None, LoadState]:
        """Take the changes of pods, nodes and statistics."""
        bound, now = self._bound, cluster_state.now
        has_new_nodes = cluster_state.nodes is not bound.index
        changed = yield from bound.apply(cluster_state, RATE_WINDOW_S)
        self._resize()
        if cluster_state.changes is None:
            self._projected = ProjectedLoad(self._capacity[CPU] / 1000)
            self._limits[:] = 0.0
        has_new_capacity = yield from self._take_capacity(cluster_state)
        yield from self._count_pods(changed)
        pods = yield from bound.take_pod_samples(cluster_state)
        if pods is not None:
            known = pods.numbers >= 0
            self._profiles.observe(pods.numbers[known], pods.usage[CPU, known], pods.steps)
            yield
        series = tuple(cluster_state.metrics.series.get(r.key) for r in (*NODE_REQUESTS, *PRESSURE_REQUESTS))
        has_new_usage = series[:1] != self._series[:1]
        has_new_samples = series != self._series or not self._samples or cluster_state.changes is None
        self._series = series
        self._samples = tuple(self._node_samples(each, cluster_state.nodes, now) for each in series)
        yield
        cpu, memory = self._samples[:2]
        window = StatisticsWindow(
            np.fmin(cpu.times, memory.times), np.fmax(np.nan_to_num(cpu.windows_s), 1.0)
        )
        in_flight, missing_requests = yield from bound.in_flight.count(window, now)
        used = np.stack([cpu.values * 1000, memory.values])
        bound.take_node_usage(used, missing_requests)
        # a node may appear, or tell its capacity, after its statistics
        must_update = any(
            (has_new_samples, pods is not None, bound.lost_numbers, has_new_nodes, has_new_capacity)
        )
        if must_update:
            forecast = self._profiles.forecast(
                self._projected.requested_by_application(bound.owners.most),
                float(bound.owners.cluster_means[CPU]),
            )
            yield
            yield from self._projected.update_parts(forecast)
        if has_new_usage:
            self._observe_residuals(used[CPU], in_flight[CPU])
        peaks = yield from self._forecast(used, in_flight)
        yield
        if must_update:
            requested = np.maximum(bound.requested[CPU], 1e-9)
            included = np.clip(1 - missing_requests[CPU] / requested, 0.0, 1.0)
            self._projected.set_forecast(peaks[CPU] / 1000, included)
        return (yield from self._state(used, in_flight, peaks))

    def _count_pods(self, changed: Sequence[CountedPod]) -> Generator[None, None, None]:
        for number in self._bound.lost_numbers:
            self._projected.add_to_others(number)
            self._profiles.forget(number)
        for count, pod in enumerate(changed, 1):
            change = self._projected.add if pod.sign > 0 else self._projected.remove
            change(pod.node, pod.owner.number, pod.amounts.counted[CPU] / 1000)
            for resource, limit in enumerate(pod.amounts.limits):
                amount = limit if np.isfinite(limit) else pod.amounts.requests[resource]
                self._limits[resource, pod.node] += pod.sign * amount
            if not count % _STRIDE:
                yield

    def _state(self, used: Floats, in_flight: Floats, peaks: Floats) -> Generator[None, None, LoadState]:
        bound, numbers = self._bound, self._bound.numbers
        capacity = np.where(self._capacity > 0, self._capacity, np.nan)[:, numbers]
        amounts = np.stack([peaks + in_flight, used, in_flight])[:, :, numbers]
        shares = amounts / capacity
        published = self._projected.copy()
        self._newly_prioritized.clear()
        for count, pod in enumerate(list(bound.prioritized.pods()), 1):
            published.spread(pod.nodes, pod.application, pod.requests[CPU] / 1000)
            if not count % _PRIORITIZED_STRIDE:
                yield
        for pod, sign in self._newly_prioritized:
            published.spread(pod.nodes, pod.application, sign * pod.requests[CPU] / 1000)
        self._published = published
        deviation = np.stack([forecasts.deviation for forecasts in self._forecasts])
        return LoadState(
            bound.index,
            shares[0],
            amounts[1],
            deviation[:, numbers],
            self._capacity[:, numbers],
            amounts[2],
            shares.astype(np.float32),
            self._forecasts[CPU].methods[numbers].astype(np.int8),
            bound.requested[:, numbers],
            self._limits[:, numbers],
            self._published,
            numbers,
            bound,
        )

    def _resize(self) -> None:
        size = self._bound.size
        if more := size - self._capacity.shape[1]:
            self._capacity, self._limits = (
                np.concatenate([values, np.zeros((2, more))], axis=1)
                for values in (self._capacity, self._limits)
            )
            self._residuals = np.concatenate([self._residuals, np.zeros(more)])
            for forecasts in self._forecasts:
                forecasts.resize(size)
            self._projected.set_capacity(self._capacity[CPU] / 1000)
        if self._bound.new_nodes:
            nodes = np.array(self._bound.new_nodes)
            self._capacity[:, nodes] = self._residuals[nodes] = 0.0
            for forecasts in self._forecasts:
                forecasts.forget(nodes)

    def _take_capacity(self, cluster_state: ClusterState) -> Generator[None, None, bool]:
        """The result is whether a capacity changed."""
        before = self._capacity.copy()
        changes = [change.new for _, change in cluster_state.changes_of(NODES) if change.new is not None]
        for start in range(0, len(changes), _STRIDE):
            part = changes[start : start + _STRIDE]
            numbers = self._bound.numbers[cluster_state.nodes.numbers([node.metadata.name for node in part])]
            capacity = [load_annotations.parse_capacity(node.status.allocatable)[:2] for node in part]
            self._capacity[:, numbers] = np.array(capacity, np.float64).T
            yield
        if changes:
            self._capacity[:, 0] = 0.0
            self._projected.set_capacity(self._capacity[CPU] / 1000)
        return not np.array_equal(before, self._capacity)

    def _node_samples(self, series: Any, index: NodeIndex, now: float) -> NodeSamples:
        """A metric by number; a sample without a time is of the time of the response."""
        values, times, windows_s = np.full((3, self._bound.size), np.nan)
        if series is not None:
            samples = series.samples
            numbers = self._bound.numbers[samples.names.numbers(index)]
            at = np.where(np.isnan(samples.times), series.fetched_at or np.nan, samples.times)
            # a sample of the future would seem to include pods that it does not
            times[numbers] = np.minimum(at, now)
            values[numbers] = samples.nano_values.astype(np.float64) / NANO
            is_expression = np.isnan(samples.times)
            windows_s[numbers] = np.where(is_expression, RATE_WINDOW_S, samples.windows_s)
            # the pods that outdated statistics include are not in flight again
            values[~(now - times <= USAGE_MAX_AGE_S)] = np.nan
            values[0] = times[0] = np.nan
        return NodeSamples(values, times, windows_s)

    def _observe_residuals(self, used: Floats, in_flight: Floats) -> None:
        if self._bound.has_pod_samples:
            residuals = used - (self._projected.mean * 1000 - in_flight)
            known = ~np.isnan(residuals)
            self._residuals[known] += _RESIDUAL_WEIGHT * (residuals - self._residuals)[known]

    def _forecast(self, used: Floats, in_flight: Floats) -> Generator[None, None, Floats]:
        """The forecast peak of each node, by resource, in milli-CPU and bytes."""
        peaks = np.full_like(used, np.nan)
        for resource, (forecasts, samples) in enumerate(zip(self._forecasts, self._samples, strict=False)):
            with np.errstate(divide="ignore", invalid="ignore"):
                shares = np.where(
                    self._capacity[resource] > 0, used[resource] / self._capacity[resource], np.nan
                )
                profiles = np.full(len(shares), np.nan)
                if resource == CPU and self._bound.has_pod_samples:
                    peak = self._projected.peak * 1000 - in_flight[CPU] + self._residuals
                    profiles = np.maximum(peak, 0.0) / self._capacity[CPU]
            yield
            forecasts.observe(shares, samples.times, profiles)
            yield
            forecast = forecasts.forecast(profiles)
            used_from = node_forecasts.PRESSURE_FROM if resource == CPU else 0.0
            pressure = self._samples[2 + resource].values
            forecast = node_forecasts.add_pressure(forecast, shares, pressure, used_from)
            peaks[resource] = np.where(np.isnan(shares), np.nan, forecast) * self._capacity[resource]
        return peaks

    def count_prioritized(self, pod: OwnedPod, nodes: Ints) -> None:
        """The pod was prioritized, and these nodes of the index got the best score."""
        counted, before = self._bound.count_prioritized(pod, nodes)
        changes = [(counted, 1)] if before is None else [(before, -1), (counted, 1)]
        for changed, sign in changes:
            self._published.spread(changed.nodes, changed.application, sign * changed.requests[CPU] / 1000)
        self._newly_prioritized += changes
