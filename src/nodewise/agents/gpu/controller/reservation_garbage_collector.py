"""Removes reservations without a pod from the allocation records (`stale_reservations` finds them)."""

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any, Final

from nodewise.agent.bind_plugin_interface import AllocationRecordLease
from nodewise.agent.controller_interface import Handle
from nodewise.agents.gpu import stale_reservations
from nodewise.agents.gpu.stale_reservations import UnconfirmedReservation
from nodewise.agents.gpu.state import ALLOCATION_RECORDS, RECORD_PREFIX, GpuState
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import Conflict
from nodewise.kube import resource_kinds
from nodewise.kube.api_server_interface import NotFound, run_api_calls
from nodewise.observe import logs

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
        unconfirmed = await cooperative_scheduling.run(
            stale_reservations.unconfirmed_reservations(agent_state, leases)
        )
        gone = (
            await cooperative_scheduling.run(stale_reservations.orphaned_records(agent_state, leases, names))
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
