"""Reservations in the allocation records of nodes. A pod's reservation is written before the pod is bound.

The allocation record of a node is a Lease. Every replica writes it by compare-and-swap. Each replica has one
`ReservationWriter` per node. Requests that arrive during a write are planned one upon the other and go into the next
write together, so any number of binds to one node needs few writes, and no node waits for another. A planned
reservation shows in the snapshot at once, so filter calls do not offer its devices to other pods.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent.bind_plugin_interface import (
    ALLOCATION_RECORD_LABEL,
    RESERVATIONS_ANNOTATION,
    AllocationRecordLease,
    AllocationRecordMetadata,
    AllocationStateBuilder,
    BindPlan,
    BindPlugin,
    Refusal,
)
from nodewise.base.clock import Clock
from nodewise.base.errors import UNREADABLE, Conflict, NodewiseError, Unavailable
from nodewise.engine.cluster_state_changes import Override
from nodewise.engine.snapshot_cache import SnapshotCache
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.resource_kinds import LEASES
from nodewise.kube.store import Store
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

CALL_TIMEOUT_S: Final = 2.0
"""Timeout of one API call. Two calls fit into kube-scheduler's timeout."""
MAX_TRIES: Final = 10
"""Consecutive failed writes of one record. After a conflict another replica has made progress."""
_BACKOFF_S: Final = 0.01
"""Delay from the second consecutive failed write on, multiplied by their number."""

Reservations = dict[str, msgspec.Raw]
"""Reservations by pod uid, as JSON."""

_encode: Final = msgspec.json.Encoder().encode
_decode_reservations: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class BindContext(NamedTuple):
    """What binds of one agent share."""

    api: Api
    namespace: str
    """nodewise's own namespace, which has the allocation records."""
    allocation_records: Store[Any]
    """`AllocationRecordLease` objects."""
    snapshot_cache: SnapshotCache
    binder: BindPlugin[Any, Any]
    state_builder: AllocationStateBuilder[Any]
    clock: Clock
    metrics_registry: MetricsRegistry


