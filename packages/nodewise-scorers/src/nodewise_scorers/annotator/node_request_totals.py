"""The requests of the pods on each node, and what they leave of the node's allocatable resources."""

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from nodewise.base import quantity
from nodewise.base.quantity import MAX_AMOUNT
from nodewise.kube import pod_requests
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.node_capacity import GPU, Capacity


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
    return pod_requests.reduce_to_requests(pod, _resources(gpu)) if pod_requests.holds_requests(pod) else None


def _resources(gpu: str) -> tuple[str, ...]:
    """The resources of an allocation, in the order of `Allocation` without the number of pods."""
    return "cpu", "memory", gpu, "ephemeral-storage"


def pod_allocation(pod: Any, gpu: str = GPU) -> Allocation:
    """The requests of a pod on a node.

    CPU is rounded down to whole milli-CPU, as the older annotator does; other resources are rounded up to whole units.
    """
    cpu, *others = pod_requests.nano_requests(pod.spec, _resources(gpu), pod.status)
    memory, devices, storage = map(quantity.whole_units, others)
    return Allocation(min(cpu * 1000 // quantity.NANO, MAX_AMOUNT), memory, 1, devices, storage)


def allocation_by_node(pods: Iterable[Any], gpu: str = GPU) -> Generator[None, None, dict[str, Allocation]]:
    """The allocation of each node by name; yields between pods. `gpu` is the name of the resource counted as GPU."""
    allocations: dict[str, Allocation] = {}
    empty = Allocation()
    for pod in pods:
        if pod_requests.holds_requests(pod):
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
