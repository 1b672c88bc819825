"""The GPUs of a node: their names, capacities, whether pods may use them, and how they are linked.

They come from the node annotation `nodewise.io/gpu-cards`, where GPUs may differ, or else from labels or counts (see
`vendor_resource_names.py`). For labels and counts the allocatable amounts of the node are divided evenly, and no GPU
gets the remainder; `allocatable_gpus.py` distributes the resources that count GPUs. Labels of telemetry policies
exclude GPUs and sub-devices. Input that cannot be read is left out and reported as a problem; it never raises. If it is
unclear which GPUs the node has, it has none.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agents.gpu import allocatable_gpus, extended_resource_amounts, gpu_node_labels, missing_gpus
from nodewise.agents.gpu.allocatable_gpus import AllocatableAmounts, GpuShare, GpuShares
from nodewise.agents.gpu.gpu_node_labels import LONGEST_NAME, MOST_GROUPS, MOST_LINKS, MOST_SUBDEVICES, Link
from nodewise.agents.gpu.missing_gpus import MissingGpus
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base.errors import UNREADABLE, shown, truncate

__all__ = [
    "GPUS",
    "MOST_GPUS",
    "MOST_GROUPS",
    "MOST_LINKS",
    "MOST_SUBDEVICES",
    "GpuNode",
    "Link",
    "NodeGpus",
    "parse_node_gpus",
]

GPUS: Final = "nodewise.io/gpu-cards"
"""The node annotation: `[{"name": "card0", "model": "V100M32", "capacity": {"nvidia.com/gpu": 1}}]`."""

MOST_GPUS: Final = 127
"""The most GPUs of a node, whose positions are numbers of 8 bits; 16 GPUs have up to 112 MIG slices."""
MOST_RESOURCES: Final = 64
_MOST_PROBLEMS: Final = 16


class NodeAnnotations(msgspec.Struct, frozen=True, gc=False):
    gpus: str | None = msgspec.field(default=None, name=GPUS)
    hami_register: str | None = msgspec.field(default=None, name=gpu_node_labels.HAMI_REGISTER)


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
    unplaced: frozenset[str] = frozenset()
    """Counting resources of which it is not known which GPUs have them (`place_units_of_held_gpus`)."""
    missing: MissingGpus = MissingGpus()
    """What was looked for and what the node has, if it has no GPUs."""


def parse_node_gpus(node: GpuNode, profile: ResourceProfile) -> NodeGpus:
    """Parse the GPUs of a node. The order of its labels does not matter."""
    notes = _Notes()
    labels = _decode_mapping(node.metadata.labels)
    tags = {key: value for key, value in labels.items() if isinstance(value, str)}
    resources = _decode_mapping(node.status.allocatable)
    by_name, unplaced = _find_gpus(node, tags, resources, profile, notes)
    capacity = _capacity_by_resource(by_name, profile, notes)
    if len(by_name) > MOST_GPUS or len(capacity) > MOST_RESOURCES:
        notes.limit = f"at most {MOST_GPUS} of {MOST_RESOURCES} count"
        notes.add(f"{len(by_name)} GPUs of {len(capacity)} resources; {notes.limit}")
        by_name, capacity = {}, {}
    gpus = tuple(by_name)
    notes.add(_unknown_places(gpus, capacity, unplaced))
    subdevices = dict(zip(gpus, capacity.get(profile.subdevices, (0,) * len(gpus)), strict=True))
    marked = gpu_node_labels.parse_policy_labels(tags, profile, subdevices, notes.add)
    numa, numa_problem = gpu_node_labels.parse_numa_nodes(tags, profile, subdevices, notes.add)
    links = gpu_node_labels.parse_node_links(tags, profile, subdevices, notes.add)
    missing = MissingGpus()
    if not gpus:
        missing = missing_gpus.describe_missing_gpus(
            profile, frozenset(tags), resources, notes.limit, notes.unclear
        )
    return NodeGpus(
        names=gpus,
        capacity=capacity,
        models=tuple(gpu.model for gpu in by_name.values()),
        **marked._asdict(),
        numa=numa,
        numa_problem=numa_problem,
        links=links,
        problems=notes.texts(),
        unplaced=unplaced,
        missing=missing,
    )


def place_units_of_held_gpus(gpus: NodeGpus, amounts: Mapping[str, Mapping[str, int]]) -> NodeGpus:
    """The GPUs of a node, where those that pods hold have the units of which it is not known where they are.

    `amounts` are held amounts by GPU and resource. The result does not depend on where the units were before.
    """
    if not gpus.unplaced:
        return gpus
    held = {name: [resource for resource, amount in amounts[name].items() if amount] for name in amounts}
    rows = {resource: row for resource, row in gpus.capacity.items() if resource in gpus.unplaced}
    placed = allocatable_gpus.place_again(gpus.names, rows, held)
    if placed == rows:
        return gpus
    capacity = {**gpus.capacity, **placed}
    before, after = (_unknown_places(gpus.names, there, gpus.unplaced) for there in (gpus.capacity, capacity))
    problems = tuple(after if problem == before else problem for problem in gpus.problems)
    return gpus._replace(capacity=capacity, problems=problems)


def _unknown_places(
    names: Collection[str], capacity: Mapping[str, tuple[int, ...]], unplaced: frozenset[str]
) -> str:
    rows = {resource: row for resource, row in capacity.items() if resource in unplaced}
    return allocatable_gpus.describe_unknown_places(tuple(names), rows)


class _Notes:
    """Problems without duplicates; only the first few are listed."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self.limit = ""
        """The limit because of which the node has no GPUs."""
        self.unclear = ""
        """The label or annotation because of which it is not known which GPUs the node has."""

    def add(self, text: str) -> None:
        """Add a problem; an empty text is none."""
        if text:
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
    node: GpuNode,
    tags: Mapping[str, str],
    resources: Mapping[str, Any],
    profile: ResourceProfile,
    notes: _Notes,
) -> GpuShares:
    """The GPUs, sorted by name."""
    annotations = node.metadata.annotations or NodeAnnotations()
    positive = _positive_amounts(resources, profile, "allocatable", notes)
    counting = {resource: positive[resource] for resource in sorted(profile.counts) if resource in positive}
    amounts = AllocatableAmounts(
        counting,
        {resource: amount for resource, amount in positive.items() if resource not in counting},
        {
            resource: gpu_node_labels.parse_gpu_sharing(resource, tags, annotations.hami_register, resources)
            for resource in counting
        },
    )
    if annotations.gpus is not None:
        shares = _annotated_gpus(annotations.gpus, amounts, profile, notes)
        notes.unclear = "" if shares.by_name else f"annotation {GPUS}"
    else:
        names = allocatable_gpus.natural_order(_gpu_names(tags, amounts, profile, notes))
        shares = allocatable_gpus.divide_among_gpus(names, amounts, profile, notes.add)
        if names and profile.labeller:
            shares = _add_labelled_models(shares, amounts, tags, profile, notes)
    return GpuShares({name: shares.by_name[name] for name in sorted(shares.by_name)}, shares.unplaced)


