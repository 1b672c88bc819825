"""The fields of a pod that the gpu agent reads, and the CPU that a pod requests."""

from typing import Annotated, Final

import msgspec

from nodewise.agent import ReadKeys
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import (
    HoldingSpec,
    HoldingStatus,
    RequestingContainer,
    RequestingPod,
    ResizeStatus,
)

MOST_CPU_MILLI: Final = 2**40
"""The cap of a pod's request, so that the sum over all pods of a cluster fits into 63 bits."""
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


class GpuPodMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: Annotated[
        dict[str, str] | None, ReadKeys(ANNOTATIONS, "annotation_bytes", (GPU_NUMBERS,))
    ] = None
    annotation_bytes: int = 0
    """Bytes of all annotations, where a store keeps only some of them; otherwise 0."""


class GpuPod(RequestingPod, frozen=True, gc=False):
    """The fields of a pod that are read to place it."""

    metadata: GpuPodMetadata = GpuPodMetadata()


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


class AllocatedPod(GpuPod, frozen=True, gc=False, kw_only=True):
    """The fields of a pod that are read for its allocations."""

    metadata: AllocatedMetadata
    spec: HoldingSpec = HoldingSpec()
    status: HoldingStatus = HoldingStatus()


def annotation_bytes(metadata: GpuPodMetadata) -> int:
    """The bytes of all annotations of a pod, as the API server counts them, even if some are not stored."""
    entries = (metadata.annotations or {}).items()
    return metadata.annotation_bytes or sum(len(key.encode()) + len(value.encode()) for key, value in entries)


def is_sidecar(container: RequestingContainer) -> bool:
    return container.restartPolicy == "Always"


def cpu_milli(pod: GpuPod, status: ResizeStatus | None = None) -> int:
    """The CPU request of a pod, at most `MOST_CPU_MILLI`. `status` is that of a pod on a node."""
    (milli,) = pod_requests.whole_requests(pod.spec, ("cpu",), status)
    return min(milli, MOST_CPU_MILLI)
