"""The controller of the gpu agent: the only module of the agent that calls the API server.

The leader labels pods for the descheduler, removes reservations without a pod and counts pods (`typical_pods`). Every
replica compares its allocations with a fresh list and publishes metrics.

Labels for the descheduler are on pods that hold a GPU or sub-device from which pods are to be evicted.
Labels of telemetry policies name these GPUs and sub-devices (`gpu_node_labels`). A pod gets the label as
soon as it is bound, and loses it when no policy asks for it any more or when the pod ends. The allocations say which
pod holds which GPU, so annotations that a tenant changes on a pod bound by nodewise have no effect.

A process that stops between the two writes of a bind leaves a reservation for a pod that is on no node. The leader
removes it after longer than a bind may take. This cannot allocate a GPU twice, however late the bind is: the pod is
changed first, so its Binding is refused (`extender.binding`).

The comparison with a fresh list covers only objects that do not change during it. From before the list begins, all
watch events are noted, and the comparison waits until the watches reach the version of the list. An object without an
event in between has the same version in memory and in the list; otherwise an event was missed. Nodes that changed,
whose pods changed or whose allocation record changed are left to the next comparison, and so are nodes with a
reservation in progress.

Metrics are totals, and series per GPU and node where there are few of these: rendering 1,000 series takes the metrics
page 7 ms, during which no other request is answered.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Container, Coroutine, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from nodewise.agent import ClusterState, NodeIndex, ObjectKey, Snapshot
from nodewise.agent.bind_plugin_interface import AllocationRecordLease
from nodewise.agent.controller_interface import Controller, Handle
from nodewise.agent.state import NODES
from nodewise.agents.gpu import allocation_record, node_allocations, typical_pods
from nodewise.agents.gpu.allocation_record import AllocationRecord
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.node_allocations import PodAllocation
from nodewise.agents.gpu.node_gpus import NodeGpus
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.state import (
    ALLOCATION_RECORDS,
    DEMAND_CONFIGMAP,
    NAME,
    PODS,
    RECORD_PREFIX,
    GpuState,
    GpuStateBuilder,
)
from nodewise.agents.gpu.typical_pods import DemandConfigMap, DemandReader
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadInput, Conflict, NodewiseError, Refused, shown
from nodewise.devices.device_report import DeviceCounter
from nodewise.kube import resource_kinds
from nodewise.kube.api_server_interface import NotFound, run_api_calls
from nodewise.kube.store import Changes, Store
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.observe import background_tasks, logs

DESCHEDULE_LABEL: Final = "gpu.aware.scheduling/deschedule-pod"
DESCHEDULE_VALUE: Final = "gpu"
_MANAGER: Final = {"fieldManager": "nodewise-gpu"}
_AGAIN_S: Final = 5.0
"""The time after which a label that the watch does not show is written again."""
_STRIDE: Final = 256
"""Pods per part of the work."""

PATIENCE_S: Final = 6.0
"""The age at which an unconfirmed reservation is removed. It is longer than a bind may take (`--bind-timeout`); a
longer bind starts again."""
_SWEEP_S: Final = 3.0
"""The period of garbage collection: a pass over 5,000 allocation records takes 35 ms, in small parts."""

_COUNTS_S: Final = 30.0
_MOST_NEW: Final = 20_000
"""The most new pods that are kept until they are written."""

_REACH_S: Final = 150.0
"""The timeout for watches to catch up: a watch without events reports its version every minute."""
_LOOK_S: Final = 0.5
_MOST_LOGGED: Final = 10
"""The most differences that are logged individually."""

_GAUGES_S: Final = 5.0
GPU_SHARE: Final = "gpu_card_held_share"
PROBLEMS: Final = "gpu_node_problems"


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


class LabelChange(NamedTuple):
    """A pod whose label has to be added or removed."""

    pod: AllocatedPod
    is_wanted: bool


def label_changes(agent_state: GpuState) -> Generator[None, None, list[LabelChange]]:
    """The labels to write. A label with another value belongs to another owner, unless the pod must be evicted."""
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
    result = []
    for number, pod in enumerate(agent_state.pods.by_key.values()):
        labels, node_name = pod.metadata.labels, node_by_uid.get(pod.metadata.uid)
        is_wanted = node_name is not None and node_name == pod.spec.nodeName
        if (labels is not None and labels.deschedule == DESCHEDULE_VALUE) != is_wanted:
            result.append(LabelChange(pod, is_wanted))
        if number % _STRIDE == 0:
            yield
    return result


def label_patch(change: LabelChange) -> Mapping[str, Any]:
    """A merge patch, which also works without existing labels. The uid protects a pod that was recreated."""
    labels = {DESCHEDULE_LABEL: DESCHEDULE_VALUE if change.is_wanted else None}
    return {"metadata": {"uid": change.pod.metadata.uid, "labels": labels}}


def holds_gpu_to_evict(held: PodAllocation, gpus: NodeGpus) -> bool:
    """Whether a pod holds a GPU or a sub-device whose pods are to be evicted."""
    return any(not gpus.descheduled.isdisjoint(names) for names in held.gpus) or any(
        not off.isdisjoint(held.subdevices.get(gpu, ())) for gpu, off in gpus.subdevices_descheduled.items()
    )


class DescheduleLabels:
    """Keeps the deschedule label of pods up to date."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.begin()

    def begin(self) -> None:
        self._written: dict[str, tuple[AllocatedPod, float]] = {}
        """By pod uid, the pod whose label was written or refused, and the time until which it is not written again."""

    async def step(self, agent_state: GpuState) -> None:
        """Write the labels that differ."""
        now_s = self._handle.clock.monotonic()
        self._written = {uid: written for uid, written in self._written.items() if written[1] > now_s}
        changes = await cooperative_scheduling.run(label_changes(agent_state))
        await run_api_calls(
            self._write_label(change)
            for change in changes
            if self._written.get(change.pod.metadata.uid, (None, 0))[0] is not change.pod
        )

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


