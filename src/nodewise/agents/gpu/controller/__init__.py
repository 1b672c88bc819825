"""The controller of the gpu agent: the only package of the agent that calls the API server.

The leader labels pods for the descheduler (`descheduler_pod_labels`), removes reservations without a pod
(`stale_reservations`) and counts pods (`gpu_request_histogram`). Every replica compares its allocations with a fresh
list (`allocation_cache_comparison`) and publishes metrics (`allocation_metrics`). Those modules compute what the
controller writes.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from nodewise.agent import Snapshot
from nodewise.agent.controller_interface import Controller, Handle
from nodewise.agents.gpu import allocation_metrics, descheduler_pod_labels
from nodewise.agents.gpu.allocation_metrics import MetricKey
from nodewise.agents.gpu.controller.allocation_cache_checker import ConsistencyChecker
from nodewise.agents.gpu.controller.gpu_request_histogram_writer import DemandCounter
from nodewise.agents.gpu.controller.reservation_garbage_collector import GarbageCollector
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.state import NAME, GpuState
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadInput, Conflict, Refused
from nodewise.kube import resource_kinds
from nodewise.kube.api_server_interface import NotFound, run_api_calls
from nodewise.observe import background_tasks, logs

_MANAGER: Final = {"fieldManager": "nodewise-gpu"}
_AGAIN_S: Final = 5.0
"""The time after which a label that the watch does not show is written again."""
_GAUGES_S: Final = 5.0


class GpuController(Controller):
    """Writes what follows from the allocations to the API server, and keeps the allocations consistent with it."""

    def __init__(self, options: GpuOptions, profile: ResourceProfile, handle: Handle) -> None:
        self._labels = DescheduleLabels(handle)
        self._garbage_collector = GarbageCollector(handle)
        self._counter = DemandCounter(options, profile, handle)
        self._checker = ConsistencyChecker(options, profile, handle)
        self._gauges = MetricsPublisher(options, profile, handle)

    def begin(self) -> None:
        """Start as the leader."""
        self._labels.begin()
        self._garbage_collector.begin()
        self._counter.begin()

    async def step(self, snapshot: Snapshot) -> None:
        """Update labels, records and the histogram.

        A failure of one, such as a missing right, does not stop the others.
        """
        agent_state: GpuState | None = snapshot.agent_states.get(NAME)
        if agent_state is not None:
            steps = (
                partial(self._labels.step, agent_state),
                partial(self._garbage_collector.step, agent_state),
                self._counter.step,
            )
            await run_api_calls(step() for step in steps)

    def tasks(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return (self.run,)

    async def run(self) -> None:
        """Check the allocations and publish metrics, in every replica."""
        await background_tasks.keep_all_running(self._checker.run, self._gauges.run)


class DescheduleLabels:
    """Keeps the deschedule label of pods up to date."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._written: dict[str, tuple[AllocatedPod, float]] = {}
        """By pod uid, the pod whose label was written or refused, and the time until which it is not written again."""

    def begin(self) -> None:
        self._written = {}

    async def step(self, agent_state: GpuState) -> None:
        """Write the labels that differ."""
        now_s = self._handle.clock.monotonic()
        self._written = {uid: written for uid, written in self._written.items() if written[1] > now_s}
        changes = await cooperative_scheduling.run(descheduler_pod_labels.changes(agent_state))
        await run_api_calls(
            self._write_label(change) for change in changes if not self._is_label_written(change.pod)
        )

    def _is_label_written(self, pod: AllocatedPod) -> bool:
        known = self._written.get(pod.metadata.uid)
        return known is not None and known[0] is pod

    async def _write_label(self, change: descheduler_pod_labels.LabelChange) -> None:
        meta = change.pod.metadata
        path = resource_kinds.PODS.path(meta.namespace, meta.name)
        try:
            await self._handle.api.patch(path, descheduler_pod_labels.patch(change), "merge", _MANAGER)
        except NotFound:
            pass
        except (BadInput, Conflict, Refused) as error:
            # replaced by another pod, or no right to write it; this must not affect the others
            logs.emit("deschedule_label_failed", pod=f"{meta.namespace}/{meta.name}", error=str(error))
        else:
            self._handle.metrics_registry.count(
                "deschedule_labels_total", what="set" if change.is_wanted else "removed"
            )
        self._written[meta.uid] = (change.pod, self._handle.clock.monotonic() + _AGAIN_S)


class MetricsPublisher:
    """Publishes the metrics of the newest state."""

    def __init__(self, options: GpuOptions, profile: ResourceProfile, handle: Handle) -> None:
        self._most = options.gpu_card_metrics
        self._profile = profile
        self._handle = handle
        self._shown: Mapping[MetricKey, float] = {}
        self._of: GpuState | None = None

    async def run(self) -> None:
        """Publish periodically, forever."""
        while True:
            agent_state = self._handle.snapshot().agent_states.get(NAME)
            if agent_state is not None and agent_state is not self._of:
                self._of = agent_state
                await self.show(agent_state)
            await self._handle.clock.sleep(_GAUGES_S)

    async def show(self, agent_state: GpuState) -> None:
        """Set the metrics that changed, and remove those that are gone."""
        details = await cooperative_scheduling.run(
            allocation_metrics.details(agent_state, self._profile, self._most)
        )
        values = {**allocation_metrics.totals(agent_state, self._profile), **details}
        async for (name, labels), value in cooperative_scheduling.iterate_with_pauses(values.items()):
            if self._shown.get((name, labels)) != value:
                self._handle.metrics_registry.set(name, value, **dict(labels))
        async for name, labels in cooperative_scheduling.iterate_with_pauses(
            [key for key in self._shown if key not in values]
        ):
            self._handle.metrics_registry.forget(name, **dict(labels))
        self._shown = values
