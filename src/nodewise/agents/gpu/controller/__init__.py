"""The controller of the gpu agent: the only package of the agent that calls the API server.

The leader labels pods for the descheduler, removes reservations without a pod (`reservation_garbage_collector`) and
counts pods (`typical_pods`). Every replica compares its allocations with a fresh list (`allocation_cache_checker`) and
publishes metrics.

Labels for the descheduler are on pods that hold a GPU or sub-device from which pods are to be evicted.
Labels of telemetry policies name these GPUs and sub-devices (`gpu_node_labels`). A pod gets the label as
soon as it is bound, and loses it when no policy asks for it any more or when the pod ends. The allocations say which
pod holds which GPU, so annotations that a tenant changes on a pod bound by nodewise have no effect.

Metrics are totals, and series per GPU and node where there are few of these: rendering 1,000 series takes the metrics
page 7 ms, during which no other request is answered.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from nodewise.agent import Snapshot
from nodewise.agent.controller_interface import Controller, Handle
from nodewise.agents.gpu import allocation_record, typical_pods
from nodewise.agents.gpu.controller.allocation_cache_checker import ConsistencyChecker
from nodewise.agents.gpu.controller.reservation_garbage_collector import GarbageCollector
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.node_allocations import PodAllocation
from nodewise.agents.gpu.node_gpus import NodeGpus
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.state import DEMAND_CONFIGMAP, NAME, PODS, GpuState, NodeState
from nodewise.agents.gpu.typical_pods import DemandConfigMap, DemandReader
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadInput, Conflict, Refused
from nodewise.kube import resource_kinds
from nodewise.kube.api_server_interface import NotFound, run_api_calls
from nodewise.kube.store import Changes, Store
from nodewise.observe import background_tasks, logs

DESCHEDULE_LABEL: Final = "gpu.aware.scheduling/deschedule-pod"
DESCHEDULE_VALUE: Final = "gpu"
_STRIDE: Final = 256
"""Pods per part of the work."""


class LabelChange(NamedTuple):
    """A pod whose label has to be added or removed."""

    pod: AllocatedPod
    is_wanted: bool


def label_changes(agent_state: GpuState) -> Generator[None, None, list[LabelChange]]:
    """The labels to write. A label with another value belongs to another owner, unless the pod must be evicted."""
    wanted = yield from _pods_to_evict(agent_state)
    result = []
    for number, pod in enumerate(agent_state.pods.by_key.values()):
        labels, left = pod.metadata.labels, wanted.get(pod.metadata.uid)
        goes = left is not None and left == pod.spec.nodeName
        if (labels is not None and labels.deschedule == DESCHEDULE_VALUE) != goes:
            result.append(LabelChange(pod, goes))
        if number % _STRIDE == 0:
            yield
    return result


def label_patch(change: LabelChange) -> Mapping[str, Any]:
    """A merge patch, which also works without existing labels. The uid protects a pod that was recreated."""
    labels = {DESCHEDULE_LABEL: DESCHEDULE_VALUE if change.is_wanted else None}
    return {"metadata": {"uid": change.pod.metadata.uid, "labels": labels}}


def _pods_to_evict(agent_state: GpuState) -> Generator[None, None, Mapping[str, str]]:
    """By uid, the pods to be evicted and the node of each."""
    node_by_uid: dict[str, str] = {}
    for number, (name, node) in enumerate(agent_state.nodes.items()):
        if node.gpus.descheduled or node.gpus.subdevices_descheduled:
            node_by_uid.update(
                (uid, name)
                for uid, held in node.allocations.by_uid.items()
                if holds_gpu_to_evict(held, node.gpus)
            )
        if number % _STRIDE == 0:
            yield
    return node_by_uid


def holds_gpu_to_evict(held: PodAllocation, gpus: NodeGpus) -> bool:
    """Whether a pod holds a GPU or a sub-device whose pods are to be evicted."""
    if any(not gpus.descheduled.isdisjoint(names) for names in held.gpus):
        return True
    return any(
        not held.subdevices.get(gpu, _NONE).isdisjoint(off)
        for gpu, off in gpus.subdevices_descheduled.items()
    )


_NONE: Final[frozenset[int]] = frozenset()


MetricKey = tuple[str, tuple[tuple[str, str], ...]]
"""Name, and labels."""

GPU_SHARE: Final = "gpu_card_held_share"
PROBLEMS: Final = "gpu_node_problems"


def total_metrics(agent_state: GpuState, profile: ResourceProfile) -> Mapping[MetricKey, float]:
    """Totals of all nodes; this takes a few milliseconds for 40,000 GPUs."""
    layout = agent_state.layout
    exists = layout.name_codes >= 0
    held = has = 0.0
    for resource in profile.counts:
        if resource in layout.capacity:
            capacity = layout.capacity[resource]
            some = capacity > 0
            has += float(capacity[some].sum(dtype=float))
            held += float((capacity[some] - layout.free[resource][some]).sum(dtype=float))
    return {
        ("gpu_nodes", ()): layout.size,
        ("gpu_cards", (("state", "usable"),)): int(layout.usable.sum()),
        ("gpu_cards", (("state", "unusable"),)): int((exists & ~layout.usable).sum()),
        ("gpu_held_share", ()): held / has if has else 0.0,
        ("gpu_pods", ()): sum(len(node.allocations.by_uid) for node in agent_state.nodes.values()),
        ("gpu_fullest_record_share", ()): _fullest_record_share(agent_state),
        ("gpu_nodes_with_problems", ()): sum(bool(node.problems) for node in agent_state.nodes.values()),
    }


def _fullest_record_share(agent_state: GpuState) -> float:
    """Of the records that can be written, the size of the largest as a share of `RECORD_BYTES`."""
    sizes = agent_state.layout.record_bytes[0, : agent_state.layout.size]
    sizes = sizes[sizes != allocation_record.NO_RECORD]
    return float(sizes.max(initial=0)) / allocation_record.RECORD_BYTES


def gpu_metrics(
    agent_state: GpuState, profile: ResourceProfile, most: int
) -> Generator[None, None, Mapping[MetricKey, float]]:
    """Metrics by GPU, and by node with problems; none if there would be more than `most` series."""
    gpus = int((agent_state.layout.name_codes >= 0).sum())
    if gpus + sum(bool(node.problems) for node in agent_state.nodes.values()) > most:
        return {}
    yield
    values: dict[MetricKey, float] = {}
    for name, node in agent_state.nodes.items():
        for at, gpu in enumerate(node.gpus.names):
            labels = (("node", name), ("card", gpu))
            values[GPU_SHARE, labels] = _held_gpu_share(node, at, gpu, profile)
        if node.problems:
            values[PROBLEMS, (("node", name),)] = len(node.problems)
        yield
    return values


def _held_gpu_share(node: NodeState, at: int, gpu: str, profile: ResourceProfile) -> float:
    """The held share of the GPU's counting resource, from 0 to 1; above 1 if overcommitted."""
    capacity = sum(
        node.gpus.capacity[resource][at] for resource in profile.counts if resource in node.gpus.capacity
    )
    held = sum(node.allocations.amounts.get(gpu, {}).get(resource, 0) for resource in profile.counts)
    return held / capacity if capacity else 0.0


