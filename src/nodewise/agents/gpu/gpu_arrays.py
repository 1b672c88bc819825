"""The GPUs of all nodes as arrays, so that a pod is fitted to thousands of nodes at once.

The GPU axis comes first: a step over GPUs is a few passes over all nodes. Every array has one column more than there
are nodes with GPUs; the last column has no GPUs and stands for every other node. Arrays never change in place: a bind
copies the arrays that it changes, which takes some tens of microseconds per array at 5,000 nodes of 8 GPUs.

The GPUs of one node as a column of the arrays: their capacity, free amounts, NUMA groups and links.

Sets of GPUs and of sub-devices are bits, and a link is one number, so that an array can hold them.

The GPUs of the candidates, reduced by what earlier containers of the pod took.

A cap on the number of different GPU resources that are kept over all nodes.

Each resource is an array over all GPUs of all nodes, so one node with resource names of its own would cost memory for
every node. The resources of most nodes are kept. The others count as absent, and their nodes report a problem.
"""

from collections import Counter, deque
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu.allocation_record import NO_RECORD
from nodewise.agents.gpu.node_gpus import MOST_GPUS, MOST_GROUPS, MOST_LINKS, MOST_SUBDEVICES, NodeGpus
from nodewise.base import cooperative_scheduling

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


Amounts = NDArray[np.int64]
Mask = NDArray[np.bool_]
Bits = NDArray[np.uint64]
"""A set of numbers below 64: of GPUs by position, or of sub-devices."""
_STEP: Final = 32
"""Nodes laid out between two yields: about a millisecond."""


class GpuLayout(NamedTuple):
    """The GPUs of all nodes. C: most GPUs of a node, N: nodes with GPUs, G: most NUMA groups, L: most links."""

    rows: NDArray[np.intp]
    """By node number: the node's column here, N for a node that has none."""
    names: tuple[str, ...]
    """Card names by code."""
    name_codes: Codes
    """(C, N+1): codes of names in the order of the node's GPUs, -1 after the last one."""
    capacity: Mapping[str, Amounts]
    """By resource (C, N+1): the capacity; 0 where a GPU does not have it."""
    free: Mapping[str, Amounts]
    """By resource (C, N+1): capacity minus held amounts, negative if overcommitted; `ABSENT` without capacity."""
    usable: Mask
    """(C, N+1): the GPU exists, and is neither disabled nor descheduled."""
    models: tuple[str, ...]
    """Model names by code; the first one is the unknown model."""
    model_codes: Codes
    """(C, N+1)."""
    preferred: NDArray[np.int16]
    """(1, N+1): position of the preferred GPU, -1 for none."""
    groups: Bits
    """(G, N+1): the positions of the GPUs of each NUMA group; 0 where there is no such group."""
    group_states: NDArray[np.int8]
    """(1, N+1): `ONE_GROUP`, `GROUPED` or `BROKEN`."""
    links: Codes
    """(L, N+1): links of `pack_links` in the order in which they are tried, -1 for none."""
    free_subdevices: Bits
    """(C, N+1): sub-devices that may be part of a link: neither in use nor disabled.

    All bits without named sub-devices.
    """
    enabled_subdevices: Bits
    """(C, N+1): as `free_subdevices` on a node without pods."""
    record_bytes: Amounts
    """(1, N+1): size of the node's allocation record."""
    hardware_keys: Mapping[Hashable, int]
    """The code of each `NodeColumn.hardware_key`."""
    hardware_codes: Codes
    """(1, N+1): the code of the node's key, so that nodes with equal hardware are examined once; -1 without GPUs."""
    subdevices: str
    """The resource that counts sub-devices."""

    @property
    def size(self) -> int:
        """The number of nodes, N."""
        width: int = self.name_codes.shape[1]
        return width - 1

    @property
    def most_gpus(self) -> int:
        """The most GPUs of a node, C."""
        return len(self.name_codes)

    def gpus(self, row: int) -> tuple[str, ...]:
        """The names of a node's GPUs, in order."""
        return tuple(self.names[code] for code in self.name_codes[:, row].tolist() if code >= 0)


def build_layout(
    nodes: Sequence[tuple[NodeGpus, GpuUsage]], rows: NDArray[np.intp], subdevices: str
) -> GpuLayout:
    """Lay out nodes in this order; `rows` maps a node's number to its position in the order."""
    return cooperative_scheduling.run_without_pauses(build_layout_stepwise(nodes, rows, subdevices))


