"""What an agent computes its state from, and the builder that computes it while no request waits.

It is the same online and offline. Nothing here does I/O or reads the clock.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from nodewise.kube.resources import Resource
from nodewise.kube.store import Change, Changes, difference
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.source import MetricRequest

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
"""Which process stores what a state builder learns: none; the leader, as all replicas see the same; or each replica,
as each has news of its own."""

ObjectKey = tuple[str, str]
"""Namespace and name; the namespace is empty for objects that have none."""

NODES: Final = "nodes"
"""The key of node objects in `ClusterState.changes`."""


class Snapshot(msgspec.Struct, frozen=True):
    """What one request is answered from."""

    nodes: NodeIndex
    agent_states: Mapping[str, Any]
    """By agent name: what its `StateBuilder` computed. An agent whose stores are not synced yet has none."""
    at: float
    """Seconds since 1970 when it was computed."""
    generation: int = 0


class ClusterState(msgspec.Struct, frozen=True):
    """What agent states are computed from."""

    nodes: NodeIndex
    objects: Mapping[str, Mapping[ObjectKey, Any]]
    """By the name in `Watched`: the objects, decoded as the agent declared."""
    metrics: MetricsSnapshot
    now: float
    node_objects: Mapping[ObjectKey, Any] = {}
    """The nodes of the index, with the fields that agents declared; empty where no agent's state reads them."""
    versions: Mapping[str, str] = {}
    """By the name in `Watched`: the API server's version until which everything that happened is in the objects.

    Whole numbers that grow (KEP-5504) where the server is a Kubernetes API server; empty for objects of files.
    """
    changes: Mapping[str, Changes[Any]] | None = None
    """By the name in `Watched`, of nodes by `NODES`: the changes since the cluster state of the builder's last build.

    None: everything is new, and the builder starts from nothing. That is so at the start, after a failed build, on a
    resync, and offline.
    """

    def changes_of(self, name: str) -> Iterable[tuple[ObjectKey, Change[Any]]]:
        """The changes of one kind; where everything is new, all objects as added."""
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
    """What is stored of an object, None for nothing; without this function all of it. It depends on the object only."""
    own_namespace: bool = False
    """Whether only those in nodewise's own namespace count, where no tenant writes."""
    selectors: Mapping[str, str] = {}
    """`fieldSelector` and `labelSelector`, as the API takes them; objects of files are not selected."""


class Inputs(NamedTuple):
    """What an agent state depends on besides the node index. It is computed again when one of these changed.

    And once a refresh period, as values grow old.
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

    def asked(self, pod: Any) -> None:
        """Count a pod about which a prioritize call was answered. It may come again, and counts once.

        The states refer to the counts, so that the next answer includes it.
        """

    def recall(self, kept: bytes) -> None:
        """Restore what an earlier process or another replica kept. `BadInput` if it cannot be read: nothing changed.

        Bytes that `keep` returned are stored now: their news are no longer news, later ones are.
        """

    def keep(self, kept: bytes | None) -> bytes | None:  # noqa: ARG002
        """The memory to store, as JSON: what is stored now, with the news since then; None without news.

        It is written by compare-and-swap; after a conflict this is called again with what the other writer stored.
        """
        return None
