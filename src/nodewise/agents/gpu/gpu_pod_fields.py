"""The fields of a pod that the gpu agent reads, what is stored of them, and the amounts that containers request.

Of a pod that may hold GPUs, names, device resources, CPU and annotations for GPUs are stored, at most 64 KiB. The CPU
is stored as a request of the whole pod, which stands for all that it is computed from.

Tenants write pods, up to 1.5 MiB each. A pod that is too large for the store is rejected by filter and bind. The number
of pending pods has no limit, so that one above 8 KiB is stored without these fields, and a bind reads it.

A limit without a request counts as the request, as the API server defaults it.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from sys import intern
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from nodewise.agent import ReadKeys
from nodewise.agents.gpu import extended_resource_amounts
from nodewise.agents.gpu.extended_resource_amounts import Amounts
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base.quantity import Quantity
from nodewise.devices.resource_claims import PodClaimReference, PodClaimStatus
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import (
    HoldingSpec,
    HoldingStatus,
    RequestedResources,
    RequestingContainer,
    RequestingPod,
    RequestingSpec,
    ResizeStatus,
)

MOST_CPU_MILLI: Final = 2**40
"""The cap of a pod's request, so that the sum over all pods of a cluster fits into 63 bits."""
ALLOW: Final = "gas-allow"
DENY: Final = "gas-deny"
SAME_GPU: Final = "gas-same-gpu"
LINKED: Final = "gas-allocate-xelink"
SINGLE_NUMA: Final = "gas-allocate-single-numa"
MODELS: Final = "nodewise.io/gpu-models"
PLACEMENT: Final = "nodewise.io/gpu-placement"
GPUS: Final = "gas-container-cards"
SUBDEVICES: Final = "gas-container-tiles"
GPU_NUMBERS: Final = "cards.nodewise.io/"
"""The annotation `cards.nodewise.io/<container>`: the numbers of its GPUs. Those of sidecars are read."""
ANNOTATIONS: Final = (ALLOW, DENY, SAME_GPU, LINKED, SINGLE_NUMA, MODELS, PLACEMENT, GPUS, SUBDEVICES)
"""The annotations of a pod that are read, besides `GPU_NUMBERS`."""


class GpuPodMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: Annotated[
        dict[str, str] | None, ReadKeys(ANNOTATIONS, "annotation_bytes", (GPU_NUMBERS,))
    ] = None
    annotation_bytes: int = 0
    """Bytes of all annotations, where a store keeps only some of them; otherwise 0."""
    name: str = ""
    namespace: str = ""


class GpuPod(RequestingPod, frozen=True, gc=False):
    """The fields of a pod that are read to place it."""

    metadata: GpuPodMetadata = GpuPodMetadata()


class ClaimingSpec(RequestingSpec, frozen=True, gc=False):
    resource_claims: tuple[PodClaimReference, ...] | None = msgspec.field(default=None, name="resourceClaims")


class ClaimingStatus(msgspec.Struct, frozen=True, gc=False):
    resource_claim_statuses: tuple[PodClaimStatus, ...] | None = msgspec.field(
        default=None, name="resourceClaimStatuses"
    )


class RequestedGpuPod(GpuPod, frozen=True, gc=False):
    """The fields of a pod in a request, with its claims of devices, which a store does not keep."""

    spec: ClaimingSpec = ClaimingSpec()
    status: ClaimingStatus = ClaimingStatus()


class AllocatedLabels(msgspec.Struct, frozen=True, gc=False):
    deschedule: str | None = msgspec.field(default=None, name="gpu.aware.scheduling/deschedule-pod")


class AllocatedMetadata(GpuPodMetadata, frozen=True, gc=False, kw_only=True):
    oversized_bytes: int = 0
    """Memory of the fields for GPUs where it was too much to store them; otherwise 0."""
    name: str
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's name
    creationTimestamp: str = ""  # noqa: N815 - the API's name
    labels: AllocatedLabels | None = None


