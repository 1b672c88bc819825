"""What the labels of a node say about its GPUs: models, shares, topology, and exclusions by telemetry policies.

A label that cannot be read, or exceeds a limit, is reported as a problem. A GPU is named `card` and its number in the
label. Labels that describe a node and not its GPUs apply to all its GPUs, or to none if they describe only some.

Some device plugins offer each GPU several times, so that the allocatable amount is a number of shares and not of GPUs:
two pods on different shares may use the same GPU. These sources are read:

- HAMi: the annotation `hami.io/node-nvidia-register` lists each GPU with its number of shares, model and health
- GKE: the label `cloud.google.com/gke-max-shared-clients-per-gpu` is the number of pods that share a GPU
- NVIDIA's GPU feature discovery: the labels `nvidia.com/gpu.replicas`, `nvidia.com/gpu.sharing-strategy` and the suffix
  `-SHARED` of `nvidia.com/gpu.product` describe time slicing and MPS
- AMD's node labeller: the label `amd.com/compute-memory-partition`, such as `cpx_nps4`, describes partitions

Labels of telemetry policies exclude or prefer GPUs and sub-devices: `telemetry.aware.scheduling.<policy>/<name>`.

| name | value | meaning |
|---|---|---|
| `gas-disable-<card>` | any, or `PCI_GROUP` | new pods do not get the GPU |
| `gas-deschedule-pods-<card>` | any, or `PCI_GROUP` | the same, and its pods get the deschedule label |
| `gas-prefer-gpu` | a GPU | it is tried first |
| `gas-tile-disable-<card>_gt<n>` | any | new pods do not get the sub-device |
| `gas-tile-deschedule-<card>_gt<n>` | any | the same, and its pods get the deschedule label |
| `gas-tile-preferred-<card>` | `gt<n>` | it is taken first |

The labels of several policies add up. Names are compared exactly: `gas-disable-xcard0` does not concern card0.

Sources:

- GPU Aware Scheduling 0.5.6, `pkg/gpuscheduler/utils.go`
- Intel's rules of node feature discovery: intel-device-plugins-for-kubernetes 0.35 `cmd/gpu_plugin/labels.md`
- NVIDIA's GPU feature discovery: k8s-device-plugin 0.17 `internal/lm/resource.go`
- AMD's node labeller: ROCm k8s-device-plugin 1.31 `cmd/k8s-node-labeller/main.go`
- HAMi's device protocol (project-hami.io, text; JSON from 2.5), and GKE's documentation of GPU sharing strategies
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agents.gpu import extended_resource_amounts
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base.errors import UNREADABLE, shown, truncate

AddProblem = Callable[[str], None]
"""Adds a problem of the node; an empty text is none."""

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
            problem = f"{shown(part)} is no link such as 0.0-1.0; it and those after it do not count"
            return list(result), problem
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


def _unclear_sharing(source: str, problem: str = "") -> GpuSharing:
    """Shares of GPUs whose number per GPU is unknown."""
    return GpuSharing(0, source, is_shared=True, problem=problem and f"{source}: {problem}")


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


def _parse_units(tags: Mapping[str, str], label: str) -> GpuSharing:
    """The number of units per GPU in a label; 0 stands for a GPU that is not shared."""
    source = f"label {label}"
    try:
        units = extended_resource_amounts.parse_amount(tags[label])
    except ValueError as error:
        return _unclear_sharing(source, str(error))
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
        return _unclear_sharing(
            f"label {product if strategy == 'none' else f'{NVIDIA_GPU}.sharing-strategy'}"
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
        return _unclear_sharing(source, f"{shown(mode)} is no mode such as spx_nps1")
    units = _AMD_PARTITIONS.get(match[1]) or _compute_dies(tags)
    if not units:
        unknown = f"the number of partitions of a GPU in the mode {mode} is not known for its device id"
        return _unclear_sharing(source, unknown)
    return GpuSharing(units, source, is_shared=units > 1)


def _compute_dies(tags: Mapping[str, str]) -> int:
    """The compute dies of each GPU; 0 if unknown, or if the GPUs of the node differ."""
    products = [product for label in _AMD_ID_LABELS for product in amd_label_counts(tags, label)]
    dies = {
        count
        for product in products
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
        if text.lstrip().startswith("["):
            devices = msgspec.json.decode(text, type=list[_HamiDevice])
        else:
            devices = [_parse_hami_text(part) for part in text.split(":") if part]
    except UNREADABLE as error:
        return _unclear_sharing(source, truncate(str(error), LONGEST_NAME))
    counts = [device.count for device in devices]
    if not 0 < len(counts) <= _MOST_REGISTERED or min(counts) < 1:
        expected = f"expected 1 to {_MOST_REGISTERED} GPUs, each with a count of shares"
        return _unclear_sharing(source, f"{shown(text)}; {expected}")
    registered = tuple(
        RegisteredGpu(device.count if device.health else 0, truncate(device.type, LONGEST_NAME))
        for device in devices
    )
    return GpuSharing(max(counts), source, is_shared=max(counts) > 1, registered=registered)


def _parse_hami_text(part: str) -> _HamiDevice:
    """Parse `GPU-…,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true` and later forms with more fields.

    The fields are UUID, shares, memory in MiB, cores in percent, model, NUMA node and health.
    """
    fields: Sequence[str] = part.split(",")
    if len(fields) < _HAMI_FIELDS:
        raise ValueError(f"{shown(part)} has {len(fields)} fields, expected {_HAMI_FIELDS}")
    return _HamiDevice(int(fields[1]), fields[4], fields[6].lower() == "true")


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
        devices = list(amd_label_counts(tags, "amd.com/gpu.device-id").values())
        counts += [sum(devices)] if all(devices) and devices else []
    return max(counts, default=None)


def _parse_count(tags: Mapping[str, str], label: str) -> int:
    try:
        return extended_resource_amounts.parse_amount(tags[label])
    except ValueError as error:
        raise ValueError(f"label {label}: {error}") from error


def parse_models(tags: Mapping[str, str], profile: ResourceProfile) -> LabelledGpus:
    """The model and memory of each GPU, if the labels describe all of them with the same values."""
    if profile.labeller == "amd":
        return _parse_amd_model(tags)
    if profile.labeller == "intel":
        # the product, such as Max_1550, else the family
        model = tags.get("gpu.intel.com/product") or tags.get("gpu.intel.com/family", "")
        has_different_devices = sum(map(bool, map(_INTEL_DEVICES.fullmatch, tags))) > 1
        return LabelledGpus("" if has_different_devices else truncate(model, LONGEST_NAME))
    model = truncate(tags.get(f"{NVIDIA_GPU}.product", "").removesuffix(_SHARED_SUFFIX), LONGEST_NAME)
    label = f"{NVIDIA_GPU}.memory"
    if label not in tags:
        return LabelledGpus(model)
    try:
        return LabelledGpus(model, extended_resource_amounts.parse_amount(tags[label]))
    except ValueError as error:
        return LabelledGpus(model, problem=f"label {label}: {error}")


def _parse_amd_model(tags: Mapping[str, str]) -> LabelledGpus:
    names, memory = (list(amd_label_counts(tags, f"amd.com/gpu.{name}")) for name in ("product-name", "vram"))
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


MOST_GROUPED_GPUS: Final = 64
"""The most GPUs of a node with NUMA nodes or links; bits of an array hold their positions."""
MOST_SUBDEVICES: Final = 64
"""The most sub-devices of a GPU; real ones have up to eight. Bits of an array hold them."""
MOST_LINKS: Final = 1024
"""The most links of a node; eight GPUs of two sub-devices, all linked in both directions, have 224."""
MOST_GROUPS: Final = 64


def parse_numa_nodes(
    tags: Mapping[str, str], profile: ResourceProfile, subdevices: Mapping[str, int], add: AddProblem
) -> tuple[tuple[frozenset[str], ...], str]:
    """The NUMA nodes, or the problem of their label."""
    key = f"{profile.prefix}numa-gpu-map"
    try:
        groups = parse_numa_map(join_split_label(tags, key))
    except ValueError as error:
        add(f"label {key}: {error}")
        return (), str(error)
    if groups and len(subdevices) > MOST_GROUPED_GPUS:
        problem = f"{len(subdevices)} GPUs; NUMA nodes count for at most {MOST_GROUPED_GPUS}"
        add(f"label {key}: {problem}")
        return (), problem
    if len(groups) > MOST_GROUPS:
        add(f"label {key}: {len(groups)} NUMA nodes; at most {MOST_GROUPS} count")
    return tuple(frozenset(group & subdevices.keys()) for group in groups[:MOST_GROUPS]), ""


def parse_node_links(  # complexity: one branch for each limit
    tags: Mapping[str, str], profile: ResourceProfile, subdevices: Mapping[str, int], add: AddProblem
) -> tuple[Link, ...]:
    """The links between the node's GPUs. If sub-devices are counted, only between existing ones."""
    key = f"{profile.prefix}xe-links"
    try:
        text = join_split_label(tags, key)
        by_index = (
            parse_device_indices(join_split_label(tags, f"{profile.prefix}gpu-numbers")) if text else ()
        )
    except ValueError as error:
        add(f"label {key}: {error}")
        return ()
    parsed, stopped = parse_links(text, by_index)
    if stopped:
        add(f"label {key}: {stopped}")
    if parsed and len(subdevices) > MOST_GROUPED_GPUS:
        add(f"label {key}: {len(subdevices)} GPUs; links count for at most {MOST_GROUPED_GPUS}")
        return ()
    existing = [
        link
        for link in parsed
        if link.left in subdevices and link.left_subdevice < (subdevices[link.left] or MOST_SUBDEVICES)
        if link.right in subdevices and link.right_subdevice < (subdevices[link.right] or MOST_SUBDEVICES)
    ]
    if len(existing) < len(parsed):
        add(f"label {key}: {len(parsed) - len(existing)} links to GPUs or tiles that the node does not have")
    if len(existing) > MOST_LINKS:
        add(f"label {key}: {len(existing)} links; at most {MOST_LINKS} count")
    return tuple(existing[:MOST_LINKS])


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


