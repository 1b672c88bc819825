"""The fields of nodes and pods that the annotator reads, and the requests of the pods on each node.

The requests of the pods on each node, and what they leave of the node's allocatable resources.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import quantity
from nodewise.base.quantity import MAX_AMOUNT
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import HoldingSpec, HoldingStatus
from nodewise.kube.struct_type_merge import merge
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import GPU, Capacity, UsageAnnotations

ALLOCATABLE_MEMORY: Final = "allocatable_memory"
REQUESTED_MEMORY: Final = "reqested_memory"
"""Only people read it; spelled as the older annotator did."""


class WrittenAnnotations(UsageAnnotations, frozen=True, gc=False):
    """All annotations that the annotator writes."""

    requested_cpu: str | None = msgspec.field(default=None, name=load_annotations.REQUESTED_CPU)
    requested_memory: str | None = msgspec.field(default=None, name=load_annotations.REQUESTED_MEMORY)
    requested_pods: str | None = msgspec.field(default=None, name=load_annotations.REQUESTED_PODS)
    requested_gpu: str | None = msgspec.field(default=None, name=load_annotations.REQUESTED_GPU)
    requested_ephemeral_storage: str | None = msgspec.field(
        default=None, name=load_annotations.REQUESTED_EPHEMERAL_STORAGE
    )
    free_cpu: str | None = msgspec.field(default=None, name=load_annotations.FREE_CPU)
    free_memory: str | None = msgspec.field(default=None, name=load_annotations.FREE_MEMORY)
    free_pods: str | None = msgspec.field(default=None, name=load_annotations.FREE_PODS)
    free_gpu: str | None = msgspec.field(default=None, name=load_annotations.FREE_GPU)
    free_ephemeral_storage: str | None = msgspec.field(
        default=None, name=load_annotations.FREE_EPHEMERAL_STORAGE
    )
    allocatable_memory: str | None = msgspec.field(default=None, name=ALLOCATABLE_MEMORY)
    reqested_memory: str | None = msgspec.field(default=None, name=REQUESTED_MEMORY)


_FIELDS: Final = {field.encode_name: field.name for field in msgspec.structs.fields(WrittenAnnotations)}


class AnnotatedNodeMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: WrittenAnnotations | None = None


class NodeCondition(msgspec.Struct, frozen=True, gc=False):
    type: Any = ""
    status: Any = ""


class AnnotatedNodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: msgspec.Raw = msgspec.Raw(b"null")
    conditions: tuple[NodeCondition, ...] | None = None


class AnnotatedNode(msgspec.Struct, frozen=True, gc=False):
    """The fields of a node besides its name and uid."""

    metadata: AnnotatedNodeMetadata = AnnotatedNodeMetadata()
    status: AnnotatedNodeStatus = AnnotatedNodeStatus()


class BoundPod(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that tell its requests and its node."""

    spec: HoldingSpec = HoldingSpec()
    status: HoldingStatus = HoldingStatus()


POD: Final[Any] = merge("Pod", BoundPod)
"""The type of pods in a store."""


def is_node_ready(node: Any) -> bool:
    """Whether the node's condition Ready is true."""
    return any(
        condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions or ()
    )


def current_annotations(node: Any) -> Mapping[str, str]:
    """The node's annotations among those that the annotator writes."""
    written = node.metadata.annotations
    if written is None:
        return {}
    texts = ((key, getattr(written, field)) for key, field in _FIELDS.items())
    return {key: text for key, text in texts if text is not None}


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
