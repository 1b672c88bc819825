"""The requests of the pods on each node, and what they leave of the node's allocatable resources."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from sys import intern
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from nodewise import quantity
from nodewise.statistics import load_annotations
from nodewise.statistics.integer_quantities import MAX_AMOUNT, Quantity
from nodewise.statistics.node_capacity import GPU, Capacity
from nodewise.statistics.pod_requests import RequestedResources, RequestingContainer, holds_requests


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


def make_pod_reducer(gpu: str = GPU) -> Callable[[Any], Any | None]:
    """Return a function that reduces a bound pod to its node and one container with the sum of its requests."""
    return partial(_reduce_pod_to_requests, gpu)


def _reduce_pod_to_requests(gpu: str, pod: Any) -> Any | None:
    if not holds_requests(pod):
        return None
    totals = ((resource, sum(_container_requests(pod, resource))) for resource in _resources(gpu))
    requests = tuple((resource, f"{total}n") for resource, total in totals if total)
    metadata = replace(pod.metadata, namespace=intern(pod.metadata.namespace))
    spec = replace(
        pod.spec,
        nodeName=intern(pod.spec.nodeName),
        containers=_containers_with_requests(requests),
        initContainers=None,
    )
    return replace(pod, metadata=metadata, spec=spec)


@lru_cache(4096)
def _containers_with_requests(requests: tuple[tuple[str, str], ...]) -> tuple[RequestingContainer, ...]:
    """The same object for all pods that request the same."""
    return (RequestingContainer(RequestedResources(dict(requests))),)


def _resources(gpu: str) -> tuple[str, ...]:
    """The resources of an allocation, in the order of `Allocation` without the number of pods."""
    return "cpu", "memory", gpu, "ephemeral-storage"


def pod_allocation(pod: Any, gpu: str = GPU) -> Allocation:
    """The requests of a pod's containers and sidecars; other init containers and overhead do not count.

    CPU is rounded down to whole milli-CPU, as the older annotator does; other resources are rounded up to whole units.
    """
    totals = [sum(_container_requests(pod, resource)) for resource in _resources(gpu)]
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
