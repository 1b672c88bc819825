"""Metrics of nodes that nodewise computes, such as the predicted load: a source of metrics beside those of `--metrics`.

A computation is a `StateBuilder`, as of an agent, and reads nodes, other objects and metrics of the other sources. It
runs only while a policy requests one of its metrics, because it may need all pods.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from importlib.metadata import EntryPoint
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Snapshot, StateBuilder, Watched
from nodewise.base import cooperative_scheduling, distributions
from nodewise.base.clock import Clock
from nodewise.base.quantity import NANO
from nodewise.engine import object_feed
from nodewise.engine.object_feed import DataRequirements
from nodewise.engine.snapshot_cache import SnapshotCache
from nodewise.kube.api_server_interface import Api
from nodewise.metrics import missing_values
from nodewise.metrics.metrics_source import MetricRequest, MetricsSource, NoValues, RefreshOptions
from nodewise.metrics.missing_values import NEVER_FETCHED, Cause
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.metrics.series import Sample, SampleColumns, Series, pack_columns
from nodewise.metrics.source_table import COMPUTED
from nodewise.observe import background_tasks
from nodewise.observe.metrics_registry import MetricsRegistry

IDLE_S: Final = 300.0
"""The time without requests after which a computation ends."""
START_S: Final = 120.0
"""The time within which a computation has its first values. Until then its metrics count as not fetched yet, so that a
restart changes no label."""
_PART: Final = 512
_STEPS: Final = 1_000_000
"""Values have six decimals: more are noise, and make explanations hard to read."""


class ComputedMetrics(ABC):
    """A computation. Each of its metrics is an entry point of the group `nodewise.computed_metrics`."""

    @abstractmethod
    def state(self) -> StateBuilder[Any]: ...

    @abstractmethod
    def node_fields(self) -> type[msgspec.Struct]:
        """The fields of a Node that it reads."""

    @abstractmethod
    def watched(self) -> Sequence[Watched]:
        """The objects that it needs in addition to nodes."""

    @abstractmethod
    def values(self, state: Any, metric: str) -> NDArray[np.float64]:
        """One of its metrics, by number of a node of the state's snapshot; NaN where unknown."""


class ComputationInputs(NamedTuple):
    """What a computation reads from."""

    api: Api
    namespace: str
    """nodewise's own."""
    sources: Sequence[MetricsSource]
    """The other sources of metrics."""
    refresh: RefreshOptions
    clock: Clock


class _Computation:
    def __init__(self, metrics: ComputedMetrics, inputs: ComputationInputs) -> None:
        self.metrics = metrics
        self.began_s = inputs.clock.monotonic()
        # counts of these objects and metrics must not overwrite those of policies
        registry = MetricsRegistry()
        needs = DataRequirements(object_feed.merge_node_types([]), []).with_additional_requirements(
            metrics.node_fields(), metrics.watched()
        )
        feed = object_feed.watch_cluster(inputs.api, needs, inputs.clock, registry, inputs.namespace)
        self.refresher = MetricsRefresher(inputs.sources, inputs.refresh, inputs.clock, registry)
        builders = {COMPUTED: metrics.state()}
        period_s = inputs.refresh.sync_period_s
        self.cache = SnapshotCache(builders, feed.stores, self.refresher, inputs.clock, registry, period_s)
        self.refresher.subscribe(self.cache.touch)
        self.cache.touch()
        self.tasks = [*feed.tasks, self.refresher.run, self.cache.run]

    def cause(self) -> Cause | None:
        """Why a metric that it needs has no values; None if all have some."""
        return next(iter(self.refresher.snapshot.causes.values()), None)


class ComputedMetricsSource:
    name = COMPUTED

    def __init__(
        self, metrics: frozenset[str], load: Callable[[], ComputedMetrics], inputs: ComputationInputs
    ) -> None:
        self._metrics = metrics
        self._load = load
        self._inputs = inputs
        self._computation: _Computation | None = None
        self._task: asyncio.Task[None] | None = None
        self._requested_s = 0.0

    def supports(self, request: MetricRequest) -> bool:
        return request.metric in self._metrics and not request.query

    async def metric_names(self) -> Sequence[str]:
        return sorted(self._metrics)

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        """The values of the newest state. `NoValues` before there are some, with the cause `NEVER_FETCHED` at first."""
        self._requested_s = self._inputs.clock.monotonic()
        if self._computation is None:
            self._computation = _Computation(self._load(), self._inputs)
            self._task = asyncio.create_task(self._run(self._computation))
        computation, snapshot = self._computation, self._computation.cache.snapshot
        waiting = computation.cache.waiting_for()
        if COMPUTED in snapshot.agent_states and not waiting:
            values = computation.metrics.values(snapshot.agent_states[COMPUTED], request.metric)
            samples = await cooperative_scheduling.run(_sample_columns(snapshot, values))
            if samples.nodes:
                packed = await cooperative_scheduling.run(pack_columns(samples))
                return Series(request.metric, COMPUTED, now, packed)
            waiting = []
        what = f"metric {request.metric} computed by nodewise"
        if self._requested_s - computation.began_s < START_S:
            raise NoValues(f"{what}: no value yet", cause=NEVER_FETCHED)
        text, remedy = "has no statistics of a node", "check the source of the usage of nodes"
        if waiting:
            text = f"waits for {', '.join(waiting[:3])}"
            remedy = "kube_lost in nodewise's log has the error"
        cause = computation.cause() or missing_values.cause("NoSeries", COMPUTED, text, remedy)
        raise NoValues(what, cause=cause)

    async def _run(self, computation: _Computation) -> None:
        """Run the tasks until nothing has been requested for `IDLE_S`."""
        clock = self._inputs.clock
        running = asyncio.create_task(background_tasks.keep_all_running(*computation.tasks))
        try:
            while clock.monotonic() - self._requested_s < IDLE_S:
                await clock.sleep(IDLE_S / 10)
        finally:
            self._computation = None
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def create_sources(inputs: ComputationInputs) -> list[MetricsSource]:
    """A source for each computation of the installed distributions, which are imported when they are requested."""
    metrics: dict[str, list[EntryPoint]] = {}
    for entry in distributions.own_entry_points(distributions.COMPUTED_METRICS):
        metrics.setdefault(entry.value, []).append(entry)
    return [
        ComputedMetricsSource(frozenset(entry.name for entry in entries), entries[0].load, inputs)
        for entries in metrics.values()
    ]


def _sample_columns(snapshot: Snapshot, values: NDArray[np.float64]) -> Generator[None, None, SampleColumns]:
    """The samples of all nodes with a value. Their time is that of the snapshot."""
    known = np.flatnonzero(np.isfinite(values[: len(snapshot.nodes)]))
    columns = SampleColumns([], [], [], [])
    for start in range(0, len(known), _PART):
        part = known[start : start + _PART]
        for node, value in zip(snapshot.nodes.names[part].tolist(), values[part].tolist(), strict=True):
            columns.append(node, Sample(round(value * _STEPS) * (NANO // _STEPS), snapshot.at, 0.0))
        yield
    return columns