def build_layout_stepwise(
    nodes: Sequence[tuple[NodeGpus, GpuUsage]], rows: NDArray[np.intp], subdevices: str
) -> Generator[None, None, GpuLayout]:
    """As `build_layout`; yields after every few nodes."""
    size, parts = _Size(), deque[list[NodeColumn]]()
    for start in range(0, len(nodes), _STEP):
        yield
        parts.append(
            [build_node_column(gpus, usage, subdevices) for gpus, usage in nodes[start : start + _STEP]]
        )
        size.hold(parts[-1])
    layout = yield from _empty_layout(len(nodes) + 1, size, rows, subdevices)
    codes = _Codes(layout)
    for start in range(0, len(nodes), _STEP):
        yield
        # each part is freed here, because freeing all of them at once takes milliseconds
        _write_nodes_into_layout(layout, start, parts.popleft(), codes)
    return layout._replace(
        names=tuple(codes.names), models=tuple(codes.models), hardware_keys=codes.hardware_keys
    )


def replace_node_in_layout(layout: GpuLayout, row: int, gpus: NodeGpus, usage: GpuUsage) -> GpuLayout:
    """The layout with one node replaced. Arrays without changes are shared."""
    new_column = build_node_column(gpus, usage, layout.subdevices)
    grown = _enlarge(layout, new_column)
    codes = _Codes(grown)
    plain: dict[str, Any] = {
        name: _replace_array_column(getattr(grown, name), row, cells, _ARRAYS[name][0])
        for name, cells in _node_values_without_resources(new_column, codes).items()
    }
    return grown._replace(
        **plain,
        capacity={
            name: _replace_array_column(have, row, new_column.capacity.get(name, ()), 0)
            for name, have in grown.capacity.items()
        },
        free={
            name: _replace_array_column(have, row, new_column.free.get(name, ()), ABSENT)
            for name, have in grown.free.items()
        },
        names=tuple(codes.names) if len(codes.names) > len(grown.names) else grown.names,
        models=tuple(codes.models) if len(codes.models) > len(grown.models) else grown.models,
        hardware_keys=codes.hardware_keys,
    )


class _Codes:
    """Assigns codes to names, models and hardware keys; tables only grow."""

    def __init__(self, layout: GpuLayout) -> None:
        self.names = {name: code for code, name in enumerate(layout.names)}
        self.models = {model: code for code, model in enumerate(layout.models)}
        self.hardware_keys: Mapping[Hashable, int] = layout.hardware_keys
        self._added_keys: dict[Hashable, int] | None = None

    def name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def model(self, model: str) -> int:
        return self.models.setdefault(model, len(self.models))

    def hardware(self, key: Hashable) -> int:
        code = self.hardware_keys.get(key)
        if code is not None:
            return code
        if self._added_keys is None:  # other layouts share the table until it grows
            self._added_keys = dict(self.hardware_keys)
            self.hardware_keys = self._added_keys
        return self._added_keys.setdefault(key, len(self._added_keys))


_ARRAYS: Final[Mapping[str, tuple[int, Any]]] = {
    "name_codes": (-1, np.int32),
    "usable": (0, np.bool_),
    "model_codes": (0, np.int32),
    "preferred": (-1, np.int16),
    "groups": (0, np.uint64),
    "group_states": (ONE_GROUP, np.int8),
    "links": (-1, np.int32),
    "free_subdevices": (0, np.uint64),
    "enabled_subdevices": (0, np.uint64),
    "record_bytes": (0, np.int64),
    "hardware_codes": (-1, np.int32),
}
"""The fill value where a node has fewer GPUs, groups or links than others, and the type."""


def _row_counts_of_arrays(gpus: int, groups: int, links: int) -> Mapping[str, int]:
    by_gpu = ("name_codes", "usable", "model_codes", "free_subdevices", "enabled_subdevices")
    by_node = ("preferred", "group_states", "record_bytes", "hardware_codes")
    return dict.fromkeys(by_gpu, gpus) | dict.fromkeys(by_node, 1) | {"groups": groups, "links": links}


class _Size:
    """The sizes that the largest nodes need. At least one GPU, so that no reduction over GPUs is empty."""

    def __init__(self) -> None:
        self.gpus, self.groups, self.links = 1, 0, 0
        self.resources: dict[str, None] = {}

    def hold(self, columns: Iterable[NodeColumn]) -> None:
        for node_column in columns:
            self.gpus = max(self.gpus, len(node_column.names))
            self.groups = max(self.groups, len(node_column.groups))
            self.links = max(self.links, len(node_column.links))
            self.resources.update(dict.fromkeys(node_column.capacity))


def _empty_layout(
    width: int, size: _Size, rows: NDArray[np.intp], subdevices: str
) -> Generator[None, None, GpuLayout]:
    """Arrays of the right size."""
    plain = {}
    for name, height in _row_counts_of_arrays(size.gpus, size.groups, size.links).items():
        yield
        plain[name] = np.full((height, width), *_ARRAYS[name])
    capacity, free = {}, {}
    for name in size.resources:
        yield
        capacity[name] = np.zeros((size.gpus, width), np.int64)
        free[name] = np.full((size.gpus, width), ABSENT, np.int64)
    return GpuLayout(
        rows=rows,
        names=(),
        models=("",),
        capacity=capacity,
        free=free,
        hardware_keys={},
        subdevices=subdevices,
        **plain,
    )