_COUNTS_S: Final = 30.0
_MOST_NEW: Final = 20_000
"""The most new pods that are kept until they are written."""
_CONFIGMAPS: Final = resource_kinds.Resource("", "v1", "configmaps", "ConfigMap")


class DemandCounter:
    """Counts the pods that are created, for the placement `fragmentation` (`typical_pods`)."""

    def __init__(self, options: GpuOptions, profile: ResourceProfile, handle: Handle) -> None:
        self._options = options
        self._profile = profile
        self._handle = handle
        self._pods: Store[AllocatedPod] = handle.objects[PODS]
        self._old: list[AllocatedPod] = []
        """Pods that existed when this replica became the leader; they may have been counted."""
        self._new: deque[AllocatedPod] = deque(maxlen=_MOST_NEW)
        """New pods; if they cannot be written, only the last ones are kept."""
        self._due_s = 0.0
        self._pods.subscribe(self._note_new_pods)

    def begin(self) -> None:
        self._old = self._pods.values()
        self._new.clear()
        self._due_s = 0.0

    def _note_new_pods(self, changes: Changes[AllocatedPod] | None) -> None:
        for old, new in (changes or {}).values():
            if new is not None and (old is None or old.metadata.uid != new.metadata.uid):
                self._new.append(new)

    async def step(self) -> None:
        """Write the new pods periodically; not needed with a file of typical pods."""
        if self._options.gpu_typical_pods:
            return
        now_s = self._handle.clock.monotonic()
        if (self._old or self._new) and now_s >= self._due_s:
            self._due_s = now_s + _COUNTS_S
            await self._write_histogram()

    async def _write_histogram(self) -> None:
        """Write by compare-and-swap; after a conflict the next attempt reads the new counts first."""
        there: DemandConfigMap | None = self._handle.objects[DEMAND_CONFIGMAP].get(
            self._handle.namespace, typical_pods.NAME
        )
        before = await cooperative_scheduling.run(typical_pods.parse_histogram(there))
        reader = DemandReader(self._profile, self._options, self._handle.clock.now())
        after = await cooperative_scheduling.run(
            typical_pods.add_pods_to_histogram(before, self._old, self._new, reader)
        )
        if after.history != before.history:
            namespace = self._handle.namespace
            data = await cooperative_scheduling.run(typical_pods.encode_histogram(after))
            body = typical_pods.histogram_config_map(
                data, namespace, there.metadata.resourceVersion if there else ""
            )
            if there is None:
                await self._handle.api.create(_CONFIGMAPS.path(namespace), body)
            else:
                await self._handle.api.replace(_CONFIGMAPS.path(namespace, typical_pods.NAME), body)
        self._old = []
        self._new.clear()


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
        changes = await cooperative_scheduling.run(label_changes(agent_state))
        await run_api_calls(
            self._write_label(change) for change in changes if not self._is_label_written(change.pod)
        )

    def _is_label_written(self, pod: AllocatedPod) -> bool:
        known = self._written.get(pod.metadata.uid)
        return known is not None and known[0] is pod

    async def _write_label(self, change: LabelChange) -> None:
        meta = change.pod.metadata
        path = resource_kinds.PODS.path(meta.namespace, meta.name)
        try:
            await self._handle.api.patch(path, label_patch(change), "merge", _MANAGER)
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
        details = await cooperative_scheduling.run(gpu_metrics(agent_state, self._profile, self._most))
        values = {**total_metrics(agent_state, self._profile), **details}
        async for (name, labels), value in cooperative_scheduling.iterate_with_pauses(values.items()):
            if self._shown.get((name, labels)) != value:
                self._handle.metrics_registry.set(name, value, **dict(labels))
        async for name, labels in cooperative_scheduling.iterate_with_pauses(
            [key for key in self._shown if key not in values]
        ):
            self._handle.metrics_registry.forget(name, **dict(labels))
        self._shown = values
