"""Controllers, which write to the API server: of nodewise's own agents, and of tasks of the leader without an agent.

Not part of the public contract.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from nodewise.agent import AgentKind, ObjectKey, Snapshot, Watched
from nodewise.base.clock import Clock
from nodewise.base.option import SettingsByGroup
from nodewise.kube.api_server_interface import DEADLINE_S, Api
from nodewise.kube.event_recorder import EventRecorder
from nodewise.kube.shard_election import Tenure
from nodewise.kube.store import Store
from nodewise.metrics.metrics_source import MetricsSource
from nodewise.observe.metrics_registry import MetricsRegistry


class WriteCounter:
    """A count that one task increments and another reads."""

    def __init__(self) -> None:
        self.count = 0


class ReservationCleaner(Protocol):
    """Removes reservations from the allocation records of nodes, apart from binds.

    After any kind of `NodewiseError` it is unknown what was done.
    """

    async def drop(self, node: str, pod: ObjectKey, uid: str, pod_version: str) -> bool:
        """Remove a pod's reservation if it was planned on that version of the pod, unless the pod is on the node.

        This reads the pod from the API server, and changes it first where a Binding may still be on its way. Returns
        whether the pod is not on the node.
        """
        ...

    async def prune(self, node: str, pod_versions: Mapping[str, str]) -> None:
        """Remove reservations that no longer count; by pod uid, the version that each was planned on."""
        ...


class Relister(Protocol):
    """Lists the objects of the stores from the API server again."""

    async def read(self, name: str) -> Store[Any]:
        """A new list of `nodes`, or of a name in `Watched`, in a store of its own."""
        ...

    def begin(self) -> None:
        """Fill all stores from new lists, soon, and compute the next snapshot from nothing."""
        ...


class NodeOwnership(Protocol):
    """What this replica is responsible for."""

    @property
    def shards(self) -> int:
        """The number of shards of all replicas."""
        ...

    def own_shards(self) -> frozenset[int]:
        """The shards whose nodes this replica evaluates and writes."""
        ...

    def is_whole(self, at: float) -> bool:
        """Whether a snapshot of this time, in seconds since 1970, has the nodes of all these shards, and no others."""
        ...

    def live_annotations(self) -> Mapping[int, Mapping[str, str]]:
        """By shard that a replica holds, the annotations of its Lease as they were last read."""
        ...

    def tenure(self) -> Tenure:
        """What it holds now."""
        ...

    def write_timeout_s(self, uid: str, at: float) -> float:
        """The seconds within which a write to the node with this uid must have ended, by a snapshot of this time, in
        seconds since 1970; 0 if it may not be written.
        """
        ...


class Handle(NamedTuple):
    """What a controller may use."""

    api: Api
    objects: Mapping[str, Store[Any]]
    """By the name in `Watched`."""
    nodes: Store[Any]
    recorder: EventRecorder
    clock: Clock
    metrics_registry: MetricsRegistry
    node_writes: WriteCounter
    """Counts writes to nodes, each of which kube-scheduler takes for a cluster event."""
    namespace: str
    """nodewise's own namespace."""
    snapshot: Callable[[], Snapshot]
    """Returns the newest snapshot."""
    relister: Relister
    reservations: ReservationCleaner | None
    """None if no agent binds."""
    metadata_api: Api
    """The same API server, for lists, watches and patches whose responses contain only the metadata of objects."""
    ownership: NodeOwnership | None = None
    """None if the leader writes to all nodes."""

    def leads(self) -> bool:
        """Whether this replica does the work of the leader for the whole cluster. Only asked in a step."""
        return self.ownership is None or bool(self.ownership.tenure().lead)

    def node_write_timeout_s(self, node: str, at: float) -> float:
        """The same as `NodeOwnership.write_timeout_s`, by the name of a node; the usual timeout for an unknown node."""
        node_object = self.nodes.get("", node)
        if self.ownership is None or node_object is None:
            return DEADLINE_S
        return min(self.ownership.write_timeout_s(node_object.metadata.uid, at), DEADLINE_S)


class Controller(ABC):
    """Makes the objects on the API server match the snapshot."""

    @abstractmethod
    def begin(self) -> None:
        """Take the lead: discard what is known of the objects, because another leader may have changed them."""

    @abstractmethod
    async def step(self, snapshot: Snapshot) -> None:
        """Write what differs from the snapshot. Called in the leader for new snapshots, one call at a time.

        Raises kinds of `NodewiseError`; the next step tries again.
        """

    def tasks(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Endless tasks for every replica, the leader or not."""
        return ()

    def lease_annotations(self) -> Mapping[str, str]:
        """What the leader's Lease tells about this controller, as annotations."""
        return {}

    def shard_annotations(self, shard: int) -> Mapping[str, str]:  # noqa: ARG002
        """The same for the Lease of a shard that this replica holds, or, for -1, of one that it gives away."""
        return {}


class LeaderTask(ABC):
    """Work of the extender's leader beside the agents, an entry point of the group `nodewise.leader_tasks`.

    Its options are options of the extender, and of the settings file of all commands.
    """

    flag: str
    """The option that enables it, for messages."""
    options: Sequence[type[msgspec.Struct]]
    """The groups of its settings."""

    @abstractmethod
    def is_enabled(self, settings: SettingsByGroup) -> bool: ...

    @abstractmethod
    def node_fields(self) -> type[msgspec.Struct]:
        """The fields of a Node that it reads."""

    @abstractmethod
    def watched(self, settings: SettingsByGroup) -> Sequence[Watched]:
        """The objects that it needs in addition to nodes."""

    @abstractmethod
    def controller(
        self, settings: SettingsByGroup, sources: Sequence[MetricsSource], handle: Handle
    ) -> Controller:
        """Its controller. `sources` are those of metrics, `settings` the groups by type."""


class ControllerKind(AgentKind):
    """An agent that has a controller."""

    @abstractmethod
    def controller(self, options: Any, handle: Handle) -> Controller: ...