def _add_labelled_models(
    shares: GpuShares,
    amounts: AllocatableAmounts,
    tags: Mapping[str, str],
    profile: ResourceProfile,
    notes: _Notes,
) -> GpuShares:
    """Add models and memory of the vendor's labels. They are not known if the labels describe only some of the GPUs."""
    labelled = gpu_node_labels.parse_models(tags, profile)
    notes.add(labelled.problem)
    is_counted = profile.labeller == "nvidia" and profile.count_label in tags
    if is_counted and gpu_node_labels.labelled_count(tags, profile) != len(shares.by_name):
        return shares
    # the labels of AMD describe a partition, whose memory is not that of a GPU
    is_partitioned = profile.labeller == "amd" and any(
        sharing.is_shared for sharing in amounts.sharing.values()
    )
    memory = {profile.memory: labelled.memory_mib} if labelled.memory_mib and not is_partitioned else {}
    by_name = {
        name: GpuShare({**memory, **share.capacity}, share.model or labelled.model)
        for name, share in shares.by_name.items()
    }
    return shares._replace(by_name=by_name)


def _gpu_names(  # complexity: one branch for each source
    tags: Mapping[str, str], amounts: AllocatableAmounts, profile: ResourceProfile, notes: _Notes
) -> set[str]:
    """The names of GPUs: from labels, or else card0, card1, … by their number."""
    if profile.labelled:
        names = _labelled_names(tags, profile, notes)
        if names or not tags.keys().isdisjoint(profile.name_labels):
            notes.unclear = "" if names else f"label {profile.name_labels[0]}"
            return names
    try:
        labelled = gpu_node_labels.labelled_count(tags, profile)
    except ValueError as error:
        notes.add(str(error))
        notes.unclear = str(error).partition(": ")[0]
        return set()
    if not amounts.counting:
        return set()
    if profile.labelled and labelled is None:
        notes.add(
            f"{min(amounts.counting)} is allocatable, but nothing names the GPUs of the node: neither label"
            f" {' or '.join(profile.gpu_labels)} nor annotation {GPUS}"
        )
        return set()
    count = amounts.count_gpus(labelled, notes.add)
    if not count:
        notes.unclear = amounts.unclear_source or f"label {' or '.join(profile.gpu_labels)}"
    if count > MOST_GPUS:
        notes.limit = f"at most {MOST_GPUS}"
        notes.add(f"{count} GPUs; {notes.limit} can be kept, so there are none")
        return set()
    return {f"card{number}" for number in range(count)}


