"""What is stored of a pod that may hold GPUs: names, device resources, CPU and annotations for GPUs, at most 64 KiB.

The CPU is stored as a request of the whole pod, which stands for all that it is computed from.

Tenants write pods, up to 1.5 MiB each. A pod that is too large for the store is rejected by filter and bind. The number
of pending pods has no limit, so that one above 8 KiB is stored without these fields, and a bind reads it.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from sys import intern
from typing import Final

from msgspec.structs import replace

from nodewise.agents.gpu.gpu_pod_fields import (
    ANNOTATIONS,
    GPU_NUMBERS,
    AllocatedMetadata,
    AllocatedPod,
    GpuPod,
    annotation_bytes,
    cpu_milli,
    is_sidecar,
)
from nodewise.base.quantity import Quantity
from nodewise.kube.pod_requests import HoldingSpec, HoldingStatus, RequestedResources, RequestingContainer

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
    read = (key + value for key, value in _read_annotations(pod).items())
    return sum(map(_text_bytes, read)) + sum(map(_container_bytes, _containers(pod)))


def reduce_gpu_pod(pod: AllocatedPod) -> AllocatedPod | None:
    """The pod as it is stored.

    None for one that is too large and not on a node: filter and bind refuse it. Of another large pod, the containers
    and annotations are left out: a bind reads the pod, and a reservation in the allocation record says what it holds.
    """
    size = gpu_field_bytes(pod)
    if size > MOST_BYTES and not pod.spec.nodeName:
        return None
    spec = HoldingSpec(nodeName=pod.spec.nodeName, resources=_shared_cpu_request(cpu_milli(pod, pod.status)))
    status = HoldingStatus(phase=intern(pod.status.phase))
    if size > (MOST_BYTES if pod.spec.nodeName else MOST_PENDING_BYTES):
        metadata = replace(pod.metadata, annotations=None, oversized_bytes=size)
    else:
        metadata = _reduce_metadata(pod)
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


def _reduce_metadata(pod: AllocatedPod) -> AllocatedMetadata:
    annotations = _read_annotations(pod)
    if len(annotations) == len(pod.metadata.annotations or ()):
        return pod.metadata
    return replace(pod.metadata, annotations=annotations, annotation_bytes=annotation_bytes(pod.metadata))


def _containers(pod: GpuPod) -> Iterator[RequestingContainer]:
    yield from pod.spec.containers or ()
    yield from pod.spec.initContainers or ()


def _container_bytes(container: RequestingContainer) -> int:
    size = _CONTAINER_BYTES + _text_bytes(container.name)
    resources = container.resources
    if resources is None:
        return size
    # the API server requires equal requests and limits of devices, which are stored once
    amounts = {**(resources.limits or {}), **(resources.requests or {})}
    return size + sum(
        _RESOURCE_BYTES + _text_bytes(f"{resource}{amount}")
        for resource, amount in amounts.items()
        if is_device(resource)
    )


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
