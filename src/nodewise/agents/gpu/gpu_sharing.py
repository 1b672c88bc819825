"""How many units of a counting resource one physical GPU has, as the node describes it.

Some device plugins offer each GPU several times, so that the allocatable amount is a number of shares and not of GPUs:
two pods on different shares may use the same GPU. These sources are read:

- HAMi: the annotation `hami.io/node-nvidia-register` lists each GPU with its number of shares, model and health
- GKE: the label `cloud.google.com/gke-max-shared-clients-per-gpu` is the number of pods that share a GPU
- NVIDIA's GPU feature discovery: the labels `nvidia.com/gpu.replicas`, `nvidia.com/gpu.sharing-strategy` and the suffix
  `-SHARED` of `nvidia.com/gpu.product` describe time slicing and MPS
- AMD's node labeller: the label `amd.com/compute-memory-partition`, such as `cpx_nps4`, describes partitions

Sources: HAMi's device protocol (project-hami.io, text; JSON from 2.5), NVIDIA k8s-device-plugin 0.17
`internal/lm/resource.go`, ROCm k8s-device-plugin 1.31 `cmd/k8s-node-labeller/main.go`, and GKE's documentation of GPU
sharing strategies.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agents.gpu import extended_resource_amounts
from nodewise.agents.gpu.gpu_node_label_parsers import LONGEST_NAME
from nodewise.base.errors import UNREADABLE, shown, truncate

HAMI_REGISTER: Final = "hami.io/node-nvidia-register"
NVIDIA_GPU: Final = "nvidia.com/gpu"
_SHARED_SUFFIX: Final = "-SHARED"
_GKE_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
_AMD_PREFIX: Final = "amd.com/"
_AMD_PARTITION: Final = ("amd.com/compute-memory-partition", "amd.com/gpu.compute-memory-partition")
_AMD_MODE: Final = re.compile(r"(spx|dpx|tpx|qpx|cpx)_nps[0-9]+")
_AMD_PARTITIONS: Final[Mapping[str, int]] = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}
"""Partitions of one GPU by mode; `cpx` has as many as the GPU has compute dies."""
_AMD_COMPUTE_DIES: Final[Mapping[str, int]] = {
    "74a0": 6,
    "74a1": 8,
    "74a2": 4,
    "74a5": 8,
    "75a0": 8,
    "75a3": 8,
    "MI300A": 6,
    "MI300X": 8,
    "MI308X": 4,
    "MI325X": 8,
    "MI350X": 8,
    "MI355X": 8,
}
"""By PCI device id, and by a part of the product name."""
_AMD_ID_LABELS: Final = ("amd.com/gpu.device-id", "amd.com/gpu.product-name")
_MOST_REGISTERED: Final = 1024
_HAMI_FIELDS: Final = 7
_COUNT: Final = re.compile(r"[0-9]{1,4}")


class RegisteredGpu(NamedTuple):
    """A physical GPU in a register."""

    units: int
    """0 for an unhealthy one."""
    model: str
    """Empty if unknown."""


class GpuSharing(NamedTuple):
    """How the GPUs of a node are shared, for one counting resource."""

    units_per_gpu: int = 0
    """Units of one physical GPU; 0 if the node does not describe it."""
    source: str = ""
    """The label or annotation that says so."""
    is_shared: bool = False
    """Whether the units are shares of GPUs, even if their number per GPU is unknown."""
    registered: tuple[RegisteredGpu, ...] = ()
    """Each physical GPU, if the node lists them."""
    problem: str = ""


NOT_DESCRIBED: Final = GpuSharing()


def parse_gpu_sharing(
    resource: str, tags: Mapping[str, str], hami_register: str | None, resources: Mapping[str, Any]
) -> GpuSharing:
    """Parse how GPUs are shared. `resources` are the allocatable amounts of the node, of any vendor."""
    if resource == NVIDIA_GPU:
        if hami_register is not None:
            return _parse_hami_register(hami_register)
        if _GKE_CLIENTS in tags:
            return _parse_units(tags, _GKE_CLIENTS)
        return _parse_nvidia_labels(tags, resources)
    if resource.startswith(_AMD_PREFIX):
        return _parse_amd_labels(resource, tags)
    return NOT_DESCRIBED


def model_of_product(product: str) -> str:
    """The model of a product label of NVIDIA's GPU feature discovery."""
    return product.removesuffix(_SHARED_SUFFIX)


def _parse_units(tags: Mapping[str, str], label: str) -> GpuSharing:
    """The number of units per GPU in a label; 0 stands for a GPU that is not shared."""
    source = f"label {label}"
    try:
        units = extended_resource_amounts.parse_amount(tags[label])
    except ValueError as error:
        return GpuSharing(0, source, is_shared=True, problem=f"{source}: {error}")
    return GpuSharing(max(units, 1), source, is_shared=units > 1)


