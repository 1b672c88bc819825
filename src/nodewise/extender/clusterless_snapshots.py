"""Snapshots without a cluster: each request brings its nodes, and a snapshot is made of them for that request only.

Agent states come from the same `StateBuilder`s as in a cluster. What a builder counts is kept
from request to request.
Agents that need other objects than nodes cannot be served like this.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodewise.agent import AgentKind, ClusterState, NodeIndex, ObjectKey, Snapshot, StateBuilder
from nodewise.errors import BadSettings, Problem
from nodewise.extender import agent_states, wire_format
from nodewise.kube.field_merge import merge
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.observe import logs


def check(kinds: Sequence[AgentKind], options: Mapping[str, Any]) -> None:
    """`BadSettings` names the agents that need a cluster, and what of it."""
    problems = []
    for kind in kinds:
        if watched := kind.watched(options[kind.name]):
            needed = ", ".join(entry.resource.plural for entry in watched)
            problems.append(Problem("--no-cluster", f"agent {kind.name}", f"a cluster: it reads {needed}"))
    if problems:
        raise BadSettings("settings", problems)


def check_metrics(states: Mapping[str, StateBuilder[Any]]) -> None:
    """`BadSettings` names the agents that go by metrics: a request brings none, so all would be missing for ever."""
    problems = []
    for name, state in states.items():
        if wanted := sorted(metric_request.metric for metric_request in state.metric_requests({})):
            needed = f"a cluster: a request brings no metrics, such as {wanted[0]}"
            problems.append(Problem("--no-cluster", f"agent {name}", needed))
    if problems:
        raise BadSettings("settings", problems)


_REMEMBERED: Final = 5000
"""Nodes of earlier requests, the newest."""


class ClusterlessSnapshots:
    """Makes a snapshot of each request's own nodes.

    kube-scheduler's preempt requests bring none, so they go by those of earlier ones: else pods would be evicted from
    a node that is rejected afterwards, again and again.
    """

    def __init__(self, kinds: Sequence[AgentKind], states: Mapping[str, StateBuilder[Any]]) -> None:
        self._states = states
        self._reader = wire_format.NodeDecoder(merge("Node", *(kind.node_fields for kind in kinds)))
        self._number = 0
        self._warned = False
        self._seen: dict[ObjectKey, Any] = {}
        """By key, the nodes of earlier requests."""

    def snapshot(self, body: bytes | None, now: float) -> Snapshot:
        """`BadInput` names the node that cannot be read. Of names alone nothing is known: statistics are missing.

        Without a body there are neither nodes nor slots.
        """
        if body is None:
            return Snapshot(NodeIndex(), {}, now)
        read = self._reader.nodes(body)
        nodes = {("", node.metadata.name): node for node in read or ()}
        if read is None and not self._warned:
            self._warned = True
            logs.emit("nodes_unknown")
        if nodes:
            self._remember(nodes)
        elif read is not None:
            nodes = dict(self._seen)
        cluster_state = ClusterState(NodeIndex(name for _, name in nodes), {}, MetricsSnapshot(), now, nodes)
        self._number += 1
        return Snapshot(
            cluster_state.nodes, agent_states.all_built(self._states, cluster_state), now, self._number
        )

    def _remember(self, nodes: Mapping[ObjectKey, Any]) -> None:
        for key, node in nodes.items():
            self._seen.pop(key, None)
            self._seen[key] = node
        while len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
