"""The GPUs of a node: their names, capacities, whether pods may use them, and how they are linked.

They come from the node annotation `nodewise.io/gpu-cards`, where GPUs may differ, or else from labels or counts (see
`vendor_resource_names.py`). For labels and counts the allocatable amounts of the node are divided evenly, and no GPU
gets the remainder. Labels of telemetry policies exclude GPUs and sub-devices. Input that cannot be read is left out and
reported as a problem; it never raises. If it is unclear which GPUs the node has, it has none.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agents.gpu import extended_resource_amounts, gpu_node_label_parsers, telemetry_policy_gpu_labels
from nodewise.agents.gpu.gpu_node_label_parsers import LONGEST_NAME, Link
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.errors import UNREADABLE, shown, truncate

__all__ = ["GPUS", "MOST_GPUS", "GpuNode", "Link", "NodeGpus", "parse_node_gpus"]

GPUS: Final = "nodewise.io/gpu-cards"
"""The node annotation: `[{"name": "card0", "model": "V100M32", "capacity": {"nvidia.com/gpu": 1}}]`."""

MOST_GPUS: Final = 64
MOST_RESOURCES: Final = 64
MOST_SUBDEVICES: Final = 64
"""The most sub-devices of a GPU; real ones have up to eight. Bits of an array hold them, like the GPUs of a node."""
MOST_LINKS: Final = 1024
"""The most links of a node; eight GPUs of two sub-devices, all linked in both directions, have 224."""
MOST_GROUPS: Final = 64
_MOST_PROBLEMS: Final = 16


class NodeAnnotations(msgspec.Struct, frozen=True, gc=False):
    gpus: str | None = msgspec.field(default=None, name=GPUS)


class NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    labels: msgspec.Raw = msgspec.Raw(b"null")
    annotations: NodeAnnotations | None = None


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: msgspec.Raw = msgspec.Raw(b"null")


class GpuNode(msgspec.Struct, frozen=True, gc=False):
    """The fields of a node that are read."""

    metadata: NodeMetadata = NodeMetadata()
    status: NodeStatus = NodeStatus()


class NodeGpus(NamedTuple):
    """The GPUs of one node. The order of `names` is the order of all fields by GPU."""

    names: tuple[str, ...] = ()
    """Distinct names in alphabetical order: card10 comes before card2."""
    capacity: Mapping[str, tuple[int, ...]] = {}
    """By full resource name and GPU; 0 where a GPU has none. Resources that no GPU has are omitted."""
    models: tuple[str, ...] = ()
    """By GPU; empty where unknown."""
    unusable: frozenset[str] = frozenset()
    """GPUs that are not allocated to new pods: disabled or descheduled."""
    descheduled: frozenset[str] = frozenset()
    """GPUs whose pods get the deschedule label; they may be absent from `names`."""
    subdevices_off: Mapping[str, frozenset[int]] = {}
    """By GPU, existing sub-devices that are not allocated to new pods: disabled or descheduled."""
    subdevices_descheduled: Mapping[str, frozenset[int]] = {}
    """By GPU, sub-devices whose pods get the deschedule label; they may no longer exist."""
    subdevices_preferred: Mapping[str, tuple[int, ...]] = {}
    """By GPU, sub-devices to take first, in the order of the policies' names."""
    preferred: str = ""
    """The GPU that a policy prefers; empty for none.

    Of several policies, the first by name that names a GPU of the node.
    """
    numa: tuple[frozenset[str], ...] = ()
    """The GPUs of each NUMA node, in the order of the label and limited to `names`; () without the label."""
    numa_problem: str = ""
    """Why the label is invalid; empty if it is not."""
    links: tuple[Link, ...] = ()
    """Links between GPUs in `names`, in the order of the label."""
    problems: tuple[str, ...] = ()
    """Messages about invalid input."""


def parse_node_gpus(node: GpuNode, profile: ResourceProfile) -> NodeGpus:
    """Parse the GPUs of a node. The order of its labels does not matter."""
    notes = _Notes()
    tags = _texts(node.metadata.labels)
    by_name = _find_gpus(node, tags, profile, notes)
    capacity = _capacity_by_resource(by_name, profile, notes)
    if len(by_name) > MOST_GPUS or len(capacity) > MOST_RESOURCES:
        notes.add(
            f"{len(by_name)} GPUs of {len(capacity)} resources; at most {MOST_GPUS} of {MOST_RESOURCES} count"
        )
        by_name, capacity = {}, {}
    gpus = tuple(by_name)
    subdevices = dict(zip(gpus, capacity.get(profile.subdevices, (0,) * len(gpus)), strict=True))
    marked = telemetry_policy_gpu_labels.parse_policy_labels(
        tags, _parse_bus_groups(tags, profile, notes), subdevices, notes.add
    )
    numa, numa_problem = _parse_numa_nodes(tags, profile, subdevices, notes)
    return NodeGpus(
        names=gpus,
        capacity=capacity,
        models=tuple(gpu.model for gpu in by_name.values()),
        unusable=marked.unusable,
        descheduled=marked.descheduled,
        subdevices_off=marked.subdevices_off,
        subdevices_descheduled=marked.subdevices_descheduled,
        subdevices_preferred=marked.subdevices_preferred,
        preferred=marked.preferred,
        numa=numa,
        numa_problem=numa_problem,
        links=_parse_node_links(tags, profile, subdevices, notes),
        problems=notes.texts(),
    )


