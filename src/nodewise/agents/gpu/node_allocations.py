"""The allocations of a node: which pod holds which amounts of its GPUs.

They are a function of the node's allocation record and of the pods, whatever happened before. There are two sources.

A reservation in the record is written before its pod is bound; tenants cannot write there. It counts until the pods
prove that it does not: the pod has ended, is bound to another node, or is gone. A pod is gone if the watch has passed a
version at which the pod still existed, and the pod is not there. Without such proof the reservation counts, so that no
GPU is allocated twice. A reservation that does not count never counts again, so a writer of the record leaves it out.

The annotations `gas-container-cards` and `gas-container-tiles` are the record of GPU Aware Scheduling, for ordinary
containers; `cards.nodewise.io/<container>` has the GPUs of sidecars. They count for bound pods without a reservation. A
pod holds its GPUs until it has ended or is gone; a terminating pod still uses them.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from nodewise.agent import ObjectKey
from nodewise.agents.gpu import allocation_record, gpu_pod_fields
from nodewise.agents.gpu import extended_resource_amounts as quantities
from nodewise.agents.gpu.allocation_record import AllocationRecord, GpuNames, Reservation
from nodewise.agents.gpu.gpu_pod_fields import GPU_NUMBERS, GPUS, SUBDEVICES, AllocatedPod
from nodewise.agents.gpu.node_gpus import NodeGpus
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base.errors import list_first, shown
from nodewise.kube.pod_requests import COMPLETED_PHASES

_MOST_GPUS: Final = 1024
"""The most GPUs in one pod's annotation. Tenants write it, and no pod that requests more than some hundred is
placed."""
_MOST_CONFLICTS: Final = 16

Amounts = Mapping[str, Mapping[str, int]]
"""By GPU and full resource name."""


class PodAllocation(msgspec.Struct, frozen=True, gc=False):
    """The GPUs and amounts that one pod holds."""

    uid: str
    pod: str
    """`namespace/name`."""
    gpus: GpuNames
    amounts: Amounts
    subdevices: Mapping[str, frozenset[int]]
    """Named sub-devices, by GPU."""
    source: Literal["ledger", "annotations"]
    computed_from: tuple[Reservation, AllocatedPod | None] | None = None
    """The reservation and the pod; None for an allocation of annotations."""

    @property
    def key(self) -> ObjectKey:
        """Namespace and name of the pod."""
        namespace, _, name = self.pod.partition("/")
        return namespace, name

    def is_of(self, entry: Reservation, pods: "PodIndex") -> bool:
        """Whether it was computed from this reservation without a problem, and the pod has not changed since."""
        if self.computed_from is None or len(entry.charged) != len(self.gpus):
            return False
        earlier, pod = self.computed_from
        return pods.by_key.get(entry.key) is pod and earlier == entry


class NodeAllocations(NamedTuple):
    """The allocations of all pods on one node."""

    amounts: Amounts
    subdevices: Mapping[str, frozenset[int]]
    by_uid: Mapping[str, PodAllocation]
    """By pod uid."""
    stale: frozenset[str]
    """Pod uids whose reservations in the allocation record no longer count, and never will."""
    undecided: bool
    """Whether a newer version of the pods may end a reservation without any other change."""
    problems: tuple[str, ...]
    record_bytes: int = 0
    """Size of the node's allocation record."""


class PodIndex(NamedTuple):
    """All known pods."""

    by_key: Mapping[ObjectKey, AllocatedPod]
    version: str
    """The resourceVersion up to which all changes are known; empty if unknown."""


EMPTY: Final = NodeAllocations({}, {}, {}, frozenset(), undecided=False, problems=())

ReservationStatus = Literal["counts", "undecided", "stale"]
"""The status of a reservation; `undecided` counts as well."""


def may_hold_gpus(pod: AllocatedPod) -> bool:
    """Whether a pod requests any device, or has annotations with GPUs.

    The resource profile is a setting, and this function is called before settings are known.
    """
    if pod.metadata.oversized_bytes or GPUS in (pod.metadata.annotations or ()):
        return True
    containers = (*(pod.spec.containers or ()), *(pod.spec.initContainers or ()))
    requirements = (container.resources for container in containers if container.resources is not None)
    return any(
        gpu_pod_fields.is_device(resource)
        for container in requirements
        for resource in (*(container.requests or ()), *(container.limits or ()))
    )


def reservation_status(uid: str, entry: Reservation, node: str, pods: PodIndex) -> ReservationStatus:
    """Whether a reservation counts. A pod of the same name with another uid is another pod."""
    pod = pods.by_key.get(entry.key)
    if pod is None or pod.metadata.uid != uid:
        known = allocation_record.resource_version_number(pods.version)
        seen = allocation_record.resource_version_number(entry.seen)
        return "stale" if known is not None and seen is not None and known >= seen else "undecided"
    if has_ended(pod) or pod.spec.nodeName not in {"", node}:
        return "stale"
    return "counts"


