"""What pods ask of each node, and what is left of what it can give."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from nodewise import quantity
from nodewise.statistics import annotations
from nodewise.statistics.amounts import MOST, Quantity
from nodewise.statistics.capacity import GPU, Capacity
from nodewise.statistics.holding import is_holding


class Allocation(NamedTuple):
    """What pods ask of one node; whole numbers."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    gpu: int = 0
    ephemeral_storage_bytes: int = 0


_KEYS: Final = (
    (annotations.REQUESTED_CPU, annotations.FREE_CPU),
    (annotations.REQUESTED_MEMORY, annotations.FREE_MEMORY),
    (annotations.REQUESTED_PODS, annotations.FREE_PODS),
    (annotations.REQUESTED_GPU, annotations.FREE_GPU),
    (annotations.REQUESTED_EPHEMERAL_STORAGE, annotations.FREE_EPHEMERAL_STORAGE),
)
"""In the order of `Allocation` and `Capacity`."""


def of_pod(pod: Any, gpu: str = GPU) -> Allocation:
    """What the containers of a pod ask for, sidecars among them; those that initialise do not count, nor overhead.

    CPU in whole milli, what is less left out, as the older annotator has it; anything else rounded up to whole units.
    """
    nano = [sum(_asked(pod, resource)) for resource in ("cpu", "memory", gpu, "ephemeral-storage")]
    cpu = min(nano[0] * 1000 // quantity.NANO, MOST)
    memory, cards, storage = (min(-(-one // quantity.NANO), MOST) for one in nano[1:])
    return Allocation(cpu, memory, 1, cards, storage)


def _asked(pod: Any, resource: str) -> Iterator[int]:
    sidecars = (one for one in pod.spec.initContainers or () if one.restartPolicy == "Always")
    for container in (*(pod.spec.containers or ()), *sidecars):
        if container.resources and container.resources.requests:
            yield _nano(container.resources.requests.get(resource))


@lru_cache(maxsize=4096)
def _nano(given: Quantity) -> int:
    """Nano-units; 0 for what is no quantity, or is less than nothing."""
    try:
        return max(0, quantity.parse(str(given))) if given is not None else 0
    except ValueError:
        return 0


def by_node(pods: Iterable[Any], gpu: str = GPU) -> Generator[None, None, dict[str, Allocation]]:
    """What the pods that count ask of their nodes; yields between pods. `gpu` is the resource that counts as such."""
    sums: dict[str, Allocation] = {}
    nothing = Allocation()
    for pod in pods:
        if is_holding(pod):
            node = pod.spec.nodeName
            sums[node] = Allocation(*map(sum, zip(sums.get(node, nothing), of_pod(pod, gpu), strict=True)))
        yield
    return sums


def texts(allocation: Allocation, capacity: Capacity) -> Mapping[str, str]:
    """The annotations of one node, `requested-…` and `free-…`; of what is over-committed, 0 is free."""
    found = {}
    for (requested, free), asked, whole in zip(_KEYS, allocation, capacity, strict=True):
        found[requested] = str(asked)
        found[free] = str(max(whole - asked, 0))
    return found