def parse_policy_labels(  # complexity: one loop for each kind of label
    tags: Mapping[str, str], profile: ResourceProfile, subdevices: Mapping[str, int], note: AddProblem
) -> PolicyLabels:
    """Parse the labels for the GPUs in `subdevices`, which contains the number of sub-devices of each."""
    groups: Groups = {}
    try:
        groups = parse_groups(join_split_label(tags, f"{profile.prefix}pci-groups"))
    except ValueError as error:
        note(str(error))
    labels = telemetry_policy_labels(tags)
    disabled = _gpus_of_labels(labels, _DISABLE, groups)
    descheduled = _gpus_of_labels(labels, _DESCHEDULE, groups)
    for name in sorted(disabled - subdevices.keys()):
        note(f"{_DISABLE}{shown(name)}: the node has no such GPU")
    subdevices_off = {}
    excluded = _subdevices_of_labels(labels, _SUBDEVICE_DISABLE, _SUBDEVICE_DESCHEDULE)
    for gpu, numbers in excluded.items():
        existing = frozenset(number for number in numbers if number < subdevices.get(gpu, 0))
        for number in sorted(numbers - existing):
            note(f"labels of telemetry policies take {gpu}_gt{number} out: the node has no such tile")
        if existing:
            subdevices_off[gpu] = existing
    preferred = [label.value for label in labels if label.name == _PREFER]
    for name in preferred:
        if name not in subdevices:
            note(f"{_PREFER}: {shown(name)}: the node has no such GPU")
    return PolicyLabels(
        unusable=frozenset((disabled | descheduled) & subdevices.keys()),
        descheduled=descheduled,
        subdevices_off=subdevices_off,
        subdevices_descheduled=_subdevices_of_labels(labels, _SUBDEVICE_DESCHEDULE),
        subdevices_preferred=_preferred_subdevices(labels),
        preferred=next((name for name in preferred if name in subdevices), ""),
    )


