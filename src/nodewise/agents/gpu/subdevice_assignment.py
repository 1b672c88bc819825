"""Assigns sub-devices of its GPUs to a pod on the node that it is bound to.

Source: GPU Aware Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go`. Free sub-devices are taken in ascending order, so
that the same pod on the same node gets the same ones.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nodewise.agents.gpu.gpu_array_node_column import GpuUsage
from nodewise.agents.gpu.node_gpus import MOST_SUBDEVICES, NodeGpus

Tiles = tuple[int, ...]


class SubdeviceRequest(NamedTuple):
    """The request for sub-devices of one GPU of a container."""

    gpu: str
    subdevices: int
    """The number of sub-devices to take."""
    linked: int = -1
    """The sub-device that has the link; -1 without one."""


def assign_subdevices(
    gpus: NodeGpus, usage: GpuUsage, resource: str, containers: Sequence[Sequence[SubdeviceRequest]]
) -> tuple[tuple[Tiles, ...], ...]:
    """Sub-device numbers by container and GPU, in the order in which they are taken; `resource` counts sub-devices.

    Linked sub-devices are reserved for all containers first. If the pod fits, there are enough for all
    containers.
    """
    left = {
        request.gpu: _free_subdevices(gpus, usage, resource, request.gpu)
        for container in containers
        for request in container
    }
    for request in (request for container in containers for request in container):
        if request.subdevices and request.linked in left[request.gpu]:
            left[request.gpu].remove(request.linked)
    return tuple(
        tuple(_take_subdevices(gpus, left[request.gpu], request) for request in container)
        for container in containers
    )


def move_preferred_first(subdevices: Sequence[int], preferred: Sequence[int]) -> list[int]:
    """Move preferred sub-devices to the front: each is swapped with the one in its place."""
    ordered = list(subdevices)
    existing = [subdevice for subdevice in dict.fromkeys(preferred) if subdevice in ordered]
    for place, subdevice in enumerate(existing):
        at = ordered.index(subdevice)
        if at > place:
            ordered[at], ordered[place] = ordered[place], ordered[at]
    return ordered


def _free_subdevices(gpus: NodeGpus, usage: GpuUsage, resource: str, gpu: str) -> list[int]:
    amounts = gpus.capacity.get(resource)
    capacity = min(amounts[gpus.names.index(gpu)], MOST_SUBDEVICES) if amounts else 0
    gone = usage.subdevices.get(gpu, frozenset()) | gpus.subdevices_off.get(gpu, frozenset())
    return [subdevice for subdevice in range(capacity) if subdevice not in gone]


def _take_subdevices(gpus: NodeGpus, left: list[int], request: SubdeviceRequest) -> Tiles:
    """Take the requested number of sub-devices from the free ones of a GPU (`left`)."""
    if not request.subdevices:
        return ()
    linked = (request.linked,) if request.linked >= 0 else ()
    count = request.subdevices - len(linked)
    others = move_preferred_first(left, gpus.subdevices_preferred.get(request.gpu, ()))[:count]
    left[:] = [subdevice for subdevice in left if subdevice not in others]
    return (*linked, *others)
