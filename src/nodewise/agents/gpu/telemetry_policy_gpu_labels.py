"""GPUs and sub-devices that telemetry policies exclude or prefer, by labels
`telemetry.aware.scheduling.<policy>/<name>`.

| name | value | meaning |
|---|---|---|
| `gas-disable-<card>` | any, or `PCI_GROUP` | new pods do not get the GPU |
| `gas-deschedule-pods-<card>` | any, or `PCI_GROUP` | the same, and its pods get the deschedule label |
| `gas-prefer-gpu` | a GPU | it is tried first |
| `gas-tile-disable-<card>_gt<n>` | any | new pods do not get the sub-device |
| `gas-tile-deschedule-<card>_gt<n>` | any | the same, and its pods get the deschedule label |
| `gas-tile-preferred-<card>` | `gt<n>` | it is taken first |

The labels of several policies add up. Names are compared exactly: `gas-disable-xcard0` does not concern card0.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.agents.gpu import gpu_node_label_parsers
from nodewise.agents.gpu.gpu_node_label_parsers import PCI_GROUP, TelemetryLabel
from nodewise.base.errors import shown

Groups = Mapping[str, frozenset[str]]
Tiles = Mapping[str, frozenset[int]]

_DISABLE: Final = "gas-disable-"
_DESCHEDULE: Final = "gas-deschedule-pods-"
_PREFER: Final = "gas-prefer-gpu"
_SUBDEVICE_DISABLE: Final = "gas-tile-disable-"
_SUBDEVICE_DESCHEDULE: Final = "gas-tile-deschedule-"
_SUBDEVICE_PREFERRED: Final = "gas-tile-preferred-"


class PolicyLabels(NamedTuple):
    """The corresponding fields of `NodeGpus`."""

    unusable: frozenset[str]
    descheduled: frozenset[str]
    subdevices_off: Tiles
    subdevices_descheduled: Tiles
    subdevices_preferred: Mapping[str, tuple[int, ...]]
    preferred: str


def parse_policy_labels(
    tags: Mapping[str, str], groups: Groups, subdevices: Mapping[str, int], note: Callable[[str], None]
) -> PolicyLabels:
    """Parse the labels for the GPUs in `subdevices`, which contains the number of sub-devices of each."""
    labels = gpu_node_label_parsers.telemetry_policy_labels(tags)
    disabled = _gpus_of_labels(labels, _DISABLE, groups)
    descheduled = _gpus_of_labels(labels, _DESCHEDULE, groups)
    for name in sorted(disabled - subdevices.keys()):
        note(f"{_DISABLE}{shown(name)}: the node has no such GPU")
    subdevices_descheduled = _subdevices_of_labels(labels, _SUBDEVICE_DESCHEDULE)
    return PolicyLabels(
        unusable=frozenset((disabled | descheduled) & subdevices.keys()),
        descheduled=descheduled,
        subdevices_off=_existing_subdevices(
            _subdevices_of_labels(labels, _SUBDEVICE_DISABLE, _SUBDEVICE_DESCHEDULE), subdevices, note
        ),
        subdevices_descheduled=subdevices_descheduled,
        subdevices_preferred=_preferred_subdevices(labels),
        preferred=_preferred_gpu_of_labels(labels, subdevices, note),
    )


def _labels_with_prefix(labels: Sequence[TelemetryLabel], start: str) -> list[tuple[str, str]]:
    """The names with this prefix, without it, and their values."""
    return [(label.name.removeprefix(start), label.value) for label in labels if label.name.startswith(start)]


def _gpus_of_labels(labels: Sequence[TelemetryLabel], start: str, groups: Groups) -> frozenset[str]:
    named = _labels_with_prefix(labels, start)
    alone = {gpu for gpu, value in named if value != PCI_GROUP}
    grouped = gpu_node_label_parsers.expand_groups(
        {gpu for gpu, value in named if value == PCI_GROUP}, groups
    )
    return frozenset(filter(gpu_node_label_parsers.is_gpu_name, alone | grouped))


def _subdevices_of_labels(labels: Sequence[TelemetryLabel], *starts: str) -> Tiles:
    by_gpu: dict[str, set[int]] = {}
    for start in starts:
        for text, _ in _labels_with_prefix(labels, start):
            if subdevice := gpu_node_label_parsers.parse_subdevice(text):
                by_gpu.setdefault(subdevice[0], set()).add(subdevice[1])
    return {gpu: frozenset(numbers) for gpu, numbers in sorted(by_gpu.items())}


def _existing_subdevices(named: Tiles, subdevices: Mapping[str, int], note: Callable[[str], None]) -> Tiles:
    """The sub-devices that exist, without duplicates."""
    kept = {}
    for gpu, numbers in named.items():
        existing = frozenset(number for number in numbers if number < subdevices.get(gpu, 0))
        for number in sorted(numbers - existing):
            note(f"labels of telemetry policies take {gpu}_gt{number} out: the node has no such tile")
        if existing:
            kept[gpu] = existing
    return kept


def _preferred_subdevices(labels: Sequence[TelemetryLabel]) -> dict[str, tuple[int, ...]]:
    by_gpu: dict[str, dict[int, None]] = {}
    for gpu, value in _labels_with_prefix(labels, _SUBDEVICE_PREFERRED):
        if subdevice := gpu_node_label_parsers.parse_subdevice(f"{gpu}_{value}"):
            by_gpu.setdefault(subdevice[0], {})[subdevice[1]] = None
    return {gpu: tuple(numbers) for gpu, numbers in sorted(by_gpu.items())}


def _preferred_gpu_of_labels(
    labels: Sequence[TelemetryLabel], subdevices: Mapping[str, int], note: Callable[[str], None]
) -> str:
    preferred = [label.value for label in labels if label.name == _PREFER]
    for name in preferred:
        if name not in subdevices:
            note(f"{_PREFER}: {shown(name)}: the node has no such GPU")
    return next((name for name in preferred if name in subdevices), "")
