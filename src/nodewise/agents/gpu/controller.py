"""The controller of the gpu agent: the only module of the agent that calls the API server.

The leader labels pods for the descheduler (`eviction_labels`), removes reservations without a pod
(`garbage_collection`) and counts pods (`demand_histogram`). Every replica compares its allocations with a fresh
list (`allocation_consistency`) and publishes metrics (`allocation_metrics`). Those modules compute what the
controller writes.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from nodewise import cooperative_scheduling
from nodewise.agent import ClusterState, NodeIndex, Snapshot
from nodewise.agents.gpu import (
    allocation_consistency,
    allocation_metrics,
    demand_histogram,
    eviction_labels,
    garbage_collection,
)
from nodewise.agents.gpu.allocation_consistency import NodeDifference, ObservedChanges
from nodewise.agents.gpu.allocation_metrics import MetricKey
from nodewise.agents.gpu.demand_histogram import DemandConfigMap, DemandReader
from nodewise.agents.gpu.garbage_collection import UnconfirmedReservation
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.resource_profile import ResourceProfile
from nodewise.agents.gpu.state import (
    ALLOCATION_RECORDS,
    DEMAND_CONFIGMAP,
    PODS,
    RECORD_PREFIX,
    GpuState,
    GpuStateBuilder,
    record_text,
)
from nodewise.binder import AllocationRecordLease
from nodewise.controllers import Controller, Handle
from nodewise.errors import BadInput, Conflict, NodewiseError, Refused
from nodewise.kube import resource_kinds
from nodewise.kube.api import NotFound
from nodewise.kube.concurrent_calls import run_api_calls
from nodewise.kube.store import Changes, Store
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.observe import background_tasks, logs
from nodewise.state import NODES

NAME: Final = "gpu"
_MANAGER: Final = {"fieldManager": "nodewise-gpu"}
_AGAIN_S: Final = 5.0
"""The time after which a label that the watch does not show is written again."""
PATIENCE_S: Final = 6.0
"""The age at which an unconfirmed reservation is removed. It is longer than a bind may take (`--bind-timeout`); a
longer bind starts again."""
_SWEEP_S: Final = 3.0
"""The period of garbage collection: a pass over 5,000 allocation records takes 35 ms, in small parts."""
_REACH_S: Final = 150.0
"""The timeout for watches to catch up: a watch without events reports its version every minute."""
_LOOK_S: Final = 0.5
_GAUGES_S: Final = 5.0
_COUNTS_S: Final = 30.0
_MOST_NEW: Final = 20_000
"""The most new pods that are kept until they are written."""
_CONFIGMAPS: Final = resource_kinds.Resource("", "v1", "configmaps", "ConfigMap")
_MOST_TOLD: Final = 10
"""The most differences that are logged individually."""


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
        changes = await cooperative_scheduling.run(eviction_labels.changes(agent_state))
        await run_api_calls(
            self._write(written) for written in changes if not self._is_label_written(written.pod)
        )

    def _is_label_written(self, pod: AllocatedPod) -> bool:
        known = self._written.get(pod.metadata.uid)
        return known is not None and known[0] is pod

    async def _write(self, change: eviction_labels.LabelChange) -> None:
        meta = change.pod.metadata
        path = resource_kinds.PODS.path(meta.namespace, meta.name)
        try:
            await self._handle.api.patch(path, eviction_labels.patch(change), "merge", _MANAGER)
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


class GarbageCollector:
    """Removes reservations without a bound pod from allocation records after a delay."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.begin()

    def begin(self) -> None:
        self._since: dict[Any, float] = {}
        self._due_s = 0.0

    async def step(self, agent_state: GpuState) -> None:
        """Remove reservations that are old enough. After an error the next step tries again."""
        if self._handle.clock.monotonic() < self._due_s:
            return
        await self._remove_stale_reservations(agent_state)
        self._due_s = self._handle.clock.monotonic() + _SWEEP_S

    async def _remove_stale_reservations(self, agent_state: GpuState) -> None:
        leases, nodes = self._handle.objects[ALLOCATION_RECORDS].snapshot(), self._handle.nodes
        names = {name for _, name in nodes.snapshot()}
        unconfirmed = await cooperative_scheduling.run(
            garbage_collection.unconfirmed_reservations(agent_state, leases)
        )
        gone = (
            await cooperative_scheduling.run(garbage_collection.orphaned_records(agent_state, leases, names))
            if nodes.synced
            else []
        )
        now_s = self._handle.clock.monotonic()
        keys = (*unconfirmed, *map(_lease_version, gone))
        self._since = {key: self._since.get(key, now_s) for key in keys}
        due = {key for key, since_s in self._since.items() if now_s - since_s >= PATIENCE_S}
        await run_api_calls(
            self._removal_calls(
                [key for key in unconfirmed if key in due],
                [key for key in gone if _lease_version(key) in due],
            )
        )

    def _removal_calls(
        self, unconfirmed: Iterable[UnconfirmedReservation], gone: Iterable[AllocationRecordLease]
    ) -> Iterator[Awaitable[None]]:
        """The calls in order. A record that is deleted needs no changes to its reservations."""
        whole = {reservation.metadata.name.removeprefix(RECORD_PREFIX) for reservation in gone}
        stale: dict[str, dict[str, str]] = {}
        for reservation in unconfirmed:
            if reservation.why != "stale":
                yield self._drop_reservation(reservation)
            elif reservation.node not in whole:
                stale.setdefault(reservation.node, {})[reservation.uid] = reservation.seen
        for node, entries in stale.items():
            yield self._prune_record_entries(node, entries)
        for lease in gone:
            yield self._delete_lease(lease)

    async def _drop_reservation(self, reservation: UnconfirmedReservation) -> None:
        if self._handle.reservations is None:
            return
        if await self._handle.reservations.drop(
            reservation.node, reservation.pod, reservation.uid, reservation.seen
        ):
            self._handle.metrics_registry.count("claims_dropped_total", why=reservation.why)
            logs.emit(
                "claim_dropped",
                node=reservation.node,
                pod="/".join(reservation.pod),
                uid=reservation.uid,
                why=reservation.why,
            )
        else:
            self._since.pop(reservation, None)  # the pod is on the node; the watch reports it soon

    async def _prune_record_entries(self, node: str, entries: Mapping[str, str]) -> None:
        if self._handle.reservations is not None:
            await self._handle.reservations.prune(node, entries)
            self._handle.metrics_registry.count("claims_dropped_total", len(entries), why="stale")

    async def _delete_lease(self, lease: AllocationRecordLease) -> None:
        meta = lease.metadata
        conditions = {"uid": meta.uid, "resourceVersion": meta.resourceVersion}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": conditions}
        try:
            await self._handle.api.delete(resource_kinds.LEASES.path(meta.namespace, meta.name), options)
        except (NotFound, Conflict):
            return  # another replica deleted it, or wrote a reservation that counts
        logs.emit("ledger_deleted", node=meta.name.removeprefix(RECORD_PREFIX))


