"""Compares the allocations in memory with those of a fresh list while the cluster keeps changing.

The comparison covers only objects that do not change during it. From before the list begins, all watch events are
noted, and the comparison waits until the watches reach the version of the list. An object without an event in between
has the same version in memory and in the list; otherwise an event was missed. Nodes that changed, whose pods changed or
whose allocation record changed are left to the next comparison, and so are nodes with a reservation in progress.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from nodewise.agent import ObjectKey
from nodewise.agents.gpu import allocation_record
from nodewise.agents.gpu.node_allocations import PodAllocation
from nodewise.agents.gpu.state import RECORD_PREFIX, GpuState, NodeState
from nodewise.base.errors import shown


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
