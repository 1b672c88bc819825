"""The annotator as a controller of the extender's leader (`controllers.Controller`)."""

import asyncio
from collections.abc import Sequence
from typing import Final

from nodewise.agent import Snapshot, Watched
from nodewise.agent.controller_interface import Controller, Handle
from nodewise.kube import pod_requests
from nodewise.kube.resource_kinds import PODS
from nodewise.metrics.metrics_source import MetricsSource
from nodewise.metrics.source_selection import FetchLimits, SourceSelector
from nodewise_scorers.annotator import (
    annotator,
    node_pod_fields,
    node_request_totals,
    options,
    patch_planning,
)
from nodewise_scorers.annotator.annotator import Annotator
from nodewise_scorers.annotator.node_pod_fields import AnnotatedNode
from nodewise_scorers.annotator.options import AnnotatorOptions
from nodewise_scorers.statistics.prometheus_load_queries import WindowOptions

NODE_FIELDS: Final = AnnotatedNode
"""To be merged into the type of nodes in the store."""
BOUND_PODS: Final = "annotator-pods"
"""The name in `Watched` of the pods that hold their requests."""
_MAX_QUERIES: Final = 8


def watched(settings: AnnotatorOptions) -> tuple[Watched, ...]:
    """The objects that the annotator needs besides nodes."""
    config = options.leader_annotator_config(settings)
    if config is None or not config.needs_pods:
        return ()
    keep = node_request_totals.make_pod_reducer(config.gpu)
    return (
        Watched(BOUND_PODS, PODS, node_pod_fields.POD, keep=keep, selectors=pod_requests.HOLDING_SELECTORS),
    )


class AnnotatorController(Controller):
    """Writes node statistics in a task of its own, so that a burst does not delay the steps of other controllers."""

    def __init__(
        self,
        settings: AnnotatorOptions,
        window: WindowOptions,
        sources: Sequence[MetricsSource],
        handle: Handle,
    ) -> None:
        """`handle.api` is a client without a low rate limit (`patch_writer.QPS`). TypeError for options that are off.

        `BadSettings` for statistics that would expire between two bursts.
        """
        config = options.leader_annotator_config(settings)
        if config is None:
            raise TypeError("the annotator is off")
        selector = SourceSelector(
            sources,
            FetchLimits(annotator.QUERY_TIMEOUT_S, _MAX_QUERIES),
            handle.clock,
            handle.metrics_registry,
        )
        usage_source = annotator.create_usage_source(sources, config, window, selector, handle.clock)
        rules = patch_planning.patch_rules(window.max_age_s, config.period_s)
        self._annotator = Annotator(config, rules, usage_source, handle.clock, handle.metrics_registry)
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
