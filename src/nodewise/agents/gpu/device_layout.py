"""The devices of DRA drivers as arrays of all nodes, in the form of the GPU layout, for the same placements.

A device has one resource, `DEVICE`, with 1,000 thousandths. A claim that has a device alone takes all of them, and a
claim with a part of its capacity the largest share of any of its capacities. Devices that a claim cannot get, because
of a taint or of counters that are used up, have nothing left.

The typical pods for the placement `fragmentation` are those that have devices now: how much of how many devices, and
the CPU of the pod. They are counted again after a number of changes that is an eighth of their number.

Devices that several nodes can use are not in these arrays, only their pools.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex, ObjectKey
from nodewise.agents.gpu import fragmentation, gpu_arrays
from nodewise.agents.gpu.extended_resource_amounts import Amounts
from nodewise.agents.gpu.fragmentation import NO_WORKLOAD, WorkloadTables
from nodewise.agents.gpu.gpu_arrays import GpuLayout
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod, cpu_milli
from nodewise.agents.gpu.node_gpus import MOST_GPUS, NodeGpus
from nodewise.agents.gpu.typical_pods import PodClass
from nodewise.devices import device_allocation, device_inventory, resource_slices
from nodewise.devices.device_inventory import DeviceInventory, NodeDevices
from nodewise.devices.resource_slices import EMPTY, Device, PoolSlices

DEVICE: Final = "device"
"""The resource of a device."""
WHOLE: Final = 1000
"""The thousandths of a device."""
_CHANGED_SHARE: Final = 8
"""Typical pods are counted again after this share of their number of changes."""
_STRIDE: Final = 256
"""Nodes between two yields."""


class DeviceLayout(NamedTuple):
    """The devices of all nodes. N: nodes with devices of their own."""

    layout: GpuLayout
    """The GPU axis has the devices of a node in kube-scheduler's order."""
    nodes: tuple[tuple[str, NodeDevices], ...]
    """By column, the name and the devices of the node."""
    names: tuple[tuple[str, ...], ...]
    """By column, the names of the devices."""
    columns: Mapping[str, int]
    """By name of the node."""
    versions: NDArray[np.int64]
    """(N+1), by column: differs from all earlier ones after the devices of the node or their holders changed."""
    workload: WorkloadTables = NO_WORKLOAD
    """The tables of typical pods."""
    network_pools: tuple[PoolSlices, ...] = ()
    """Pools whose devices several nodes can use."""


NO_DEVICE_LAYOUT: Final = DeviceLayout(
    gpu_arrays.build_layout((), np.zeros(1, np.intp), ""), (), (), {}, np.zeros(1, np.int64)
)


class DeviceLayoutBuilder:
    """Follows the inventory. An update without changes costs nothing."""

    def __init__(self) -> None:
        self._inventory = device_inventory.NO_INVENTORY
        self._index = NodeIndex()
        self._rows: dict[str, int] = {}
        self._version = 0
        self._result = NO_DEVICE_LAYOUT
        self._counted_generation = 0
        """The generation of the inventory when typical pods were counted."""
        self._counted_claims = 0

    def update(
        self, index: NodeIndex, inventory: DeviceInventory, pods: Mapping[ObjectKey, AllocatedPod]
    ) -> Generator[None, None, DeviceLayout]:
        """The layout of the nodes of the index."""
        if (inventory.generation - self._counted_generation) * _CHANGED_SHARE > self._counted_claims:
            yield from self._count_typical_pods(inventory, pods)
        if inventory is self._inventory and index is self._index:
            return self._result
        nodes = [name for name in index.known if name in inventory.nodes]
        if nodes != list(self._rows):
            yield from self._rebuild(index, inventory, nodes)
        else:
            yield from self._replace_changed(index, inventory)
        if inventory.network_pools != self._result.network_pools:
            self._result = self._result._replace(network_pools=inventory.network_pools)
        self._inventory, self._index = inventory, index
        return self._result

    def _rebuild(
        self, index: NodeIndex, inventory: DeviceInventory, nodes: list[str]
    ) -> Generator[None, None, None]:
        self._rows = {name: row for row, name in enumerate(nodes)}
        columns = [self._rows.get(name, len(nodes)) for name in index.known]
        parts = []
        for number, name in enumerate(nodes):
            parts.append(_node_column(inventory.nodes[name]))
            if number % _STRIDE == 0:
                yield
        layout = yield from gpu_arrays.build_layout_stepwise(
            parts, np.array([*columns, len(nodes)], np.intp), ""
        )
        versions = np.arange(self._version + 1, self._version + len(nodes) + 2)
        self._version += len(nodes) + 1
        by_column = tuple((name, inventory.nodes[name]) for name in nodes)
        names = tuple(_device_names(devices) for _, devices in by_column)
        self._result = DeviceLayout(layout, by_column, names, self._rows, versions, self._result.workload)

    def _replace_changed(self, index: NodeIndex, inventory: DeviceInventory) -> Generator[None, None, None]:
        layout, versions = self._result.layout, self._result.versions.copy()
        by_column, names = [*self._result.nodes], self._result.names
        if index is not self._index:
            columns = [self._rows.get(name, len(by_column)) for name in index.known]
            layout = layout._replace(rows=np.array([*columns, len(by_column)], np.intp))
        for row, (name, before) in enumerate(self._result.nodes):
            devices = inventory.nodes[name]
            if devices is not before:
                layout = gpu_arrays.replace_node_in_layout(layout, row, *_node_column(devices))
                by_column[row] = name, devices
                changed_names = _device_names(devices)
                if changed_names != names[row]:
                    names = (*names[:row], changed_names, *names[row + 1 :])
                self._version += 1
                versions[row] = self._version
            if row % _STRIDE == 0:
                yield
        self._result = self._result._replace(
            layout=layout, nodes=tuple(by_column), names=names, versions=versions
        )

    def _count_typical_pods(
        self, inventory: DeviceInventory, pods: Mapping[ObjectKey, AllocatedPod]
    ) -> Generator[None, None, None]:
        """Count the pods that have devices again, and build the tables."""
        classes: Counter[PodClass] = Counter()
        claims = 0
        with_holders = [devices for devices in inventory.nodes.values() if devices.holders]
        for number, devices in enumerate(with_holders):
            for (namespace, pod), milli in _requests_of_holders(devices).items():
                known = pods.get((namespace, pod))
                cpu = 0 if known is None else cpu_milli(known, known.status)
                for parts in milli:
                    classes[PodClass(len(parts), Amounts({DEVICE: max(parts)}), cpu)] += 1
                    claims += 1
            if number % _STRIDE == 0:
                yield
        workload = yield from fragmentation.build_fragmentation_tables_stepwise(classes, ())
        self._counted_generation, self._counted_claims = inventory.generation, claims
        self._result = self._result._replace(workload=workload)


