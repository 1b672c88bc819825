"""The usage of all nodes, from annotations or from queries of Prometheus, as the same arrays."""

from collections.abc import Generator
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ClusterState, MetricRequest, NodeIndex
from nodewise.base.option import Option
from nodewise.base.quantity import NANO
from nodewise.metrics import series as columns
from nodewise.metrics.prometheus.source import promql_duration
from nodewise.metrics.series import Column, Series, ValueState
from nodewise_scorers.scoring_agent import StatisticStatus
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import NodeStatus, UsageAnnotations


class WindowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the statistics of nodes, for agents and for the annotator."""

    statistics_window_s: Annotated[float, msgspec.Meta(gt=0)] = 900.0
    """Window of mean and deviation, for CPU and memory. A shorter one follows the load more closely, a longer one
    covers more of its variation."""

    statistics_max_age_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Age at which statistics count as missing; 0: an hour. The age of annotations is that of
    nodewise.io/annotated-at; without it, it is unknown and they count as fresh."""

    cpu_mean_query: Annotated[str, Option(metavar="QUERY")] = ""
    """Prometheus query for the mean of the cores in use on each node; {window} is replaced by the window. Empty: 1 -
    rate of node exporter's idle seconds, summed up over the CPUs."""

    cpu_deviation_query: Annotated[str, Option(metavar="QUERY")] = ""
    """The same for the standard deviation of the cores in use. On clusters of thousands of CPUs use a recording
    rule."""

    memory_mean_query: Annotated[str, Option(metavar="QUERY")] = ""
    """The same for the mean of the bytes of memory in use. Empty: MemTotal - MemAvailable of node exporter."""

    memory_deviation_query: Annotated[str, Option(metavar="QUERY")] = ""
    """The same for the standard deviation of these bytes."""

    exporter_matchers: Annotated[str, Option(metavar="MATCHERS")] = ""
    """Label matchers for node exporter's series in these queries, if there are several per node, such as
    job="node-exporter"."""

    @property
    def max_age_s(self) -> float:
        """The greatest age that counts."""
        return self.statistics_max_age_s or 3600.0


class StatisticsOptions(WindowOptions, frozen=True, kw_only=True):
    """Setting for the source of node statistics."""

    statistics: Literal["annotations", "metrics"] = "annotations"
    """Source of the mean and deviation of node usage. `annotations`: those of nodes, such as `nodewise annotate`
    writes. `metrics`: the source of --metrics, once per refresh period."""


class UsageRequests(NamedTuple):
    """The four metrics of nodes' load: cores and bytes."""

    cpu_mean: MetricRequest
    cpu_deviation: MetricRequest
    memory_mean: MetricRequest
    memory_deviation: MetricRequest


CPU_MEAN: Final = "cpu_used_mean"
CPU_DEVIATION: Final = "cpu_used_deviation"
MEMORY_MEAN: Final = "memory_used_mean"
MEMORY_DEVIATION: Final = "memory_used_deviation"

_VOLATILE_LABELS: Final = "pod, kubernetes_pod_name, controller_revision_hash, pod_template_generation"
"""Labels that change with a rollout of the exporter: the node would have two series, each for a part of the window.
Their rates add up to the rate of the node."""
_MAX_RATE_S: Final = 120.0
"""Two minutes hold four scrapes at the usual intervals; a rate over longer would smooth the bursts away."""


def cpu_usage_query(rate_s: float, matchers: str = "") -> str:
    """Cores in use on each node, at one time: an average over `rate_s`."""
    chosen = ", ".join(filter(None, ('mode="idle"', matchers)))
    idle = f"rate(node_cpu_seconds_total{{{chosen}}}[{promql_duration(rate_s)}])"
    return f"sum without (cpu, mode) (1 - sum without ({_VOLATILE_LABELS}) ({idle}))"


def memory_usage_query(matchers: str = "") -> str:
    """Bytes in use on each node, at one time."""
    of = f"{{{matchers}}}" if matchers else ""
    return f"max without ({_VOLATILE_LABELS}) (node_memory_MemTotal_bytes{of} - node_memory_MemAvailable_bytes{of})"