def has_ended(pod: AllocatedPod) -> bool:
    """Whether no container of the pod runs or will run."""
    return pod.status.phase in COMPLETED_PHASES


def allocations_of_node(  # complexity: one part for each source
    node: str,
    record: AllocationRecord,
    bound: Iterable[AllocatedPod],
    pods: PodIndex,
    profile: ResourceProfile,
    before: Mapping[str, PodAllocation] = EMPTY.by_uid,
) -> NodeAllocations:
    """The allocations of a node. `bound` are the pods with this `spec.nodeName`, in any order.

    Allocations of `before` whose reservation and pod are the same are used again; a bind changes one of many. The
    caller adds the size of the allocation record.
    """
    problems = [f"the reservation of pod uid {uid}: {why}" for uid, why in record.unreadable.items()]
    if record.problem:
        problems.append(f"the allocation record: {record.problem}")
    statuses = {uid: reservation_status(uid, entry, node, pods) for uid, entry in record.entries.items()}
    held = {
        uid: _allocation_by_reservation(uid, entry, pods, profile, problems, before.get(uid))
        for uid, entry in record.entries.items()
        if statuses[uid] != "stale"
    }
    for pod in bound:
        if pod.metadata.uid not in held and not has_ended(pod):
            allocation = _allocation_by_annotations(pod, profile, problems)
            if allocation is not None:
                held[allocation.uid] = allocation
    ordered = {uid: held[uid] for uid in sorted(held)}
    return NodeAllocations(
        _clipped_sum(allocation.amounts for allocation in ordered.values()),
        _merge_subdevices(allocation.subdevices for allocation in ordered.values()),
        ordered,
        frozenset(uid for uid, status in statuses.items() if status == "stale"),
        undecided="undecided" in statuses.values(),
        problems=tuple(sorted(problems)),
    )


def allocations_without_pods(allocations: NodeAllocations, uids: Collection[str]) -> NodeAllocations:
    held = {uid: allocation for uid, allocation in allocations.by_uid.items() if uid not in uids}
    if len(held) == len(allocations.by_uid):
        return allocations
    return allocations._replace(
        amounts=_clipped_sum(allocation.amounts for allocation in held.values()),
        subdevices=_merge_subdevices(allocation.subdevices for allocation in held.values()),
        by_uid=held,
    )


def _allocation_by_reservation(
    uid: str,
    entry: Reservation,
    pods: PodIndex,
    profile: ResourceProfile,
    problems: list[str],
    before: PodAllocation | None,
) -> PodAllocation:
    """The allocation of a reservation.

    The pod's own requests are charged; if the pod is unknown, the charged amounts of the reservation.
    """
    pod = pods.by_key.get(entry.key)
    if before is not None and before.is_of(entry, pods):
        # the equal reservation of the earlier record is not kept in memory
        return msgspec.structs.replace(before, computed_from=(entry, pod))
    gpus = allocation_record.parse_gpus(entry.gpus)
    own = pod if pod is not None and pod.metadata.uid == uid else None
    requests = gpu_pod_fields.container_amounts(own, profile) if own is not None else ()
    if len(requests) != len(gpus):  # a reservation without sidecars lists only containers with GPUs
        requests = tuple(
            request for request in requests if any(request.get(count, 0) > 0 for count in profile.counts)
        )
    charged = _charged_amounts_per_gpu(requests, gpus) if len(requests) == len(gpus) else entry.charged
    if len(charged) != len(gpus):
        problems.append(
            f"pod {entry.pod}: its entry has {len(gpus)} containers, and amounts of {len(charged)}"
        )
    amounts = _sum_charges_by_gpu(charged, gpus)
    return PodAllocation(
        uid,
        entry.pod,
        gpus,
        amounts,
        allocation_record.parse_subdevices(entry.subdevices),
        "ledger",
        (entry, pod),
    )