def _requests_of_holders(devices: NodeDevices) -> Mapping[ObjectKey, Iterable[list[int]]]:
    """By pod, the thousandths of each device, for each request. Claims without a pod are omitted."""
    by_request: dict[tuple[ObjectKey, ObjectKey, str], list[int]] = {}
    every = {device.id: device for device in ordered_devices(devices)}
    for device, holders in devices.holders.items():
        for holder in holders if device in every else ():
            allocated = holder.allocated
            milli = device_milli(every[device], allocated.consumed_capacity) if allocated.share_id else WHOLE
            if holder.pods and milli:
                pod = holder.claim[0], holder.pods[0]
                by_request.setdefault((pod, holder.claim, allocated.request), []).append(milli)
    by_pod: dict[ObjectKey, list[list[int]]] = {}
    for (pod, _, _), milli_of_devices in by_request.items():
        by_pod.setdefault(pod, []).append(milli_of_devices)
    return by_pod


class _ColumnUse(NamedTuple):
    """The use of the devices of a node (`gpu_arrays.GpuUsage`)."""

    amounts: Mapping[str, Mapping[str, int]]
    subdevices: Mapping[str, frozenset[int]] = {}
    record_bytes: int = 0


_POSITIONS: Final = tuple(map(str, range(MOST_GPUS)))
"""Names of devices in the layout. Nodes with equally many devices share them."""


def ordered_devices(devices: NodeDevices) -> list[Device]:
    """The devices of a node in kube-scheduler's order; no more than the layout has."""
    pools = sorted(devices.pools, key=lambda each: each.pool.has_binding_conditions)
    return [device for each in pools for device in each.devices][:MOST_GPUS]


def _device_names(devices: NodeDevices) -> tuple[str, ...]:
    """The names of devices as explanations show them, with the pool if there are several."""
    every = ordered_devices(devices)
    return _same_names(
        tuple(device.name if len(devices.pools) == 1 else f"{device.pool}/{device.name}" for device in every)
    )


@lru_cache(1024)
def _same_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same object for nodes with the same names."""
    return names


def _node_column(devices: NodeDevices) -> tuple[NodeGpus, _ColumnUse]:
    every, use = ordered_devices(devices), device_inventory.device_use(devices)
    blocked = {*device_allocation.blocked_devices(devices.pools, use)}
    incomplete = {each.pool.id for each in devices.pools if each.pool.problem}
    held, unusable = {}, set()
    for position, device in zip(_POSITIONS, every, strict=False):
        taints = (*device.taints, *use.taints.get(device.id, ()))
        is_tainted = any(taint.effect in ("NoSchedule", "NoExecute") for taint in taints)
        if is_tainted or device.id.pool_id in incomplete:
            unusable.add(position)
        taken = device.id in use.taken or device.id in blocked
        milli = WHOLE if taken else device_milli(device, use.shared.get(device.id, EMPTY))
        if milli:
            held[position] = {DEVICE: milli}
    names = _POSITIONS[: len(every)]
    gpus = NodeGpus(names, {DEVICE: (WHOLE,) * len(names)}, ("",) * len(names), frozenset(unusable))
    return gpus, _ColumnUse(held)


def device_milli(device: Device, consumed: resource_slices.Amounts) -> int:
    """The thousandths of a device that are consumed: the largest share of its capacities, rounded up."""
    return max(
        (
            min(-(-WHOLE * consumed[name] // capacity.value), WHOLE)
            for name, capacity in device.capacity.items()
            if capacity.value > 0 and consumed.get(name)
        ),
        default=0,
    )