class _Gpu(NamedTuple):
    capacity: Mapping[str, int]
    model: str = ""


class _Notes:
    """Problems without duplicates; only the first few are listed."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    def add(self, text: str) -> None:
        self._texts[text] = None

    def texts(self) -> tuple[str, ...]:
        kept, more = list(self._texts)[:_MOST_PROBLEMS], len(self._texts) - _MOST_PROBLEMS
        return tuple(kept) if more <= 0 else (*kept, f"and {more} more")


def _decode_mapping(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw)
    except UNREADABLE:
        return {}
    return value if isinstance(value, dict) else {}


def _texts(raw: msgspec.Raw) -> dict[str, str]:
    return {key: value for key, value in _decode_mapping(raw).items() if isinstance(value, str)}


def _positive_amounts(
    quantities: Mapping[str, Any], profile: ResourceProfile, where: str, notes: _Notes
) -> dict[str, int]:
    """The positive amounts of resources of the profile; invalid ones are omitted."""
    result = {}
    for resource in sorted(filter(profile.has, quantities)):
        try:
            amount = extended_resource_amounts.parse_amount(quantities[resource])
        except ValueError as error:
            notes.add(f"{where} {truncate(resource, LONGEST_NAME)}: {error}; it counts as absent")
            continue
        if amount:
            result[resource] = amount
    return result


def _find_gpus(
    node: GpuNode, tags: Mapping[str, str], profile: ResourceProfile, notes: _Notes
) -> dict[str, _Gpu]:
    """The GPUs, sorted by name."""
    allocatable = _positive_amounts(_decode_mapping(node.status.allocatable), profile, "allocatable", notes)
    annotations = node.metadata.annotations
    if annotations is not None and annotations.gpus is not None:
        by_name = _annotated_gpus(annotations.gpus, allocatable, profile, notes)
        return {name: by_name[name] for name in sorted(by_name)}
    names = (
        _labelled_names(tags, profile, notes)
        if profile.labelled
        else _counted_names(tags, allocatable, profile, notes)
    )
    if allocatable and not names:
        notes.add(
            f"{truncate(min(allocatable), LONGEST_NAME)} is allocatable, but nothing names the GPUs of the node"
        )
    share = _Gpu(extended_resource_amounts.divide_amounts(allocatable, max(len(names), 1)))
    return dict.fromkeys(sorted(names), share)


def _labelled_names(tags: Mapping[str, str], profile: ResourceProfile, notes: _Notes) -> set[str]:
    """The names of GPUs from labels: from their numbers, or else from the older label with names."""
    key, old = f"{profile.prefix}gpu-numbers", f"{profile.prefix}cards"
    try:
        text = gpu_node_label_parsers.join_split_label(tags, key)
    except ValueError as error:
        notes.add(str(error))
        text = ""
    candidates = [number and f"card{number}" for number in gpu_node_label_parsers.split_numbers(text)]
    if not text and old in tags:
        key, candidates = old, tags[old].split(".")
    names = set(filter(gpu_node_label_parsers.is_gpu_name, candidates))
    if len(names) < len(candidates):
        notes.add(f"label {key}: empty, double or odd names in {shown(text or tags[key])} do not count")
    return names


def _counted_names(
    tags: Mapping[str, str], allocatable: Mapping[str, int], profile: ResourceProfile, notes: _Notes
) -> set[str]:
    """The names of counted GPUs: the number is in a label, or else it is the counting resource."""
    text = tags.get(profile.count_label)
    try:
        count = (
            next((allocatable[resource] for resource in profile.counts if resource in allocatable), 0)
            if text is None
            else extended_resource_amounts.parse_amount(text)
        )
    except ValueError as error:
        notes.add(f"label {profile.count_label}: {error}")
        return set()
    if count > MOST_GPUS:
        notes.add(f"{count} GPUs; at most {MOST_GPUS} can be kept, so there are none")
        return set()
    return {f"card{number}" for number in range(count)}


def _annotated_gpus(
    text: str, allocatable: Mapping[str, int], profile: ResourceProfile, notes: _Notes
) -> dict[str, _Gpu]:
    """The GPUs of the annotation; those without a capacity get an even share of allocatable amounts."""
    try:
        elements = msgspec.json.decode(text)
    except UNREADABLE as error:
        notes.add(f"annotation {GPUS}: {truncate(str(error), LONGEST_NAME)}")
        return {}
    if not isinstance(elements, list) or len(elements) > MOST_GPUS:
        notes.add(f"annotation {GPUS}: {shown(elements)}; expected a list of at most {MOST_GPUS} GPUs")
        return {}
    share = extended_resource_amounts.divide_amounts(allocatable, max(len(elements), 1))
    by_name: dict[str, _Gpu] = {}
    for element in elements:
        name = element.get("name") if isinstance(element, dict) else None
        if not isinstance(name, str) or not gpu_node_label_parsers.is_gpu_name(name) or name in by_name:
            notes.add(f"annotation {GPUS}: {shown(element)}; expected a GPU with a name of its own")
            continue
        by_name[name] = _parse_annotated_gpu(element, f"annotation {GPUS}: {name}:", share, profile, notes)
    return by_name


def _parse_annotated_gpu(
    element: Mapping[str, Any], where: str, share: Mapping[str, int], profile: ResourceProfile, notes: _Notes
) -> _Gpu:
    model, capacity = element.get("model") or "", element.get("capacity")
    if not isinstance(model, str) or len(model) > LONGEST_NAME:
        notes.add(f"{where} model {shown(model)}; expected a text of at most {LONGEST_NAME} characters")
        model = ""
    if capacity is None:
        return _Gpu(share, model)
    if not isinstance(capacity, dict):
        notes.add(f"{where} capacity {shown(capacity)}; expected amounts by resource")
        return _Gpu({}, model)
    for resource in sorted(capacity):
        if not profile.has(resource):
            notes.add(
                f"{where} {truncate(resource, LONGEST_NAME)} is no resource of these GPUs; "
                f"they begin with {profile.prefix}"
            )
    return _Gpu(_positive_amounts(capacity, profile, where, notes), model)


def _capacity_by_resource(
    by_name: Mapping[str, _Gpu], profile: ResourceProfile, notes: _Notes
) -> dict[str, tuple[int, ...]]:
    """Amounts by resource and GPU; resources that no GPU has are omitted."""
    resources = sorted({resource for gpu in by_name.values() for resource in gpu.capacity})
    rows = {name: tuple(gpu.capacity.get(name, 0) for gpu in by_name.values()) for name in resources}
    subdevices = rows.get(profile.subdevices, ())
    if subdevices and max(subdevices) > MOST_SUBDEVICES:
        notes.add(f"{max(subdevices)} tiles on a GPU; at most {MOST_SUBDEVICES} count")
        rows[profile.subdevices] = tuple(min(amount, MOST_SUBDEVICES) for amount in subdevices)
    return {resource: row for resource, row in rows.items() if any(row)}


def _parse_bus_groups(
    tags: Mapping[str, str], profile: ResourceProfile, notes: _Notes
) -> dict[str, frozenset[str]]:
    try:
        return gpu_node_label_parsers.parse_groups(
            gpu_node_label_parsers.join_split_label(tags, f"{profile.prefix}pci-groups")
        )
    except ValueError as error:
        notes.add(str(error))
        return {}


def _parse_numa_nodes(
    tags: Mapping[str, str], profile: ResourceProfile, subdevices: Mapping[str, int], notes: _Notes
) -> tuple[tuple[frozenset[str], ...], str]:
    """The NUMA nodes, or the problem of their label."""
    key = f"{profile.prefix}numa-gpu-map"
    try:
        groups = gpu_node_label_parsers.parse_numa_map(gpu_node_label_parsers.join_split_label(tags, key))
    except ValueError as error:
        notes.add(f"label {key}: {error}")
        return (), str(error)
    if len(groups) > MOST_GROUPS:
        notes.add(f"label {key}: {len(groups)} NUMA nodes; at most {MOST_GROUPS} count")
    return tuple(frozenset(group & subdevices.keys()) for group in groups[:MOST_GROUPS]), ""


def _parse_node_links(
    tags: Mapping[str, str], profile: ResourceProfile, subdevices: Mapping[str, int], notes: _Notes
) -> tuple[Link, ...]:
    """The links between the node's GPUs. If sub-devices are counted, only between existing ones."""
    key = f"{profile.prefix}xe-links"
    try:
        text = gpu_node_label_parsers.join_split_label(tags, key)
        by_index = (
            gpu_node_label_parsers.parse_device_indices(
                gpu_node_label_parsers.join_split_label(tags, f"{profile.prefix}gpu-numbers")
            )
            if text
            else ()
        )
    except ValueError as error:
        notes.add(f"label {key}: {error}")
        return ()
    parsed, stopped = gpu_node_label_parsers.parse_links(text, by_index)
    if stopped:
        notes.add(f"label {key}: {stopped}")
    existing = [link for link in parsed if _link_subdevices_exist(link, subdevices)]
    if len(existing) < len(parsed):
        notes.add(
            f"label {key}: {len(parsed) - len(existing)} links to GPUs or tiles that the node does not have"
        )
    if len(existing) > MOST_LINKS:
        notes.add(f"label {key}: {len(existing)} links; at most {MOST_LINKS} count")
    return tuple(existing[:MOST_LINKS])


def _link_subdevices_exist(link: Link, subdevices: Mapping[str, int]) -> bool:
    left, right = subdevices.get(link.left, -1), subdevices.get(link.right, -1)
    known = left >= 0 and right >= 0
    return (
        known
        and link.left_subdevice < (left or MOST_SUBDEVICES)
        and link.right_subdevice < (right or MOST_SUBDEVICES)
    )
