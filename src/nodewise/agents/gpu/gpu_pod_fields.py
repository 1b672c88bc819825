"""The fields of a pod that the gpu agent reads, and the CPU that a pod requests."""

from functools import lru_cache
from typing import Annotated, Final

import msgspec

from nodewise import quantity
from nodewise.agent import ReadKeys

MOST_CPU_MILLI: Final = 2**40
"""The cap of a container's request, so that the sum over all pods of a cluster fits into 63 bits."""
Quantity = str | int | float | None
"""The form in JSON; null is 0."""


ALLOW: Final = "gas-allow"
DENY: Final = "gas-deny"
SAME_GPU: Final = "gas-same-gpu"
LINKED: Final = "gas-allocate-xelink"
SINGLE_NUMA: Final = "gas-allocate-single-numa"
MODELS: Final = "nodewise.io/gpu-models"
PLACEMENT: Final = "nodewise.io/gpu-placement"
GPUS: Final = "gas-container-cards"
SUBDEVICES: Final = "gas-container-tiles"
GPU_NUMBERS: Final = "cards.nodewise.io/"
"""The annotation `cards.nodewise.io/<container>`: the numbers of its GPUs. Those of sidecars are read."""
ANNOTATIONS: Final = (ALLOW, DENY, SAME_GPU, LINKED, SINGLE_NUMA, MODELS, PLACEMENT, GPUS, SUBDEVICES)
"""The annotations of a pod that are read, besides `GPU_NUMBERS`."""


class GpuResources(msgspec.Struct, frozen=True, gc=False):
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class GpuContainer(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    resources: GpuResources | None = None
    restartPolicy: str | None = None  # noqa: N815 - the API's name
    """`Always` makes an init container a sidecar."""


class GpuPodMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: Annotated[
        dict[str, str] | None, ReadKeys(ANNOTATIONS, "annotation_bytes", (GPU_NUMBERS,))
    ] = None
    annotation_bytes: int = 0
    """Bytes of all annotations, where a store keeps only some of them; otherwise 0."""


class GpuPodSpec(msgspec.Struct, frozen=True, gc=False):
    containers: tuple[GpuContainer, ...] | None = None
    initContainers: tuple[GpuContainer, ...] | None = None  # noqa: N815 - the API's name


class GpuPod(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that are read to place it."""

    metadata: GpuPodMetadata = GpuPodMetadata()
    spec: GpuPodSpec = GpuPodSpec()


class AllocatedLabels(msgspec.Struct, frozen=True, gc=False):
    deschedule: str | None = msgspec.field(default=None, name="gpu.aware.scheduling/deschedule-pod")


class AllocatedMetadata(GpuPodMetadata, frozen=True, gc=False, kw_only=True):
    oversized_bytes: int = 0
    """Memory of the fields for GPUs where it was too much to store them (`pod_reduction`); otherwise 0."""
    name: str
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's name
    creationTimestamp: str = ""  # noqa: N815 - the API's name
    labels: AllocatedLabels | None = None


class AllocatedSpec(GpuPodSpec, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class AllocatedStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class AllocatedPod(GpuPod, frozen=True, gc=False, kw_only=True):
    """The fields of a pod that are read for its allocations."""

    metadata: AllocatedMetadata
    spec: AllocatedSpec = AllocatedSpec()
    status: AllocatedStatus = AllocatedStatus()


def annotation_bytes(metadata: GpuPodMetadata) -> int:
    """The bytes of all annotations of a pod, as the API server counts them, even if some are not stored."""
    entries = (metadata.annotations or {}).items()
    return metadata.annotation_bytes or sum(len(key.encode()) + len(value.encode()) for key, value in entries)


def is_sidecar(container: GpuContainer) -> bool:
    return container.restartPolicy == "Always"


def cpu_milli(pod: GpuPod) -> int:
    """The CPU request of a pod, similar to kube-scheduler.

    The sum of all that run together, including sidecars, or the largest init container with the sidecars before it if
    that is more (KEP-753); without overhead.
    """
    sidecars = peak = 0
    for container in pod.spec.initContainers or ():
        own = _container_cpu_milli(container)
        if is_sidecar(container):
            sidecars += own
        else:
            peak = max(peak, own + sidecars)
    return max(sum(map(_container_cpu_milli, pod.spec.containers or ())) + sidecars, peak)


def _container_cpu_milli(container: GpuContainer) -> int:
    """The CPU request of a container; 0 if it is invalid."""
    resources = container.resources
    value = resources and ((resources.requests or {}).get("cpu") or (resources.limits or {}).get("cpu"))
    return _milli_rounded_up(str(value)) if value else 0


@lru_cache
def _milli_rounded_up(text: str) -> int:
    """Round up, capped at more than any node has."""
    try:
        return min(max(0, -(-quantity.parse(text) * 1000 // quantity.NANO)), MOST_CPU_MILLI)
    except ValueError:
        return 0
