"""The five resources that the agent knows, in the order of `num_resources`, and the units in which it counts them.

Milli-CPU, MiB, pods, devices, GiB; whole numbers, what is left over of a unit does not count.
"""

from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.errors import UNREADABLE
from nodewise.statistics import integer_quantities, load_annotations, node_capacity, pod_requests
from nodewise.statistics.integer_quantities import MAX_AMOUNT
from nodewise.statistics.load_annotations import AllocationAnnotations
from nodewise.statistics.pod_requests import RequestingPod

NAMES: Final = ("cpu", "memory", "pods", "gpu", "ephemeral-storage")
"""Also of the annotations `requested-<name>`, whatever the resource is called that counts as `gpu`."""
GPU: Final = "gpu"

UNITS: Final = (1, 2**20, 1, 1, 2**30)
"""How much of what annotations and quantities say makes one of ours."""

UNIT_NAMES: Final = ("milli", "MiB", "pods", "cards", "GiB")

LEAST_CPU: Final = 10
LEAST_MEMORY: Final = 16
"""What a pod counts for that asks for none."""

Row = NDArray[np.float64]
"""By resource, in our units."""
Amounts = tuple[float, ...]
"""By resource, in the units of quantities."""
NOTHING: Final[Amounts] = (np.nan,) * len(NAMES)

_decode: Final = msgspec.json.Decoder(dict[str, Any] | None).decode


def taken(pod: RequestingPod, gpu: str = GPU) -> Amounts:
    """What the containers of a pod ask for, without those that initialise, and without overhead."""
    cpu, memory, devices, storage = (
        pod_requests.together(pod, name) for name in ("cpu", "memory", gpu, NAMES[-1])
    )
    return (cpu, memory, 1, devices, storage)


def demand(pod: RequestingPod, gpu: str = GPU) -> Row:
    """The same in our units, and never without CPU and memory."""
    cpu, memory, pods, devices, storage = (
        amount // unit for amount, unit in zip(taken(pod, gpu), UNITS, strict=True)
    )
    return np.array([cpu or LEAST_CPU, memory or LEAST_MEMORY, pods, devices, storage], np.float64)


def allocatable(raw: msgspec.Raw, gpu: str = GPU) -> Amounts:
    """What a node can give to pods, in the units of quantities; 0 for what it does not say."""
    whole = node_capacity.read(raw)
    devices = whole.gpu if gpu == GPU else _amount(raw, gpu)
    return (whole.cpu_milli, whole.memory_bytes, whole.pods, devices, whole.ephemeral_storage_bytes)


def _amount(raw: msgspec.Raw, resource: str) -> int:
    try:
        fields = _decode(raw) or {}
    except UNREADABLE:
        fields = {}
    return integer_quantities.units(fields.get(resource))


def requested(written: AllocationAnnotations | None) -> Amounts:
    """What the pods of a node ask for together, as its annotations have it; NaN where they do not say.

    Decimal text is read as well: older annotators wrote `1610612736.0`.
    """
    if written is None:
        return NOTHING
    texts = (
        written.requested_cpu,
        written.requested_memory,
        written.requested_pods,
        written.requested_gpu,
        written.requested_ephemeral_storage,
    )
    return tuple(map(load_annotations.number, texts))


def counted(raw_amounts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Amounts (5, n) in our units: what is below 0 is 0, and what is beyond all quantities is the largest of them."""
    whole_units: NDArray[np.float64] = np.floor(
        np.clip(raw_amounts, 0, MAX_AMOUNT) / np.array(UNITS)[:, None]
    )
    return whole_units
