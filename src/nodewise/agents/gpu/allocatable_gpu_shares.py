"""How many GPUs a node has, and the share of each in the node's allocatable amounts.

Resources that count GPUs are distributed in whole units (`counting_resource_units.py`), with the shares of a GPU that
the node describes (`gpu_sharing.py`). All other amounts are divided evenly.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nodewise.agents.gpu import (
    counting_resource_units,
    extended_resource_amounts,
    gpu_model_labels,
    gpu_sharing,
)
from nodewise.agents.gpu.counting_resource_units import Units
from nodewise.agents.gpu.gpu_node_label_parsers import LONGEST_NAME
from nodewise.agents.gpu.gpu_sharing import GpuSharing, RegisteredGpu
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base.errors import truncate

AddProblem = Callable[[str], None]
"""Adds a problem of the node; an empty text is none."""


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


def allocatable_amounts(
    amounts: Mapping[str, int],
    tags: Mapping[str, str],
    hami_register: str | None,
    resources: Mapping[str, Any],
    profile: ResourceProfile,
) -> AllocatableAmounts:
    """Amounts of a node: the positive ones of the profile, and all its resources as the API server shows them."""
    counting = {resource: amounts[resource] for resource in sorted(profile.counts) if resource in amounts}
    return AllocatableAmounts(
        counting,
        {resource: amount for resource, amount in amounts.items() if resource not in counting},
        {
            resource: gpu_sharing.parse_gpu_sharing(resource, tags, hami_register, resources)
            for resource in counting
        },
    )


def count_gpus(amounts: AllocatableAmounts, labelled: int | None, add: AddProblem) -> int:
    """The number of GPUs of a node with allocatable GPUs, from the number in a label, if there is one."""
    for sharing in amounts.sharing.values():
        add(sharing.problem)
    if amounts.registered:
        return len(amounts.registered)
    count = counting_resource_units.count_gpus(labelled, amounts.counting, amounts.sharing)
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
    models = (
        [gpu.model for gpu in amounts.registered]
        if len(amounts.registered) == len(names)
        else [""] * len(names)
    )
    by_name = {
        name: GpuShare(even | {resource: row[name] for resource, row in units.items() if name in row}, model)
        for name, model in zip(names, models, strict=True)
    }
    return GpuShares(by_name, unplaced)


def _distribute_counting_resources(
    names: Sequence[str], amounts: AllocatableAmounts, add: AddProblem
) -> tuple[Units, frozenset[str]]:
    if not amounts.counting:
        return {}, frozenset()
    per_gpu = {resource: sharing.units_per_gpu for resource, sharing in amounts.sharing.items()}
    if len(amounts.registered) == len(names):
        (resource, amount), *_ = amounts.counting.items()
        registered = [gpu.units for gpu in amounts.registered]
        if sum(registered) == amount:
            return {resource: dict(zip(names, registered, strict=True))}, frozenset()
        add(
            f"{amounts.sharing[resource].source}: {sum(registered)} shares, but {resource} {amount} is allocatable"
        )
        if amount <= len(names):
            per_gpu = {resource: 1}
    described = per_gpu if all(per_gpu.values()) else {}
    distribution = counting_resource_units.distribute_units(names, amounts.counting, described)
    for resource in sorted(amounts.counting.keys() - distribution.units.keys()):
        add(f"allocatable {resource} is {amounts.counting[resource]} for {len(names)} GPUs, so each has 0")
    return distribution


def add_labelled_models(
    shares: GpuShares,
    amounts: AllocatableAmounts,
    tags: Mapping[str, str],
    profile: ResourceProfile,
    add: AddProblem,
) -> GpuShares:
    """Add models and memory of the vendor's labels. They are not known if the labels describe only some of the GPUs."""
    if not shares.by_name or not profile.labeller:
        return shares
    labelled = gpu_model_labels.parse_models(tags, profile)
    add(labelled.problem)
    is_counted = profile.labeller == "nvidia" and profile.count_label in tags
    if is_counted and gpu_model_labels.labelled_count(tags, profile) != len(shares.by_name):
        return shares
    # the labels of AMD describe a partition, whose memory is not that of a GPU
    is_partitioned = profile.labeller == "amd" and any(
        sharing.is_shared for sharing in amounts.sharing.values()
    )
    memory = {profile.memory: labelled.memory_mib} if labelled.memory_mib and not is_partitioned else {}
    return shares._replace(
        by_name={
            name: GpuShare({**memory, **share.capacity}, share.model or labelled.model)
            for name, share in shares.by_name.items()
        }
    )
