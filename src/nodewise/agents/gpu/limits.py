"""Limits of pods and ledgers. Filter, preempt, score and bind use the same ones, so that bind takes what filter passes.

A ledger is the annotation of a Lease, and the API server takes 256 KiB of annotations of one object. An entry lists
containers with cards only, so that its size follows from what the pod is given.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

MOST_CONTAINERS: Final = 64
"""Containers of a pod that requests cards. Annotations name the cards of each by its position."""
MOST_GPUS: Final = 256
"""Cards that the containers of a pod request together. Each is looked for on all nodes and stands in the ledger."""
MOST_ANNOTATION_BYTES: Final = 2**18
"""Keys and values of one object's annotations, bytes (k8s.io/apimachinery `TotalAnnotationSizeLimitB`)."""
RECORD_BYTES: Final = MOST_ANNOTATION_BYTES - 2**12
"""Longest ledger of a node, bytes. What is left has room for the key, and for entries that are written again: their
resourceVersion and time get longer.
"""
LONGEST_NODE: Final = 253 - len("gpu-")
"""Longest name of a node with cards, characters: the ledger's name is `gpu-` and the node's, and a Lease's has 253."""
NO_RECORD: Final = 2**62
"""Stands for the size of a ledger that can never be written."""

_LONGEST_GPU: Final = 63
_MOST_GPUS_OF_NODE: Final = 64
_MOST_SUBDEVICES: Final = 64
_SUBDEVICE_BYTES: Final = len("gt63+")
_AMOUNT_BYTES: Final = len('"":9223372036854775807,')
_ENTRY_BYTES: Final = 700
"""Uid (64), namespace and name (317), resourceVersion (40), time (20), and the JSON around them."""
_ANNOTATIONS_BYTES: Final = 256
"""`gas-ts`, and the keys of `gas-container-cards` and `gas-container-tiles`."""


class ContainerRequest(Protocol):
    """What a container wants of cards (`demand.ContainerDemand`)."""

    @property
    def count(self) -> int: ...

    @property
    def per_gpu(self) -> Mapping[str, int]: ...


def record_bytes(node: str, text: str) -> int:
    """The size of a node's ledger, bytes; `NO_LEDGER` where its Lease cannot have a name."""
    if len(node) > LONGEST_NODE:
        return NO_RECORD
    return len(text) if text.isascii() else len(text.encode())


def entry_bytes(containers: Iterable[ContainerRequest], subdevices: str) -> int:
    """The longest entry that a pod with these containers may get, whatever cards it is given. `tiles` counts tiles."""
    return _ENTRY_BYTES + sum(_container_bytes(container, subdevices) for container in containers)


def room_for(containers: Iterable[ContainerRequest], subdevices: str) -> int:
    """The longest ledger that takes the pod's entry."""
    return RECORD_BYTES - entry_bytes(containers, subdevices)


def annotation_bytes(containers: Iterable[ContainerRequest], subdevices: str) -> int:
    """The longest annotations that nodewise writes to a pod with these containers."""
    return _ANNOTATIONS_BYTES + sum(
        2 + 2 * _container_bytes(container, subdevices) for container in containers
    )


def _container_bytes(container: ContainerRequest, subdevices: str) -> int:
    """Names of cards and tiles, and what each card is charged; 0 for a container without cards."""
    if not container.count:
        return 0
    count = min(container.count, _MOST_GPUS_OF_NODE)
    named = min(container.per_gpu.get(subdevices, 0), _MOST_SUBDEVICES)
    charged = sum(len(resource.encode()) + _AMOUNT_BYTES for resource in container.per_gpu)
    return count * (2 * (_LONGEST_GPU + 2) + named * _SUBDEVICE_BYTES) + charged + len("||{},")
