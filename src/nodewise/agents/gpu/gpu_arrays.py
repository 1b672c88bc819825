"""The GPUs of all nodes as arrays, so that a pod is fitted to thousands of nodes at once.

The GPU axis comes first: a step over GPUs is a few passes over all nodes. Every array has one column more than there
are nodes with GPUs; the last column has no GPUs and stands for every other node. Arrays never change in place: a bind
copies the arrays that it changes, which takes some tens of microseconds per array at 5,000 nodes of 8 GPUs.

Sets of GPUs and of sub-devices are bits, and a link is one number, so that an array can hold them.

Each resource is an array over all GPUs of all nodes, so one node with resource names of its own would cost memory for
every node. The resources of most nodes are kept (`ResourceCap`). The others count as absent, and their nodes report a
problem.
"""

from collections import Counter, deque
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu.allocation_record import NO_RECORD
from nodewise.agents.gpu.gpu_node_labels import MOST_GROUPS, MOST_LINKS, MOST_SUBDEVICES
from nodewise.agents.gpu.node_gpus import MOST_GPUS, NodeGpus
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import list_first

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


_ARRAYS: Final[Mapping[str, tuple[str, int, Any]]] = {
    "name_codes": ("gpu", -1, np.int32),
    "usable": ("gpu", 0, np.bool_),
    "model_codes": ("gpu", 0, np.int32),
    "preferred": ("node", -1, np.int16),
    "groups": ("group", 0, np.uint64),
    "group_states": ("node", ONE_GROUP, np.int8),
    "links": ("link", -1, np.int32),
    "free_subdevices": ("gpu", 0, np.uint64),
    "enabled_subdevices": ("gpu", 0, np.uint64),
    "record_bytes": ("node", 0, np.int64),
    "hardware_codes": ("node", -1, np.int32),
}
"""The arrays of a layout that are not by resource: the kind of its rows, the fill value where a node has fewer of these
than others, and the type."""
_HARDWARE: Final = ("usable", "preferred", "groups", "group_states", "links", "enabled_subdevices")


class NodeColumn(NamedTuple):
    """The column of one node, by GPU."""

    names: Sequence[str]
    models: Sequence[str]
    capacity: Mapping[str, Sequence[int]]
    free: Mapping[str, Sequence[int]]
    cells: Mapping[str, Sequence[int]]
    """The column of each array that has neither resources nor codes."""

    def hardware_key(self) -> Hashable:
        """What a pod finds on the node when no pods are there: equal for nodes that then accept the same pods."""
        capacity = tuple((name, tuple(amounts)) for name, amounts in self.capacity.items())
        others = tuple(tuple(self.cells[name]) for name in _HARDWARE)
        has_record = self.cells["record_bytes"][0] != NO_RECORD
        return capacity, tuple(self.names), tuple(self.models), others, has_record


def pack_links(left: int, left_subdevice: int, right: int, right_subdevice: int) -> int:
    """Encode links as numbers; each part is below 64."""
    return left | left_subdevice << 6 | right << 12 | right_subdevice << 18


def unpack_links(links: Codes) -> tuple[Codes, Codes, Codes, Codes]:
    """Decode packed links into left GPU, left sub-device, right GPU, right sub-device."""
    return links & 63, links >> 6 & 63, links >> 12 & 63, links >> 18 & 63


def build_node_column(  # complexity: one expression for each array
    gpus: NodeGpus, usage: GpuUsage, subdevices: str
) -> NodeColumn:
    """The column of a node: its GPUs and their free amounts."""
    names = gpus.names[:MOST_GPUS]
    at = {name: position for position, name in enumerate(names)}
    disabled = [gpus.subdevices_off.get(name, _NO_SUBDEVICES) for name in names]
    named = [usage.subdevices.get(name, _NO_SUBDEVICES) for name in names]
    capacity, free = {}, {}
    for resource, amounts in gpus.capacity.items():
        most = MOST_SUBDEVICES if resource == subdevices else MAX_AMOUNT
        capacity[resource] = [min(amount, most) for amount in amounts[: len(names)]]
        held = [usage.amounts.get(name, _NOTHING).get(resource, 0) for name in names]
        if resource == subdevices:
            # charged sub-devices without a name are unavailable as well
            held = [
                len(taken | off) + max(0, amount - len(taken))
                for taken, off, amount in zip(named, disabled, held, strict=True)
            ]
        free[resource] = [*map(_clipped_free_amount, capacity[resource], held)]
    counts = capacity.get(subdevices, [0] * len(names))
    unavailable = [taken | off for taken, off in zip(named, disabled, strict=True)]
    cells = {
        "usable": [name not in gpus.unusable for name in names],
        "preferred": (at.get(gpus.preferred, -1),),
        "groups": _numa_group_bits(gpus, at),
        "group_states": (BROKEN if gpus.numa_problem else GROUPED if gpus.numa else ONE_GROUP,),
        "links": _packed_links(gpus, at),
        "free_subdevices": [*map(_available_subdevices_as_bits, counts, unavailable)],
        "enabled_subdevices": [*map(_available_subdevices_as_bits, counts, disabled)],
        "record_bytes": (usage.record_bytes,),
    }
    return NodeColumn(names, gpus.models[: len(names)], capacity, free, cells)


