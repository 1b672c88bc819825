"""The annotations that the Binding of a pod with GPUs sets, and the same as text for people.

`gas-container-cards` and `gas-container-tiles` have one part per ordinary container, as in GPU Aware Scheduling, whose
device plugin knows no others. `cards.nodewise.io/<container>` names the GPUs of every container, including sidecars and
init containers.

Assigns sub-devices of its GPUs to a pod on the node that it is bound to.

Source: GPU Aware Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go`. Free sub-devices are taken in ascending order, so
that the same pod on the same node gets the same ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.agent import Reason
from nodewise.agents.gpu import allocation_record, init_container_gpus
from nodewise.agents.gpu.allocation_record import Reservation
from nodewise.agents.gpu.gpu_arrays import GpuUsage
from nodewise.agents.gpu.gpu_pod_fields import GPU_NUMBERS, GPUS, SUBDEVICES, AllocatedPod
from nodewise.agents.gpu.gpu_rejection_reasons import LaterContainersTooSmall
from nodewise.agents.gpu.node_gpus import MOST_SUBDEVICES, NodeGpus
from nodewise.agents.gpu.pod_gpu_requests import Demand

BIND_TIME: Final = "gas-ts"
"""The annotation by which the older device plugin orders pods by the time of their bind: Unix time in ns."""


class BindAnnotations(NamedTuple):
    """The annotations, and their description for people."""

    annotations: Mapping[str, str]
    description: str
    """`train: card0, card1; side: card0 gt1`; init containers last."""


class _ContainerGpus(NamedTuple):
    """The GPUs of one container."""

    name: str
    gpus: Sequence[str]
    subdevices: Mapping[str, Sequence[str]]
    """By GPU: `gt0`, `gt1`, …"""

    def text(self) -> str:
        return f"{self.name}: {', '.join(map(self._gpu_text, self.gpus))}"

    def _gpu_text(self, gpu: str) -> str:
        names = self.subdevices.get(gpu)
        return f"{gpu} {'+'.join(names)}" if names else gpu


def plan_annotations(
    pod: AllocatedPod, reservation: Reservation, demand: Demand, subdevices: str, now: float
) -> BindAnnotations | Reason:
    """The annotations of a pod with this reservation; a reason if its GPUs do not suffice for an init container.

    They follow from the reservation and the demand, so a repeated bind sets the same GPUs. `subdevices` is the resource
    that counts sub-devices, and `now` the Unix time in seconds.
    """
    entry = allocation_record.pad_reservation_to_all_containers(
        reservation, [bool(container.count) for container in demand.containers]
    )
    ordinary = [container.name for container in pod.spec.containers or ()]
    names = [*ordinary, *(container.name for container in demand.containers[len(ordinary) :])]
    gpus = allocation_record.parse_gpus(entry.gpus)
    tiles = _subdevices_of_containers(entry, len(gpus))
    held = [_ContainerGpus(*container) for container in zip(names, gpus, tiles, strict=False)]
    reused = init_container_gpus.reused_gpus(demand.init_containers, demand.containers, gpus)
    for init, chosen in zip(demand.init_containers, reused, strict=True):
        if not chosen:
            later = sum(demand.containers[at].count for at in init.later)
            return LaterContainersTooSmall(init.name, init.count, later)
        of_init = init_container_gpus.reused_subdevices(init, demand.containers, tiles, subdevices)
        held.append(_ContainerGpus(init.name, chosen, of_init))
    annotations = {
        BIND_TIME: str(int(now * 1e9)),
        GPUS: allocation_record.first_parts(entry.gpus, len(ordinary)),
    }
    of_ordinary = allocation_record.first_parts(entry.subdevices, len(ordinary))
    if of_ordinary or SUBDEVICES in (pod.metadata.annotations or {}):
        annotations[SUBDEVICES] = of_ordinary
    return BindAnnotations(annotations | _gpu_numbers(held), _describe(held))


def _subdevices_of_containers(entry: Reservation, containers: int) -> list[dict[str, list[str]]]:
    """By container and GPU, the names of the sub-devices in `card0:gt0+gt1,|card1:gt0`."""
    segments = entry.subdevices.split("|")
    if len(segments) != containers:
        return [{} for _ in range(containers)]
    parts = [[part.partition(":") for part in segment.split(",")] for segment in segments]
    return [{gpu: names.split("+") for gpu, _, names in segment if names} for segment in parts]


def _gpu_numbers(held: Iterable[_ContainerGpus]) -> dict[str, str]:
    return {
        GPU_NUMBERS + container.name: allocation_record.format_gpu_numbers(container.gpus)
        for container in held
        if container.gpus
    }


def _describe(held: Iterable[_ContainerGpus]) -> str:
    return "; ".join(container.text() for container in held if container.gpus)


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
