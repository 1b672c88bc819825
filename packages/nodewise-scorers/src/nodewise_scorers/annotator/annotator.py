"""Measures nodes, plans the annotations and writes them, in one burst per period."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nodewise.agent import Snapshot, Watched
from nodewise.agent.controller_interface import Controller, Handle
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import Clock
from nodewise.kube import pod_requests
from nodewise.kube.api_server_interface import Api
from nodewise.kube.resource_kinds import PODS
from nodewise.metrics.metrics_source import MetricsSource
from nodewise.metrics.prometheus.source import PrometheusSource
from nodewise.metrics.source_selection import FetchLimits, SourceSelector
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise_scorers.annotator import (
    AnnotatorConfig,
    AnnotatorOptions,
    leader_annotator_config,
    node_patches,
)
from nodewise_scorers.annotator.node_patches import (
    Allocation,
    NodeMeasurements,
    PatchPlan,
    WriteResult,
    allocation_by_node,
)
from nodewise_scorers.annotator.node_usage import (
    MemoryRequests,
    PrometheusUsageSource,
    SampledUsageSource,
    UsageMeasurement,
)
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.node_usage_reader import WindowOptions

UsageSource = PrometheusUsageSource | SampledUsageSource

QUERY_TIMEOUT_S: Final = 15.0
"""Of one metric. Prometheus' own time-out is shorter and has a better message."""

_MAX_EXAMPLES: Final = 5


def create_usage_source(
    sources: Sequence[MetricsSource],
    config: AnnotatorConfig,
    options: WindowOptions,
    selector: SourceSelector,
    clock: Clock,
) -> UsageSource | None:
    """Use Prometheus if it is one of the sources, samples of the annotator otherwise; None if usage is not written."""
    if not config.usage:
        return None
    servers = [source for source in sources if isinstance(source, PrometheusSource)]
    if servers:
        return PrometheusUsageSource(selector, options, config.options, servers, clock)
    return SampledUsageSource(selector, options, config.options, clock)


class Annotator:
    """Measures, plans and writes."""

    def __init__(
        self,
        config: AnnotatorConfig,
        max_age_s: float,
        usage_source: UsageSource | None,
        clock: Clock,
        metrics_registry: MetricsRegistry,
    ) -> None:
        """`usage_source` is None where only allocation is written."""
        self.config = config
        self._max_age_s = max_age_s
        self._usage_source = usage_source
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._burst_s = float("-inf")
        self._logged_failures: tuple[str, ...] = ()

    async def take_sample(self) -> None:
        """Take a sample of the usage of nodes if the sampling interval is over."""
        if self._usage_source is not None:
            await self._usage_source.take_sample()

    @property
    def is_sampled(self) -> bool:
        """Whether the statistics are of samples that the annotator takes."""
        return isinstance(self._usage_source, SampledUsageSource)

    def is_due(self) -> bool:
        """Whether a period has passed since the last burst began."""
        return self._clock.monotonic() - self._burst_s >= self.config.period_s

    async def burst(self, api: Api, nodes: Iterable[Any], pods: Iterable[Any]) -> WriteResult:
        """Measure all nodes and write the annotations that changed. Errors are counted and logged."""
        self._burst_s = self._clock.monotonic()
        plan = await self.plan(nodes, pods, keeps_complete=True)
        # export the numbers of nodes without statistics, and log the reasons when they
        # change
        not_ready, unmeasured = plan.not_ready, plan.unmeasured
        self._metrics_registry.set("node_annotations_lacking", len(not_ready), why="not_ready")
        self._metrics_registry.set("node_annotations_lacking", len(unmeasured), why="unmeasured")
        failures = plan.failures or (("no recent value",) if unmeasured else ())
        if failures and failures != self._logged_failures:
            example = ", ".join(unmeasured[:_MAX_EXAMPLES])
            logs.emit("usage_unknown", nodes=len(unmeasured), example=example, error="; ".join(failures))
        self._logged_failures = failures
        result = await node_patches.write_patches(api, plan.nodes)
        for outcome in ("done", "failed", "gone"):
            self._metrics_registry.count("node_annotations_total", getattr(result, outcome), outcome=outcome)
        if result.done:
            logs.emit("annotated", nodes=result.done)
        if result.failed:
            logs.emit("annotations_failed", nodes=result.failed, error=result.error)
        return result

    async def plan(self, nodes: Iterable[Any], pods: Iterable[Any], *, keeps_complete: bool) -> PatchPlan:
        """Measure and plan without writing; `keeps_complete` as in `node_patches.NodeMeasurements`."""
        nodes = list(nodes)
        allocations = await cooperative_scheduling.run(
            allocation_by_node(pods, self.config.options.annotate_gpu_resource)
        )
        measured = await self._measure(self._usage_source, nodes, allocations) if self._usage_source else None
        usage = measured.usage if measured else None
        measurements = NodeMeasurements(usage, allocations, self._clock.now(), keeps_complete)
        plan = await cooperative_scheduling.run(
            node_patches.plan_patches(nodes, measurements, self.config, self._max_age_s)
        )
        return plan._replace(failures=measured.failures if measured else ())

    async def _measure(
        self, source: UsageSource, nodes: Iterable[Any], allocations: Mapping[str, Allocation]
    ) -> UsageMeasurement:
        requests = {}
        if self.config.options.annotate_use_requests:
            async for node in cooperative_scheduling.iterate_with_pauses(
                filter(node_patches.is_node_ready, nodes)
            ):
                name = node.metadata.name
                allocatable_bytes = load_annotations.parse_capacity(node.status.allocatable).memory_bytes
                requested_bytes = allocations.get(name, Allocation()).memory_bytes
                requests[name] = MemoryRequests(allocatable_bytes, requested_bytes)
        return await source.measure(requests)