class UnconfirmedReservation(NamedTuple):
    """A reservation without a known pod on the node."""

    node: str
    uid: str
    pod: ObjectKey
    seen: str
    """The version of the pod on which it was planned."""
    why: Literal["unbound", "unknown", "stale"]
    """`unbound`: the pod is on no node. `unknown`: the pod is not known; it may be new or deleted. `stale`: the
    reservation no longer counts, and the next bind to the node would remove it as well."""


def unconfirmed_reservations(
    agent_state: GpuState, leases: Mapping[ObjectKey, AllocationRecordLease]
) -> Generator[None, None, list[UnconfirmedReservation]]:
    """All unconfirmed reservations, including those in records of deleted nodes."""
    result: list[UnconfirmedReservation] = []
    for name, node in agent_state.nodes.items():
        # most of thousands of records need not be parsed
        if (
            node.allocations.stale
            or node.allocations.undecided
            or any(
                allocation.source == "ledger" and not _is_on_a_node(allocation.key, agent_state)
                for allocation in node.allocations.by_uid.values()
            )
        ):
            record = allocation_record.parse_record(node.record_text)
            result += _unconfirmed_in_record(name, record, agent_state)
        yield
    for name, lease in _records_of_deleted_nodes(leases, agent_state.nodes):
        result += _unconfirmed_in_record(name, allocation_record.parse_lease(lease), agent_state)
        yield
    return result


def orphaned_records(
    agent_state: GpuState, leases: Mapping[ObjectKey, AllocationRecordLease], nodes: Container[str]
) -> Generator[None, None, list[AllocationRecordLease]]:
    """The allocation records of deleted nodes without reservations that count or cannot be parsed."""
    result: list[AllocationRecordLease] = []
    for name, lease in _records_of_deleted_nodes(leases, nodes):
        record = allocation_record.parse_lease(lease)
        statuses = {
            node_allocations.reservation_status(uid, entry, name, agent_state.pods)
            for uid, entry in record.entries.items()
        }
        if statuses <= {"stale"} and not record.unreadable and not record.problem:
            result.append(lease)
        yield
    return result


def _records_of_deleted_nodes(
    leases: Mapping[ObjectKey, AllocationRecordLease], nodes: Container[str]
) -> Iterator[tuple[str, AllocationRecordLease]]:
    for (_, key), lease in leases.items():
        name = key.removeprefix(RECORD_PREFIX)
        if name != key and name not in nodes:
            yield name, lease


def _is_on_a_node(key: ObjectKey, agent_state: GpuState) -> bool:
    pod = agent_state.pods.by_key.get(key)
    return pod is not None and bool(pod.spec.nodeName)


