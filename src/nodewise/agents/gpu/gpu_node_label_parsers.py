"""Parsers of the node labels that describe GPUs. Invalid text raises ValueError with a message.

Intel's GPU plugin and XPU manager write these labels through node feature discovery, and telemetry policies write some.
Source: GPU Aware Scheduling 0.5.6, `pkg/gpuscheduler/utils.go`. A GPU is named `card` and its number in the label.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from nodewise.base.errors import shown

TELEMETRY: Final = "telemetry.aware.scheduling."
PCI_GROUP: Final = "PCI_GROUP"
"""The value with which a label applies to all GPUs on the named GPU's bus."""
LONGEST_NAME: Final = 63
"""Characters of a GPU's name, which becomes part of annotations."""

_MOST_LINKS: Final = 4096
"""The most links that are read; GPUs of a node have a few hundred."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_LINK: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})-([0-9]{1,9})\.([0-9]{1,9})")
_SUBDEVICE: Final = re.compile(r"(card[0-9]{1,9})_gt([0-9]{1,9})")


class Link(NamedTuple):
    """Two sub-devices that are connected by an Xe Link. It is used from left to right only."""

    left: str
    left_subdevice: int
    right: str
    right_subdevice: int


class TelemetryLabel(NamedTuple):
    """A label `telemetry.aware.scheduling.<policy>/<name>`."""

    policy: str
    name: str
    value: str


def join_split_label(labels: Mapping[str, str], key: str) -> str:
    """Join a value that was split into labels: `<key>`, and `<key>2`, `<key>3` … whose values begin with a Z."""
    parts = [labels.get(key, "")]
    while (part := labels.get(f"{key}{len(parts) + 1}")) is not None:
        if not part.startswith("Z"):
            raise ValueError(f"label {key}{len(parts) + 1}: {shown(part)} does not begin with Z")
        parts.append(part[1:])
    return "".join(parts)


def is_gpu_name(gpu: str) -> bool:
    return _NAME.fullmatch(gpu) is not None


def split_numbers(text: str) -> list[str]:
    """Split `0.1.10` into its parts in order, including empty ones; no parts for an empty text."""
    return text.split(".") if text else []


def parse_groups(text: str) -> dict[str, frozenset[str]]:
    """By GPU, the first group of GPUs on one bus that contains it. `0.1_2.3.4` are two groups."""
    gpu_groups = [_parse_gpu_numbers(part) for part in text.split("_")] if text else []
    return {gpu: group for group in reversed(gpu_groups) for gpu in group}


def expand_groups(gpus: Iterable[str], among: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The GPUs with all GPUs of their groups; a GPU without a group is alone. Each group is visited once."""
    alone = {gpu for gpu in gpus if gpu not in among}
    return frozenset(alone).union(*{among[gpu] for gpu in gpus if gpu in among})


def parse_numa_map(text: str) -> tuple[frozenset[str], ...]:
    """Parse the GPUs of each NUMA node: `0-0.1_1-2.3`."""
    numa_nodes = []
    for part in text.split("_") if text else ():
        head, _, gpus = part.partition("-")
        if part.count("-") != 1 or not head or not gpus:
            raise ValueError(f"{shown(part)} is not a NUMA node, -, and numbers of GPUs")
        numa_nodes.append(_parse_gpu_numbers(gpus))
    return tuple(numa_nodes)


def _parse_gpu_numbers(text: str) -> frozenset[str]:
    return frozenset(f"card{number}" for number in split_numbers(text) if number)


def parse_device_indices(gpu_numbers: str) -> tuple[str, ...]:
    """GPUs by Level-Zero device index, in the order of their numbers. ValueError if one is not a number."""
    unique = [number for number in dict.fromkeys(split_numbers(gpu_numbers)) if number]
    odd = [number for number in unique if not _NUMBER.fullmatch(number)]
    if odd:
        raise ValueError(f"{shown(odd[0])} is no number, so GPUs have no device index")
    return tuple(f"card{number}" for number in sorted(unique, key=lambda number: (int(number), number)))


def parse_links(text: str, by_index: tuple[str, ...]) -> tuple[list[Link], str]:
    """Parse links such as `0.0-1.0_2.1-3.2` in order.

    Returns the links and why parsing stopped, empty if it did not. Links that name no device, or connect a GPU
    with itself, are omitted.
    """
    result: dict[Link, None] = {}
    for part in text.split("_") if text else ():
        match = _LINK.fullmatch(part)
        if match is None:
            return list(
                result
            ), f"{shown(part)} is no link such as 0.0-1.0; it and those after it do not count"
        left, left_subdevice, right, right_subdevice = map(int, match.groups())
        if len(result) == _MOST_LINKS:
            return list(result), f"there are more than {_MOST_LINKS} links; the others do not count"
        if left != right and max(left, right) < len(by_index):
            result[Link(by_index[left], left_subdevice, by_index[right], right_subdevice)] = None
    return list(result), ""


def telemetry_policy_labels(labels: Mapping[str, str]) -> list[TelemetryLabel]:
    """The labels of telemetry policies on this node, by policy and name."""
    result = []
    for key, value in labels.items():
        policy, slash, name = key.removeprefix(TELEMETRY).partition("/")
        if key.startswith(TELEMETRY) and slash and "/" not in name:
            result.append(TelemetryLabel(policy, name, value))
    return sorted(result)


def parse_subdevice(text: str) -> tuple[str, int] | None:
    """Parse the GPU and the sub-device of `card0_gt1`; None if it is not such a name."""
    match = _SUBDEVICE.fullmatch(text)
    return None if match is None else (match[1], int(match[2]))
