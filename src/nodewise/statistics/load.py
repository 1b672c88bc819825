"""How much of each node is used, from annotations of nodes or from metrics: the same arrays either way."""

from collections.abc import Generator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ClusterState, MetricRequest, NodeIndex
from nodewise.metrics import column as columns
from nodewise.metrics.column import Column
from nodewise.metrics.series import Series, State
from nodewise.quantity import NANO
from nodewise.statistics import annotations, capacity, queries
from nodewise.statistics.annotations import UsageAnnotations
from nodewise.statistics.capacity import NodeStatus
from nodewise.statistics.missing import Missing
from nodewise.statistics.queries import StatisticsOptions, UsageRequests

RESOURCES: Final = ("cpu", "memory")
"""The first axis of the arrays: CPU in milli, memory in bytes."""

Table = NDArray[np.float64]
"""By resource and node number."""


class UsageMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: UsageAnnotations | None = None


class UsageNode(msgspec.Struct, frozen=True, gc=False):
    """What is read of a node."""

    metadata: UsageMetadata = UsageMetadata()
    status: NodeStatus = NodeStatus()


class Load(NamedTuple):
    """How much of each node is used. Where `missing` says why there is no statistic, `used` is NaN."""

    used: Table
    """The mean, as capacity less what is free: below 0 where more is free than pods can have."""
    deviation: Table
    """The standard deviation; NaN where nobody gave one."""
    forecast: Table
    """What will be used; NaN where nobody gave a forecast."""
    capacity: Table
    """What pods can have; 0 where the node does not say."""
    missing: NDArray[np.uint8]
    """By resource and node number: `Missing`."""
    ages_s: NDArray[np.float64]
    """By node number; NaN where unknown."""


class LoadReader:
    """Reads the load of all nodes again and again, and remembers what did not change."""

    def __init__(self, options: StatisticsOptions) -> None:
        self._max_age_s = options.max_age_s
        self._metric_requests = queries.metric_requests(options) if options.statistics == "metrics" else None
        self._nodes = _NodeRows()
        self._columns: dict[str, tuple[Series, NodeIndex, Column]] = {}

    @property
    def metric_requests(self) -> frozenset[MetricRequest]:
        """The metrics that it needs."""
        return frozenset(self._metric_requests or ())

    def read(self, cluster_state: ClusterState) -> Generator[None, None, Load]:
        """The load as the world has it now; yields between parts of the work."""
        rows = yield from self._nodes.read(cluster_state)
        columns_ = np.ascontiguousarray(rows.T)
        yield
        if self._metric_requests is None:
            return _annotated(columns_, cluster_state.now, self._max_age_s)
        return (yield from self._measured(columns_[_CAPACITY], self._metric_requests, cluster_state))

    def _measured(
        self, capacity_: Table, asked: UsageRequests, cluster_state: ClusterState
    ) -> Generator[None, None, Load]:
        cpu = yield from self._metric(asked.cpu_mean, cluster_state, _NANO_PER_MILLI)
        cpu_deviation = yield from self._metric(asked.cpu_deviation, cluster_state, _NANO_PER_MILLI)
        memory = yield from self._metric(asked.memory_mean, cluster_state, NANO)
        memory_deviation = yield from self._metric(asked.memory_deviation, cluster_state, NANO)
        used = np.stack([cpu.values, memory.values])
        ages_s = np.stack([cpu.ages_s, memory.ages_s])
        missing = _missing(used, capacity_, ages_s > self._max_age_s)
        return Load(
            np.where(missing, np.nan, used),
            np.stack([cpu_deviation.fresh(self._max_age_s), memory_deviation.fresh(self._max_age_s)]),
            np.full_like(used, np.nan),
            capacity_,
            missing,
            np.fmax(*ages_s),
        )

    def _metric(
        self, metric_request: MetricRequest, cluster_state: ClusterState, divisor: int
    ) -> Generator[None, None, "_Measured"]:
        """A metric by node number; `divisor` is how many nano-units are one of what is wanted."""
        series = cluster_state.metrics.series.get(metric_request.key)
        if series is None:
            self._columns.pop(metric_request.key, None)
            nothing = np.full(len(cluster_state.nodes) + 1, np.nan)
            return _Measured(nothing, nothing)
        known = self._columns.get(metric_request.key)
        if known is None or known[0] is not series or known[1] is not cluster_state.nodes:
            known = series, cluster_state.nodes, (yield from columns.lay_out(series, cluster_state.nodes))
            self._columns[metric_request.key] = known
        yield
        column = known[2]
        values = np.where(column.given == State.FRESH, column.values, 0).astype(np.float64) / divisor
        values[column.given != State.FRESH] = np.nan
        # of an expression nobody knows how old its samples are; but that it was answered then
        times = np.where(np.isnan(column.times), series.fetched_at or np.nan, column.times)
        ages_s = np.where(np.isfinite(times), np.maximum(cluster_state.now - times, 0.0), np.nan)
        return _Measured(values, ages_s)


