"""Agent states: the cluster state that they are computed from, and the builder that computes them ahead of requests.

Builders work the same way online and offline. They do no I/O and do not read the clock.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.base.quantity import NANO
from nodewise.kube.resource_kinds import Resource
from nodewise.kube.store import Change, Changes, difference
from nodewise.metrics import series
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.node_index import NodeIndex

__all__ = [
    "NODES",
    "Change",
    "Changes",
    "ClusterState",
    "Inputs",
    "MemoryScope",
    "ObjectKey",
    "Snapshot",
    "StateBuilder",
    "StateT",
    "Watched",
    "difference",
]

StateT = TypeVar("StateT")

MemoryScope = Literal["none", "leader", "replica"]
"""Which process stores what a state builder learns: none; the leader, if all replicas see the same; or each replica, if
each sees requests of its own."""

ObjectKey = tuple[str, str]
"""Namespace and name; the namespace is empty for objects that have none."""

NODES: Final = "nodes"
"""The key of node objects in `ClusterState.changes`."""

_MAX_AGE_S: Final = 60.0  # the least maximum age of values whose request has none


class Snapshot(msgspec.Struct, frozen=True):
    """The state from which a request is answered."""

    nodes: NodeIndex
    agent_states: Mapping[str, Any]
    """By agent name, the state that its `StateBuilder` computed. An agent has none until its stores are synced, and
    after a failed build."""
    at: float
    """The time at which it was computed, seconds since 1970."""
    generation: int = 0


class ClusterState(msgspec.Struct, frozen=True):
    """The inputs of agent states: nodes, objects and metrics of one instant."""

    nodes: NodeIndex
    objects: Mapping[str, Mapping[ObjectKey, Any]]
    """By the name in `Watched`: the objects, decoded as the agent declared."""
    metrics: MetricsSnapshot
    now: float
    node_objects: Mapping[ObjectKey, Any] = {}
    """The nodes of the index, with the fields that agents declared; empty if no agent state reads them."""
    versions: Mapping[str, str] = {}
    """By the name in `Watched`: the API server's version of the objects, which include all changes up to it.

    Whole numbers that grow (KEP-5504) where the server is a Kubernetes API server; empty for objects of files.
    """
    changes: Mapping[str, Changes[Any]] | None = None
    """By the name in `Watched`, of nodes by `NODES`: the changes since the cluster state of the builder's last build.

    None: everything is new, and the builder starts from nothing: at the start, after a failed build, on a resync, and
    offline.
    """

    def metric_values(self, request: MetricRequest) -> Generator[None, None, NDArray[np.float64]]:
        """A metric of `StateBuilder.metric_requests` by node number, one entry more for the unknown node.

        Yields between its parts. NaN for nodes without a fresh value: never fetched, missing, invalid, or older than
        `max_age_s` of the request, by default 60 s or 2.5 times the distance of samples.
        """
        metric = self.metrics.series.get(request.key)
        if metric is None:
            return np.full(len(self.nodes) + 1, np.nan)
        column = yield from series.build_column(metric, self.nodes)
        max_age_s = request.max_age_s or series.derived_max_age_s(_MAX_AGE_S, column.sample_distance_s)
        fresh = column.states(self.now, max_age_s) == series.ValueState.FRESH
        values: NDArray[np.float64] = np.where(fresh, column.values, np.nan).astype(np.float64) / NANO
        return values

    def changes_of(self, name: str) -> Iterable[tuple[ObjectKey, Change[Any]]]:
        """The changes of one kind of object; if everything is new, all objects as added."""
        if self.changes is not None:
            return self.changes.get(name, {}).items()
        objects = self.node_objects if name == NODES else self.objects.get(name, {})
        return ((key, Change(None, item)) for key, item in objects.items())


class Watched(NamedTuple):
    """A kind of object that an agent needs."""

    name: str
    """Its key in `ClusterState.objects`; not `nodes`."""
    resource: Resource
    type: type[msgspec.Struct]
    keep: Callable[[Any], Any | None] | None = None
    """Returns what to store of an object, or None to store nothing. Without it, the whole object is stored.

    It must depend on the object only.
    """
    own_namespace: bool = False
    """Whether only objects in nodewise's own namespace count, where tenants cannot write."""
    selectors: Mapping[str, str] = {}
    """`fieldSelector` and `labelSelector`, as in the API. They do not apply to objects of files."""
    is_optional: bool = False
    """Whether there are no objects, instead of an error, if the API server does not serve the kind or refuses it."""


class Inputs(NamedTuple):
    """What an agent state depends on in addition to the node index.

    It is computed again after a change of any of these, and once a refresh period because values age.
    """

    objects: frozenset[str]
    """By the name in `Watched`."""
    node_objects: bool = False
    metrics: bool = True


class StateBuilder(ABC, Generic[StateT]):
    """Computes the agent's state. The methods after `build` are optional."""

    inputs: Inputs
    memory_scope: MemoryScope = "none"

    def metric_requests(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[MetricRequest]:  # noqa: ARG002
        """The metrics to be fetched, for these objects."""
        return frozenset()

    def problems(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> Mapping[str, tuple[str, ...]]:  # noqa: ARG002
        """The problems of these objects, by the object's name; only of those with problems."""
        return {}

    @abstractmethod
    def build(self, cluster_state: ClusterState) -> Generator[None, None, StateT]:
        """Compute the state; yields between its parts, so that the event loop can go on.

        A state that was returned must not change any more: requests are answered from it.
        """

    def count_request(self, pod: Any) -> None:
        """Count the pod of a prioritize call. The same pod may come again and counts once.

        Agent states refer to the counts, so the next response takes the pod into account.
        """

    def count_prioritized(self, pod: Any, nodes: NDArray[np.intp]) -> None:
        """Count a pod whose nodes were scored: `nodes` are the numbers of those with the best score of all agents.

        It is on its way to one of them, or to none. Only nodewise's own agents are told.
        """

    def recall(self, kept: bytes) -> None:
        """Restore a memory that an earlier process or another replica stored. After `BadInput` nothing has changed.

        It is also called with bytes that `keep` returned, once they are stored: from then on they are not new any more.
        """

    def keep(self, kept: bytes | None) -> bytes | None:  # noqa: ARG002
        """The memory to store, as JSON: the stored one (`kept`) with what is new since then; None if nothing is new.

        It is written by compare-and-swap. After a conflict this is called again with what the other writer stored.
        """
        return None
