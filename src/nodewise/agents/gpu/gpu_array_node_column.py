"""The GPUs of one node as a column of `gpu_arrays`: their capacity, free amounts, NUMA groups and links.

Sets of GPUs and of sub-devices are bits, and a link is one number, so that an array can hold them.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu.allocation_record_limits import NO_RECORD
from nodewise.agents.gpu.node_gpus import MOST_GPUS, MOST_GROUPS, MOST_LINKS, MOST_SUBDEVICES, NodeGpus

Codes = NDArray[np.int32]
MAX_AMOUNT: Final = 2**63 - 1
ABSENT: Final = -1
"""The free amount of a resource that a GPU does not have: even a request of 0 does not fit."""
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_NO_SUBDEVICES: Final[frozenset[int]] = frozenset()


class GpuUsage(Protocol):
    """The GPU usage of pods on one node (`node_allocations.NodeAllocations`)."""

    @property
    def amounts(self) -> Mapping[str, Mapping[str, int]]:
        """Held amounts by GPU and resource."""
        ...

    @property
    def subdevices(self) -> Mapping[str, frozenset[int]]:
        """Named sub-devices in use, by GPU."""
        ...

    @property
    def record_bytes(self) -> int:
        """Size of the node's allocation record."""
        ...


ONE_GROUP: Final = 0
"""The node has no NUMA label: all its GPUs are one group."""
GROUPED: Final = 1
BROKEN: Final = 2
"""The NUMA label is invalid."""


class NodeColumn(NamedTuple):
    """The column of one node; the same fields by GPU, link or group."""

    names: Sequence[str]
    capacity: Mapping[str, Sequence[int]]
    free: Mapping[str, Sequence[int]]
    usable: Sequence[bool]
    models: Sequence[str]
    preferred: int
    groups: Sequence[int]
    group_state: int
    links: Sequence[int]
    free_subdevices: Sequence[int]
    enabled_subdevices: Sequence[int]
    """As `free_subdevices` on a node without pods."""
    record_bytes: int

    def hardware_key(self) -> Hashable:
        """What a pod finds on the node when no pods are there: equal for nodes that then accept the same pods."""
        capacity = tuple((name, tuple(amounts)) for name, amounts in self.capacity.items())
        by_gpu = (tuple(self.names), tuple(self.usable), tuple(self.models), tuple(self.enabled_subdevices))
        topology = (self.preferred, tuple(self.groups), self.group_state, tuple(self.links))
        return capacity, by_gpu, topology, self.record_bytes == NO_RECORD


def pack_links(left: int, left_subdevice: int, right: int, right_subdevice: int) -> int:
    """Encode links as numbers; each part is below 64."""
    return left | left_subdevice << 6 | right << 12 | right_subdevice << 18


def unpack_links(links: Codes) -> tuple[Codes, Codes, Codes, Codes]:
    """Decode packed links into left GPU, left sub-device, right GPU, right sub-device."""
    return links & 63, links >> 6 & 63, links >> 12 & 63, links >> 18 & 63


def build_node_column(gpus: NodeGpus, usage: GpuUsage, subdevices: str) -> NodeColumn:
    """The column of a node: its GPUs and their free amounts."""
    at = {name: position for position, name in enumerate(gpus.names[:MOST_GPUS])}
    disabled = [gpus.subdevices_off.get(name, _NO_SUBDEVICES) for name in at]
    named = [usage.subdevices.get(name, _NO_SUBDEVICES) | off for name, off in zip(at, disabled, strict=True)]
    capacity = _capped_capacity(gpus, len(at), subdevices)
    free = _free_amounts(capacity, [usage.amounts.get(name, _NOTHING) for name in at])
    if subdevices in capacity:
        held_subdevices = [
            _count_unavailable_subdevices(usage, name, subdevices, taken)
            for name, taken in zip(at, named, strict=True)
        ]
        free[subdevices] = [*map(_clipped_free_amount, capacity[subdevices], held_subdevices)]
    counts = capacity.get(subdevices, (0,) * len(at))
    return NodeColumn(
        names=tuple(at),
        capacity=capacity,
        free=free,
        usable=[name not in gpus.unusable for name in at],
        models=gpus.models[: len(at)],
        preferred=at.get(gpus.preferred, -1),
        groups=_numa_group_bits(gpus, at),
        group_state=BROKEN if gpus.numa_problem else GROUPED if gpus.numa else ONE_GROUP,
        links=_packed_links(gpus, at),
        free_subdevices=[*map(_available_subdevices_as_bits, counts, named)],
        enabled_subdevices=[*map(_available_subdevices_as_bits, counts, disabled)],
        record_bytes=usage.record_bytes,
    )


def _capped_capacity(gpus: NodeGpus, count: int, subdevices: str) -> dict[str, list[int]]:
    """By resource, the amount of each GPU, capped at what an array can hold."""
    return {
        name: [
            min(amount, MOST_SUBDEVICES if name == subdevices else MAX_AMOUNT) for amount in amounts[:count]
        ]
        for name, amounts in gpus.capacity.items()
    }


def _free_amounts(
    capacity: Mapping[str, Sequence[int]], held: Sequence[Mapping[str, int]]
) -> dict[str, list[int]]:
    """By resource, the free amount of each GPU."""
    return {
        name: [
            _clipped_free_amount(amount, amounts_held.get(name, 0))
            for amount, amounts_held in zip(amounts, held, strict=True)
        ]
        for name, amounts in capacity.items()
    }


def _count_unavailable_subdevices(usage: GpuUsage, gpu: str, subdevices: str, taken: frozenset[int]) -> int:
    """The number of unavailable sub-devices, which includes charged ones without a name."""
    charged = usage.amounts.get(gpu, _NOTHING).get(subdevices, 0)
    return len(taken) + max(0, charged - len(usage.subdevices.get(gpu, _NO_SUBDEVICES)))


def _clipped_free_amount(capacity: int, held: int) -> int:
    """The free amount, clipped to int64 for any allocations."""
    return capacity - min(held, MAX_AMOUNT) if capacity > 0 else ABSENT


def _available_subdevices_as_bits(count: int, taken: Iterable[int]) -> int:
    everything = (1 << (count or MOST_SUBDEVICES)) - 1
    if not taken:
        return everything
    return everything & ~sum(1 << subdevice for subdevice in set(taken) if 0 <= subdevice < MOST_SUBDEVICES)


def _numa_group_bits(gpus: NodeGpus, at: Mapping[str, int]) -> list[int]:
    """NUMA groups as bits. A group that equals an earlier one has no effect and is omitted."""
    sets = (sum(1 << at[name] for name in group if name in at) for group in gpus.numa)
    return list(dict.fromkeys(filter(None, sets)))[:MOST_GROUPS]


def _packed_links(gpus: NodeGpus, at: Mapping[str, int]) -> list[int]:
    """Links in the order in which they are tried: by sub-device of the left GPU, then in the order of the label."""
    known = [
        link
        for link in gpus.links[:MOST_LINKS]
        if link.left in at and link.right in at and link.left != link.right
        if 0 <= link.left_subdevice < MOST_SUBDEVICES and 0 <= link.right_subdevice < MOST_SUBDEVICES
    ]
    known.sort(key=lambda link: link.left_subdevice)
    return [
        pack_links(at[link.left], link.left_subdevice, at[link.right], link.right_subdevice) for link in known
    ]
