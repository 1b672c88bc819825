"""Compares the allocations in memory with those of a fresh list while the cluster keeps changing.

The comparison covers only objects that do not change during it. From before the list begins, all watch events are
noted, and the comparison waits until the watches reach the version of the list. An object without an event in between
has the same version in memory and in the list; otherwise an event was missed. Nodes that changed, whose pods changed or
whose allocation record changed are left to the next comparison, and so are nodes with a reservation in progress.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple

from nodewise.agent import ClusterState, NodeIndex, ObjectKey
from nodewise.agent.controller_interface import Handle
from nodewise.agent.state import NODES
from nodewise.agents.gpu import allocation_record
from nodewise.agents.gpu.allocation_record import record_text
from nodewise.agents.gpu.node_allocations import PodAllocation
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.state import (
    ALLOCATION_RECORDS,
    NAME,
    PODS,
    RECORD_PREFIX,
    GpuState,
    GpuStateBuilder,
    NodeState,
)
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import NodewiseError, shown
from nodewise.kube.store import Changes, Store
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.observe import logs


class ObservedChanges(NamedTuple):
    """The objects in watch events since the list began."""

    nodes: set[str]
    """Nodes that changed, whose allocation record changed, or whose pods changed."""
    pods: set[ObjectKey]

    def node(self, item: Any) -> None:
        self.nodes.add(item.metadata.name)

    def record(self, item: Any) -> None:
        self.nodes.add(item.metadata.name.removeprefix(RECORD_PREFIX))

    def pod(self, item: Any) -> None:
        self.nodes.add(item.spec.nodeName)
        self.pods.add((item.metadata.namespace, item.metadata.name))


class NodeDifference(NamedTuple):
    """A node whose allocations in memory differ from those of the list."""

    node: str
    what: str
    """The difference, as text."""


def differences(
    ours: GpuState, fresh: GpuState, observed: ObservedChanges, stored: Callable[[str], str]
) -> Generator[None, None, list[NodeDifference]]:
    """The nodes where the state in memory differs from the one computed from the list.

    `stored` returns the text of a node's allocation record in the store; `ours` may have more reservations.
    """
    result = []
    for name in sorted(ours.nodes.keys() | fresh.nodes.keys()):
        ours_node, fresh_node = ours.nodes.get(name), fresh.nodes.get(name)
        if name not in observed.nodes and (what := _difference_of_node(name, ours, fresh)):
            held = ours_node.record_text if ours_node else ""
            if (
                held == stored(name)
                and not _has_observed_pod(ours_node, observed)
                and not _has_observed_pod(fresh_node, observed)
            ):
                result.append(NodeDifference(name, what))
        yield
    return result


def _has_observed_pod(node: NodeState | None, observed: ObservedChanges) -> bool:
    """Whether the node's allocation record names a pod that had an event."""
    entries = allocation_record.parse_record(node.record_text).entries.values() if node else ()
    return any(entry.key in observed.pods for entry in entries)


def _difference_of_node(name: str, ours: GpuState, fresh: GpuState) -> str:
    ours_node, fresh_node = ours.nodes.get(name), fresh.nodes.get(name)
    if ours_node is None or fresh_node is None:
        return (
            ""
            if ours_node is fresh_node
            else f"its GPUs are not in {'memory' if ours_node is None else 'the list'}"
        )
    if ours_node.record_text != fresh_node.record_text:
        return "its allocation record differs"
    if ours_node.allocations.by_uid != fresh_node.allocations.by_uid:
        pods = _pods_with_different_allocations(ours_node.allocations.by_uid, fresh_node.allocations.by_uid)
        return f"the allocations of pods differ: {', '.join(pods[:5])}"
    # after the allocations, because units without a known place follow them
    if ours_node.gpus != fresh_node.gpus:
        ours_names, listed = shown(ours_node.gpus.names), shown(fresh_node.gpus.names)
        return f"its GPUs or their properties differ: {ours_names} in memory, {listed} in the list"
    if _layout_column(name, ours) != _layout_column(name, fresh):
        return "the free amounts of its GPUs or its CPU are out of date"
    return ""


def _pods_with_different_allocations(
    held: Mapping[str, PodAllocation], listed: Mapping[str, PodAllocation]
) -> list[str]:
    """The pods with different allocations, in the order of their uids."""
    uids = sorted(uid for uid in held.keys() | listed.keys() if held.get(uid) != listed.get(uid))
    return [(held.get(uid) or listed[uid]).pod for uid in uids]


def _layout_column(name: str, agent_state: GpuState) -> Mapping[str, Any]:
    """The column of the node in the layout, from which requests are answered."""
    row = agent_state.rows.get(name)
    if row is None:
        return {}
    layout = agent_state.layout
    count = len(layout.gpus(row))
    free = {
        resource: cells[:count, row].tolist()
        for resource, cells in layout.free.items()
        if layout.capacity[resource][:count, row].any()
    }
    cpu_free = None if agent_state.cpu_free is None else int(agent_state.cpu_free[row])
    usable = layout.usable[:count, row].tolist()
    return {"cards": layout.gpus(row), "usable": usable, "free": free, "cpu_free": cpu_free}


