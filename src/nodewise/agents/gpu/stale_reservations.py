"""Finds reservations to remove: those of binds that never completed, and those that no longer count.

A process that stops between its two writes leaves a reservation for a pod that is on no node. The leader finds it here
and removes it after longer than a bind may take. This cannot allocate a GPU twice, however late the bind is: the pod is
changed first, so its Binding is refused (`extender.binding`).
"""

from collections.abc import Container, Generator, Iterator, Mapping
from typing import Literal, NamedTuple

from nodewise.agent import ObjectKey
from nodewise.agent.bind_plugin_interface import AllocationRecordLease
from nodewise.agents.gpu import allocation_record, node_allocations
from nodewise.agents.gpu.allocation_record import AllocationRecord
from nodewise.agents.gpu.state import RECORD_PREFIX, GpuState, NodeState

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