def _node_values_without_resources(node_column: NodeColumn, codes: _Codes) -> dict[str, Sequence[int]]:
    """The node's column of each array that is not by resource."""
    return {
        "name_codes": [*map(codes.name, node_column.names)],
        "usable": node_column.usable,
        "model_codes": [*map(codes.model, node_column.models)],
        "preferred": (node_column.preferred,),
        "groups": node_column.groups,
        "group_states": (node_column.group_state,),
        "links": node_column.links,
        "free_subdevices": node_column.free_subdevices,
        "enabled_subdevices": node_column.enabled_subdevices,
        "record_bytes": (node_column.record_bytes,),
        "hardware_codes": (codes.hardware(node_column.hardware_key()),),
    }


def _write_nodes_into_layout(
    layout: GpuLayout, start: int, columns: Sequence[NodeColumn], codes: _Codes
) -> None:
    """Write some nodes into new arrays that are not shared yet."""
    plain = [_node_values_without_resources(node_column, codes) for node_column in columns]
    for name, (fill, _) in _ARRAYS.items():
        _write_array_columns(getattr(layout, name), start, [cells[name] for cells in plain], fill)
    for name, capacity in layout.capacity.items():
        _write_array_columns(
            capacity, start, [node_column.capacity.get(name, ()) for node_column in columns], 0
        )
        _write_array_columns(
            layout.free[name], start, [node_column.free.get(name, ()) for node_column in columns], ABSENT
        )


def _write_array_columns(array: NDArray[Any], start: int, cells: Sequence[Sequence[int]], fill: int) -> None:
    if len(array):
        padded = [_pad_values(values, len(array), fill) for values in cells]
        array[:, start : start + len(cells)] = np.array(padded, array.dtype).T


def _pad_values(cells: Sequence[int], height: int, fill: int) -> Sequence[int]:
    return cells if len(cells) == height else [*cells, *[fill] * (height - len(cells))]


def _replace_array_column(array: NDArray[Any], row: int, cells: Sequence[int], fill: int) -> NDArray[Any]:
    padded = _pad_values(cells, len(array), fill)
    if array[:, row].tolist() == [*padded]:
        return array
    array = array.copy()
    array[:, row] = padded
    return array


def _enlarge(layout: GpuLayout, node_column: NodeColumn) -> GpuLayout:
    """The layout, enlarged for a node with more GPUs, groups, links or resources."""
    gpus = max(layout.most_gpus, len(node_column.names))
    heights = _row_counts_of_arrays(
        gpus, max(len(layout.groups), len(node_column.groups)), max(len(layout.links), len(node_column.links))
    )
    arrays: dict[str, Any] = {
        name: _pad_array_to_height(getattr(layout, name), height, _ARRAYS[name][0])
        for name, height in heights.items()
    }
    resources = [*layout.capacity, *(name for name in node_column.capacity if name not in layout.capacity)]
    nothing = np.zeros((0, layout.size + 1), np.int64)
    return layout._replace(
        **arrays,
        capacity={
            name: _pad_array_to_height(layout.capacity.get(name, nothing), gpus, 0) for name in resources
        },
        free={name: _pad_array_to_height(layout.free.get(name, nothing), gpus, ABSENT) for name in resources},
    )


def _pad_array_to_height(array: NDArray[Any], height: int, fill: int) -> NDArray[Any]:
    missing = height - len(array)
    return np.pad(array, ((0, missing), (0, 0)), constant_values=fill) if missing else array


Columns = NDArray[np.intp] | slice


