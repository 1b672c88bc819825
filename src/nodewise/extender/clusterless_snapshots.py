"""Snapshots without a cluster: each request carries its nodes, and its snapshot has these nodes only.

The same `StateBuilder`s as in a cluster compute the agent states; what they count stays from request to request.
Agents that need other objects than nodes cannot run without a cluster.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodewise.agent import AgentKind, ClusterState, NodeIndex, ObjectKey, Snapshot, StateBuilder
from nodewise.base.errors import BadSettings, Problem
from nodewise.engine import cluster_state_changes
from nodewise.extender import wire_format
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.observe import logs


def reject_agents_that_need_cluster(kinds: Sequence[AgentKind], options: Mapping[str, Any]) -> None:
    """Raise `BadSettings` for agents that need a cluster, with the objects that they read."""
    problems = []
    for kind in kinds:
        if watched := kind.watched(options[kind.name]):
            needed = ", ".join(entry.resource.plural for entry in watched)
            problems.append(Problem("--no-cluster", f"agent {kind.name}", f"a cluster: it reads {needed}"))
    if problems:
        raise BadSettings("settings", problems)


def reject_agents_that_need_metrics(states: Mapping[str, StateBuilder[Any]]) -> None:
    """Raise `BadSettings` for agents that need metrics, because requests carry none."""
    problems = []
    for name, state in states.items():
        if wanted := sorted(metric_request.metric for metric_request in state.metric_requests({})):
            needed = f"a cluster: a request brings no metrics, such as {wanted[0]}"
            problems.append(Problem("--no-cluster", f"agent {name}", needed))
    if problems:
        raise BadSettings("settings", problems)


_MAX_EARLIER_NODES: Final = 5000
"""Nodes of earlier requests that are kept, the newest ones."""


class ClusterlessSnapshots:
    """Makes a snapshot of each request's own nodes.

    kube-scheduler's preempt requests carry no nodes, so they use those of earlier requests. Without them pods would be
    evicted again and again from a node that the agents reject afterwards.
    """

    def __init__(self, kinds: Sequence[AgentKind], states: Mapping[str, StateBuilder[Any]]) -> None:
        self._states = states
        self._decoder = wire_format.NodeDecoder(merge("Node", *(kind.node_fields for kind in kinds)))
        self._number = 0
        self._warned = False
        self._earlier_nodes: dict[ObjectKey, Any] = {}
        """By key, the nodes of earlier requests."""

    def snapshot(self, body: bytes | None, now: float) -> Snapshot:
        """The snapshot of a request with this body. `BadInput` names the node that cannot be read.

        For names without nodes all statistics are missing. Without a body there are neither nodes nor agent states.
        """
        if body is None:
            return Snapshot(NodeIndex(), {}, now)
        received = self._decoder.nodes(body)
        nodes = {("", node.metadata.name): node for node in received or ()}
        if received is None and not self._warned:
            self._warned = True
            logs.emit("nodes_unknown")
        for key, node in nodes.items():
            self._earlier_nodes.pop(key, None)
            self._earlier_nodes[key] = node
        while len(self._earlier_nodes) > _MAX_EARLIER_NODES:
            del self._earlier_nodes[next(iter(self._earlier_nodes))]
        if not nodes and received is not None:
            nodes = dict(self._earlier_nodes)
        cluster_state = ClusterState(NodeIndex(name for _, name in nodes), {}, MetricsSnapshot(), now, nodes)
        agent_states = cluster_state_changes.build_all_agent_states(self._states, cluster_state)
        self._number += 1
        return Snapshot(cluster_state.nodes, agent_states, now, self._number)