class AllocatedPod(GpuPod, frozen=True, gc=False, kw_only=True):
    """The fields of a pod that are read for its allocations."""

    metadata: AllocatedMetadata
    spec: HoldingSpec = HoldingSpec()
    status: HoldingStatus = HoldingStatus()


def annotation_bytes(metadata: GpuPodMetadata) -> int:
    """The bytes of all annotations of a pod, as the API server counts them, even if some are not stored."""
    entries = (metadata.annotations or {}).items()
    return metadata.annotation_bytes or sum(len(key.encode()) + len(value.encode()) for key, value in entries)


def is_sidecar(container: RequestingContainer) -> bool:
    return container.restartPolicy == "Always"


def cpu_milli(pod: GpuPod, status: ResizeStatus | None = None) -> int:
    """The CPU request of a pod, at most `MOST_CPU_MILLI`. `status` is that of a pod on a node."""
    (milli,) = pod_requests.whole_requests(pod.spec, ("cpu",), status)
    return min(milli, MOST_CPU_MILLI)


MOST_BYTES: Final = 2**16
"""Memory of one stored pod. 64 containers with four resources each take about 48,000."""
MOST_PENDING_BYTES: Final = 2**13
"""Memory of one stored pod that is not on a node: 24 containers with a GPU each, or the names of 1,000 GPUs."""

_CONTAINER_BYTES: Final = 256
_RESOURCE_BYTES: Final = 96
"""Memory besides the texts: objects, dicts, and the headers of strings."""
_MOST_SHARED: Final = 6
"""Resources of a container up to which equal ones are one object in memory: almost all pods request few different
amounts. The cache stays small because longer ones are not in it."""

Resources = tuple[tuple[str, Quantity], ...]


