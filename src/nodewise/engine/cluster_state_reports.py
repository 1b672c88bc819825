"""Reports cluster states to subscribers, each with its changes and with objects that the stores do not have yet."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from nodewise.agent import ClusterState, ObjectKey
from nodewise.agent.state import NODES
from nodewise.kube.store import Change, Changes

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
            changes = (
                None
                if self._reported is None
                else self._object_changes_between(self._reported, cluster_state)
            )
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
    if not overrides:
        return cluster_state
    objects: dict[str, dict[ObjectKey, Any]] = {
        name: dict(cluster_state.objects.get(name, {})) for name in {override.name for override in overrides}
    }
    for name, key, item in overrides:
        if item is None:
            objects[name].pop(key, None)
        else:
            objects[name][key] = item
    return msgspec.structs.replace(cluster_state, objects={**cluster_state.objects, **objects})
