"""Limits of pods and allocation records. Filter, preempt, score and bind share them, so that bind accepts
what filter accepts.

An allocation record is the annotation of a Lease, and the API server accepts 256 KiB of annotations per object. A
reservation lists only containers with GPUs, so that its size follows from what the pod gets. That of a pod whose
sidecars have GPUs lists all containers (`allocation_record`), of which there are at most `MOST_CONTAINERS`.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from nodewise.agents.gpu import node_gpus

MOST_CONTAINERS: Final = 64
"""Containers of a pod that requests GPUs, and its init containers with GPUs. Annotations name the GPUs of each
container by its position, and the GPUs of init containers depend on all later containers."""
MOST_GPUS: Final = 256
"""GPUs that the containers of a pod request together. Each costs a search over all nodes and bytes of the record."""
MOST_ANNOTATION_BYTES: Final = 2**18
"""Keys and values of one object's annotations, bytes (k8s.io/apimachinery `TotalAnnotationSizeLimitB`)."""
RECORD_BYTES: Final = MOST_ANNOTATION_BYTES - 2**12
"""The longest allocation record of a node, in bytes. The rest is for the key, and for reservations that are written
again with a longer resourceVersion and time."""
LONGEST_NODE: Final = 253 - len("gpu-")
"""Longest name of a node with GPUs, characters: the Lease is named `gpu-<node>`, and its name has at most 253."""
NO_RECORD: Final = 2**62
"""The size of an allocation record that can never be written."""

_LONGEST_GPU: Final = 63
_SUBDEVICE_BYTES: Final = len("gt63+")
_AMOUNT_BYTES: Final = len('"":9223372036854775807,')
_ENTRY_BYTES: Final = 700
"""Uid (64), namespace and name (317), resourceVersion (40), time (20), and the JSON around them."""
_GPU_NUMBERS_KEY_BYTES: Final = len("cards.nodewise.io/") + 63
"""The key that names the GPUs of a container. The name of a container has at most 63 characters."""
_ANNOTATIONS_BYTES: Final = 256
"""`gas-ts`, and the keys of `gas-container-cards` and `gas-container-tiles`."""


class ContainerRequest(Protocol):
    """The GPU request of a container (`ContainerDemand` or `InitContainerDemand`)."""

    @property
    def name(self) -> str: ...

    @property
    def count(self) -> int: ...

    @property
    def per_gpu(self) -> Mapping[str, int]: ...


def record_bytes(node: str, text: str) -> int:
    """The size of a node's allocation record, bytes; `NO_RECORD` where its Lease cannot have a name."""
    if len(node) > LONGEST_NODE:
        return NO_RECORD
    return len(text) if text.isascii() else len(text.encode())


def max_reservation_bytes(containers: Iterable[ContainerRequest], subdevices: str) -> int:
    """The longest reservation of a pod with these containers on any GPUs. `subdevices` is the counting resource."""
    return _ENTRY_BYTES + sum(_container_reservation_bytes(container, subdevices) for container in containers)


def max_record_bytes(containers: Iterable[ContainerRequest], subdevices: str) -> int:
    """The longest allocation record that has space for the pod's reservation."""
    return RECORD_BYTES - max_reservation_bytes(containers, subdevices)


def max_annotation_bytes(
    containers: Iterable[ContainerRequest], subdevices: str, init: Iterable[ContainerRequest] = ()
) -> int:
    """The longest annotations that nodewise writes to a pod with these containers and plain init containers."""
    of_containers = sum(
        2 + 2 * _container_reservation_bytes(container, subdevices) for container in containers
    )
    of_init = sum(_GPU_NUMBERS_KEY_BYTES + _max_gpu_name_bytes(container) for container in init)
    return _ANNOTATIONS_BYTES + of_containers + of_init


def _container_reservation_bytes(container: ContainerRequest, subdevices: str) -> int:
    """The bytes of the names of GPUs and sub-devices and of charged amounts."""
    if not container.count:
        return len("||{},")
    count = min(container.count, node_gpus.MOST_GPUS)
    named = min(container.per_gpu.get(subdevices, 0), node_gpus.MOST_SUBDEVICES)
    charged = sum(len(resource.encode()) + _AMOUNT_BYTES for resource in container.per_gpu)
    return count * (2 * (_LONGEST_GPU + 2) + named * _SUBDEVICE_BYTES) + charged + len("||{},")


def _max_gpu_name_bytes(container: ContainerRequest) -> int:
    """The bytes of the names of its GPUs, with commas."""
    return min(container.count, node_gpus.MOST_GPUS) * (_LONGEST_GPU + 1)