NODE_FIELDS: Final = node_patches.AnnotatedNode
"""To be merged into the type of nodes in the store."""
BOUND_PODS: Final = "annotator-pods"
"""The name in `Watched` of the pods that hold their requests."""
_MAX_QUERIES: Final = 8


def watched(settings: AnnotatorOptions) -> tuple[Watched, ...]:
    """The objects that the annotator needs besides nodes."""
    config = leader_annotator_config(settings)
    if config is None or not config.needs_pods:
        return ()
    keep = node_patches.make_pod_reducer(config.options.annotate_gpu_resource)
    return (Watched(BOUND_PODS, PODS, node_patches.POD, keep=keep, selectors=pod_requests.HOLDING_SELECTORS),)


class AnnotatorController(Controller):
    """Writes node statistics in a task of its own, so that a burst does not delay the steps of other controllers."""

    def __init__(
        self,
        settings: AnnotatorOptions,
        window: WindowOptions,
        sources: Sequence[MetricsSource],
        handle: Handle,
    ) -> None:
        """`handle.api` is a client without a low rate limit (`node_patches.QPS`). TypeError for options that are off.

        `BadSettings` for statistics that would expire between two bursts.
        """
        config = leader_annotator_config(settings)
        if config is None:
            raise TypeError("the annotator is off")
        selector = SourceSelector(
            sources, FetchLimits(QUERY_TIMEOUT_S, _MAX_QUERIES), handle.clock, handle.metrics_registry
        )
        usage_source = create_usage_source(sources, config, window, selector, handle.clock)
        node_patches.check_max_age(window.max_age_s, config.period_s)
        self._annotator = Annotator(
            config, window.max_age_s, usage_source, handle.clock, handle.metrics_registry
        )
        self._handle = handle
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Do nothing: the state is in the annotations of nodes."""

    async def step(self, snapshot: Snapshot) -> None:  # noqa: ARG002 - it needs nodes, pods and metrics only
        """Begin to measure and write, unless that is still running. A defect is raised in the next step."""
        if self._task is not None:
            if not self._task.done():
                return
            done, self._task = self._task, None
            done.result()
        self._task = asyncio.create_task(self._sample_and_write_annotations())

    async def settle(self) -> None:
        """Wait until the task is done."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _sample_and_write_annotations(self) -> None:
        await self._annotator.take_sample()
        pods = self._handle.objects.get(BOUND_PODS)
        if self._annotator.is_due() and (pods is None or pods.synced):
            bound_pods = pods.values() if pods is not None else ()
            result = await self._annotator.burst(self._handle.api, self._handle.nodes.values(), bound_pods)
            self._handle.node_writes.count += result.done
