"""The five resources of the agent, in the order of `num_resources`, and the units in which it counts them.

The units are milli-CPU, MiB, pods, devices and GiB. Amounts are whole numbers, rounded down.
"""

from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.base import quantity
from nodewise.base.errors import UNREADABLE
from nodewise.base.quantity import MAX_AMOUNT
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import RequestingPod, RequestingSpec
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import AllocationAnnotations

NAMES: Final = ("cpu", "memory", "pods", "gpu", "ephemeral-storage")
"""Also the names in the annotations `requested-<name>`, regardless of the name of the resource that counts as `gpu`."""
GPU: Final = "gpu"

UNITS: Final = (1, 2**20, 1, 1, 2**30)
"""The size of the agent's units, in the units of annotations and quantities."""

UNIT_NAMES: Final = ("milli", "MiB", "pods", "cards", "GiB")

DEFAULT_CPU: Final = 10
DEFAULT_MEMORY: Final = 16
"""The demand of a pod without a request."""

Row = NDArray[np.float64]
"""By resource, in the agent's units."""
Amounts = tuple[float, ...]
"""By resource, in the units of quantities."""
UNKNOWN: Final[Amounts] = (np.nan,) * len(NAMES)

_decode: Final = msgspec.json.Decoder(dict[str, Any] | None).decode


def requested_resources(gpu: str) -> tuple[str, ...]:
    """The resources that pods request, without the number of pods."""
    return ("cpu", "memory", gpu, NAMES[-1])


def raw_pod_requests(spec: RequestingSpec, gpu: str = GPU) -> Amounts:
    """The requests of a pod that is to be placed, or of a pod on a node as it is stored."""
    cpu, memory, devices, storage = pod_requests.whole_requests(spec, requested_resources(gpu))
    return (cpu, memory, 1, devices, storage)


def pod_demand(pod: RequestingPod, gpu: str = GPU) -> Row:
    """The requests of a pod in the agent's units, with defaults for CPU and memory."""
    cpu, memory, pods, devices, storage = (
        amount // unit for amount, unit in zip(raw_pod_requests(pod.spec, gpu), UNITS, strict=True)
    )
    return np.array([cpu or DEFAULT_CPU, memory or DEFAULT_MEMORY, pods, devices, storage], np.float64)


def allocatable_amounts(raw: msgspec.Raw, gpu: str = GPU) -> Amounts:
    """The allocatable amounts of a node, in the units of quantities; 0 for absent ones."""
    whole = load_annotations.parse_capacity(raw)
    devices = whole.gpu if gpu == GPU else _parse_amount(raw, gpu)
    return (whole.cpu_milli, whole.memory_bytes, whole.pods, devices, whole.ephemeral_storage_bytes)


def _parse_amount(raw: msgspec.Raw, resource: str) -> int:
    try:
        fields = _decode(raw) or {}
    except UNREADABLE:
        fields = {}
    return quantity.units(fields.get(resource))


def requests_from_annotations(written: AllocationAnnotations | None) -> Amounts:
    """The sum of the requests of a node's pods, by its annotations; NaN for absent ones.

    Decimal numbers are accepted too, because older annotators wrote `1610612736.0`.
    """
    if written is None:
        return UNKNOWN
    texts = (
        written.requested_cpu,
        written.requested_memory,
        written.requested_pods,
        written.requested_gpu,
        written.requested_ephemeral_storage,
    )
    return tuple(map(load_annotations.number, texts))


def to_agent_units(raw_amounts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert amounts (5, n) to the agent's units, clipped to 0 and the largest quantity."""
    whole_units: NDArray[np.float64] = np.floor(
        np.clip(raw_amounts, 0, MAX_AMOUNT) / np.array(UNITS)[:, None]
    )
    return whole_units
