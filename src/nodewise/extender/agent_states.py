"""Which agents' slots have to be computed again for a world, and the newest slot of each. The same online and in a
replay: a change of 20,000 pods, 80 times a second, is nothing to an agent that reads no pods.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from nodewise import cooperative
from nodewise.agent import ClusterState, Inputs, StateBuilder
from nodewise.observe import logs

_LOST: Final = object()


class _Made(NamedTuple):
    """A slot, and what it was computed from."""

    agent_state: Any
    inputs: tuple[Any, ...]
    at: float


class AgentStates:
    """What did not change in a world is the same object as before: nothing large is compared."""

    def __init__(self, states: Mapping[str, StateBuilder[Any]], period_s: float) -> None:
        self._states = states
        self._period_s = period_s
        self._made: dict[str, _Made] = {}

    def due(self, cluster_state: ClusterState) -> list[str]:
        """The agents whose slot is another now, or a period old."""
        return [
            name for name, state in self._states.items() if self._is_due(name, state.inputs, cluster_state)
        ]

    def _is_due(self, name: str, inputs: Inputs, cluster_state: ClusterState) -> bool:
        made = self._made.get(name)
        if made is None or not 0 <= cluster_state.now - made.at < self._period_s:
            return True
        return any(a is not b for a, b in zip(made.inputs, _of(cluster_state, inputs), strict=True))

    def put(self, name: str, cluster_state: ClusterState, agent_state: Any) -> None:
        """The agent's slot, computed from this world."""
        self._made[name] = _Made(
            agent_state, _of(cluster_state, self._states[name].inputs), cluster_state.now
        )

    def lose(self, name: str, cluster_state: ClusterState) -> None:
        """The agent could not compute its slot from this world; it has none until it can."""
        self._made[name] = _Made(_LOST, _of(cluster_state, self._states[name].inputs), cluster_state.now)

    def newest(self) -> dict[str, Any]:
        """By agent; a mapping of the caller's own."""
        return {name: made.agent_state for name, made in self._made.items() if made.agent_state is not _LOST}


def computed(states: Mapping[str, StateBuilder[Any]], cluster_state: ClusterState) -> dict[str, Any]:
    """All slots of a world, at once. An agent that fails has none."""
    found: dict[str, Any] = {}
    for name, state in states.items():
        try:
            found[name] = cooperative.run_at_once(state.build(cluster_state))
        except Exception as error:  # noqa: BLE001 - a defect of one agent must not stop the others
            logs.emit("agent_failed", agent=name, exc_info=error)
    return found


def _of(cluster_state: ClusterState, inputs: Inputs) -> tuple[Any, ...]:
    objects = (cluster_state.objects.get(name) for name in sorted(inputs.objects))
    nodes = cluster_state.node_objects if inputs.node_objects else None
    return cluster_state.nodes, nodes, cluster_state.metrics if inputs.metrics else None, *objects