def _unconfirmed_in_record(
    node: str, record: AllocationRecord, agent_state: GpuState
) -> Iterator[UnconfirmedReservation]:
    for uid, entry in record.entries.items():
        status = node_allocations.reservation_status(uid, entry, node, agent_state.pods)
        if status == "stale":
            yield UnconfirmedReservation(node, uid, entry.key, entry.seen, "stale")
        elif status == "undecided":
            yield UnconfirmedReservation(node, uid, entry.key, entry.seen, "unknown")
        elif not agent_state.pods.by_key[entry.key].spec.nodeName:
            yield UnconfirmedReservation(node, uid, entry.key, entry.seen, "unbound")


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
        leases, nodes = self._handle.objects[ALLOCATION_RECORDS].snapshot(), self._handle.nodes
        names = {name for _, name in nodes.snapshot()}
        unconfirmed = await cooperative_scheduling.run(unconfirmed_reservations(agent_state, leases))
        orphaned: list[AllocationRecordLease] = []
        if nodes.synced:
            orphaned = await cooperative_scheduling.run(orphaned_records(agent_state, leases, names))
        gone = {(lease.metadata.name, lease.metadata.resourceVersion): lease for lease in orphaned}
        now_s = self._handle.clock.monotonic()
        self._since = {key: self._since.get(key, now_s) for key in (*unconfirmed, *gone)}
        due = {key for key, since_s in self._since.items() if now_s - since_s >= PATIENCE_S}
        await run_api_calls(
            self._removal_calls(
                [reservation for reservation in unconfirmed if reservation in due],
                [lease for key, lease in gone.items() if key in due],
            )
        )
        self._due_s = self._handle.clock.monotonic() + _SWEEP_S

    def _removal_calls(
        self, unconfirmed: Sequence[UnconfirmedReservation], orphaned: Sequence[AllocationRecordLease]
    ) -> Iterator[Awaitable[None]]:
        """The calls in order. A record that is deleted needs no changes to its reservations."""
        deleted = {lease.metadata.name.removeprefix(RECORD_PREFIX) for lease in orphaned}
        stale: dict[str, dict[str, str]] = {}
        for reservation in unconfirmed:
            if reservation.why != "stale":
                yield self._drop_reservation(reservation)
            elif reservation.node not in deleted:
                stale.setdefault(reservation.node, {})[reservation.uid] = reservation.seen
        for node, entries in stale.items():
            yield self._prune_record_entries(node, entries)
        for lease in orphaned:
            yield self._delete_lease(lease)

    async def _drop_reservation(self, reservation: UnconfirmedReservation) -> None:
        node, uid, pod, seen, why = reservation
        if self._handle.reservations is None:
            return
        if await self._handle.reservations.drop(node, pod, uid, seen):
            self._handle.metrics_registry.count("claims_dropped_total", why=why)
            logs.emit("claim_dropped", node=node, pod="/".join(pod), uid=uid, why=why)
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
        """Write the new pods periodically; not needed with a file of typical pods.

        The ConfigMap is written by compare-and-swap; after a conflict the next attempt reads the new counts first.
        """
        now_s = self._handle.clock.monotonic()
        if self._options.gpu_typical_pods or not (self._old or self._new) or now_s < self._due_s:
            return
        self._due_s = now_s + _COUNTS_S
        namespace = self._handle.namespace
        configmap: DemandConfigMap | None = self._handle.objects[DEMAND_CONFIGMAP].get(
            namespace, typical_pods.NAME
        )
        before = await cooperative_scheduling.run(typical_pods.parse_histogram(configmap))
        reader = DemandReader(self._profile, self._options, self._handle.clock.now())
        after = await cooperative_scheduling.run(
            typical_pods.add_pods_to_histogram(before, self._old, self._new, reader)
        )
        if after.history != before.history:
            data = await cooperative_scheduling.run(typical_pods.encode_histogram(after))
            version = configmap.metadata.resourceVersion if configmap else ""
            body = typical_pods.histogram_config_map(data, namespace, version)
            if configmap is None:
                await self._handle.api.create(resource_kinds.CONFIG_MAPS.path(namespace), body)
            else:
                await self._handle.api.replace(
                    resource_kinds.CONFIG_MAPS.path(namespace, typical_pods.NAME), body
                )
        self._old = []
        self._new.clear()


class ObservedChanges(NamedTuple):
    """The objects in watch events since the list began."""

    nodes: set[str]
    """Nodes that changed, whose allocation record changed, or whose pods changed."""
    pods: set[ObjectKey]

    def note(self, store: str, changes: Changes[Any] | None) -> None:
        """Note the objects of changes in a store."""
        for item in (item for change in (changes or {}).values() for item in change if item is not None):
            if store == PODS:
                self.nodes.add(item.spec.nodeName)
                self.pods.add((item.metadata.namespace, item.metadata.name))
            elif store == NODES:
                self.nodes.add(item.metadata.name)
            else:
                self.nodes.add(item.metadata.name.removeprefix(RECORD_PREFIX))