def _lease_version(lease: AllocationRecordLease) -> tuple[str, str]:
    return lease.metadata.name, lease.metadata.resourceVersion


class DemandCounter:
    """Counts the pods that are created, for the placement `fragmentation` (`demand_histogram`)."""

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
            await self._write()

    async def _write(self) -> None:
        """Write by compare-and-swap; after a conflict the next attempt reads the new counts first."""
        there: DemandConfigMap | None = self._handle.objects[DEMAND_CONFIGMAP].get(
            self._handle.namespace, demand_histogram.NAME
        )
        before = await cooperative_scheduling.run(demand_histogram.parse_histogram(there))
        reader = DemandReader(self._profile, self._options, self._handle.clock.now())
        after = await cooperative_scheduling.run(
            demand_histogram.add_pods(before, self._old, self._new, reader)
        )
        if after.history != before.history:
            namespace = self._handle.namespace
            data = await cooperative_scheduling.run(demand_histogram.encode_histogram(after))
            body = demand_histogram.config_map_body(
                data, namespace, there.metadata.resourceVersion if there else ""
            )
            if there is None:
                await self._handle.api.create(_CONFIGMAPS.path(namespace), body)
            else:
                await self._handle.api.replace(_CONFIGMAPS.path(namespace, demand_histogram.NAME), body)
        self._old = []
        self._new.clear()