def _clipped_free_amount(capacity: int, held: int) -> int:
    """The free amount, clipped to int64 for any allocations."""
    return capacity - min(held, MAX_AMOUNT) if capacity > 0 else ABSENT


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


def _available_subdevices_as_bits(count: int, taken: Iterable[int]) -> int:
    everything = (1 << (count or MOST_SUBDEVICES)) - 1
    if not taken:
        return everything
    return everything & ~sum(1 << subdevice for subdevice in set(taken) if 0 <= subdevice < MOST_SUBDEVICES)


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
    plain, width = {}, len(nodes) + 1
    for name, (kind, fill, dtype) in _ARRAYS.items():
        yield
        plain[name] = np.full((size.rows[kind], width), fill, dtype)
    capacity, free = {}, {}
    for name in size.resources:
        yield
        capacity[name] = np.zeros((size.rows["gpu"], width), np.int64)
        free[name] = np.full((size.rows["gpu"], width), ABSENT, np.int64)
    codes = _Codes([], [""], {})
    for start in range(0, len(nodes), _STEP):
        yield
        # each part is freed here, because freeing all of them at once takes milliseconds
        columns = parts.popleft()
        cells = [_cells_with_codes(column, codes) for column in columns]
        for name, (_, fill, _) in _ARRAYS.items():
            _write_array_columns(plain[name], start, [column[name] for column in cells], fill)
        for name in size.resources:
            _write_array_columns(
                capacity[name], start, [column.capacity.get(name, ()) for column in columns], 0
            )
            _write_array_columns(free[name], start, [column.free.get(name, ()) for column in columns], ABSENT)
    return GpuLayout(
        rows=rows,
        names=tuple(codes.names),
        models=tuple(codes.models),
        capacity=capacity,
        free=free,
        hardware_keys=codes.hardware_keys,
        subdevices=subdevices,
        **plain,
    )


def replace_node_in_layout(layout: GpuLayout, row: int, gpus: NodeGpus, usage: GpuUsage) -> GpuLayout:
    """The layout with one node replaced. Arrays without changes are shared."""
    column = build_node_column(gpus, usage, layout.subdevices)
    grown = _enlarge(layout, column)
    codes = _Codes(grown.names, grown.models, grown.hardware_keys)
    plain: dict[str, Any] = {
        name: _replace_array_column(getattr(grown, name), row, cells, _ARRAYS[name][1])
        for name, cells in _cells_with_codes(column, codes).items()
    }
    return grown._replace(
        **plain,
        capacity={
            name: _replace_array_column(have, row, column.capacity.get(name, ()), 0)
            for name, have in grown.capacity.items()
        },
        free={
            name: _replace_array_column(have, row, column.free.get(name, ()), ABSENT)
            for name, have in grown.free.items()
        },
        names=tuple(codes.names) if len(codes.names) > len(grown.names) else grown.names,
        models=tuple(codes.models) if len(codes.models) > len(grown.models) else grown.models,
        hardware_keys=codes.hardware_keys,
    )


class _Codes:
    """Assigns codes to names, models and hardware keys; tables only grow."""

    def __init__(
        self, names: Iterable[str], models: Iterable[str], hardware_keys: Mapping[Hashable, int]
    ) -> None:
        self.names = {name: code for code, name in enumerate(names)}
        self.models = {model: code for code, model in enumerate(models)}
        self.hardware_keys = hardware_keys
        self._added_keys: dict[Hashable, int] | None = None

    def hardware(self, key: Hashable) -> int:
        code = self.hardware_keys.get(key)
        if code is not None:
            return code
        if self._added_keys is None:  # other layouts share the table until it grows
            self._added_keys = dict(self.hardware_keys)
            self.hardware_keys = self._added_keys
        return self._added_keys.setdefault(key, len(self._added_keys))


class _Size:
    """The numbers of rows that the largest nodes need. At least one GPU, so that no reduction over GPUs is empty."""

    def __init__(self, gpus: int = 1, groups: int = 0, links: int = 0, resources: Iterable[str] = ()) -> None:
        self.rows = {"gpu": gpus, "group": groups, "link": links, "node": 1}
        self.resources = dict.fromkeys(resources)

    def hold(self, columns: Iterable[NodeColumn]) -> None:
        for column in columns:
            self.rows["gpu"] = max(self.rows["gpu"], len(column.names))
            self.rows["group"] = max(self.rows["group"], len(column.cells["groups"]))
            self.rows["link"] = max(self.rows["link"], len(column.cells["links"]))
            self.resources.update(dict.fromkeys(column.capacity))


def _cells_with_codes(column: NodeColumn, codes: _Codes) -> dict[str, Sequence[int]]:
    """The node's column of each array that is not by resource."""
    return {
        **column.cells,
        "name_codes": [codes.names.setdefault(name, len(codes.names)) for name in column.names],
        "model_codes": [codes.models.setdefault(model, len(codes.models)) for model in column.models],
        "hardware_codes": (codes.hardware(column.hardware_key()),),
    }


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


