"""How many GPUs a node has, and the share of each in the node's allocatable amounts.

A device plugin reports how many devices of a resource are allocatable, but not which GPUs they belong to. With as many
devices as GPUs, each GPU has one unit; with a multiple of them, each GPU is offered several times. With fewer, because
a GPU is unhealthy or divided into MIG slices, as many GPUs as there are devices have one unit each. It is not known
which ones: the GPUs that pods hold count first, then those with the lowest numbers, and a problem names the others. The
same holds for a node with GPUs of several kinds, such as `i915` and `xe`, where each GPU has units of one kind.

Resources that count GPUs are distributed in whole units with the shares of a GPU that the node
describes (`gpu_node_labels`). All other amounts are divided evenly.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.agents.gpu import extended_resource_amounts
from nodewise.agents.gpu.gpu_node_labels import LONGEST_NAME, AddProblem, GpuSharing, RegisteredGpu
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base.errors import truncate

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
    """The units of each GPU."""

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
        assumed = "; ".join(f"{resource}: {_list_names(kind)}" for resource, kind in kinds.items() if kind)
        return f"which of {len(names)} GPUs have which resource is not known, assumed are {assumed}"
    ((resource, row),) = rows.items()
    if without:
        return (
            f"{sum(row)} {resource} is allocatable, for {len(names) - len(without)} of {len(names)} GPUs; which ones is"
            f" not known, assumed without: {_list_names(without)}"
        )
    least = _names_where(names, [units == min(row) for units in row])
    return (
        f"{sum(row)} {resource} is no multiple of the {max(row)} units per GPU; which GPU has {min(row)} is not known,"
        f" assumed: {_list_names(least)}"
    )


def _names_where(names: Sequence[str], values: Sequence[int]) -> list[str]:
    """The names with a value, in natural order."""
    return natural_order(name for name, value in zip(names, values, strict=True) if value)


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


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