def metric_requests(options: WindowOptions) -> UsageRequests:
    """The metric requests of the options, with the window inserted into the queries."""
    window_s = options.statistics_window_s
    window = promql_duration(window_s)
    rate_s = min(window_s / 5, _MAX_RATE_S)
    cpu = cpu_usage_query(rate_s, options.exporter_matchers)
    memory = memory_usage_query(options.exporter_matchers)
    over = f"[{window}:{promql_duration(rate_s / 4)}]"
    definitions = (
        (CPU_MEAN, options.cpu_mean_query, f"avg_over_time(({cpu}){over})"),
        (CPU_DEVIATION, options.cpu_deviation_query, f"stddev_over_time(({cpu}){over})"),
        (MEMORY_MEAN, options.memory_mean_query, f"avg_over_time(({memory}){over})"),
        (MEMORY_DEVIATION, options.memory_deviation_query, f"stddev_over_time(({memory}){over})"),
    )
    return UsageRequests(
        *(
            MetricRequest(name, query.replace("{window}", window) if query else default, options.max_age_s)
            for name, query, default in definitions
        )
    )


RESOURCES: Final = ("cpu", "memory")
"""The first axis of the arrays: CPU in milli, memory in bytes."""

Table = NDArray[np.float64]
"""By resource and node number."""


class UsageMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: UsageAnnotations | None = None


class UsageNode(msgspec.Struct, frozen=True, gc=False):
    """The fields of a node that are read."""

    metadata: UsageMetadata = UsageMetadata()
    status: NodeStatus = NodeStatus()


class NodeLoads(NamedTuple):
    """The usage of all nodes. `used` is NaN where `missing` has a reason."""

    used: Table
    """The mean, as capacity less what is free: negative if more is free than allocatable."""
    deviation: Table
    """The standard deviation; NaN where absent."""
    forecast: Table
    """The expected usage; NaN where absent."""
    capacity: Table
    """Allocatable; 0 where absent."""
    missing: NDArray[np.uint8]
    """By resource and node number: `StatisticStatus`."""
    ages_s: NDArray[np.float64]
    """By node number; NaN where unknown."""