def _enlarge(layout: GpuLayout, column: NodeColumn) -> GpuLayout:
    """The layout, enlarged for a node with more GPUs, groups, links or resources."""
    size = _Size(layout.most_gpus, len(layout.groups), len(layout.links), layout.capacity)
    fits = dict(size.rows), dict(size.resources)
    size.hold([column])
    if (size.rows, size.resources) == fits:
        return layout
    arrays: dict[str, Any] = {
        name: _pad_array_to_height(getattr(layout, name), size.rows[kind], fill)
        for name, (kind, fill, _) in _ARRAYS.items()
    }
    nothing, gpus = np.zeros((0, layout.size + 1), np.int64), size.rows["gpu"]
    return layout._replace(
        **arrays,
        capacity={
            name: _pad_array_to_height(layout.capacity.get(name, nothing), gpus, 0) for name in size.resources
        },
        free={
            name: _pad_array_to_height(layout.free.get(name, nothing), gpus, ABSENT)
            for name in size.resources
        },
    )


def _pad_array_to_height(array: NDArray[Any], height: int, fill: int) -> NDArray[Any]:
    missing = height - len(array)
    return np.pad(array, ((0, missing), (0, 0)), constant_values=fill) if missing else array


Columns = NDArray[np.intp] | slice


_ScalarT = TypeVar("_ScalarT", bound=np.generic)


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
                amounts: Amounts = np.multiply(taken, amount, dtype=np.int64)
                self._free[resource] = np.subtract(self.free(resource), amounts, out=amounts)

    def take_amounts(self, resource: str, amounts: Amounts) -> None:
        """Take an amount (C, M) from each GPU."""
        self._free[resource] = self.free(resource) - amounts

    def usable(self) -> Mask:
        """(C, M): GPUs that exist and are not disabled."""
        return self._of_candidates(self.layout.usable)

    def name_codes(self) -> Codes:
        """(C, M)."""
        return self._of_candidates(self.layout.name_codes)

    def model_codes(self) -> Codes:
        """(C, M)."""
        return self._of_candidates(self.layout.model_codes)

    def groups(self) -> Bits:
        """(G, M)."""
        return self._of_candidates(self.layout.groups)

    def group_states(self) -> NDArray[np.int8]:
        """(M)."""
        return self.layout.group_states[0, self.columns]

    def preferred(self) -> NDArray[np.int16]:
        """(M): position of the preferred GPU, or -1."""
        return self.layout.preferred[0, self.columns]

    def _of_candidates(self, array: NDArray[_ScalarT]) -> NDArray[_ScalarT]:
        """The candidates' columns. `take` needs a fraction of the time of an index."""
        return array if isinstance(self.columns, slice) else array.take(self.columns, 1)

    def _values_of_candidates(self, arrays: Mapping[str, Amounts], resource: str, absent: int) -> Amounts:
        array = arrays.get(resource)
        if array is None:
            return np.full((self.layout.most_gpus, len(self)), absent, np.int64)
        return self._of_candidates(array)


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
        before = self._nodes.pop(node, None)
        if gpus is not None and gpus.names:
            self._nodes[node] = gpus
        for counted, by in ((before, -1), (self._nodes.get(node), 1)):
            if counted is not None:
                for resource in counted.capacity:
                    _change_count(self._having, resource, by)
                _change_count(self._widths, len(counted.names), by)

    def __len__(self) -> int:
        """The number of different resources of all nodes."""
        return len(self._having) if self._kept is None else len(self._kept)

    def settle(self) -> list[str]:
        """Choose the kept resources again. Returns the nodes that are affected."""
        before, self._kept = self._kept, None
        cells = max(self._widths, default=1) * (len(self._nodes) + 1)
        room = max(LEAST, min(MOST, CELLS // cells))
        if len(self._having) > room:
            ordered = sorted(self._having, key=lambda resource: (-self._having[resource], resource))
            self._kept = frozenset(ordered[:room])
        if before == self._kept:
            return []
        every = frozenset(self._having)
        changed = (every if before is None else before) ^ (every if self._kept is None else self._kept)
        return [name for name, gpus in self._nodes.items() if not changed.isdisjoint(gpus.capacity)]

    def limited(self, gpus: NodeGpus) -> NodeGpus:
        """The node without resources that are not kept."""
        kept = self._kept
        if kept is None or gpus.capacity.keys() <= kept:
            return gpus
        gone = sorted(gpus.capacity.keys() - kept)
        problem = (
            f"nodes have more than {len(kept)} different resources of GPUs; few have "
            f"{list_first(gone, _NAMED)}, which count as absent"
        )
        capacity = {resource: row for resource, row in gpus.capacity.items() if resource in kept}
        return gpus._replace(capacity=capacity, problems=(*gpus.problems, problem))


def _change_count(counter: Counter[_T], key: _T, by: int) -> None:
    counter[key] += by
    if not counter[key]:
        del counter[key]
