"""The GPUs of all nodes as arrays, so that a pod is fitted to thousands of nodes at once.

The GPU axis comes first: a step over GPUs is a few passes over all nodes. Every array has one column more than there
are nodes with GPUs; the last column has no GPUs and stands for every other node. Arrays never change in place: a bind
copies the arrays that it changes, which takes some tens of microseconds per array at 5,000 nodes of 8 GPUs.
"""

from collections import deque
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu.gpu_array_node_column import (
    ABSENT,
    ONE_GROUP,
    Codes,
    GpuUsage,
    NodeColumn,
    build_node_column,
)
from nodewise.agents.gpu.node_gpus import NodeGpus
from nodewise.base import cooperative_scheduling

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