def _labelled_names(tags: Mapping[str, str], profile: ResourceProfile, notes: _Notes) -> set[str]:
    """The names of GPUs from labels: from their numbers, or else from the older label with names."""
    key, old = f"{profile.prefix}gpu-numbers", f"{profile.prefix}cards"
    try:
        text = gpu_node_labels.join_split_label(tags, key)
    except ValueError as error:
        notes.add(str(error))
        text = ""
    candidates = [number and f"card{number}" for number in gpu_node_labels.split_numbers(text)]
    if not text and old in tags:
        key, candidates = old, tags[old].split(".")
    names = set(filter(gpu_node_labels.is_gpu_name, candidates))
    if len(names) < len(candidates):
        notes.add(f"label {key}: empty, double or odd names in {shown(text or tags[key])} do not count")
    return names


def _annotated_gpus(
    text: str, amounts: AllocatableAmounts, profile: ResourceProfile, notes: _Notes
) -> GpuShares:
    """The GPUs of the annotation; those without a capacity get an even share of allocatable amounts."""
    try:
        elements = msgspec.json.decode(text)
    except UNREADABLE as error:
        notes.add(f"annotation {GPUS}: {truncate(str(error), LONGEST_NAME)}")
        return GpuShares({})
    if not isinstance(elements, list) or len(elements) > MOST_GPUS:
        notes.add(f"annotation {GPUS}: {shown(elements)}; expected a list of at most {MOST_GPUS} GPUs")
        return GpuShares({})
    described: dict[str, Mapping[str, Any]] = {}
    for element in elements:
        name = element.get("name") if isinstance(element, dict) else None
        if not isinstance(name, str) or not gpu_node_labels.is_gpu_name(name) or name in described:
            notes.add(f"annotation {GPUS}: {shown(element)}; expected a GPU with a name of its own")
            continue
        described[name] = element
    shares = GpuShares({})
    if any(element.get("capacity") is None for element in described.values()):
        shares = allocatable_gpus.divide_among_gpus(
            allocatable_gpus.natural_order(described), amounts, profile, notes.add
        )
    by_name = {
        name: _parse_annotated_gpu(
            element, f"annotation {GPUS}: {name}:", shares.by_name.get(name), profile, notes
        )
        for name, element in described.items()
    }
    return GpuShares(by_name, shares.unplaced)


def _parse_annotated_gpu(
    element: Mapping[str, Any], where: str, share: GpuShare | None, profile: ResourceProfile, notes: _Notes
) -> GpuShare:
    model, capacity = element.get("model") or "", element.get("capacity")
    if not isinstance(model, str) or len(model) > LONGEST_NAME:
        notes.add(f"{where} model {shown(model)}; expected a text of at most {LONGEST_NAME} characters")
        model = ""
    if capacity is None:
        return GpuShare({} if share is None else share.capacity, model)
    if not isinstance(capacity, dict):
        notes.add(f"{where} capacity {shown(capacity)}; expected amounts by resource")
        return GpuShare({}, model)
    for resource in sorted(capacity):
        if not profile.has(resource):
            notes.add(
                f"{where} {truncate(resource, LONGEST_NAME)} is no resource of these GPUs; "
                f"they begin with {profile.prefix}"
            )
    return GpuShare(_positive_amounts(capacity, profile, where, notes), model)


def _capacity_by_resource(
    by_name: Mapping[str, GpuShare], profile: ResourceProfile, notes: _Notes
) -> dict[str, tuple[int, ...]]:
    """Amounts by resource and GPU; resources that no GPU has are omitted."""
    resources = sorted({resource for gpu in by_name.values() for resource in gpu.capacity})
    rows = {name: tuple(gpu.capacity.get(name, 0) for gpu in by_name.values()) for name in resources}
    subdevices = rows.get(profile.subdevices, ())
    if subdevices and max(subdevices) > MOST_SUBDEVICES:
        notes.add(f"{max(subdevices)} tiles on a GPU; at most {MOST_SUBDEVICES} count")
        rows[profile.subdevices] = tuple(min(amount, MOST_SUBDEVICES) for amount in subdevices)
    return {resource: row for resource, row in rows.items() if any(row)}
