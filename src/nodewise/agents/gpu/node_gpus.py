"""The GPUs of a node: their names, capacities, whether pods may use them, and how they are linked.

They come from the node annotation `nodewise.io/gpu-cards`, where GPUs may differ, or else from labels or counts (see
`vendor_resource_names.py`). Labels of telemetry policies exclude GPUs and sub-devices. Input that cannot be read is
left out and reported as a problem; it never raises. If it is unclear which GPUs the node has, it has none.

For labels and counts the allocatable amounts of the node are divided evenly, and no GPU gets the remainder. Resources
that count GPUs are distributed in whole units, with the shares of a GPU that the node describes (`gpu_node_labels`). A
device plugin reports how many devices of a resource are allocatable, but not which GPUs they belong to. With as many
devices as GPUs, each GPU has one unit; with a multiple of them, each GPU is offered several times. With fewer, because
a GPU is unhealthy or divided into MIG slices, as many GPUs as there are devices have one unit each. It is not known
which ones: the GPUs that pods hold count first, then those with the lowest numbers, and a problem names the others. The
same holds for a node with GPUs of several kinds, such as `i915` and `xe`, where each GPU has units of one kind.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agents.gpu import extended_resource_amounts, gpu_node_labels, missing_gpus
from nodewise.agents.gpu.gpu_node_labels import (
    LONGEST_NAME,
    MOST_SUBDEVICES,
    AddProblem,
    GpuSharing,
    Link,
    RegisteredGpu,
)
from nodewise.agents.gpu.missing_gpus import MissingGpus
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base.errors import UNREADABLE, list_first, shown, truncate

_DIGITS: Final = re.compile(r"(\d+)")
_NAMED: Final = 4
"""The most GPUs that a problem names."""

Units = Mapping[str, Mapping[str, int]]
"""By counting resource and GPU, a positive number of units."""


class GpuCount(NamedTuple):
    """How many GPUs a node has."""

    gpus: int
    problem: str = ""


class UnitDistribution(NamedTuple):
    units: Units
    unplaced: frozenset[str]
    """Resources of which it is not known which GPUs have them."""


def natural_order(names: Iterable[str]) -> list[str]:
    """The names of GPUs in the order of their numbers: card2 before card10."""
    return sorted(names, key=lambda name: [(int(p) if p.isdecimal() else -1, p) for p in _DIGITS.split(name)])


def needed_gpus(amounts: Mapping[str, int], per_gpu: Mapping[str, int]) -> int:
    """The number of GPUs that amounts of counting resources belong to, if each has at most `per_gpu` of one kind."""
    return sum(-(-amount // per_gpu[resource]) for resource, amount in amounts.items())


def are_even_shares(amounts: Mapping[str, int], gpus: int) -> bool:
    """Whether each of so many GPUs, at least one, can have the same positive number of units of every kind."""
    return all(amount >= gpus and amount % gpus == 0 for amount in amounts.values())


def count_gpus(  # complexity: one branch for each source
    labelled: int | None, amounts: Mapping[str, int], sharing: Mapping[str, GpuSharing]
) -> GpuCount:
    """The number of GPUs of a node, from a label with their number (None without one) and from amounts.

    `amounts` are the positive allocatable amounts of counting resources, at least one, and `sharing` describes each.
    The label counts GPUs that are not allocatable as well, but only those of one model, and never shares.
    """
    listed = ", ".join(f"{resource} {amounts[resource]}" for resource in sorted(amounts)[:_NAMED])
    if labelled == 0:
        return GpuCount(0, f"the label says that there are no GPUs, but {listed} is allocatable")
    per_gpu = {resource: sharing[resource].units_per_gpu for resource in amounts}
    if all(per_gpu.values()):
        needed = needed_gpus(amounts, per_gpu)
    elif labelled is not None and are_even_shares(amounts, labelled):
        return GpuCount(labelled)
    elif shared := [sharing[resource] for resource in amounts if sharing[resource].is_shared]:
        problem = f"{listed} is a number of shares by {shared[0].source}, and the number of GPUs is not known"
        return GpuCount(0, problem)
    elif labelled is not None and _fills_exactly(amounts, labelled):
        return GpuCount(labelled)
    else:
        needed = sum(amounts.values())
    if labelled is None or labelled >= needed:
        return GpuCount(needed if labelled is None else labelled)
    return GpuCount(
        needed,
        f"the label says that there are {labelled} GPUs, but {listed} is allocatable, which are {needed}: GPUs of"
        " several models, or shares that no label describes",
    )


def _fills_exactly(amounts: Mapping[str, int], gpus: int) -> bool:
    """Whether amounts of several kinds belong to exactly so many GPUs with the same number of units each."""
    units = _fewest_units(amounts, gpus)
    return (
        units > 0
        and sum(amounts.values()) == units * gpus
        and not any(amount % units for amount in amounts.values())
    )


def distribute_units(
    names: Sequence[str], amounts: Mapping[str, int], per_gpu: Mapping[str, int]
) -> UnitDistribution:
    """Distribute positive amounts of counting resources among GPUs, at least one, in natural order.

    `per_gpu` are the units of one GPU by resource, if the node describes them for all its counting resources. Without
    them even shares are preferred; what remains of one kind is lost, as in the older system.
    """
    gpus = len(names)
    if per_gpu.keys() >= amounts.keys():
        if needed_gpus(amounts, per_gpu) <= gpus:
            return _place_on_gpus(names, amounts, per_gpu)
    elif not are_even_shares(amounts, gpus) and (len(amounts) > 1 or min(amounts.values()) < gpus):
        units = _fewest_units(amounts, gpus)
        if units:
            return _place_on_gpus(names, amounts, dict.fromkeys(amounts, units))
    shares = {resource: amount // gpus for resource, amount in amounts.items()}
    return UnitDistribution(
        {resource: dict.fromkeys(names, share) for resource, share in shares.items() if share}, frozenset()
    )


def _fewest_units(amounts: Mapping[str, int], gpus: int) -> int:
    """The smallest number of units per GPU with which all amounts have a place; 0 if there are more kinds than GPUs."""
    if len(amounts) > gpus:
        return 0
    low, high = 1, max(amounts.values())
    while low < high:
        middle = (low + high) // 2
        if needed_gpus(amounts, dict.fromkeys(amounts, middle)) <= gpus:
            high = middle
        else:
            low = middle + 1
    return low


def _place_on_gpus(
    names: Sequence[str], amounts: Mapping[str, int], per_gpu: Mapping[str, int]
) -> UnitDistribution:
    parts = {}
    for resource in sorted(amounts):
        whole, rest = divmod(amounts[resource], per_gpu[resource])
        parts[resource] = [per_gpu[resource]] * whole + ([rest] if rest else [])
    is_even = len(parts) == 1 and all(
        len(part) == len(names) and part[0] == part[-1] for part in parts.values()
    )
    return UnitDistribution(_place_parts(names, parts, {}), frozenset() if is_even else frozenset(parts))


def _place_parts(
    names: Sequence[str], parts: Mapping[str, Sequence[int]], held: Mapping[str, Collection[str]]
) -> Units:
    """Place the parts of each resource on different GPUs: those where pods hold the resource, then the lowest."""
    free = dict.fromkeys(names)
    places: dict[str, list[str]] = {}
    for resource, part in parts.items():
        places[resource] = [name for name in free if resource in held.get(name, ())][: len(part)]
        for name in places[resource]:
            del free[name]
    for resource, part in parts.items():
        lowest = list(free)[: len(part) - len(places[resource])]
        places[resource] += lowest
        for name in lowest:
            del free[name]
    return {resource: dict(zip(places[resource], part, strict=False)) for resource, part in parts.items()}


def place_again(
    names: Sequence[str], rows: Mapping[str, Sequence[int]], held: Mapping[str, Collection[str]]
) -> dict[str, tuple[int, ...]]:
    """Place units again, of which it is not known where they are, so that GPUs that pods hold come first.

    `rows` are the units by resource and GPU in the order of `names`; the result has the same form and sums. The order
    of the rows does not matter.
    """
    parts = {resource: sorted(filter(None, rows[resource]), reverse=True) for resource in sorted(rows)}
    units = _place_parts(natural_order(names), parts, held)
    return {resource: tuple(units[resource].get(name, 0) for name in names) for resource in rows}


def describe_unknown_places(names: Sequence[str], rows: Mapping[str, Sequence[int]]) -> str:
    """The problem of a node where it is not known which GPUs have which units; empty without such rows."""
    if not rows:
        return ""
    having = {resource: _names_where(names, row) for resource, row in sorted(rows.items())}
    without = _names_where(names, [not any(column) for column in zip(*rows.values(), strict=True)])
    if len(rows) > 1:
        kinds = having | {"none": without}
        assumed = "; ".join(
            f"{resource}: {list_first(kind, _NAMED)}" for resource, kind in kinds.items() if kind
        )
        return f"which of {len(names)} GPUs have which resource is not known, assumed are {assumed}"
    ((resource, row),) = rows.items()
    if without:
        return (
            f"{sum(row)} {resource} is allocatable, for {len(names) - len(without)} of {len(names)} GPUs; which ones is"
            f" not known, assumed without: {list_first(without, _NAMED)}"
        )
    least = _names_where(names, [units == min(row) for units in row])
    return (
        f"{sum(row)} {resource} is no multiple of the {max(row)} units per GPU; which GPU has {min(row)} is not known,"
        f" assumed: {list_first(least, _NAMED)}"
    )


def _names_where(names: Sequence[str], values: Sequence[int]) -> list[str]:
    """The names with a value, in natural order."""
    return natural_order(name for name, value in zip(names, values, strict=True) if value)


class GpuShare(NamedTuple):
    """The amounts of one GPU."""

    capacity: Mapping[str, int]
    model: str = ""
    """Empty where unknown."""


class GpuShares(NamedTuple):
    """The amounts of each GPU of a node."""

    by_name: Mapping[str, GpuShare]
    unplaced: frozenset[str] = frozenset()
    """Counting resources of which it is not known which GPUs have them."""


class AllocatableAmounts(NamedTuple):
    """The allocatable amounts of a node, of the resources of a profile."""

    counting: Mapping[str, int]
    """Positive amounts of resources that count GPUs."""
    others: Mapping[str, int]
    """Other positive amounts."""
    sharing: Mapping[str, GpuSharing]
    """By counting resource."""

    @property
    def registered(self) -> tuple[RegisteredGpu, ...]:
        """The physical GPUs, if the node lists them."""
        return next((sharing.registered for sharing in self.sharing.values() if sharing.registered), ())

    @property
    def unclear_source(self) -> str:
        """The label or annotation by which amounts are shares of an unknown number of GPUs; empty if there is none."""
        unclear = (
            sharing for sharing in self.sharing.values() if sharing.is_shared and not sharing.units_per_gpu
        )
        return next((sharing.source for sharing in unclear), "")

    def count_gpus(self, labelled: int | None, add: AddProblem) -> int:
        """The number of GPUs of a node with allocatable GPUs, from the number in a label, if there is one."""
        for sharing in self.sharing.values():
            add(sharing.problem)
        if self.registered:
            return len(self.registered)
        count = count_gpus(labelled, self.counting, self.sharing)
        add(count.problem)
        return count.gpus


def divide_among_gpus(
    names: Sequence[str], amounts: AllocatableAmounts, profile: ResourceProfile, add: AddProblem
) -> GpuShares:
    """Divide amounts among GPUs in natural order."""
    if not names:
        return GpuShares({})
    even = dict(extended_resource_amounts.divide_amounts(amounts.others, len(names)))
    for resource, share in even.items():
        if not share and resource not in profile.monitoring:
            add(
                f"allocatable {truncate(resource, LONGEST_NAME)} is {amounts.others[resource]} for {len(names)} GPUs,"
                " so each has 0"
            )
    units, unplaced = _distribute_counting_resources(names, amounts, add)
    is_registered = len(amounts.registered) == len(names)
    models = [gpu.model for gpu in amounts.registered] if is_registered else [""] * len(names)
    by_name = {
        name: GpuShare(even | {resource: row[name] for resource, row in units.items() if name in row}, model)
        for name, model in zip(names, models, strict=True)
    }
    return GpuShares(by_name, unplaced)


def _distribute_counting_resources(
    names: Sequence[str], amounts: AllocatableAmounts, add: AddProblem
) -> UnitDistribution:
    if not amounts.counting:
        return UnitDistribution({}, frozenset())
    per_gpu = {resource: sharing.units_per_gpu for resource, sharing in amounts.sharing.items()}
    if len(amounts.registered) == len(names):
        (resource, amount), *_ = amounts.counting.items()
        registered = [gpu.units for gpu in amounts.registered]
        total = sum(registered)
        if total == amount:
            return UnitDistribution({resource: dict(zip(names, registered, strict=True))}, frozenset())
        add(f"{amounts.sharing[resource].source}: {total} shares, but {resource} {amount} is allocatable")
        if amount <= len(names):
            per_gpu = {resource: 1}
    distribution = distribute_units(names, amounts.counting, per_gpu if all(per_gpu.values()) else {})
    for resource in sorted(amounts.counting.keys() - distribution.units.keys()):
        add(f"allocatable {resource} is {amounts.counting[resource]} for {len(names)} GPUs, so each has 0")
    return distribution


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
    allocatable: frozenset[str] = frozenset()
    """Resources of the profile with an allocatable amount."""
    missing: MissingGpus = MissingGpus()
    """What was looked for and what the node has, if it has no GPUs."""


def parse_node_gpus(node: GpuNode, profile: ResourceProfile) -> NodeGpus:
    """Parse the GPUs of a node. The order of its labels does not matter."""
    notes = _Notes()
    tags = node_labels(node)
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
        allocatable=notes.allocatable,
        missing=missing,
    )


def node_labels(node: GpuNode) -> dict[str, str]:
    labels = _decode_mapping(node.metadata.labels)
    return {key: value for key, value in labels.items() if isinstance(value, str)}


def place_units_of_held_gpus(gpus: NodeGpus, amounts: Mapping[str, Mapping[str, int]]) -> NodeGpus:
    """The GPUs of a node, where those that pods hold have the units of which it is not known where they are.

    `amounts` are held amounts by GPU and resource. The result does not depend on where the units were before.
    """
    if not gpus.unplaced:
        return gpus
    held = {name: [resource for resource, amount in amounts[name].items() if amount] for name in amounts}
    rows = {resource: row for resource, row in gpus.capacity.items() if resource in gpus.unplaced}
    placed = place_again(gpus.names, rows, held)
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
    return describe_unknown_places(tuple(names), rows)


class _Notes:
    """Problems without duplicates; only the first few are listed."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self.limit = ""
        """The limit because of which the node has no GPUs."""
        self.allocatable: frozenset[str] = frozenset()
        """The resources of the profile with an allocatable amount."""
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


_shared_set = lru_cache(64)(frozenset[str])
"""The same object for nodes with the same resources."""


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
    notes.allocatable = _shared_set(tuple(sorted(positive)))
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
        names = natural_order(_gpu_names(tags, amounts, profile, notes))
        shares = divide_among_gpus(names, amounts, profile, notes.add)
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
        shares = divide_among_gpus(natural_order(described), amounts, profile, notes.add)
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