class _PendingReservation:
    """A pod whose reservation is planned and not written yet."""

    def __init__(self, pod: Any, plan: BindPlan) -> None:
        self.pod = pod
        self.plan = plan
        self.result: asyncio.Future[BindPlan | Refusal | None] = asyncio.get_running_loop().create_future()

    @property
    def uid(self) -> str:
        return str(self.pod.metadata.uid)

    def settle(self, result: BindPlan | Refusal | None) -> None:
        if not self.result.done():
            self.result.set_result(result)

    def fail(self, error: NodewiseError) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class ReservationWriter:
    """Writes one node's allocation record. A process has at most one writer per node."""

    def __init__(self, node: str, context: BindContext) -> None:
        self._node = node
        self._context = context
        self._name = f"{context.binder.name}-{node}"
        self._path = LEASES.path(context.namespace, self._name)
        self._pending: dict[str, _PendingReservation] = {}
        """By pod uid, in the order in which they came."""
        self._in_flight: Mapping[str, BindPlan] = {}
        """What is being written. The write may succeed although its callers have gone."""
        self._releases: dict[str, frozenset[str]] = {}
        """By pod uid, versions of the pod: a reservation that was planned on one of them is to be removed."""
        self._planned_on: AllocationRecordLease | None = None
        """The record that the pending reservations were planned upon."""
        self._deleted: AllocationRecordLease | None = None
        """The record that the store still has and the API server does not."""
        self._write_task: asyncio.Task[None] | None = None
        self._expected: (
            tuple[AllocationRecordLease | None, Mapping[str, BindPlan], AllocationRecordLease] | None
        )
        self._expected = None
        """The current record, the unwritten plans, and the record with these plans."""

    async def reserve(self, pod: Any) -> BindPlan | Refusal | None:
        """Write the pod's reservation; a `Refusal` if the agent refuses, None for a pod that needs no reservation.

        Raises kinds of `NodewiseError`. The reservation may be written nevertheless.
        """
        plan = self._plan_reservation(pod)
        if not isinstance(plan, BindPlan):
            return plan
        pending = self._pending[str(pod.metadata.uid)] = _PendingReservation(pod, plan)
        self._update_snapshot()
        self._start_writing()
        try:
            return await pending.result
        finally:
            self._drop_pending_reservations([pending])

    async def release(self, uid: str, pod_versions: Collection[str]) -> None:
        """Remove the pod's reservation if it was planned on one of these versions of the pod.

        Only for versions on which the pod can no longer be bound to this node.
        """
        self._releases[uid] = self._releases.get(uid, frozenset()) | frozenset(pod_versions)
        self._start_writing()
        write_task = self._write_task
        if write_task is not None:
            await asyncio.shield(write_task)

    def _current_node_record(self) -> AllocationRecordLease | None:
        record: AllocationRecordLease | None = self._context.allocation_records.get(
            self._context.namespace, self._name
        )
        return None if record is not None and record is self._deleted else record

    def _plan_reservation(self, pod: Any) -> BindPlan | Refusal | None:
        """Plan upon the newest record and all pending reservations."""
        if not self._unwritten_plans():
            self._planned_on = self._current_node_record()
        self._update_snapshot()
        context = self._context
        return context.binder.bind(pod, self._node, context.snapshot_cache.snapshot, context.clock.now())

    def _update_snapshot(self) -> None:
        """Show the record with the unwritten plans in the snapshot."""
        record, context = self._expected_record(), self._context
        context.snapshot_cache.amend(
            self._path,
            context.binder.name,
            lambda agent_state: context.state_builder.apply_allocation_record(
                agent_state, self._node, record
            ),
            Override(context.binder.allocation_records, (context.namespace, self._name), record),
        )
        if not self._unwritten_plans():
            context.snapshot_cache.withdraw_amendment(self._path)

    def _unwritten_plans(self) -> Mapping[str, BindPlan]:
        """Plans that may come into the record."""
        return {**self._in_flight, **{uid: pending.plan for uid, pending in self._pending.items()}}

    def _expected_record(self) -> AllocationRecordLease | None:
        """The record with the unwritten plans; the same object while nothing changes."""
        record, plans = self._current_node_record(), self._unwritten_plans()
        if self._expected is None or self._expected[0] is not record or self._expected[1] != plans:
            meta = (
                record.metadata if record else AllocationRecordMetadata(self._name, self._context.namespace)
            )
            text = _encode(_updated_reservations(read_reservations(record), plans, {})).decode()
            annotations = {**(meta.annotations or {}), RESERVATIONS_ANNOTATION: text}
            with_plans = AllocationRecordLease(msgspec.structs.replace(meta, annotations=annotations))
            self._expected = (record, plans, with_plans)
        return self._expected[2] if plans else record

    def _start_writing(self) -> None:
        if self._write_task is None:
            self._write_task = asyncio.create_task(self._write_until_none_pending())

    def _drop_pending_reservations(self, reservations: Iterable[_PendingReservation]) -> None:
        """Remove these from the pending ones, unless the pod was reserved again in the meantime."""
        pending = [item for item in reservations if self._pending.get(item.uid) is item]
        for item in pending:
            del self._pending[item.uid]
        if pending:
            self._update_snapshot()

    async def _write_until_none_pending(self) -> None:
        """Write until nothing is pending. Every caller gets a result, whatever happens."""
        error = NodewiseError(f"allocation record {self._name}: a defect of nodewise, see its log")
        failures = 0
        try:
            while self._pending or self._releases:
                failure = await self._write_pending_once()
                failures = failures + 1 if failure else 0
                if failure and failures == MAX_TRIES:
                    error = failure
                    break
                await self._context.clock.sleep(_BACKOFF_S * max(failures - 1, 0))
        except NodewiseError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - the callers get the error, and the next write may succeed
            logs.emit("agent_failed", agent=self._context.binder.name, exc_info=failure)
        finally:
            self._write_task = None
            self._fail_all_pending(error)

    def _fail_all_pending(self, error: NodewiseError) -> None:
        for pending in self._pending.values():
            pending.fail(error)
        if self._releases:
            logs.emit("claims_left", node=self._node, pods=sorted(self._releases), error=str(error))
        self._releases.clear()
        self._pending.clear()
        self._update_snapshot()

    async def _write_pending_once(self) -> NodewiseError | None:
        """Write all that is pending, once. The error if the write failed; then the store has the current record."""
        record = self._current_node_record()
        if record is not self._planned_on:
            self._plan_again()
        self._planned_on = record
        batch = {uid: (pending, pending.plan) for uid, pending in self._pending.items()}
        releases = dict(self._releases)
        before = read_reservations(record)
        self._in_flight = {uid: plan for uid, (_, plan) in batch.items()}
        try:
            after = _updated_reservations(before, self._in_flight, releases)
            failure = await self._write_record(record, after) if after != before else None
        finally:
            self._in_flight = {}
        if failure:
            self._update_snapshot()
            return failure
        for uid, pod_versions in releases.items():
            if self._releases.get(uid) == pod_versions:
                del self._releases[uid]
        for pending, plan in batch.values():
            pending.settle(plan)
        self._drop_pending_reservations(pending for pending, _ in batch.values())
        self._update_snapshot()
        return None

    def _plan_again(self) -> None:
        """Plan the pending reservations upon the record of another writer, in the order in which they came."""
        reservations = list(self._pending.values())
        self._pending.clear()
        try:
            for pending in reservations:
                plan = self._plan_reservation(pending.pod)  # upon the earlier ones, which are pending again
                if isinstance(plan, BindPlan):
                    pending.plan = plan
                    self._pending[pending.uid] = pending
                else:
                    pending.settle(plan)
        except Exception:
            self._pending = {
                pending.uid: pending for pending in reservations
            }  # `_fail_all_pending` settles them
            raise
        self._update_snapshot()

    async def _write_record(
        self, record: AllocationRecordLease | None, after: Reservations
    ) -> NodewiseError | None:
        """Write the record. Errors that a retry may resolve are returned, others raised."""
        body = self._record_body(record, after)
        try:
            if record is None:
                path = LEASES.path(self._context.namespace)
                response = await self._context.api.create(path, body, timeout_s=CALL_TIMEOUT_S)
            else:
                response = await self._replace_record(body)
        except (Conflict, Unavailable) as error:
            outcome = "conflict" if isinstance(error, Conflict) else "failed"
            self._context.metrics_registry.count("ledger_writes_total", outcome=outcome)
            await self._reread_record()  # a write that failed may have reached the API server
            return error
        self._context.metrics_registry.count("ledger_writes_total", outcome="ok")
        written = self._apply_response(response)
        if written is not None and written.metadata.resourceVersion == _resource_version(response):
            self._planned_on = written  # reservations that came in the meantime were planned upon this write
        return None

    async def _replace_record(self, body: Mapping[str, Any]) -> bytes:
        try:
            return await self._context.api.replace(self._path, body, timeout_s=CALL_TIMEOUT_S)
        except NotFound as error:
            raise Conflict(error.what, error.problems) from error

    def _record_body(self, record: AllocationRecordLease | None, after: Reservations) -> Mapping[str, Any]:
        meta: dict[str, Any] = {
            "name": self._name,
            "namespace": self._context.namespace,
            "labels": {ALLOCATION_RECORD_LABEL: self._context.binder.name},
            "annotations": {RESERVATIONS_ANNOTATION: _encode(after).decode()},
        }
        if record is not None:
            meta["resourceVersion"] = record.metadata.resourceVersion
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta}

    async def _reread_record(self) -> None:
        known = self._current_node_record()
        try:
            self._apply_response(await self._context.api.get(self._path, timeout_s=CALL_TIMEOUT_S))
        except NotFound:
            self._deleted = known

    def _apply_response(self, response: bytes) -> AllocationRecordLease | None:
        record: AllocationRecordLease | None = self._context.snapshot_cache.apply_response(
            self._context.binder.allocation_records, response
        )
        return record


