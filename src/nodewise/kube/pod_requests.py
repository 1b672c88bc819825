"""The requests of a pod, as kube-scheduler 1.37 counts them (k8s.io/component-helpers v0.37.2 resource/helpers.go).

A container, and a pod with pod-level resources, has three amounts: those of the spec, which a resize changes, those
that the kubelet has allocated, and those that are in effect. Each of the three is summed, and the largest sum counts; a
pod with an infeasible resize keeps what it has. Requests by claims of devices (an alpha feature) do not count. Objects
from files do not have the API server's defaults, so a limit stands for a missing request.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import quantity
from nodewise.base.quantity import Quantity

COMPLETED_PHASES: Final = frozenset({"Succeeded", "Failed"})
"""Phases of pods that hold no resources."""
HOLDING_SELECTORS: Final[Mapping[str, str]] = {
    "fieldSelector": ",".join(
        ["spec.nodeName!=", *(f"status.phase!={phase}" for phase in sorted(COMPLETED_PHASES))]
    )
}
"""Selects the pods at the API server that hold their requests of a node."""

ResourceList = Mapping[str, Quantity]
"""Quantities by name of the resource."""


class RequestedResources(msgspec.Struct, frozen=True, gc=False):
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class RequestingContainer(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    resources: RequestedResources | None = None
    restartPolicy: str | None = None  # noqa: N815 - the API's name
    """`Always` makes an init container a sidecar."""


class RequestingSpec(msgspec.Struct, frozen=True, gc=False):
    """All that the requests of a pod without a node depend on."""

    containers: tuple[RequestingContainer, ...] | None = None
    initContainers: tuple[RequestingContainer, ...] | None = None  # noqa: N815 - the API's name
    resources: RequestedResources | None = None
    """Pod-level resources."""
    overhead: dict[str, Quantity] | None = None


class RequestingPod(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod without a node that tell its requests."""

    spec: RequestingSpec = RequestingSpec()


