"""The annotator as the extender's leader runs it (`agent.Controller`)."""

import asyncio
from collections.abc import Sequence
from typing import Final

from nodewise.agent import Snapshot, Watched
from nodewise.annotator import fields, measuring, options, patches
from nodewise.annotator.fields import AnnotatedNode
from nodewise.annotator.loop import Annotator
from nodewise.annotator.options import AnnotatorOptions
from nodewise.controllers import Controller, Handle
from nodewise.kube.resources import PODS
from nodewise.metrics.asking import Asker, Limits
from nodewise.metrics.source import Source
from nodewise.statistics import holding
from nodewise.statistics.queries import WindowOptions

NODE_FIELDS: Final = AnnotatedNode
"""To be merged into what the store of nodes holds."""
BOUND: Final = "annotator-pods"
"""The name in `Watched` of the pods that hold what they ask for."""
_CALLS: Final = 8


def watched(given: AnnotatorOptions) -> tuple[Watched, ...]:
    """The objects that it needs besides nodes."""
    task = options.task(given)
    if task is None or not task.needs_pods:
        return ()
    return (Watched(BOUND, PODS, fields.POD, selectors=holding.SELECTORS),)


class AnnotatorController(Controller):
    """Writes statistics of nodes in a task of its own, so that a burst holds up nobody else's step."""

    def __init__(
        self, given: AnnotatorOptions, window: WindowOptions, sources: Sequence[Source], handle: Handle
    ) -> None:
        """`handle.api` is one without a slow limit on writes (`writing.QPS`). TypeError for options that are off.

        `BadSettings` for statistics that would grow too old between two bursts.
        """
        task = options.task(given)
        if task is None:
            raise TypeError("the annotator is off")
        asker = Asker(sources, Limits(measuring.PATIENCE_S, _CALLS), handle.clock, handle.meters)
        measure = measuring.measure(sources, task, window, asker, handle.clock)
        self._annotator = Annotator(
            task, patches.rules(window.max_age_s, task.period_s), measure, handle.clock, handle.meters
        )
        self._handle = handle
        self._work: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """We lead from now on; what another leader wrote stands in the nodes."""

    async def step(self, snapshot: Snapshot) -> None:  # noqa: ARG002 - nodes, pods and metrics are all it needs
        """Begin to measure and write, unless it is still at it. A defect of it is raised in the next step."""
        if self._work is not None:
            if not self._work.done():
                return
            done, self._work = self._work, None
            done.result()
        self._work = asyncio.create_task(self._once())

    async def settle(self) -> None:
        """Wait until what was begun is done."""
        if self._work is not None:
            await asyncio.wait([self._work])

    async def _once(self) -> None:
        await self._annotator.sample()
        pods = self._handle.objects.get(BOUND)
        if self._annotator.is_due() and (pods is None or pods.synced):
            held = pods.values() if pods is not None else ()
            written = await self._annotator.burst(self._handle.api, self._handle.nodes.values(), held)
            self._handle.node_writes.count += written.done