_REACH_S: Final = 150.0
"""The timeout for watches to catch up: a watch without events reports its version every minute."""
_LOOK_S: Final = 0.5
_MOST_LOGGED: Final = 10
"""The most differences that are logged individually."""


class ConsistencyChecker:
    """Compares the agent state with a fresh list periodically, and relists everything where they differ."""

    def __init__(self, options: GpuOptions, profile: ResourceProfile, handle: Handle) -> None:
        self._period_s = options.gpu_check_period_s
        self._profile = profile
        self._handle = handle

    async def run(self) -> None:
        """Check forever. A check that fails is logged, and the next one follows after the period."""
        while self._period_s:
            await self._handle.clock.sleep(self._period_s)
            try:
                await self.check()
            except NodewiseError as error:
                self._count_check_outcome("undecided")
                logs.emit("books_unchecked", error=str(error))

    async def check(self) -> None:
        """Check once. Raises NodewiseError if the list fails."""
        differences = await self._compare_with_fresh_list()
        if differences is None:
            self._count_check_outcome("undecided")
            return
        self._count_check_outcome("different" if differences else "same")
        if differences:
            for difference in differences[:_MOST_LOGGED]:
                logs.emit("books_differ", node=difference.node, what=difference.what, nodes=len(differences))
            self._handle.relister.begin()

    def _count_check_outcome(self, outcome: str) -> None:
        self._handle.metrics_registry.count("gpu_checks_total", outcome=outcome)

    async def _compare_with_fresh_list(self) -> list[NodeDifference] | None:
        """The differences; None if the watches do not report their versions."""
        stores: dict[str, Store[Any]] = {NODES: self._handle.nodes, **self._handle.objects}
        listener = _ChangeListener(stores)
        try:
            fresh = {
                name: await self._handle.relister.read(name) for name in (NODES, ALLOCATION_RECORDS, PODS)
            }
            if not await self._wait_for_versions(stores, fresh):
                return None
            ours = await self._agent_state_after(self._handle.clock.now())
            if ours is None:
                return None
            computed = await self._agent_state_of_list(fresh)
            return await cooperative_scheduling.run(
                differences(ours, computed, listener.changes, self._stored_record_text)
            )
        finally:
            listener.end()

    async def _wait_for_versions(
        self, stores: Mapping[str, Store[Any]], fresh: Mapping[str, Store[Any]]
    ) -> bool:
        """Wait until the watches reach the versions of the lists."""
        versions = {name: store.resource_version for name, store in fresh.items()}
        if not all(version.isdecimal() for version in versions.values()):
            return False

        def is_reached() -> bool:
            known = {name: stores[name].resource_version for name in versions}
            return all(
                known[name].isdecimal() and int(known[name]) >= int(version)
                for name, version in versions.items()
            )

        return await self._wait_until(is_reached)

    async def _agent_state_after(self, now: float) -> GpuState | None:
        """The agent state of a snapshot that includes everything known now."""
        await self._wait_until(lambda: self._handle.snapshot().at >= now)
        snapshot = self._handle.snapshot()
        agent_state: GpuState | None = snapshot.agent_states.get(NAME)
        return agent_state if snapshot.at >= now else None

    async def _wait_until(self, is_so: Callable[[], bool]) -> bool:
        clock = self._handle.clock
        until_s = clock.monotonic() + _REACH_S
        while not is_so() and clock.monotonic() < until_s:
            await clock.sleep(_LOOK_S)
        return is_so()

    async def _agent_state_of_list(self, fresh: Mapping[str, Store[Any]]) -> GpuState:
        """The agent state that follows from listed objects alone."""
        nodes = fresh[NODES].snapshot()
        objects = {name: fresh[name].snapshot() for name in (PODS, ALLOCATION_RECORDS)}
        versions = {name: fresh[name].resource_version for name in objects}
        index = NodeIndex(tuple(name for _, name in nodes))
        cluster_state = ClusterState(
            index, objects, MetricsSnapshot(), self._handle.clock.now(), nodes, versions
        )
        return await cooperative_scheduling.run(GpuStateBuilder(self._profile).build(cluster_state))

    def _stored_record_text(self, node: str) -> str:
        return record_text(
            self._handle.objects[ALLOCATION_RECORDS].get(self._handle.namespace, f"{RECORD_PREFIX}{node}")
        )


class _ChangeListener:
    """Notes the objects of watch events."""

    def __init__(self, stores: Mapping[str, Store[Any]]) -> None:
        self.changes = ObservedChanges(set(), set())
        notes = {NODES: self.changes.node, ALLOCATION_RECORDS: self.changes.record, PODS: self.changes.pod}
        self._ends = [stores[name].subscribe(self._make_change_handler(note)) for name, note in notes.items()]

    def end(self) -> None:
        for end in self._ends:
            end()

    def _make_change_handler(self, note: Callable[[Any], None]) -> Callable[[Changes[Any] | None], None]:
        def note_all(changes: Changes[Any] | None) -> None:
            for change in (changes or {}).values():
                for item in change:
                    if item is not None:
                        note(item)

        return note_all
