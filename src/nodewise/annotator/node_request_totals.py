"""The requests of the pods on each node, and what they leave of the node's allocatable resources."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from nodewise import quantity
from nodewise.statistics import load_annotations
from nodewise.statistics.integer_quantities import MAX_AMOUNT, Quantity
from nodewise.statistics.node_capacity import GPU, Capacity
from nodewise.statistics.pod_requests import holds_requests


class Allocation(NamedTuple):
    """The sum of the requests of a node's pods, in whole numbers."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    gpu: int = 0
    ephemeral_storage_bytes: int = 0


_KEYS: Final = (
    (load_annotations.REQUESTED_CPU, load_annotations.FREE_CPU),
    (load_annotations.REQUESTED_MEMORY, load_annotations.FREE_MEMORY),
    (load_annotations.REQUESTED_PODS, load_annotations.FREE_PODS),
    (load_annotations.REQUESTED_GPU, load_annotations.FREE_GPU),
    (load_annotations.REQUESTED_EPHEMERAL_STORAGE, load_annotations.FREE_EPHEMERAL_STORAGE),
)
"""In the order of `Allocation` and `Capacity`."""


def pod_allocation(pod: Any, gpu: str = GPU) -> Allocation:
    """The requests of a pod's containers and sidecars; other init containers and overhead do not count.

    CPU is rounded down to whole milli-CPU, as the older annotator does; other resources are rounded up to whole units.
    """
    totals = [
        sum(_container_requests(pod, resource)) for resource in ("cpu", "memory", gpu, "ephemeral-storage")
    ]
    cpu = min(totals[0] * 1000 // quantity.NANO, MAX_AMOUNT)
    memory, devices, storage = (min(-(-total // quantity.NANO), MAX_AMOUNT) for total in totals[1:])
    return Allocation(cpu, memory, 1, devices, storage)


def _container_requests(pod: Any, resource: str) -> Iterator[int]:
    sidecars = (
        container for container in pod.spec.initContainers or () if container.restartPolicy == "Always"
    )
    for container in (*(pod.spec.containers or ()), *sidecars):
        if container.resources and container.resources.requests:
            yield _parse_nano_units(container.resources.requests.get(resource))


@lru_cache(maxsize=4096)
def _parse_nano_units(amount: Quantity) -> int:
    """Nano-units; 0 for invalid and negative quantities."""
    try:
        return max(0, quantity.parse(str(amount))) if amount is not None else 0
    except ValueError:
        return 0


def allocation_by_node(pods: Iterable[Any], gpu: str = GPU) -> Generator[None, None, dict[str, Allocation]]:
    """The allocation of each node by name; yields between pods. `gpu` is the name of the resource counted as GPU."""
    allocations: dict[str, Allocation] = {}
    empty = Allocation()
    for pod in pods:
        if holds_requests(pod):
            node = pod.spec.nodeName
            amounts = zip(allocations.get(node, empty), pod_allocation(pod, gpu), strict=True)
            allocations[node] = Allocation(*map(sum, amounts))
        yield
    return allocations


def allocation_annotations(allocation: Allocation, capacity: Capacity) -> Mapping[str, str]:
    """The annotations `requested-…` and `free-…` of a node; 0 is free of an overcommitted resource."""
    texts = {}
    for (requested_key, free_key), requested, allocatable in zip(_KEYS, allocation, capacity, strict=True):
        texts[requested_key] = str(requested)
        texts[free_key] = str(max(allocatable - requested, 0))
    return texts
