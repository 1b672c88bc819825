"""Builds the state of the gpu agent from nodes, pods and allocation records; the same code online and offline.

Changes are applied one by one, and only the nodes that they concern are recomputed: at 80 binds a second, an iteration
over 20,000 pods would take too long. The state equals one that is built from scratch.

A pod can use the free GPUs of a node only with some CPU. Pods without GPUs use CPU as well. There are many of them, so
only their CPU is kept.

`GET /state/gpu` exports the allocations: per node its GPUs, their allocated amounts, and the pods; with `?node=NAME`
those of one node.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ClusterState, Inputs, NodeIndex, ObjectKey
from nodewise.agent.bind_plugin_interface import AllocationRecordLease, AllocationStateBuilder
from nodewise.agent.state import NODES, Change
from nodewise.agents.gpu import (
    allocation_record,
    fragmentation,
    gpu_arrays,
    gpu_pod_fields,
    node_allocations,
    node_gpus,
    typical_pods,
)
from nodewise.agents.gpu.allocation_record import AllocationRecord
from nodewise.agents.gpu.device_layout import NO_DEVICE_LAYOUT, DeviceLayout, DeviceLayoutBuilder
from nodewise.agents.gpu.dra_nodes import NO_DRA_NODES, DraNodes, DraNodeTable
from nodewise.agents.gpu.fragmentation import NO_WORKLOAD, WorkloadTables
from nodewise.agents.gpu.gpu_arrays import GpuLayout, ResourceCap
from nodewise.agents.gpu.gpu_pod_fields import AllocatedMetadata, AllocatedPod, cpu_milli
from nodewise.agents.gpu.missing_gpus import NO_NODES, MissingGpusOfNodes, MissingGpusTable
from nodewise.agents.gpu.node_allocations import NodeAllocations, PodIndex
from nodewise.agents.gpu.node_gpus import GpuNode, NodeGpus
from nodewise.agents.gpu.typical_pods import DemandConfigMap
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base import quantity
from nodewise.base.errors import UNREADABLE
from nodewise.devices.device_inventory import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NO_INVENTORY,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceInventory,
    DeviceInventoryBuilder,
)
from nodewise.devices.resource_claims import DeviceClass, ResourceClaim
from nodewise.kube import pod_requests

Cpu = NDArray[np.int64]

UNLIMITED: Final = 2**61
"""The milli-CPU of a node without allocatable CPU."""
_NO_COLUMNS: Final[tuple[Mapping[str, int], Cpu]] = ({}, np.full(1, UNLIMITED, np.int64))
_STRIDE: Final = 512
"""Nodes per part of the work."""


def keep_gpu_pod(pod: AllocatedPod) -> AllocatedPod | None:
    """Keep only pods that may hold GPUs, without the fields that are not for GPUs."""
    return gpu_pod_fields.reduce_gpu_pod(pod) if node_allocations.may_hold_gpus(pod) else None


def reduce_non_gpu_pod_to_cpu(pod: AllocatedPod) -> AllocatedPod | None:
    """Keep pods that may hold GPUs; of other pods on a node only the CPU that they take."""
    if node_allocations.may_hold_gpus(pod):
        return gpu_pod_fields.reduce_gpu_pod(pod)
    if not pod_requests.holds_requests(pod):
        return None
    reduced = pod_requests.reduce_to_requests(pod, ("cpu",))
    if not cpu_milli(reduced):
        return None
    before = reduced.metadata
    metadata = AllocatedMetadata(
        name=before.name, namespace=before.namespace, uid=before.uid, resourceVersion=before.resourceVersion
    )
    return AllocatedPod(metadata=metadata, spec=reduced.spec)


def cpu_milli_on_node(pod: AllocatedPod) -> int:
    return cpu_milli(pod, pod.status) if pod_requests.holds_requests(pod) else 0


def cpu_of_gpu_pods(allocations: NodeAllocations, bound: Iterable[AllocatedPod], pods: PodIndex) -> int:
    """The milli-CPU of pods with GPUs on a node, including those with a reservation that are not bound yet."""
    return sum(map(cpu_milli_on_node, bound)) + sum(
        cpu_milli(pod)
        for uid, allocation in allocations.by_uid.items()
        if allocation.source == "ledger" and (pod := pods.by_key.get(allocation.key)) is not None
        if pod.metadata.uid == uid and not pod.spec.nodeName
    )


class _Allocatable(msgspec.Struct, frozen=True):
    cpu: str | int | float | None = None


def allocatable_cpu(node: GpuNode) -> int:
    try:
        resources = msgspec.json.decode(node.status.allocatable, type=_Allocatable | None)
        cpu = resources.cpu if resources is not None else None
        return UNLIMITED if cpu is None else _parse_allocatable_milli(str(cpu))
    except UNREADABLE:
        return UNLIMITED


@lru_cache
def _parse_allocatable_milli(text: str) -> int:
    try:
        return min(max(quantity.parse(text) * 1000 // quantity.NANO, 0), UNLIMITED)
    except ValueError:
        return UNLIMITED


class FreeCpu:
    """The allocatable CPU of nodes and the CPU of pods without GPUs, kept up to date by changes."""

    def __init__(self) -> None:
        self._allocatable: dict[str, int] = {}
        self._plain: dict[str, int] = {}
        """By node, the milli-CPU of pods without GPUs."""
        self._moved: set[str] = set()
        self._newest: Sequence[tuple[Mapping[str, int], Cpu]] = (_NO_COLUMNS, _NO_COLUMNS)
        """The columns of each layout by node name, and the free CPU by column."""

    def node(self, name: str, node: GpuNode | None) -> None:
        """Apply a changed node; None if it was deleted."""
        if node is None:
            self._allocatable.pop(name, None)
        else:
            self._allocatable[name] = allocatable_cpu(node)
        self._moved.add(name)

    def apply_pod_change(self, old: AllocatedPod | None, new: AllocatedPod | None) -> None:
        """Apply a changed pod without GPUs; None if it is new or was deleted."""
        for pod, sign in ((old, -1), (new, 1)):
            milli = cpu_milli_on_node(pod) if pod is not None else 0
            if pod is not None and milli:
                node = pod.spec.nodeName
                self._plain[node] = self._plain.get(node, 0) + sign * milli
                if not self._plain[node]:
                    del self._plain[node]
                self._moved.add(node)

    def mark_node_changed(self, name: str) -> None:
        """Mark a node whose pods with GPUs may have changed."""
        self._moved.add(name)

    def free(
        self, layouts: Sequence[Mapping[str, int]], held: Callable[[str], int]
    ) -> Generator[None, None, tuple[Cpu, ...]]:
        """(N+1) for each of two layouts: the free milli-CPU by column.

        `layouts` are the columns by node name, and `held` returns the CPU of pods with GPUs.
        """
        newest: list[tuple[Mapping[str, int], Cpu]] = []
        for columns, (known_columns, known) in zip(layouts, self._newest, strict=True):
            moved: Iterable[str] = self._moved & columns.keys()
            free = known
            if columns is not known_columns:
                free, moved = np.full(len(columns) + 1, UNLIMITED, np.int64), columns
            elif moved:
                free = known.copy()
            for number, name in enumerate(moved):
                left = self._allocatable.get(name, UNLIMITED) - self._plain.get(name, 0)
                free[columns[name]] = left - held(name)
                if number % _STRIDE == 0:
                    yield
            newest.append((columns, free))
        self._newest = newest
        self._moved.clear()
        return tuple(free for _, free in newest)


NAME: Final = "gpu"
"""The name of the agent: its key in `Snapshot.agent_states`."""
PODS: Final = "pods"
ALLOCATION_RECORDS: Final = "ledgers"
DEMAND_CONFIGMAP: Final = "gpu_typical_pods"
"""Keys of `ClusterState.objects`."""
RECORD_PREFIX: Final = "gpu-"
"""The prefix of the name of a node's allocation record; the rest is the node's name."""

_PODS: Final = 256
"""Pods per part of the work."""
_MANY: Final = 8
"""If more than one node in this many changed, all are laid out again."""
_NAMES: Final = 1024
"""The most new names since all nodes were laid out, in addition to their number then. After that most names are
stale."""


class NodeState(NamedTuple):
    gpus: NodeGpus
    allocations: NodeAllocations
    record_text: str
    """The text of its allocation record."""
    bound: tuple[AllocatedPod, ...]
    """The pods on the node that request GPUs."""
    problems: tuple[str, ...]
    """Problems of the node's labels, its allocations and its pods, as messages."""
    cpu_held: int
    """The milli-CPU that pods with GPUs request."""