class CandidateGpus:
    """The columns of M candidates in a layout, with the amounts that were taken from them. Forking is cheap."""

    def __init__(self, layout: GpuLayout, rows: NDArray[np.intp] | None = None) -> None:
        self.layout: Final = layout
        self.rows: Final = np.arange(layout.size + 1) if rows is None else rows
        self.columns: Final[Columns] = slice(None) if rows is None else rows
        """The candidates' columns in the layout. By default all, as a slice, which copies nothing."""
        self._free: dict[str, Amounts] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def fork(self) -> "CandidateGpus":
        """A copy from which amounts can be taken without changing this object."""
        copy = object.__new__(CandidateGpus)
        copy.__dict__.update(self.__dict__, _free=dict(self._free))
        return copy

    def free(self, resource: str) -> Amounts:
        """(C, M): the free amount of a resource; negative where the GPU does not have it. Do not change the array."""
        amounts = self._free.get(resource)
        if amounts is None:
            amounts = self._free[resource] = self._values_of_candidates(self.layout.free, resource, ABSENT)
        return amounts

    def capacity(self, resource: str) -> Amounts:
        """(C, M): the capacity of a resource; 0 where the GPU does not have it."""
        return self._values_of_candidates(self.layout.capacity, resource, 0)

    def used(self, resource: str) -> Amounts:
        """(C, M): the held or taken amount; 0 where the GPU does not have the resource."""
        capacity = self.capacity(resource)
        return np.where(capacity > 0, capacity - self.free(resource), 0)

    def take(self, taken: Mask, per_gpu: Mapping[str, int]) -> None:
        """Take amounts from GPUs (C, M) that have them."""
        for resource, amount in per_gpu.items():
            if amount:
                self._free[resource] = self.free(resource) - taken.astype(np.int64) * amount

    def usable(self) -> Mask:
        """(C, M): GPUs that exist and are not disabled."""
        return self.layout.usable[:, self.columns]

    def name_codes(self) -> Codes:
        """(C, M)."""
        return self.layout.name_codes[:, self.columns]

    def model_codes(self) -> Codes:
        """(C, M)."""
        return self.layout.model_codes[:, self.columns]

    def groups(self) -> Bits:
        """(G, M)."""
        return self.layout.groups[:, self.columns]

    def group_states(self) -> NDArray[np.int8]:
        """(M)."""
        return self.layout.group_states[0, self.columns]

    def preferred(self) -> NDArray[np.int16]:
        """(M): position of the preferred GPU, or -1."""
        return self.layout.preferred[0, self.columns]

    def _values_of_candidates(self, arrays: Mapping[str, Amounts], resource: str, absent: int) -> Amounts:
        array = arrays.get(resource)
        if array is None:
            return np.full((self.layout.most_gpus, len(self)), absent, np.int64)
        return array[:, self.columns]


_T = TypeVar("_T")

MOST: Final = 256
"""The most different resources; real clusters have about ten."""
LEAST: Final = 16
"""The number of resources that are kept for any number of GPUs."""
CELLS: Final = 2**23
"""The cells of all resources' arrays, of 16 bytes each: 128 MiB."""
_NAMED: Final = 3


class ResourceCap:
    """Follows the nodes. The kept resources depend on the nodes only, not on the order in which they were added."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeGpus] = {}
        self._having: Counter[str] = Counter()
        """By resource, the number of nodes that have it."""
        self._widths: Counter[int] = Counter()
        """By number of GPUs, the number of nodes."""
        self._kept: frozenset[str] | None = None
        """The kept resources; None if all are."""

    def put(self, node: str, gpus: NodeGpus | None) -> None:
        """Add, replace or (with None) remove a node."""
        self._count_resources(self._nodes.pop(node, None), -1)
        if gpus is not None and gpus.names:
            self._nodes[node] = gpus
            self._count_resources(gpus, 1)

    def _count_resources(self, gpus: NodeGpus | None, by: int) -> None:
        if gpus is None:
            return
        for resource in gpus.capacity:
            _change_count(self._having, resource, by)
        _change_count(self._widths, len(gpus.names), by)

    def __len__(self) -> int:
        """The number of different resources of all nodes."""
        return len(self._having) if self._kept is None else len(self._kept)

    def settle(self) -> list[str]:
        """Choose the kept resources again. Returns the nodes that are affected."""
        before, self._kept = self._kept, self._most_used_resources()
        if before == self._kept:
            return []
        return [
            name
            for name, gpus in self._nodes.items()
            if _gpus_with_kept_resources(gpus, before) != _gpus_with_kept_resources(gpus, self._kept)
        ]

    def _most_used_resources(self) -> frozenset[str] | None:
        cells = max(self._widths, default=1) * (len(self._nodes) + 1)
        room = max(LEAST, min(MOST, CELLS // cells))
        if len(self._having) <= room:
            return None
        ordered = sorted(self._having, key=lambda resource: (-self._having[resource], resource))
        return frozenset(ordered[:room])

    def limited(self, gpus: NodeGpus) -> NodeGpus:
        """The node without resources that are not kept."""
        kept = self._kept
        if kept is None or gpus.capacity.keys() <= kept:
            return gpus
        gone = sorted(gpus.capacity.keys() - kept)
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        problem = (
            f"nodes have more than {len(kept)} different resources of GPUs; few have "
            f"{', '.join(gone[:_NAMED])}{more}, which count as absent"
        )
        capacity = {resource: row for resource, row in gpus.capacity.items() if resource in kept}
        return gpus._replace(capacity=capacity, problems=(*gpus.problems, problem))


def _gpus_with_kept_resources(gpus: NodeGpus, kept: frozenset[str] | None) -> frozenset[str]:
    return frozenset(gpus.capacity) if kept is None else kept.intersection(gpus.capacity)


def _change_count(counter: Counter[_T], key: _T, by: int) -> None:
    counter[key] += by
    if not counter[key]:
        del counter[key]
