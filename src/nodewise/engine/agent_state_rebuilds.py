"""The newest state of each agent, and which states have to be built again from a cluster state.

Online and replayed states are built in the same steps. A change of pods, 80 times a second, rebuilds no state of an
agent that reads no pods.
"""

from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import ClusterState, Inputs, NodeIndex, StateBuilder
from nodewise.agent.state import NODES
from nodewise.base import cooperative_scheduling
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.observe import logs

_FAILED: Final = object()


class _Built(NamedTuple):
    """An agent state, with the nodes and metrics that it was built from."""

    agent_state: Any
    nodes: NodeIndex
    metrics: MetricsSnapshot
    at: float


class AgentStates:
    """Builds agent states from one cluster state after another, each with the changes since the one before."""

    def __init__(self, builders: Mapping[str, StateBuilder[Any]], period_s: float) -> None:
        self._builders = builders
        self._period_s = period_s
        self._built: dict[str, _Built] = {}
        self._from_nothing = set(builders)
        """Agents whose next state is not built from changes."""

    def agents_to_rebuild(self, cluster_state: ClusterState) -> list[str]:
        """The agents whose state is built again: an input changed, or the state is a period old."""
        return [name for name in self._builders if self._must_rebuild_state(name, cluster_state)]

    def _must_rebuild_state(self, name: str, cluster_state: ClusterState) -> bool:
        inputs, built = self._builders[name].inputs, self._built.get(name)
        if built is None or not 0 <= cluster_state.now - built.at < self._period_s:
            return True
        if built.nodes is not cluster_state.nodes:
            return True
        if inputs.metrics and built.metrics is not cluster_state.metrics:
            return True
        return cluster_state.changes is None or not input_object_kinds(inputs).isdisjoint(
            kind for kind, changes in cluster_state.changes.items() if changes
        )

    def build(
        self, name: str, cluster_state: ClusterState
    ) -> Generator[Any, None, Mapping[str, tuple[str, ...]]]:
        """Build the agent's state; the result are the problems of its objects, by the object's name.

        An exception of the builder is raised on. The agent then has no state, and its next one is built from nothing.
        """
        builder = self._builders[name]
        if name in self._from_nothing:
            self._from_nothing.discard(name)
            cluster_state = msgspec.structs.replace(cluster_state, changes=None)
        built = _Built(_FAILED, cluster_state.nodes, cluster_state.metrics, cluster_state.now)
        try:
            agent_state = yield from builder.build(cluster_state)
            problems = builder.problems(cluster_state.objects)
        except BaseException:
            self._from_nothing.add(name)
            self._built[name] = built
            raise
        self._built[name] = built._replace(agent_state=agent_state)
        return problems

    def rebuild(self) -> None:
        """Build all next states from nothing; a build that is under way goes on."""
        self._from_nothing = set(self._builders)

    def newest(self) -> dict[str, Any]:
        """By agent; a mapping of the caller's own."""
        return {
            name: built.agent_state for name, built in self._built.items() if built.agent_state is not _FAILED
        }


def input_object_kinds(inputs: Inputs) -> frozenset[str]:
    """The kinds of objects that a builder reads, as keys of `ClusterState.changes`."""
    return inputs.objects | {NODES} if inputs.node_objects else inputs.objects


def build_all_agent_states(
    builders: Mapping[str, StateBuilder[Any]], cluster_state: ClusterState
) -> dict[str, Any]:
    """All agent states of one cluster state. An agent whose builder fails has none."""
    agent_states: dict[str, Any] = {}
    for name, builder in builders.items():
        try:
            agent_states[name] = cooperative_scheduling.run_without_pauses(builder.build(cluster_state))
        except Exception as error:  # noqa: BLE001 - a defect of one agent must not stop the others
            logs.emit("agent_failed", agent=name, exc_info=error)
    return agent_states
