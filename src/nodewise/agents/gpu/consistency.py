"""Whether the books that we keep are those of a fresh list, in a cluster that never stands still.

The two are compared where nothing is in flight: from before the list was begun we note all that the watches tell, and
wait until they have told everything up to the list's own version. Of an object of which nothing was told in between,
what we hold and what was listed are the same version, or else we have missed something. A node whose objects, pods or
ledger were told of is left to the next time, and so is one with a claim that is being written.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from nodewise.agent import ObjectKey
from nodewise.agents.gpu import allocation_record
from nodewise.agents.gpu.node_allocations import PodAllocation
from nodewise.agents.gpu.state import RECORD_PREFIX, GpuState, NodeState
from nodewise.errors import shown


class ObservedChanges(NamedTuple):
    """What the watches have told of since the list was begun."""

    nodes: set[str]
    """Themselves, by their ledgers, or by pods on them."""
    pods: set[ObjectKey]

    def node(self, item: Any) -> None:
        self.nodes.add(item.metadata.name)

    def record(self, item: Any) -> None:
        self.nodes.add(item.metadata.name.removeprefix(RECORD_PREFIX))

    def pod(self, item: Any) -> None:
        self.nodes.add(item.spec.nodeName)
        self.pods.add((item.metadata.namespace, item.metadata.name))


class Difference(NamedTuple):
    """A node of which we hold something else than the list says."""

    node: str
    what: str
    """In words."""


def differences(
    ours: GpuState, fresh: GpuState, told: ObservedChanges, stored: Callable[[str], str]
) -> Generator[None, None, list[Difference]]:
    """Where the slot that we answer from is another than the one computed from the list alone.

    `stored` is the text of a node's ledger as the watch told of it: `ours` may have claims beyond it.
    """
    found = []
    for name in sorted(ours.nodes.keys() | fresh.nodes.keys()):
        one, other = ours.nodes.get(name), fresh.nodes.get(name)
        if name not in told.nodes and (what := _different(name, ours, fresh)):
            held = one.record_text if one else ""
            if held == stored(name) and not _names(one, told) and not _names(other, told):
                found.append(Difference(name, what))
        yield
    return found


def _names(node: NodeState | None, told: ObservedChanges) -> bool:
    """Whether the node's ledger names a pod that was told of, wherever it is."""
    entries = allocation_record.read_text(node.record_text).entries.values() if node else ()
    return any(entry.key in told.pods for entry in entries)


def _different(name: str, ours: GpuState, fresh: GpuState) -> str:
    one, other = ours.nodes.get(name), fresh.nodes.get(name)
    if one is None or other is None:
        return "" if one is other else f"we know {'nothing' if one is None else 'something'} of its cards"
    if one.gpus != other.gpus:
        return f"its cards are {shown(one.gpus.names)}, or what each has is another; listed {shown(other.gpus.names)}"
    if one.record_text != other.record_text:
        return "its ledger is another"
    if one.allocations.by_uid != other.allocations.by_uid:
        pods = _different_pods(one.allocations.by_uid, other.allocations.by_uid)
        return f"what pods hold of it differs: {', '.join(pods[:5])}"
    if _column(name, ours) != _column(name, fresh):
        return "what is free of its cards, or of its CPU, was not brought up to date"
    return ""


def _different_pods(held: Mapping[str, PodAllocation], listed: Mapping[str, PodAllocation]) -> list[str]:
    """The pods that hold something else, in the order of their uids."""
    uids = sorted(uid for uid in held.keys() | listed.keys() if held.get(uid) != listed.get(uid))
    return [(held.get(uid) or listed[uid]).pod for uid in uids]


def _column(name: str, agent_state: GpuState) -> Mapping[str, Any]:
    """What requests are answered from."""
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
