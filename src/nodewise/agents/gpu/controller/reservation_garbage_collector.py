"""Removes reservations without a pod from the allocation records: those of binds that never completed, and those that
no longer count.

A process that stops between its two writes leaves a reservation for a pod that is on no node. The leader finds it here
and removes it after longer than a bind may take. This cannot allocate a GPU twice, however late the bind is: the pod is
changed first, so its Binding is refused (`extender.binding`).
"""

from collections.abc import Awaitable, Container, Generator, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from nodewise.agent import ObjectKey
from nodewise.agent.bind_plugin_interface import AllocationRecordLease
from nodewise.agent.controller_interface import Handle
from nodewise.agents.gpu import allocation_record, node_allocations
from nodewise.agents.gpu.allocation_record import AllocationRecord
from nodewise.agents.gpu.state import ALLOCATION_RECORDS, RECORD_PREFIX, GpuState, NodeState
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import Conflict
from nodewise.kube import resource_kinds
from nodewise.kube.api_server_interface import NotFound, run_api_calls
from nodewise.observe import logs

Why = Literal["unbound", "unknown", "stale"]
"""`unbound`: the pod is on no node. `unknown`: the pod is not known; it may be new or deleted. `stale`: the
reservation no longer counts, and the next bind to the node would remove it as well."""


class UnconfirmedReservation(NamedTuple):
    """A reservation without a known pod on the node."""

    node: str
    uid: str
    pod: ObjectKey
    seen: str
    """The version of the pod on which it was planned."""
    why: Why


def unconfirmed_reservations(
    agent_state: GpuState, leases: Mapping[ObjectKey, AllocationRecordLease]
) -> Generator[None, None, list[UnconfirmedReservation]]:
    """All unconfirmed reservations, including those in records of deleted nodes."""
    result: list[UnconfirmedReservation] = []
    for name, node in agent_state.nodes.items():
        if _may_have_unconfirmed(node, agent_state):
            result += _unconfirmed_in_record(
                name, allocation_record.parse_record(node.record_text), agent_state
            )
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


def _may_have_unconfirmed(node: NodeState, agent_state: GpuState) -> bool:
    """Whether the allocation record has to be parsed; most of thousands need not."""
    if node.allocations.stale or node.allocations.undecided:
        return True
    return any(
        allocation.source == "ledger" and _has_no_node(allocation.pod, agent_state)
        for allocation in node.allocations.by_uid.values()
    )


def _has_no_node(pod: str, agent_state: GpuState) -> bool:
    namespace, _, name = pod.partition("/")
    known = agent_state.pods.by_key.get((namespace, name))
    return known is None or not known.spec.nodeName


def _unconfirmed_in_record(
    node: str, record: AllocationRecord, agent_state: GpuState
) -> Iterator[UnconfirmedReservation]:
    for uid, entry in record.entries.items():
        reservation_status = node_allocations.reservation_status(uid, entry, node, agent_state.pods)
        if reservation_status != "counts":
            why: Why = "stale" if reservation_status == "stale" else "unknown"
            yield UnconfirmedReservation(node, uid, entry.key, entry.seen, why)
        elif not agent_state.pods.by_key[entry.key].spec.nodeName:
            yield UnconfirmedReservation(node, uid, entry.key, entry.seen, "unbound")


PATIENCE_S: Final = 6.0
"""The age at which an unconfirmed reservation is removed. It is longer than a bind may take (`--bind-timeout`); a
longer bind starts again."""
_SWEEP_S: Final = 3.0
"""The period of garbage collection: a pass over 5,000 allocation records takes 35 ms, in small parts."""


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
        unconfirmed = await cooperative_scheduling.run(unconfirmed_reservations(agent_state, leases))
        gone = (
            await cooperative_scheduling.run(orphaned_records(agent_state, leases, names))
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
        deleted = {lease.metadata.name.removeprefix(RECORD_PREFIX) for lease in gone}
        stale: dict[str, dict[str, str]] = {}
        for reservation in unconfirmed:
            if reservation.why != "stale":
                yield self._drop_reservation(reservation)
            elif reservation.node not in deleted:
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