_NANO_PER_MILLI: Final = NANO // 1000


class _Measured(NamedTuple):
    """One metric by node number; NaN for what is not known."""

    values: NDArray[np.float64]
    ages_s: NDArray[np.float64]

    def fresh(self, max_age_s: float) -> NDArray[np.float64]:
        """The values, those that are too old being not known."""
        found: NDArray[np.float64] = np.where(self.ages_s > max_age_s, np.nan, self.values)
        return found


_FREE: Final = slice(0, 2)
_DEVIATION: Final = slice(2, 4)
_FORECAST: Final = slice(4, 6)
_CAPACITY: Final = slice(6, 8)
_TIME: Final = 8
_NOTHING: Final = (*[np.nan] * 6, 0.0, 0.0, np.nan)
"""The row of a node that says nothing of all this."""
_STRIDE: Final = 16
"""So many nodes that changed are one part of the work, some 0.1 ms."""


class _NodeRows:
    """What Node objects say, a row a node; only those that changed are read again."""

    def __init__(self) -> None:
        self._index = NodeIndex()
        self._seen: list[Any] = [None]
        self._rows = np.array([_NOTHING])

    def read(self, cluster_state: ClusterState) -> Generator[None, None, Table]:
        """By node number and what the slices above name. To be copied: the next reading changes it."""
        if cluster_state.nodes is not self._index:
            self._move(cluster_state.nodes)
            yield
        numbers = cluster_state.nodes.numbers([name for _, name in cluster_state.node_objects]).tolist()
        changed = (
            (number, node)
            for number, node in zip(numbers, cluster_state.node_objects.values(), strict=True)
            if self._seen[number] is not node
        )
        for count, (number, node) in enumerate(changed):
            self._seen[number], self._rows[number] = node, _row(node)
            if not count % _STRIDE:
                yield
        return self._rows

    def _move(self, index: NodeIndex) -> None:
        """The same rows by the numbers of another index."""
        before = self._index.numbers(index.known)
        self._rows = self._rows[[*before, len(self._index)]]
        self._seen = [self._seen[number] for number in (*before.tolist(), len(self._index))]
        self._index = index


def _row(node: UsageNode) -> tuple[float, ...]:
    has = capacity.read(node.status.allocatable)
    given = node.metadata.annotations
    if given is None:
        return (*_NOTHING[:6], has.cpu_milli, has.memory_bytes, np.nan)
    texts = (
        given.mean_free_cpu,
        given.mean_free_memory,
        given.std_free_cpu,
        given.std_free_memory,
        given.forecast_free_cpu,
        given.forecast_free_memory,
    )
    return (
        *map(annotations.number, texts),
        has.cpu_milli,
        has.memory_bytes,
        annotations.time(given.annotated_at),
    )


def _annotated(columns_: Table, now: float, max_age_s: float) -> Load:
    capacity_ = columns_[_CAPACITY]
    ages_s = now - columns_[_TIME]
    # a time that is yet to come would keep its statistics fresh for as long as nobody writes others
    missing = _missing(columns_[_FREE], capacity_, np.abs(ages_s) > max_age_s)
    return Load(
        np.where(missing, np.nan, capacity_ - columns_[_FREE]),
        columns_[_DEVIATION],
        capacity_ - columns_[_FORECAST],
        capacity_,
        missing,
        np.maximum(ages_s, 0.0),
    )


def _missing(given: Table, capacity_: Table, stale: NDArray[np.bool_]) -> NDArray[np.uint8]:
    missing = np.where(capacity_ > 0, np.uint8(Missing.PRESENT), np.uint8(Missing.NO_CAPACITY))
    missing = np.where(stale, np.uint8(Missing.STALE), missing)
    return np.where(np.isnan(given), np.uint8(Missing.ABSENT), missing)