def is_device(resource: str) -> bool:
    """Whether a resource may be one of a device plugin."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def gpu_field_bytes(pod: GpuPod) -> int:
    """The memory of what is stored of a pod: annotations, names of containers, and device resources."""
    size = sum(_text_bytes(key + value) for key, value in _read_annotations(pod).items())
    for container in (*(pod.spec.containers or ()), *(pod.spec.initContainers or ())):
        size += _CONTAINER_BYTES + _text_bytes(container.name)
        resources = container.resources
        if resources is not None:
            # the API server requires equal requests and limits of devices, which are stored once
            amounts = {**(resources.limits or {}), **(resources.requests or {})}
            size += sum(
                _RESOURCE_BYTES + _text_bytes(f"{resource}{amount}")
                for resource, amount in amounts.items()
                if is_device(resource)
            )
    return size


def reduce_gpu_pod(pod: AllocatedPod) -> AllocatedPod | None:
    """The pod as it is stored.

    None for one that is too large and not on a node: filter and bind refuse it. Of another large pod, the containers
    and annotations are left out: a bind reads the pod, and a reservation in the allocation record says what it holds.
    """
    size, metadata = gpu_field_bytes(pod), pod.metadata
    if size > MOST_BYTES and not pod.spec.nodeName:
        return None
    spec = HoldingSpec(nodeName=pod.spec.nodeName, resources=_shared_cpu_request(cpu_milli(pod, pod.status)))
    status = HoldingStatus(phase=intern(pod.status.phase))
    if size > (MOST_BYTES if pod.spec.nodeName else MOST_PENDING_BYTES):
        metadata = replace(metadata, annotations=None, oversized_bytes=size)
    else:
        annotations = _read_annotations(pod)
        if len(annotations) != len(metadata.annotations or ()):
            metadata = replace(metadata, annotations=annotations, annotation_bytes=annotation_bytes(metadata))
        containers = _reduce_containers(pod.spec.containers)
        init_containers = _reduce_containers(pod.spec.initContainers)
        spec = replace(spec, containers=containers, initContainers=init_containers)
    return replace(pod, metadata=metadata, spec=spec, status=status)


def _read_annotations(pod: GpuPod) -> dict[str, str]:
    """The annotations that are read: those of the pod, and the GPUs of its sidecars."""
    annotations = pod.metadata.annotations or {}
    sidecars = (
        GPU_NUMBERS + container.name
        for container in pod.spec.initContainers or ()
        if annotations and is_sidecar(container)
    )
    return {key: annotations[key] for key in (*ANNOTATIONS, *sidecars) if key in annotations}


def _text_bytes(text: str) -> int:
    """The memory of a text: up to four bytes for every character if one is not ASCII."""
    return len(text) if text.isascii() else 4 * len(text)


def _reduce_containers(
    containers: Iterable[RequestingContainer] | None,
) -> tuple[RequestingContainer, ...] | None:
    return None if containers is None else tuple(map(_reduce_container, containers))


def _reduce_container(container: RequestingContainer) -> RequestingContainer:
    resources = container.resources
    if resources is None:
        return container
    requests = _device_amounts(resources.requests or {})
    limits = _device_amounts(
        {
            resource: amount
            for resource, amount in (resources.limits or {}).items()
            if (resources.requests or {}).get(resource) != amount
        }
    )
    reduce = _shared_resources if len(requests) + len(limits) <= _MOST_SHARED else _build_resources
    return replace(container, resources=reduce(requests, limits))


def _device_amounts(amounts: Mapping[str, Quantity]) -> Resources:
    return tuple((resource, amount) for resource, amount in amounts.items() if is_device(resource))


def _build_resources(requests: Resources, limits: Resources) -> RequestedResources:
    return RequestedResources(dict(requests) or None, dict(limits) or None)


_shared_resources = lru_cache(1024)(_build_resources)


@lru_cache(1024)
def _shared_cpu_request(milli: int) -> RequestedResources | None:
    """A pod-level request, which overrides the CPU of containers, sidecars, overhead and a resize."""
    return RequestedResources({"cpu": f"{milli}m"}) if milli else None


def requests_gpu_resources(pod: GpuPod, profile: ResourceProfile) -> bool:
    """Whether any container requests GPU resources, even an amount of 0."""
    spec = pod.spec
    return any(
        requested_gpu_resources(container, profile)
        for container in (*(spec.containers or ()), *(spec.initContainers or ()))
    )


def requested_gpu_resources(
    container: RequestingContainer, profile: ResourceProfile
) -> dict[str, str | int | float]:
    """The requests of GPU resources as they are written in the pod."""
    resources = container.resources
    if resources is None:
        return {}
    return {
        resource: 0 if value is None else value
        for source in (resources.limits, resources.requests)
        for resource, value in (source or {}).items()
        if profile.has(resource)
    }


def running_containers(pod: GpuPod, profile: ResourceProfile) -> tuple[RequestingContainer, ...]:
    """The containers that may hold GPUs until the pod ends: all ordinary ones, then the sidecars that request a GPU.

    Both are in the order of the pod. Sidecars without GPUs are omitted, so that they do not change the allocation
    record of a pod.
    """
    return (*(pod.spec.containers or ()), *gpu_sidecars(pod, profile))


def gpu_sidecars(pod: GpuPod, profile: ResourceProfile) -> tuple[RequestingContainer, ...]:
    """The sidecars that request a GPU, in the order of the pod."""
    return tuple(
        container
        for container in pod.spec.initContainers or ()
        if is_sidecar(container)
        if any(_valid_amounts(container, profile).get(resource, 0) for resource in profile.counts)
    )


def container_amounts(pod: GpuPod, profile: ResourceProfile) -> tuple[Amounts, ...]:
    """The amounts of each of `running_containers`, not divided among its GPUs. Invalid amounts are omitted."""
    return tuple(_valid_amounts(container, profile) for container in running_containers(pod, profile))


def _valid_amounts(container: RequestingContainer, profile: ResourceProfile) -> Amounts:
    known = {}
    for resource, value in requested_gpu_resources(container, profile).items():
        try:
            known[resource] = extended_resource_amounts.parse_amount(value)
        except ValueError:
            continue
    return Amounts(known) if known else extended_resource_amounts.NONE