def read_reservations(record: AllocationRecordLease | None) -> Reservations:
    """The reservations of a record; empty if they are unreadable, which the agent reports as a problem."""
    text = (record.metadata.annotations or {}).get(RESERVATIONS_ANNOTATION) if record is not None else None
    try:
        return _decode_reservations(text) if text else {}
    except UNREADABLE:
        return {}


def _updated_reservations(
    before: Reservations, plans: Mapping[str, BindPlan], releases: Mapping[str, frozenset[str]]
) -> Reservations:
    """The reservations without stale and released ones, and with the planned ones."""
    stale = frozenset[str]().union(*(plan.stale for plan in plans.values()))
    remaining = {
        uid: reservation
        for uid, reservation in before.items()
        if uid not in stale and not (uid in releases and _planned_pod_version(reservation) in releases[uid])
    }
    return remaining | {uid: msgspec.Raw(_encode(plan.reservation)) for uid, plan in plans.items()}


class _ReservationFields(msgspec.Struct, frozen=True):
    seen: str = ""


_decode_reservation: Final = msgspec.json.Decoder(_ReservationFields).decode
_decode_record: Final = msgspec.json.Decoder(AllocationRecordLease).decode


def _resource_version(response: bytes) -> str:
    try:
        return _decode_record(response).metadata.resourceVersion
    except UNREADABLE:
        return ""


def _planned_pod_version(reservation: msgspec.Raw) -> str:
    """The version of the pod that the reservation was planned on; empty if it is unreadable."""
    try:
        return _decode_reservation(reservation).seen
    except UNREADABLE:
        return ""