class HoldingSpec(RequestingSpec, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class ResizeCondition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    reason: str = ""


class ContainerAllocation(msgspec.Struct, frozen=True, gc=False):
    """The resources in the status of a container: those in effect, and those that the kubelet has allocated."""

    name: str = ""
    resources: RequestedResources | None = None
    allocatedResources: dict[str, Quantity] | None = None  # noqa: N815 - the API's name


class ResizeStatus(msgspec.Struct, frozen=True, gc=False):
    """The status of a pod on a node that its requests depend on while it is resized."""

    conditions: tuple[ResizeCondition, ...] | None = None
    containerStatuses: tuple[ContainerAllocation, ...] | None = None  # noqa: N815 - the API's name
    initContainerStatuses: tuple[ContainerAllocation, ...] | None = None  # noqa: N815 - the API's name
    resources: RequestedResources | None = None
    allocatedResources: dict[str, Quantity] | None = None  # noqa: N815 - the API's name


class HoldingStatus(ResizeStatus, frozen=True, gc=False):
    phase: str = ""


class PodRequest(NamedTuple):
    """The CPU and memory of a pod in whole numbers from 0 to `integer_quantities.MAX_AMOUNT`."""

    cpu_milli: int = 0
    memory_bytes: int = 0


def holds_requests(pod: Any) -> bool:
    """Whether the pod holds its requests of a node: it is bound and not completed.

    The API server selects such pods already; objects that are read from files are not selected.
    """
    return bool(pod.spec.nodeName) and pod.status.phase not in COMPLETED_PHASES


def cpu_and_memory(spec: RequestingSpec) -> PodRequest:
    """The CPU and memory that a pod without a node requests."""
    return PodRequest(*whole_requests(spec, ("cpu", "memory")))


def whole_requests(
    spec: RequestingSpec, resources: Sequence[str], status: ResizeStatus | None = None
) -> tuple[int, ...]:
    """The requests as whole numbers from 0 to `integer_quantities.MAX_AMOUNT`, rounded up.

    `cpu` is in milli-CPU, other resources are in whole units.
    """
    whole_milli, whole_units = quantity.whole_milli, quantity.whole_units
    return tuple(
        [
            whole_milli(nano) if resource == "cpu" else whole_units(nano)
            for resource, nano in zip(resources, nano_requests(spec, resources, status), strict=True)
        ]
    )


_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


def nano_requests(
    spec: RequestingSpec,
    resources: Sequence[str],
    status: ResizeStatus | None = None,
    if_missing: Mapping[str, int] = _NOTHING,
) -> tuple[int, ...]:
    """The amount of each of the resources in nano-units, at least 0. Invalid quantities count as 0.

    `status` is that of a pod on a node; None for a pod that is to be placed, of which only the spec counts.
    `if_missing` has the amounts, in nano-units, of containers without a request.
    """
    by_state: Collection[Sequence[ResourceList]] | None = None
    sidecars = [container.restartPolicy == "Always" for container in spec.initContainers or ()]
    in_status = () if status is None else _pod_level_status(status)
    amounts = []
    for resource in resources:
        amount = None
        if spec.resources is not None and is_pod_level_resource(resource):
            amount = _pod_level_amount(spec, spec.resources, status, resource)
        if amount is None:
            missing, amount = if_missing.get(resource, 0), 0
            if by_state is None:
                by_state = _container_requests_by_state(_containers(spec), status)
            for requests in by_state:
                amount = max(amount, _sum_of_containers(requests, sidecars, resource, missing))
            for listed in in_status:
                amount = max(amount, _nano(listed, resource))
        if spec.overhead:
            amount += _nano(spec.overhead, resource)
        amounts.append(amount)
    return tuple(amounts)


def is_pod_level_resource(resource: str) -> bool:
    """Whether a pod can have a request of its own for the resource, besides those of its containers."""
    return resource in {"cpu", "memory"} or resource.startswith("hugepages-")


def _sum_of_containers(
    requests: Sequence[ResourceList], sidecars: Sequence[bool], resource: str, missing: int
) -> int:
    """The sum of all that run together, or the largest init container with the sidecars before it if that is more.

    `requests` are those of the containers, and then of the init containers. `sidecars` tells of each init container
    whether it is a sidecar. See KEP-753.
    """
    nano = quantity.nano
    amounts = [nano(listed[resource]) if resource in listed else missing for listed in requests]
    if not sidecars:
        return sum(amounts)
    running, init = amounts[: -len(sidecars)], amounts[-len(sidecars) :]
    earlier = peak = 0
    for amount, is_sidecar in zip(init, sidecars, strict=True):
        peak = max(peak, amount + earlier)
        earlier += amount if is_sidecar else 0
    return max(sum(running) + earlier, peak)


def _container_requests_by_state(
    containers: Sequence[RequestingContainer], status: ResizeStatus | None
) -> Collection[Sequence[ResourceList]]:
    """The requests of the containers in each state that counts, without duplicates: usually all states are equal.

    Amounts in the status of the pod replace the allocated and effective ones of the containers.
    """
    specified = [*map(_specified_requests, containers)]
    if status is None:
        return (specified,)
    is_infeasible = _is_resize_infeasible(status)
    states = [] if is_infeasible else [specified]
    if _pod_level_status(status):
        return states
    known: dict[str, ContainerAllocation] = {}
    for container_status in _container_statuses(status):
        known.setdefault(container_status.name, container_status)
    otherwise = [_EMPTY] * len(containers) if is_infeasible else specified
    statuses = [known.get(container.name) for container in containers]
    for choose in (_allocated_requests, _effective_requests):
        requests = [*map(choose, statuses, otherwise)]
        if requests not in states:
            states.append(requests)
    return states


def _specified_requests(container: RequestingContainer) -> ResourceList:
    resources = container.resources
    if resources is None:
        return _EMPTY
    requests, limits = resources.requests or _EMPTY, resources.limits
    if not limits or (limits.keys() <= requests.keys() and None not in requests.values()):
        return requests
    return {**limits, **{resource: amount for resource, amount in requests.items() if amount is not None}}


_EMPTY: Final[dict[str, Quantity]] = {}


def _allocated_requests(status: ContainerAllocation | None, otherwise: ResourceList) -> ResourceList:
    if status is not None and status.allocatedResources is not None:
        return status.allocatedResources
    return otherwise


def _effective_requests(status: ContainerAllocation | None, otherwise: ResourceList) -> ResourceList:
    if status is not None and status.resources is not None and status.resources.requests is not None:
        return status.resources.requests
    return _allocated_requests(status, otherwise)


def _is_resize_infeasible(status: ResizeStatus) -> bool:
    """Whether the kubelet can never grant the resize. The first condition of the type counts."""
    reasons = (
        condition.reason for condition in status.conditions or () if condition.type == "PodResizePending"
    )
    return next(reasons, "") == "Infeasible"


def _pod_level_status(status: ResizeStatus) -> tuple[ResourceList, ...]:
    """The allocated and effective amounts of the whole pod; empty if the status does not have both."""
    allocated, effective = status.allocatedResources, status.resources
    if allocated is None or effective is None or effective.requests is None:
        return ()
    return allocated, effective.requests


def _pod_level_amount(
    spec: RequestingSpec, specified: RequestedResources, status: ResizeStatus | None, resource: str
) -> int | None:
    """The request of the pod itself, which overrides the sum of its containers; None if the pod has none."""
    requests = {**_pod_level_defaults(spec, specified), **(specified.requests or {})}
    if not any(map(is_pod_level_resource, requests)):
        return None
    lists: list[ResourceList] = [requests]
    if status is not None and status.resources is not None:
        lists = [] if _is_resize_infeasible(status) else lists
        lists += filter(None, (status.resources.requests, status.allocatedResources))
    return max((_nano(listed, resource) for listed in lists if resource in listed), default=None)


def _pod_level_defaults(spec: RequestingSpec, specified: RequestedResources) -> ResourceList:
    """A pod-level limit is the request of a resource that no container requests."""
    if not specified.limits:
        return _EMPTY
    requested = {resource for container in _containers(spec) for resource in _specified_requests(container)}
    return {resource: limit for resource, limit in specified.limits.items() if resource not in requested}


def _nano(listed: ResourceList, resource: str) -> int:
    return quantity.nano(listed.get(resource))


def named_resources(spec: RequestingSpec, status: ResizeStatus) -> tuple[str, ...]:
    """The resources for which the pod may have a request, in the order in which the containers name them first."""
    lists: list[ResourceList | None] = [*map(_specified_requests, _containers(spec))]
    lists += (spec.overhead, status.allocatedResources)
    for container in _container_statuses(status):
        lists += (_allocated_requests(container, _EMPTY), _effective_requests(container, _EMPTY))
    for resources in filter(None, (spec.resources, status.resources)):
        lists += (resources.requests, resources.limits)
    return tuple(dict.fromkeys(name for listed in filter(None, lists) for name in listed))


def _containers(spec: RequestingSpec) -> tuple[RequestingContainer, ...]:
    return (*(spec.containers or ()), *(spec.initContainers or ()))


def _container_statuses(status: ResizeStatus) -> tuple[ContainerAllocation, ...]:
    return (*(status.containerStatuses or ()), *(status.initContainerStatuses or ()))


def reduce_to_requests(pod: Any, resources: Sequence[str]) -> Any:
    """A pod on a node, reduced to its names, its node, and one container that requests as much as the whole pod.

    `nano_requests` gives the same amounts of these resources as for the pod itself.
    """
    amounts = zip(resources, nano_requests(pod.spec, resources, pod.status), strict=True)
    requests = tuple((resource, f"{nano}n") for resource, nano in amounts if nano)
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, namespace=intern(pod.metadata.namespace)),
        spec=type(pod.spec)(
            nodeName=intern(pod.spec.nodeName), containers=_containers_with_requests(requests)
        ),
        status=_DEFAULT_STATUS,
    )


@lru_cache(4096)
def _containers_with_requests(requests: tuple[tuple[str, str], ...]) -> tuple[RequestingContainer, ...]:
    """The same object for all pods that request the same."""
    return (RequestingContainer(resources=RequestedResources(dict(requests))),)


_DEFAULT_STATUS: Final = HoldingStatus()
