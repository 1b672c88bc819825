"""The amounts of GPU resources that the containers of a pod request, not yet divided among GPUs.

A limit without a request counts as the request, as the API server defaults it.
"""

from nodewise.agents.gpu import extended_resource_amounts
from nodewise.agents.gpu.extended_resource_amounts import Amounts
from nodewise.agents.gpu.gpu_pod_fields import GpuPod, is_sidecar
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.kube.pod_requests import RequestingContainer


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