def _labels_with_prefix(labels: Sequence[TelemetryLabel], start: str) -> list[tuple[str, str]]:
    """The names with this prefix, without it, and their values."""
    return [(label.name.removeprefix(start), label.value) for label in labels if label.name.startswith(start)]


def _gpus_of_labels(labels: Sequence[TelemetryLabel], start: str, groups: Groups) -> frozenset[str]:
    named = _labels_with_prefix(labels, start)
    alone = {gpu for gpu, value in named if value != PCI_GROUP}
    grouped = expand_groups({gpu for gpu, value in named if value == PCI_GROUP}, groups)
    return frozenset(filter(is_gpu_name, alone | grouped))


def _subdevices_of_labels(labels: Sequence[TelemetryLabel], *starts: str) -> Tiles:
    by_gpu: dict[str, set[int]] = {}
    for start in starts:
        for text, _ in _labels_with_prefix(labels, start):
            if subdevice := parse_subdevice(text):
                by_gpu.setdefault(subdevice[0], set()).add(subdevice[1])
    return {gpu: frozenset(numbers) for gpu, numbers in sorted(by_gpu.items())}


def _preferred_subdevices(labels: Sequence[TelemetryLabel]) -> dict[str, tuple[int, ...]]:
    by_gpu: dict[str, dict[int, None]] = {}
    for gpu, value in _labels_with_prefix(labels, _SUBDEVICE_PREFERRED):
        if subdevice := parse_subdevice(f"{gpu}_{value}"):
            by_gpu.setdefault(subdevice[0], {})[subdevice[1]] = None
    return {gpu: tuple(numbers) for gpu, numbers in sorted(by_gpu.items())}
