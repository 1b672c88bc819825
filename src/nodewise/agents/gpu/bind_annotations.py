"""The annotations that the Binding of a pod with GPUs sets, and the same as text for people.

`gas-container-cards` and `gas-container-tiles` have one part per ordinary container, as in GPU Aware Scheduling, whose
device plugin knows no others. `cards.nodewise.io/<container>` names the GPUs of every container, including sidecars and
init containers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.agent import Reason
from nodewise.agents.gpu import allocation_record, init_container_gpus
from nodewise.agents.gpu.allocation_record import Reservation
from nodewise.agents.gpu.gpu_pod_fields import GPU_NUMBERS, GPUS, SUBDEVICES, AllocatedPod
from nodewise.agents.gpu.gpu_rejection_reasons import LaterContainersTooSmall
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