def differences(
    ours: GpuState, fresh: GpuState, observed: ObservedChanges, stored: Callable[[str], str]
) -> Generator[None, None, list[tuple[str, str]]]:
    """The nodes where the state in memory differs from the one computed from the list, with the difference as text.

    `stored` returns the text of a node's allocation record in the store; `ours` may have more reservations.
    """
    result = []
    for name in sorted(ours.nodes.keys() | fresh.nodes.keys()):
        if name not in observed.nodes and (difference := _difference_of_node(name, ours, fresh)):
            nodes = [state.nodes[name] for state in (ours, fresh) if name in state.nodes]
            pods = {
                entry.key
                for node in nodes
                for entry in allocation_record.parse_record(node.record_text).entries.values()
            }
            held = ours.nodes[name].record_text if name in ours.nodes else ""
            if held == stored(name) and pods.isdisjoint(observed.pods):
                result.append((name, difference))
        yield
    return result


def _difference_of_node(name: str, ours: GpuState, fresh: GpuState) -> str:
    ours_node, fresh_node = ours.nodes.get(name), fresh.nodes.get(name)
    if ours_node is None or fresh_node is None:
        return f"its GPUs are not in {'memory' if ours_node is None else 'the list'}"
    if ours_node.record_text != fresh_node.record_text:
        return "its allocation record differs"
    held, listed = ours_node.allocations.by_uid, fresh_node.allocations.by_uid
    if held != listed:
        uids = sorted(uid for uid in held.keys() | listed.keys() if held.get(uid) != listed.get(uid))
        pods = [(held.get(uid) or listed[uid]).pod for uid in uids]
        return f"the allocations of pods differ: {', '.join(pods[:5])}"
    # after the allocations, because units without a known place follow them
    if ours_node.gpus != fresh_node.gpus:
        names, listed_names = shown(ours_node.gpus.names), shown(fresh_node.gpus.names)
        return f"its GPUs or their properties differ: {names} in memory, {listed_names} in the list"
    if _layout_column(name, ours) != _layout_column(name, fresh):
        return "the free amounts of its GPUs or its CPU are out of date"
    return ""


def _layout_column(name: str, agent_state: GpuState) -> Mapping[str, Any]:
    """The column of the node in the layout, from which requests are answered."""
    row = agent_state.rows.get(name)
    if row is None:
        return {}
    layout = agent_state.layout
    count = len(layout.gpus(row))
    free = {
        resource: cells[:count, row].tolist()
        for resource, cells in layout.free.items()
        if layout.capacity[resource][:count, row].any()
    }
    cpu_free = None if agent_state.cpu_free is None else int(agent_state.cpu_free[row])
    usable = layout.usable[:count, row].tolist()
    return {"cards": layout.gpus(row), "usable": usable, "free": free, "cpu_free": cpu_free}


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
                self._handle.metrics_registry.count("gpu_checks_total", outcome="undecided")
                logs.emit("books_unchecked", error=str(error))

    async def check(self) -> None:
        """Check once. Raises NodewiseError if the list fails."""
        differences = await self._compare_with_fresh_list()
        outcome = "undecided" if differences is None else "different" if differences else "same"
        self._handle.metrics_registry.count("gpu_checks_total", outcome=outcome)
        if differences:
            for node, difference in differences[:_MOST_LOGGED]:
                logs.emit("books_differ", node=node, what=difference, nodes=len(differences))
            self._handle.relister.begin()

    async def _compare_with_fresh_list(self) -> list[tuple[str, str]] | None:
        """The differences; None if the watches do not report their versions."""
        stores: dict[str, Store[Any]] = {NODES: self._handle.nodes, **self._handle.objects}
        observed = ObservedChanges(set(), set())
        unsubscribe = [
            stores[name].subscribe(partial(observed.note, name)) for name in (NODES, ALLOCATION_RECORDS, PODS)
        ]
        try:
            fresh = {
                name: await self._handle.relister.read(name) for name in (NODES, ALLOCATION_RECORDS, PODS)
            }
            versions = {name: store.resource_version for name, store in fresh.items()}
            if not all(version.isdecimal() for version in versions.values()):
                return None

            def are_reached() -> bool:
                known = {name: stores[name].resource_version for name in versions}
                return all(
                    known[name].isdecimal() and int(known[name]) >= int(versions[name]) for name in known
                )

            if not await self._wait_until(are_reached):
                return None
            now = self._handle.clock.now()
            await self._wait_until(lambda: self._handle.snapshot().at >= now)
            snapshot = self._handle.snapshot()
            ours: GpuState | None = snapshot.agent_states.get(NAME)
            if ours is None or snapshot.at < now:
                return None
            return await cooperative_scheduling.run(
                differences(ours, await self._agent_state_of_list(fresh), observed, self._stored_record_text)
            )
        finally:
            for end in unsubscribe:
                end()

    async def _wait_until(self, is_so: Callable[[], bool]) -> bool:
        clock = self._handle.clock
        until_s = clock.monotonic() + _REACH_S
        while not is_so() and clock.monotonic() < until_s:
            await clock.sleep(_LOOK_S)
        return is_so()

    async def _agent_state_of_list(self, fresh: Mapping[str, Store[Any]]) -> GpuState:
        """The agent state that follows from listed objects alone."""
        nodes = fresh[NODES].snapshot()
        objects = {name: fresh[name].snapshot() for name in (PODS, ALLOCATION_RECORDS)}
        versions = {name: fresh[name].resource_version for name in objects}
        index = NodeIndex(tuple(name for _, name in nodes))
        cluster_state = ClusterState(
            index, objects, MetricsSnapshot(), self._handle.clock.now(), nodes, versions
        )
        return await cooperative_scheduling.run(GpuStateBuilder(self._profile).build(cluster_state))

    def _stored_record_text(self, node: str) -> str:
        records = self._handle.objects[ALLOCATION_RECORDS]
        return allocation_record.record_text(records.get(self._handle.namespace, f"{RECORD_PREFIX}{node}"))


