"""Models, memory and number of GPUs by the labels of the vendors' node labellers.

The labels describe a node and not its GPUs, so they apply to all its GPUs, or to none if they describe only some of
them. Sources:

- Intel's rules of node feature discovery: intel-device-plugins-for-kubernetes 0.35 `cmd/gpu_plugin/labels.md`
- NVIDIA's GPU feature discovery: k8s-device-plugin 0.17 `internal/lm/resource.go`
- AMD's node labeller: ROCm k8s-device-plugin 1.31 `cmd/k8s-node-labeller/main.go`
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from nodewise.agents.gpu import extended_resource_amounts, gpu_sharing
from nodewise.agents.gpu.gpu_node_label_parsers import LONGEST_NAME
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base.errors import shown, truncate

_INTEL_DEVICES: Final = re.compile(r"gpu\.intel\.com/device-id\.([0-9a-f]{4}-[0-9a-f]{4})\.count")
_AMD_MEMORY: Final = re.compile(r"([0-9]{1,6})G")
_MIB_PER_GIB: Final = 1024


class LabelledGpus(NamedTuple):
    """What labels say about all GPUs of a node."""

    model: str = ""
    """Empty if unknown."""
    memory_mib: int = 0
    """The memory of each GPU; 0 if unknown."""
    problem: str = ""


def labelled_count(tags: Mapping[str, str], profile: ResourceProfile) -> int | None:
    """The number of GPUs in labels; None without one. The ValueError names the label, the found and expected value."""
    counts = []
    if profile.count_label in tags:
        counts.append(_parse_count(tags, profile.count_label))
    if profile.labeller == "intel":
        devices = [_parse_count(tags, label) for label in tags if _INTEL_DEVICES.fullmatch(label)]
        counts += [sum(devices)] if devices else []
    if profile.labeller == "amd":
        devices = list(gpu_sharing.amd_label_counts(tags, "amd.com/gpu.device-id").values())
        counts += [sum(devices)] if all(devices) and devices else []
    return max(counts, default=None)


def _parse_count(tags: Mapping[str, str], label: str) -> int:
    try:
        return extended_resource_amounts.parse_amount(tags[label])
    except ValueError as error:
        raise ValueError(f"label {label}: {error}") from error


def parse_models(tags: Mapping[str, str], profile: ResourceProfile) -> LabelledGpus:
    """The model and memory of each GPU, if the labels describe all of them with the same values."""
    match profile.labeller:
        case "intel":
            return LabelledGpus(_intel_model(tags))
        case "nvidia":
            product = gpu_sharing.model_of_product(tags.get("nvidia.com/gpu.product", ""))
            memory, problem = _parse_memory(tags, "nvidia.com/gpu.memory")
            return LabelledGpus(truncate(product, LONGEST_NAME), memory, problem)
        case "amd":
            return _parse_amd_labels(tags)
    return LabelledGpus()


def _intel_model(tags: Mapping[str, str]) -> str:
    """The product, such as Max_1550, else the family; empty if there are different devices."""
    devices = [label for label in tags if _INTEL_DEVICES.fullmatch(label)]
    if len(devices) > 1:
        return ""
    return truncate(tags.get("gpu.intel.com/product") or tags.get("gpu.intel.com/family", ""), LONGEST_NAME)


def _parse_memory(tags: Mapping[str, str], label: str) -> tuple[int, str]:
    if label not in tags:
        return 0, ""
    try:
        return extended_resource_amounts.parse_amount(tags[label]), ""
    except ValueError as error:
        return 0, f"label {label}: {error}"


def _parse_amd_labels(tags: Mapping[str, str]) -> LabelledGpus:
    names, memory = (
        list(gpu_sharing.amd_label_counts(tags, f"amd.com/gpu.{name}")) for name in ("product-name", "vram")
    )
    problems = [
        f"labels of AMD's node labeller: the GPUs differ, {', '.join(map(shown, values[:2]))}; annotate each of them"
        for values in (names, memory)
        if len(values) > 1
    ]
    match = _AMD_MEMORY.fullmatch(memory[0]) if len(memory) == 1 else None
    if len(memory) == 1 and match is None:
        problems.append(f"label amd.com/gpu.vram: {shown(memory[0])}; expected a number of GiB such as 192G")
    return LabelledGpus(
        truncate(names[0], LONGEST_NAME) if len(names) == 1 else "",
        int(match[1]) * _MIB_PER_GIB if match is not None else 0,
        "; ".join(problems),
    )