def _allocation_by_annotations(
    pod: AllocatedPod, profile: ResourceProfile, problems: list[str]
) -> PodAllocation | None:
    """The allocation in the annotations of the older system; None if there is no GPU, or it is unknown."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    annotations = pod.metadata.annotations or {}
    if pod.metadata.oversized_bytes:
        problems.append(
            f"pod {name}: its containers, resources and annotations for GPUs take {pod.metadata.oversized_bytes} bytes"
            f" of memory, more than {gpu_pod_fields.MOST_BYTES}; its GPUs do not count"
        )
        return None
    requests = gpu_pod_fields.container_amounts(pod, profile)
    if not any(amount for request in requests for amount in request.values()):
        return None
    if GPUS not in annotations:
        problems.append(f"pod {name} requests GPUs, but no annotation names them")
        return None
    gpus = allocation_record.parse_gpus(annotations[GPUS])
    ordinary = len(pod.spec.containers or ())
    if len(gpus) != ordinary:
        seen = f"{shown(annotations[GPUS])}, of {len(gpus)} containers"
        problems.append(f"pod {name}: {GPUS} is {seen}; it has {ordinary}")
        return None
    gpus += _annotated_gpus_of_sidecars(pod, profile, problems)
    if sum(map(len, gpus)) > _MOST_GPUS:
        problems.append(f"pod {name}: {GPUS} names more than {_MOST_GPUS} GPUs; they do not count")
        return None
    amounts = _sum_charges_by_gpu(_charged_amounts_per_gpu(requests, gpus), gpus)
    subdevices = allocation_record.parse_subdevices(annotations.get(SUBDEVICES, ""))
    return PodAllocation(pod.metadata.uid, name, gpus, amounts, subdevices, "annotations")


def _annotated_gpus_of_sidecars(pod: AllocatedPod, profile: ResourceProfile, problems: list[str]) -> GpuNames:
    """The GPUs of each sidecar with GPUs; none where no annotation names them."""
    annotations = pod.metadata.annotations or {}
    names = [sidecar.name for sidecar in gpu_pod_fields.gpu_sidecars(pod, profile)]
    missing = [name for name in names if GPU_NUMBERS + name not in annotations]
    if missing:
        problems.append(
            f"pod {pod.metadata.namespace}/{pod.metadata.name}: sidecar {shown(missing[0])} requests GPUs,"
            " but no annotation names them"
        )
    # parsed once for each name, because a pod may repeat one
    texts = {name: annotations.get(GPU_NUMBERS + name, "") for name in names}
    by_name = {name: allocation_record.parse_gpu_numbers(text) for name, text in texts.items()}
    return tuple(by_name[name] for name in names)


def _charged_amounts_per_gpu(
    requests: Iterable[Mapping[str, int]], gpus: GpuNames
) -> tuple[Mapping[str, int], ...]:
    """By container, the amounts that each of its GPUs is charged. The remainder is not charged."""
    return tuple(
        quantities.divide_amounts(request, len(names)) if names else {}
        for request, names in zip(requests, gpus, strict=True)
    )


def _sum_charges_by_gpu(charged: Iterable[Mapping[str, int]], gpus: GpuNames) -> Amounts:
    """The charges by GPU; a GPU that is listed twice is charged twice."""
    return _clipped_sum({name: share} for share, names in zip(charged, gpus, strict=False) for name in names)


def _clipped_sum(parts: Iterable[Amounts]) -> Amounts:
    """The sums, clipped to 0 and the largest amount, because tenants write some of the input."""
    sums: dict[str, dict[str, int]] = {}
    for part in parts:
        for gpu, amounts in part.items():
            charges = sums.setdefault(gpu, {})
            for resource, amount in amounts.items():
                if amount > 0:
                    charges[resource] = min(charges.get(resource, 0) + amount, quantities.LARGEST)
    return {gpu: charges for gpu, charges in sums.items() if charges}


def _merge_subdevices(parts: Iterable[Mapping[str, frozenset[int]]]) -> Mapping[str, frozenset[int]]:
    union: dict[str, frozenset[int]] = {}
    for part in parts:
        for gpu, subdevices in part.items():
            union[gpu] = union.get(gpu, frozenset()) | subdevices
    return union


def conflicts(allocations: NodeAllocations, gpus: NodeGpus) -> Iterator[str]:
    """Where allocations and node disagree: GPUs that the node does not have, and overcommitted ones.

    Only the first few are listed.
    """
    texts = _find_conflicts(allocations, gpus)
    yield from itertools.islice(texts, _MOST_CONFLICTS)
    if next(texts, None) is not None:
        yield "pods hold more than there is of further GPUs or resources as well"


def _find_conflicts(allocations: NodeAllocations, gpus: NodeGpus) -> Iterator[str]:
    for gpu, amounts in allocations.amounts.items():
        if gpu not in gpus.names:
            yield f"{_pods_holding_gpu(allocations, gpu)} hold {shown(gpu)}, which the node does not have"
            continue
        place = gpus.names.index(gpu)
        for resource, amount in amounts.items():
            there = gpus.capacity[resource][place] if resource in gpus.capacity else 0
            if amount > there:
                yield f"{_pods_holding_gpu(allocations, gpu)} hold {amount} {resource} of {gpu}, which has {there}"


_NAMED: Final = 5


def _pods_holding_gpu(allocations: NodeAllocations, gpu: str) -> str:
    names = [allocation.pod for allocation in allocations.by_uid.values() if gpu in allocation.amounts]
    return list_first(names, _NAMED)
