"""Measures nodes, plans the annotations and writes them, in one burst per period."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base import cooperative_scheduling
from nodewise.base.clock import Clock
from nodewise.kube.api_server_interface import Api
from nodewise.metrics.metrics_source import MetricsSource
from nodewise.metrics.prometheus.source import PrometheusSource
from nodewise.metrics.source_selection import SourceSelector
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise_scorers.annotator import node_pod_fields, patch_planning, patch_writer
from nodewise_scorers.annotator.node_request_totals import Allocation, allocation_by_node
from nodewise_scorers.annotator.node_usage import MemoryRequests, UsageMeasurement, UsageSource
from nodewise_scorers.annotator.options import AnnotatorConfig
from nodewise_scorers.annotator.patch_planning import NodeMeasurements, PatchPlan, PatchRules
from nodewise_scorers.annotator.patch_writer import WriteResult
from nodewise_scorers.annotator.prometheus_usage import PrometheusUsageSource
from nodewise_scorers.annotator.sampled_usage import SampledUsageSource
from nodewise_scorers.statistics import node_capacity
from nodewise_scorers.statistics.prometheus_load_queries import WindowOptions

QUERY_TIMEOUT_S: Final = 15.0
"""Of one metric. Prometheus' own time-out is shorter and has a better message."""

_MAX_EXAMPLES: Final = 5


class AnnotationPlan(NamedTuple):
    """The patches of all nodes, and what could not be measured."""

    patches: PatchPlan
    failures: tuple[str, ...] = ()
    """Messages that name a metric and why it could not be measured."""


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
        return PrometheusUsageSource(selector, options, config, servers, clock)
    return SampledUsageSource(selector, options, config, clock)


class Annotator:
    """Measures, plans and writes."""

    def __init__(
        self,
        config: AnnotatorConfig,
        rules: PatchRules,
        usage_source: UsageSource | None,
        clock: Clock,
        metrics_registry: MetricsRegistry,
    ) -> None:
        """`usage_source` is None where only allocation is written."""
        self.config = config
        self._rules = rules
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
        self._report_missing(plan)
        result = await patch_writer.write_patches(api, plan.patches.nodes)
        for outcome in ("done", "failed", "gone"):
            self._metrics_registry.count("node_annotations_total", getattr(result, outcome), outcome=outcome)
        if result.done:
            logs.emit("annotated", nodes=result.done)
        if result.failed:
            logs.emit("annotations_failed", nodes=result.failed, error=result.error)
        return result

    async def plan(
        self, nodes: Iterable[Any], pods: Iterable[Any], *, keeps_complete: bool
    ) -> AnnotationPlan:
        """Measure and plan without writing; `keeps_complete` as in `patch_planning.NodeMeasurements`."""
        nodes = list(nodes)
        allocations = await cooperative_scheduling.run(allocation_by_node(pods, self.config.gpu))
        measured = await self._measure(self._usage_source, nodes, allocations) if self._usage_source else None
        usage = measured.usage if measured else None
        measurements = NodeMeasurements(usage, allocations, self._clock.now(), keeps_complete)
        plan = await cooperative_scheduling.run(
            patch_planning.plan_patches(nodes, measurements, self.config, self._rules)
        )
        return AnnotationPlan(plan, measured.failures if measured else ())

    async def _measure(
        self, source: UsageSource, nodes: Iterable[Any], allocations: Mapping[str, Allocation]
    ) -> UsageMeasurement:
        requests = {}
        if self.config.use_requests:
            async for node in cooperative_scheduling.iterate_with_pauses(
                filter(node_pod_fields.is_node_ready, nodes)
            ):
                name = node.metadata.name
                allocatable_bytes = node_capacity.parse_capacity(node.status.allocatable).memory_bytes
                requested_bytes = allocations.get(name, Allocation()).memory_bytes
                requests[name] = MemoryRequests(allocatable_bytes, requested_bytes)
        return await source.measure(requests)

    def _report_missing(self, plan: AnnotationPlan) -> None:
        """Export the numbers of nodes without statistics, and log the reasons when they change."""
        not_ready, unmeasured = plan.patches.not_ready, plan.patches.unmeasured
        self._metrics_registry.set("node_annotations_lacking", len(not_ready), why="not_ready")
        self._metrics_registry.set("node_annotations_lacking", len(unmeasured), why="unmeasured")
        failures = plan.failures or (("no recent value",) if unmeasured else ())
        if failures and failures != self._logged_failures:
            example = ", ".join(unmeasured[:_MAX_EXAMPLES])
            logs.emit("usage_unknown", nodes=len(unmeasured), example=example, error="; ".join(failures))
        self._logged_failures = failures