def _parse_nvidia_labels(tags: Mapping[str, str], resources: Mapping[str, Any]) -> GpuSharing:
    """Time slicing and MPS. Where the shares have a resource of their own, `nvidia.com/gpu` counts whole GPUs."""
    replicas, product = f"{NVIDIA_GPU}.replicas", f"{NVIDIA_GPU}.product"
    strategy = tags.get(f"{NVIDIA_GPU}.sharing-strategy", "none")
    if f"{NVIDIA_GPU}.shared" in resources:
        return GpuSharing(1, f"allocatable {NVIDIA_GPU}.shared")
    is_shared = tags.get(product, "").endswith(_SHARED_SUFFIX) or strategy not in ("none", "")
    if replicas in tags:
        sharing = _parse_units(tags, replicas)
        if sharing.is_shared or not is_shared:
            return sharing
    if is_shared:
        return GpuSharing(
            0, f"label {product if strategy == 'none' else f'{NVIDIA_GPU}.sharing-strategy'}", True
        )
    return GpuSharing(1, f"label {product}") if product in tags else NOT_DESCRIBED


def _parse_amd_labels(resource: str, tags: Mapping[str, str]) -> GpuSharing:
    """Partitions: of the resource itself with the strategy `mixed`, or of the node with the strategy `single`."""
    mode, source = resource.removeprefix(_AMD_PREFIX), f"resource {resource}"
    if not _AMD_MODE.fullmatch(mode):
        label = next((key for key in _AMD_PARTITION if key in tags), None)
        if label is None:
            return NOT_DESCRIBED
        mode, source = tags[label], f"label {label}"
    match = _AMD_MODE.fullmatch(mode)
    if match is None:
        return GpuSharing(
            0, source, is_shared=True, problem=f"{source}: {shown(mode)} is no mode such as spx_nps1"
        )
    units = _AMD_PARTITIONS.get(match[1]) or _compute_dies(tags)
    if not units:
        problem = (
            f"{source}: the number of partitions of a GPU in the mode {mode} is not known for its device id"
        )
        return GpuSharing(0, source, is_shared=True, problem=problem)
    return GpuSharing(units, source, is_shared=units > 1)


def _compute_dies(tags: Mapping[str, str]) -> int:
    """The compute dies of each GPU; 0 if unknown, or if the GPUs of the node differ."""
    dies = set()
    for label in _AMD_ID_LABELS:
        for product in amd_label_counts(tags, label):
            dies |= {
                count
                for name, count in _AMD_COMPUTE_DIES.items()
                if name in (product.lower(), *product.split("_"))
            }
    return dies.pop() if len(dies) == 1 else 0


def amd_label_counts(tags: Mapping[str, str], label: str) -> dict[str, int]:
    """By value, the number of GPUs in the labels of one property; 0 if unknown.

    The labeller writes `beta.<label>.<value>: <count>`, and `<label>: <value>` if all GPUs are equal, otherwise
    `<label>.<value>: <count>`.
    """
    counts: dict[str, int] = {}
    for key in sorted(tags):
        name = key.removeprefix("beta.")
        if name == label:
            counts.setdefault(tags[key], 0)
        elif name.startswith(f"{label}.") and _COUNT.fullmatch(tags[key]):
            counts[name.removeprefix(f"{label}.")] = int(tags[key])
    return counts


class _HamiDevice(msgspec.Struct, frozen=True, gc=False):
    count: int = 0
    type: str = ""
    health: bool = True


def _parse_hami_register(text: str) -> GpuSharing:
    source = f"annotation {HAMI_REGISTER}"
    try:
        devices = _hami_devices(text)
    except UNREADABLE as error:
        return GpuSharing(
            0, source, is_shared=True, problem=f"{source}: {truncate(str(error), LONGEST_NAME)}"
        )
    counts = [device.count for device in devices]
    if not 0 < len(counts) <= _MOST_REGISTERED or min(counts) < 1:
        problem = (
            f"{source}: {shown(text)}; expected 1 to {_MOST_REGISTERED} GPUs, each with a count of shares"
        )
        return GpuSharing(0, source, is_shared=True, problem=problem)
    registered = tuple(
        RegisteredGpu(device.count if device.health else 0, truncate(device.type, LONGEST_NAME))
        for device in devices
    )
    return GpuSharing(max(counts), source, is_shared=max(counts) > 1, registered=registered)


def _hami_devices(text: str) -> list[_HamiDevice]:
    if text.lstrip().startswith("["):
        return msgspec.json.decode(text, type=list[_HamiDevice])
    return [_parse_hami_text(part) for part in text.split(":") if part]


def _parse_hami_text(part: str) -> _HamiDevice:
    """Parse `GPU-…,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true` and later forms with more fields.

    The fields are UUID, shares, memory in MiB, cores in percent, model, NUMA node and health.
    """
    fields: Sequence[str] = part.split(",")
    if len(fields) < _HAMI_FIELDS:
        raise ValueError(f"{shown(part)} has {len(fields)} fields, expected {_HAMI_FIELDS}")
    return _HamiDevice(int(fields[1]), fields[4], fields[6].lower() == "true")
