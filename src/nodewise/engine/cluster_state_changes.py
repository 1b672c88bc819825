"""Changes of cluster states: which agent states they rebuild, and their reports to subscribers.

Online and replayed states are built in the same steps. A change of pods, 80 times a second, rebuilds no state of an
agent that reads no pods.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import ClusterState, NodeIndex, ObjectKey, StateBuilder
from nodewise.agent.state import NODES
from nodewise.base import cooperative_scheduling
from nodewise.kube.store import Change, Changes
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.observe import logs

_FAILED: Final = object()


class _Built(NamedTuple):
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
        changed = {kind for kind, changes in (cluster_state.changes or {}).items() if changes}
        return [name for name in self._builders if self._must_rebuild_state(name, cluster_state, changed)]

    def _must_rebuild_state(self, name: str, cluster_state: ClusterState, changed_kinds: set[str]) -> bool:
        inputs, built = self._builders[name].inputs, self._built.get(name)
        return (
            built is None
            or not 0 <= cluster_state.now - built.at < self._period_s
            or built.nodes is not cluster_state.nodes
            or (inputs.metrics and built.metrics is not cluster_state.metrics)
            or cluster_state.changes is None
            or not inputs.objects.isdisjoint(changed_kinds)
            or (inputs.node_objects and NODES in changed_kinds)
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


Subscriber = Callable[[ClusterState, int], None]
"""Receives a cluster state and the generation of the snapshot that is made of it."""


class Override(NamedTuple):
    """An object that a snapshot takes into account before the store has it."""

    name: str
    """In `Watched`."""
    key: ObjectKey
    item: Any | None
    """None: there is no such object."""


class ClusterStateReports:
    """Reports each cluster state to subscribers, with the changes since the one that was reported before.

    An amendment during a publish reports the older cluster state once more, so neither the order of reports nor the
    changes are those in which the stores changed.
    """

    def __init__(self) -> None:
        self.subscribers: list[Subscriber] = []
        self._generation = 0
        self._reported: ClusterState | None = None
        self._candidates: dict[str, set[ObjectKey]] = {}
        """Objects in which the next cluster state may differ from the reported one."""

    def restart(self) -> None:
        """Report the next cluster state as new."""
        self._reported, self._candidates = None, {}

    def note(self, name: str, keys: Iterable[ObjectKey]) -> None:
        if self.subscribers:
            self._candidates.setdefault(name, set()).update(keys)

    def report(self, cluster_state: ClusterState, overrides: Sequence[Override] = ()) -> int:
        """The generation of the snapshot that is made of the cluster state."""
        self._generation += 1
        if self.subscribers:
            self._note_override_changes(overrides)
            cluster_state = _apply_overrides(cluster_state, overrides)
            changes = self._object_changes_between(self._reported, cluster_state) if self._reported else None
            self._reported = msgspec.structs.replace(cluster_state, changes=changes)
            for subscriber in self.subscribers:
                subscriber(self._reported, self._generation)
        return self._generation

    def settle(self, overrides: Iterable[Override]) -> None:
        """The reported cluster state is the newest one from the stores, but for overrides."""
        self._candidates = {}
        self._note_override_changes(overrides)

    def _note_override_changes(self, overrides: Iterable[Override]) -> None:
        for override in overrides:
            self.note(override.name, [override.key])

    def _object_changes_between(self, before: ClusterState, after: ClusterState) -> dict[str, Changes[Any]]:
        changes: dict[str, Changes[Any]] = {}
        for name, keys in self._candidates.items():
            old, new = _objects_of_kind(before, name), _objects_of_kind(after, name)
            pairs = {key: Change(old.get(key), new.get(key)) for key in keys}
            changes[name] = {key: change for key, change in pairs.items() if change.old is not change.new}
        return changes


def _objects_of_kind(cluster_state: ClusterState, name: str) -> Mapping[ObjectKey, Any]:
    return cluster_state.node_objects if name == NODES else cluster_state.objects.get(name, {})


def _apply_overrides(cluster_state: ClusterState, overrides: Sequence[Override]) -> ClusterState:
    """The cluster state with other objects, the last of each."""
    objects: dict[str, dict[ObjectKey, Any]] = {}
    for name, key, item in overrides:
        if name not in objects:
            objects[name] = dict(cluster_state.objects.get(name, {}))
        if item is None:
            objects[name].pop(key, None)
        else:
            objects[name][key] = item
    return msgspec.structs.replace(cluster_state, objects={**cluster_state.objects, **objects})