MetricKey = tuple[str, tuple[tuple[str, str], ...]]
"""Name, and labels."""


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
    record_bytes = layout.record_bytes[0, : layout.size]
    fullest = record_bytes[record_bytes != allocation_record.NO_RECORD].max(initial=0)
    return {
        ("gpu_nodes", ()): layout.size,
        ("gpu_cards", (("state", "usable"),)): int(layout.usable.sum()),
        ("gpu_cards", (("state", "unusable"),)): int((exists & ~layout.usable).sum()),
        ("gpu_held_share", ()): held / has if has else 0.0,
        ("gpu_pods", ()): sum(len(node.allocations.by_uid) for node in agent_state.nodes.values()),
        ("gpu_fullest_record_share", ()): float(fullest) / allocation_record.RECORD_BYTES,
        ("gpu_nodes_with_problems", ()): sum(bool(node.problems) for node in agent_state.nodes.values()),
    }


def gpu_metrics(
    agent_state: GpuState, profile: ResourceProfile, most: int
) -> Generator[None, None, Mapping[MetricKey, float]]:
    """Metrics by GPU, and by node with problems; none if there would be more than `most` series.

    The held share of the GPU's counting resource is above 1 if it is overcommitted.
    """
    gpus = int((agent_state.layout.name_codes >= 0).sum())
    if gpus + sum(bool(node.problems) for node in agent_state.nodes.values()) > most:
        return {}
    yield
    values: dict[MetricKey, float] = {}
    for name, node in agent_state.nodes.items():
        for at, gpu in enumerate(node.gpus.names):
            capacity = sum(
                row[at] for resource, row in node.gpus.capacity.items() if resource in profile.counts
            )
            amounts = node.allocations.amounts.get(gpu, {})
            held = sum(amounts.get(resource, 0) for resource in profile.counts)
            values[GPU_SHARE, (("node", name), ("card", gpu))] = held / capacity if capacity else 0.0
        if node.problems:
            values[PROBLEMS, (("node", name),)] = len(node.problems)
        yield
    return values


class MetricsPublisher:
    """Publishes the metrics of the newest state."""

    def __init__(self, options: GpuOptions, profile: ResourceProfile, handle: Handle) -> None:
        self._most = options.gpu_card_metrics
        self._profile = profile
        self._handle = handle
        self._devices = DeviceCounter()
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
        devices = await cooperative_scheduling.run(
            self._devices.update(agent_state.devices, agent_state.device_classes.values())
        )
        values = {**total_metrics(agent_state, self._profile), **details}
        for (driver, device_class, state), count in devices.items():
            values["dra_devices", (("driver", driver), ("class", device_class), ("state", state))] = count
        async for (name, labels), value in cooperative_scheduling.iterate_with_pauses(values.items()):
            if self._shown.get((name, labels)) != value:
                self._handle.metrics_registry.set(name, value, **dict(labels))
        async for name, labels in cooperative_scheduling.iterate_with_pauses(
            [key for key in self._shown if key not in values]
        ):
            self._handle.metrics_registry.forget(name, **dict(labels))
        self._shown = values