class ConsistencyChecker:
    """Compares the agent state with a fresh list periodically, and relists everything where they differ."""

    def __init__(self, options: GpuOptions, profile: ResourceProfile, handle: Handle) -> None:
        self._period_s = options.gpu_check_period_s
        self._profile = profile
        self._handle = handle

    async def run(self) -> None:
        """Check forever. A check that fails is logged, and the next one follows after the period."""
        while self._period_s:
            await self._handle.clock.sleep(self._period_s)
            try:
                await self.check()
            except NodewiseError as error:
                self._count_check_outcome("undecided")
                logs.emit("books_unchecked", error=str(error))

    async def check(self) -> None:
        """Check once. Raises NodewiseError if the list fails."""
        differences = await self._compare_with_fresh_list()
        if differences is None:
            self._count_check_outcome("undecided")
            return
        self._count_check_outcome("different" if differences else "same")
        if differences:
            for difference in differences[:_MOST_TOLD]:
                logs.emit("books_differ", node=difference.node, what=difference.what, nodes=len(differences))
            self._handle.relister.begin()

    def _count_check_outcome(self, outcome: str) -> None:
        self._handle.metrics_registry.count("gpu_checks_total", outcome=outcome)

    async def _compare_with_fresh_list(self) -> list[NodeDifference] | None:
        """The differences; None if the watches do not report their versions."""
        stores: dict[str, Store[Any]] = {NODES: self._handle.nodes, **self._handle.objects}
        listener = _ChangeListener(stores)
        try:
            fresh = {
                name: await self._handle.relister.read(name) for name in (NODES, ALLOCATION_RECORDS, PODS)
            }
            if not await self._wait_for_versions(stores, fresh):
                return None
            ours = await self._agent_state_after(self._handle.clock.now())
            if ours is None:
                return None
            computed = await self._computed(fresh)
            return await cooperative_scheduling.run(
                allocation_consistency.differences(ours, computed, listener.changes, self._stored_allocations)
            )
        finally:
            listener.end()

    async def _wait_for_versions(
        self, stores: Mapping[str, Store[Any]], fresh: Mapping[str, Store[Any]]
    ) -> bool:
        """Wait until the watches reach the versions of the lists."""
        versions = {name: store.resource_version for name, store in fresh.items()}
        if not all(version.isdecimal() for version in versions.values()):
            return False

        def is_reached() -> bool:
            known = {name: stores[name].resource_version for name in versions}
            return all(
                known[name].isdecimal() and int(known[name]) >= int(version)
                for name, version in versions.items()
            )

        return await self._wait_until(is_reached)

    async def _agent_state_after(self, now: float) -> GpuState | None:
        """The agent state of a snapshot that includes everything known now."""
        await self._wait_until(lambda: self._handle.snapshot().at >= now)
        snapshot = self._handle.snapshot()
        agent_state: GpuState | None = snapshot.agent_states.get(NAME)
        return agent_state if snapshot.at >= now else None

    async def _wait_until(self, is_so: Callable[[], bool]) -> bool:
        clock = self._handle.clock
        until_s = clock.monotonic() + _REACH_S
        while not is_so() and clock.monotonic() < until_s:
            await clock.sleep(_LOOK_S)
        return is_so()

    async def _computed(self, fresh: Mapping[str, Store[Any]]) -> GpuState:
        nodes = fresh[NODES].snapshot()
        objects = {name: fresh[name].snapshot() for name in (PODS, ALLOCATION_RECORDS)}
        versions = {name: fresh[name].resource_version for name in objects}
        index = NodeIndex(tuple(name for _, name in nodes))
        cluster_state = ClusterState(
            index, objects, MetricsSnapshot(), self._handle.clock.now(), nodes, versions
        )
        return await cooperative_scheduling.run(GpuStateBuilder(self._profile).build(cluster_state))

    def _stored_allocations(self, node: str) -> str:
        return record_text(
            self._handle.objects[ALLOCATION_RECORDS].get(self._handle.namespace, f"{RECORD_PREFIX}{node}")
        )


class _ChangeListener:
    """Notes the objects of watch events."""

    def __init__(self, stores: Mapping[str, Store[Any]]) -> None:
        self.changes = ObservedChanges(set(), set())
        notes = {NODES: self.changes.node, ALLOCATION_RECORDS: self.changes.record, PODS: self.changes.pod}
        self._ends = [stores[name].subscribe(self._change_recorder(note)) for name, note in notes.items()]

    def end(self) -> None:
        for end in self._ends:
            end()

    def _change_recorder(self, note: Callable[[Any], None]) -> Callable[[Changes[Any] | None], None]:
        def note_all(changes: Changes[Any] | None) -> None:
            for change in (changes or {}).values():
                for item in change:
                    if item is not None:
                        note(item)

        return note_all


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
