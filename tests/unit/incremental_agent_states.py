"""Builds agent states from one cluster state after another, with the changes between them, as `SnapshotCache` does."""

from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from nodewise.agent import ClusterState, StateBuilder
from nodewise.agent.state import NODES
from nodewise.base import cooperative_scheduling
from nodewise.kube.store import difference

_last: WeakKeyDictionary[Any, ClusterState] = WeakKeyDictionary()
"""The cluster state of the last build of each builder."""


def built(builder: StateBuilder, cluster_state: ClusterState) -> Any:
    """The next agent state of the builder."""
    agent_state = cooperative_scheduling.run_without_pauses(
        builder.build(changed(_last.get(builder), cluster_state))
    )
    _last[builder] = cluster_state
    return agent_state


def changed(before: ClusterState | None, after: ClusterState) -> ClusterState:
    """The later cluster state with its changes. Without an earlier cluster state, all objects are new."""
    if before is None:
        return msgspec.structs.replace(after, changes=None)
    changes = {
        name: difference(before.objects.get(name, {}), after.objects.get(name, {}))
        for name in {**before.objects, **after.objects}
    }
    changes[NODES] = difference(before.node_objects, after.node_objects)
    return msgspec.structs.replace(after, changes=changes)