class GpuState(NamedTuple):
    """All nodes with GPUs, or with pods that hold GPUs according to a record or annotation."""

    layout: GpuLayout
    rows: Mapping[str, int]
    """By node name, the column in the layout; only nodes with GPUs."""
    nodes: Mapping[str, NodeState]
    pods: PodIndex
    cpu_free: NDArray[np.int64] | None = None
    """(N+1), by column of the layout: milli-CPU that no known pod requests; None if unknown."""
    workload: WorkloadTables = NO_WORKLOAD
    """The tables of typical pods."""
    missing: MissingGpusOfNodes = NO_NODES
    """Why nodes have no GPUs."""
    devices: DeviceInventory = NO_INVENTORY
    """The devices of DRA drivers, and the claims that have them."""
    device_classes: Mapping[str, DeviceClass] = {}
    """By name."""
    dra: DraNodes = NO_DRA_NODES
    """The nodes whose GPUs kube-scheduler allocates itself."""
    claims: Mapping[ObjectKey, ResourceClaim] = {}
    device_layout: DeviceLayout = NO_DEVICE_LAYOUT
    device_cpu_free: NDArray[np.int64] | None = None
    """As `cpu_free`, by column of `device_layout`."""


class GpuStateBuilder(AllocationStateBuilder[GpuState]):
    """Builds the state, and caches parsed objects and the layout."""

    inputs = Inputs(
        frozenset(
            {
                PODS,
                ALLOCATION_RECORDS,
                DEMAND_CONFIGMAP,
                DEVICE_CLASSES,
                DEVICE_TAINT_RULES,
                RESOURCE_SLICES,
                RESOURCE_CLAIMS,
            }
        ),
        node_objects=True,
        metrics=False,
    )

    def __init__(self, profile: ResourceProfile) -> None:
        self._profile = profile
        self._reset()

    def _reset(self) -> None:
        """Discard everything."""
        self._version = ""
        """The version of the pods when undecided reservations were last examined."""
        self._gpus: dict[str, NodeGpus] = {}
        self._resource_cap = ResourceCap()
        self._names = 0
        """The number of names at which all nodes are laid out again."""
        self._bound: dict[str, dict[ObjectKey, AllocatedPod]] = {}
        """By node."""
        self._records: dict[str, tuple[str, AllocationRecord]] = {}
        """By node, the text of its allocation record and the parsed form."""
        self._reserved_on: dict[ObjectKey, set[str]] = {}
        """By pod, the nodes whose allocation records name it."""
        self._nodes: dict[str, NodeState] = {}
        self._problems: dict[str, tuple[str, ...]] = {}
        self._undecided: set[str] = set()
        """Nodes with a reservation that a newer version of the pods may end."""
        self._dirty: set[str] = set()
        """Nodes to compute again."""
        self._moved: set[str] = set()
        """Nodes to lay out again."""
        self._free_cpu = FreeCpu()
        self._seen_histogram: tuple[Any, int] = (None, 0)
        """The histogram and the day for which the tables were made."""
        self._classes: typical_pods.Classes = {}
        self._workload = NO_WORKLOAD
        self._index = NodeIndex()
        self._missing = MissingGpusTable()
        self._devices = DeviceInventoryBuilder()
        self._device_layout = DeviceLayoutBuilder()
        self._dra = DraNodeTable(self._profile)
        self._rows: dict[str, int] = {}
        self._layout = gpu_arrays.build_layout((), np.zeros(1, np.intp), self._profile.subdevices)

    def problems(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> Mapping[str, tuple[str, ...]]:  # noqa: ARG002
        """Problems of nodes and their allocations, as of the newest state."""
        return {f"node {name}": problems for name, problems in self._problems.items()}

    def build(self, cluster_state: ClusterState) -> Generator[None, None, GpuState]:
        """Apply the changes and recompute the nodes that they concern."""
        if cluster_state.changes is None:
            self._reset()
        yield from self._apply_nodes(cluster_state.changes_of(NODES))
        yield from self._apply_records(cluster_state.changes_of(ALLOCATION_RECORDS))
        yield from self._apply_pods(cluster_state.changes_of(PODS))
        pods = PodIndex(cluster_state.objects.get(PODS, {}), cluster_state.versions.get(PODS, ""))
        if pods.version != self._version:
            # a reservation that a version ended stays ended only as long as versions grow
            before, now = self._version, pods.version
            grows = now.isdecimal() and before.isdecimal() and int(now) > int(before)
            self._dirty |= self._undecided if grows else self._records.keys()
            self._version = pods.version
        yield from self._recompute_marked_nodes(pods)
        yield from self._update_layout(cluster_state.nodes)
        yield from self._rebuild_typical_pods(
            cluster_state.objects.get(DEMAND_CONFIGMAP, {}), typical_pods.day_since_1970(cluster_state.now)
        )
        devices = yield from self._devices.update(
            cluster_state.changes_of(RESOURCE_SLICES),
            cluster_state.changes_of(RESOURCE_CLAIMS),
            cluster_state.changes_of(DEVICE_TAINT_RULES),
        )
        classes = cluster_state.objects.get(DEVICE_CLASSES, {})

        def labels_of(node: str) -> Mapping[str, str]:
            return node_gpus.node_labels(cluster_state.node_objects["", node])

        dra = yield from self._dra.update(cluster_state.nodes, devices, classes.values(), labels_of)
        missing = yield from self._missing.by_number(cluster_state.nodes)
        layout = yield from self._device_layout.update(cluster_state.nodes, devices, pods.by_key)
        cpu_free, device_cpu_free = yield from self._free_cpu.free(
            (self._rows, layout.columns),
            lambda name: self._nodes[name].cpu_held if name in self._nodes else 0,
        )
        by_name = {name: device_class for (_, name), device_class in classes.items()}
        return GpuState(
            self._layout,
            self._rows,
            dict(self._nodes),
            pods,
            cpu_free,
            self._workload,
            missing,
            devices,
            by_name,
            dra,
            cluster_state.objects.get(RESOURCE_CLAIMS, {}),
            layout,
            device_cpu_free,
        )

    def apply_allocation_record(
        self, agent_state: GpuState, node: str, record: AllocationRecordLease | None
    ) -> GpuState:
        """The state with a changed allocation record of one node."""
        before = agent_state.nodes.get(node)
        text = allocation_record.record_text(record)
        if before is None or before.record_text == text:
            return agent_state
        parsed = allocation_record.parse_record(text)
        after = self._compute_node(node, before.gpus, (text, parsed), before.bound, agent_state.pods, before)
        nodes, row = {**agent_state.nodes, node: after}, agent_state.rows.get(node)
        if row is None:
            return agent_state._replace(nodes=nodes)
        cpu_free = agent_state.cpu_free
        layout = gpu_arrays.replace_node_in_layout(agent_state.layout, row, after.gpus, after.allocations)
        if cpu_free is not None and after.cpu_held != before.cpu_held:
            cpu_free = cpu_free.copy()
            cpu_free[row] += before.cpu_held - after.cpu_held
        return agent_state._replace(layout=layout, nodes=nodes, cpu_free=cpu_free)

    def _apply_nodes(self, changes: Iterable[tuple[ObjectKey, Change[Any]]]) -> Generator[None, None, None]:
        for (_, name), change in changes:
            gpus = None
            if change.new is not None:
                gpus = self._gpus[name] = node_gpus.parse_node_gpus(change.new, self._profile)
            else:
                self._gpus.pop(name, None)
            self._resource_cap.put(name, gpus)
            self._missing.put(name, gpus.missing if gpus is not None else None)
            offered = gpus or NodeGpus()
            self._dra.put(name, offered.allocatable, is_labelled=offered.missing.is_labelled)
            self._free_cpu.node(name, change.new)
            self._dirty.add(name)
            yield
        self._dirty.update(self._resource_cap.settle())

    def _apply_records(
        self, changes: Iterable[tuple[ObjectKey, Change[AllocationRecordLease]]]
    ) -> Generator[None, None, None]:
        for (_, name), change in changes:
            node = name.removeprefix(RECORD_PREFIX)
            if node != name:
                _, before = self._records.pop(node, _NO_RECORD)
                for entry in before.entries.values():
                    self._reserved_on.get(entry.key, set()).discard(node)
                    if not self._reserved_on.get(entry.key):
                        self._reserved_on.pop(entry.key, None)
                if change.new is not None:
                    text = allocation_record.record_text(change.new)
                    record = allocation_record.parse_record(text)
                    self._records[node] = (text, record)
                    for entry in record.entries.values():
                        self._reserved_on.setdefault(entry.key, set()).add(node)
                self._dirty.add(node)
            yield

    def _rebuild_typical_pods(
        self, configmaps: Mapping[ObjectKey, DemandConfigMap], today: int
    ) -> Generator[None, None, None]:
        """Build the tables of typical pods again if the histogram or the day changed."""
        only = next(iter(configmaps.values()), None)
        if self._seen_histogram == (only, today):
            return
        counted = yield from typical_pods.parse_histogram(only)
        classes = typical_pods.counts_of_recent_classes(counted.history, today)
        if classes != self._classes:
            self._workload = yield from fragmentation.build_fragmentation_tables_stepwise(
                classes, self._profile.counts
            )
            self._classes = classes
        self._seen_histogram = (only, today)

    def _apply_pods(
        self, changes: Iterable[tuple[ObjectKey, Change[AllocatedPod]]]
    ) -> Generator[None, None, None]:
        for number, (key, change) in enumerate(changes):
            old, plain_old = _pod_by_gpu_use(change.old)
            new, plain_new = _pod_by_gpu_use(change.new)
            self._free_cpu.apply_pod_change(plain_old, plain_new)
            if old is not None and old.spec.nodeName:
                bound = self._bound.get(old.spec.nodeName, {})
                bound.pop(key, None)
                if not bound:
                    self._bound.pop(old.spec.nodeName, None)
                self._dirty.add(old.spec.nodeName)
            if new is not None and new.spec.nodeName:
                self._bound.setdefault(new.spec.nodeName, {})[key] = new
                self._dirty.add(new.spec.nodeName)
            self._dirty |= self._reserved_on.get(key, set())
            if number % _PODS == 0:
                yield

    def _recompute_marked_nodes(self, pods: PodIndex) -> Generator[None, None, None]:
        """Compute the marked nodes; nodes that are gone, or have no GPUs and allocations, are omitted."""
        while self._dirty:
            name = next(iter(self._dirty))
            gpus = self._gpus.get(name)
            bound = tuple(self._bound.get(name, {}).values())
            self._problems.pop(name, None)
            self._undecided.discard(name)
            if gpus is not None and (gpus.names or gpus.problems or bound or name in self._records):
                gpus = self._resource_cap.limited(gpus)
                record, before = self._records.get(name, _NO_RECORD), self._nodes.get(name)
                node_state = self._compute_node(name, gpus, record, bound, pods, before)
                self._nodes[name] = node_state
                if node_state.allocations.undecided:
                    self._undecided.add(name)
                if node_state.problems:
                    self._problems[name] = node_state.problems
            else:
                self._nodes.pop(name, None)
            self._moved.add(name)
            self._free_cpu.mark_node_changed(name)
            self._dirty.discard(name)
            yield

    def _compute_node(
        self,
        node: str,
        gpus: NodeGpus,
        record: tuple[str, AllocationRecord],
        bound: tuple[AllocatedPod, ...],
        pods: PodIndex,
        before: NodeState | None,
    ) -> NodeState:
        known = before.allocations.by_uid if before is not None else {}
        allocations = node_allocations.allocations_of_node(node, record[1], bound, pods, self._profile, known)
        allocations = allocations._replace(record_bytes=allocation_record.record_bytes(node, record[0]))
        gpus = node_gpus.place_units_of_held_gpus(gpus, allocations.amounts)
        problems = (*gpus.problems, *allocations.problems, *node_allocations.conflicts(allocations, gpus))
        return NodeState(
            gpus, allocations, record[0], bound, problems, cpu_of_gpu_pods(allocations, bound, pods)
        )

    def _update_layout(self, index: NodeIndex) -> Generator[None, None, None]:
        """Update the layout: the changed columns, or everything if other nodes have GPUs."""
        with_gpus = {name for name in self._moved if self._has_gpus(name)}
        known = {name for name in self._moved if name in self._rows}
        is_worn = len(self._layout.capacity) > len(self._resource_cap) or _names(self._layout) > self._names
        if is_worn or with_gpus != known or len(self._moved) * _MANY > len(self._nodes) + _MANY * _MANY:
            yield from self._rebuild_layout(index)
            return
        if index is not self._index:
            self._layout = self._layout._replace(rows=_columns_by_node_number(index, self._rows))
            self._index = index
        while self._moved:
            name = self._moved.pop()
            if name in self._rows:
                node_state = self._nodes[name]
                self._layout = gpu_arrays.replace_node_in_layout(
                    self._layout, self._rows[name], node_state.gpus, node_state.allocations
                )
            yield

    def _has_gpus(self, name: str) -> bool:
        return name in self._nodes and bool(self._nodes[name].gpus.names)

    def _rebuild_layout(self, index: NodeIndex) -> Generator[None, None, None]:
        names = [name for name in index.known if self._has_gpus(name)]
        rows = {name: row for row, name in enumerate(names)}
        nodes = [(self._nodes[name].gpus, self._nodes[name].allocations) for name in names]
        self._layout = yield from gpu_arrays.build_layout_stepwise(
            nodes, _columns_by_node_number(index, rows), self._profile.subdevices
        )
        self._rows, self._index = rows, index
        self._names = 2 * _names(self._layout) + _NAMES
        self._moved.clear()


_NO_RECORD: Final = ("", allocation_record.EMPTY)


def _pod_by_gpu_use(pod: AllocatedPod | None) -> tuple[AllocatedPod | None, AllocatedPod | None]:
    """The pod as a pair: in the first place if it may hold GPUs, otherwise in the second."""
    return (pod, None) if pod is not None and node_allocations.may_hold_gpus(pod) else (None, pod)


def _names(layout: GpuLayout) -> int:
    return len(layout.names) + len(layout.models) + len(layout.hardware_keys)


def _columns_by_node_number(index: NodeIndex, rows: Mapping[str, int]) -> Any:
    """By node number, the column of the layout; the last column for a node without GPUs."""
    columns = [rows.get(name, len(rows)) for name in index.known]
    return np.array([*columns, len(rows)], np.intp)


def export_state(agent_state: GpuState, query: Mapping[str, str]) -> Generator[None, None, bytes]:
    """JSON, built node by node: `{"nodes": {name: {"cards", "pods", "problems"}}}`, in the order of names."""
    wanted = query.get("node")
    names: Iterable[str] = (
        sorted(agent_state.nodes) if wanted is None else {wanted} & agent_state.nodes.keys()
    )
    parts = []
    for name in names:
        node = msgspec.json.encode(_export_node(agent_state.nodes[name]))
        parts.append(msgspec.json.encode(name) + b": " + node)
        yield
    return b'{"nodes": {' + b",\n".join(parts) + b"}}\n"


def _export_node(node: NodeState) -> dict[str, Any]:
    gpus, allocations = node.gpus, node.allocations
    return {
        "cards": {
            name: {
                "model": gpus.models[at],
                "usable": name not in gpus.unusable,
                "capacity": {
                    resource: amounts[at] for resource, amounts in gpus.capacity.items() if amounts[at]
                },
                "held": allocations.amounts.get(name, {}),
                "tiles_held": sorted(allocations.subdevices.get(name, ())),
                "tiles_off": sorted(gpus.subdevices_off.get(name, ())),
            }
            for at, name in enumerate(gpus.names)
        },
        "pods": {
            uid: {
                "pod": allocation.pod,
                "containers": allocation.gpus,
                "cards": allocation.amounts,
                "by": allocation.source,
            }
            for uid, allocation in allocations.by_uid.items()
        },
        "problems": node.problems,
    }