class LoadReader:
    """Computes the load of all nodes, and caches the parts that did not change."""

    def __init__(self, options: StatisticsOptions) -> None:
        self._max_age_s = options.max_age_s
        self._metric_requests = metric_requests(options) if options.statistics == "metrics" else None
        self._nodes = _NodeRows()
        self._columns: dict[str, tuple[Series, NodeIndex, Column]] = {}

    @property
    def metric_requests(self) -> frozenset[MetricRequest]:
        return frozenset(self._metric_requests or ())

    def read(self, cluster_state: ClusterState) -> Generator[None, None, NodeLoads]:
        """Compute the load of a cluster state; yields between parts of the work."""
        rows = yield from self._nodes.read(cluster_state)
        columns_ = np.ascontiguousarray(rows.T)
        yield
        if self._metric_requests is None:
            return _load_from_annotations(columns_, cluster_state.now, self._max_age_s)
        return (yield from self._load_from_metrics(columns_[_CAPACITY], self._metric_requests, cluster_state))

    def _load_from_metrics(
        self, capacity: Table, requests: UsageRequests, cluster_state: ClusterState
    ) -> Generator[None, None, NodeLoads]:
        metrics = []
        for request, divisor in zip(requests, (NANO // 1000, NANO // 1000, NANO, NANO), strict=True):
            metrics.append((yield from self._metric_by_node(request, cluster_state, divisor)))
        cpu, cpu_deviation, memory, memory_deviation = metrics
        used = np.stack([cpu.values, memory.values])
        ages_s = np.stack([cpu.ages_s, memory.ages_s])
        missing = _missing_statistics_status(used, capacity, ages_s > self._max_age_s)
        return NodeLoads(
            np.where(missing, np.nan, used),
            np.stack([cpu_deviation.fresh(self._max_age_s), memory_deviation.fresh(self._max_age_s)]),
            np.full_like(used, np.nan),
            capacity,
            missing,
            np.fmax(*ages_s),
        )

    def _metric_by_node(
        self, metric_request: MetricRequest, cluster_state: ClusterState, divisor: int
    ) -> Generator[None, None, "_MetricValues"]:
        """A metric by node number; `divisor` is the number of nano-units of one unit of the result."""
        series = cluster_state.metrics.series.get(metric_request.key)
        if series is None:
            self._columns.pop(metric_request.key, None)
            nothing = np.full(len(cluster_state.nodes) + 1, np.nan)
            return _MetricValues(nothing, nothing)
        known = self._columns.get(metric_request.key)
        if known is None or known[0] is not series or known[1] is not cluster_state.nodes:
            column = yield from columns.build_column(series, cluster_state.nodes)
            known = self._columns[metric_request.key] = series, cluster_state.nodes, column
        yield
        column = known[2]
        fresh = column.initial_states == ValueState.FRESH
        values = np.where(fresh, column.values, 0).astype(np.float64) / divisor
        values[~fresh] = np.nan
        # samples of an expression have no time; the time of the response is the closest known
        times = np.where(np.isnan(column.times), series.fetched_at or np.nan, column.times)
        ages_s = np.where(fresh & np.isfinite(times), np.maximum(cluster_state.now - times, 0.0), np.nan)
        return _MetricValues(values, ages_s)


class _MetricValues(NamedTuple):
    """One metric by node number; NaN where unknown."""

    values: NDArray[np.float64]
    ages_s: NDArray[np.float64]

    def fresh(self, max_age_s: float) -> NDArray[np.float64]:
        """The values; NaN for those older than `max_age_s`."""
        values: NDArray[np.float64] = np.where(self.ages_s > max_age_s, np.nan, self.values)
        return values


_USAGE_TEXTS: Final = attrgetter(
    *("mean_free_cpu", "mean_free_memory", "std_free_cpu", "std_free_memory"),
    *("forecast_free_cpu", "forecast_free_memory"),
)
_FREE: Final = slice(0, 2)
_DEVIATION: Final = slice(2, 4)
_FORECAST: Final = slice(4, 6)
_CAPACITY: Final = slice(6, 8)
_TIME: Final = 8
_EMPTY_ROW: Final = (*[np.nan] * 6, 0.0, 0.0, np.nan)  # the row of a node without annotations and capacity
_STRIDE: Final = 16  # changed nodes per part of the work, about 0.1 ms


class _NodeRows:
    """The values of Node objects, one row per node; only objects that changed are read again."""

    def __init__(self) -> None:
        self._index = NodeIndex()
        self._objects: list[Any] = [None]
        self._rows = np.array([_EMPTY_ROW])

    def read(self, cluster_state: ClusterState) -> Generator[None, None, Table]:
        """By node number and the columns of the slices above. Copy it: the next call changes it."""
        if cluster_state.nodes is not self._index:
            self._reindex(cluster_state.nodes)
            yield
        numbers = cluster_state.nodes.numbers([name for _, name in cluster_state.node_objects]).tolist()
        changed = (
            (number, node)
            for number, node in zip(numbers, cluster_state.node_objects.values(), strict=True)
            if self._objects[number] is not node
        )
        for count, (number, node) in enumerate(changed):
            self._objects[number], self._rows[number] = node, _parse_load_annotations(node)
            if not count % _STRIDE:
                yield
        return self._rows

    def _reindex(self, index: NodeIndex) -> None:
        """Reorder the rows for another index."""
        before = self._index.numbers(index.known)
        self._rows = self._rows[[*before, len(self._index)]]
        self._objects = [self._objects[number] for number in (*before.tolist(), len(self._index))]
        self._index = index


def _parse_load_annotations(node: UsageNode) -> tuple[float, ...]:
    allocatable = load_annotations.parse_capacity(node.status.allocatable)
    written = node.metadata.annotations
    if written is None:
        return (*_EMPTY_ROW[:6], allocatable.cpu_milli, allocatable.memory_bytes, np.nan)
    numbers = map(load_annotations.number, _USAGE_TEXTS(written))
    time = load_annotations.time(written.annotated_at)
    return (*numbers, allocatable.cpu_milli, allocatable.memory_bytes, time)


def _load_from_annotations(columns_: Table, now: float, max_age_s: float) -> NodeLoads:
    capacity = columns_[_CAPACITY]
    ages_s = now - columns_[_TIME]
    # a time in the future would keep its statistics fresh until they are written again
    missing = _missing_statistics_status(columns_[_FREE], capacity, np.abs(ages_s) > max_age_s)
    return NodeLoads(
        np.where(missing, np.nan, capacity - columns_[_FREE]),
        columns_[_DEVIATION],
        capacity - columns_[_FORECAST],
        capacity,
        missing,
        np.maximum(ages_s, 0.0),
    )


def _missing_statistics_status(values: Table, capacity: Table, stale: NDArray[np.bool_]) -> NDArray[np.uint8]:
    missing = np.where(capacity > 0, np.uint8(StatisticStatus.PRESENT), np.uint8(StatisticStatus.NO_CAPACITY))
    missing = np.where(stale, np.uint8(StatisticStatus.STALE), missing)
    return np.where(np.isnan(values), np.uint8(StatisticStatus.ABSENT), missing)
