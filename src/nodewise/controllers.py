"""Controllers: the part of nodewise's own agents that writes to the API server. Not part of the public contract."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from nodewise.agent import AgentKind, ObjectKey, Snapshot
from nodewise.clock import Clock
from nodewise.kube.api import Api
from nodewise.kube.event_recorder import Recorder
from nodewise.kube.store import Store
from nodewise.observe.metrics_registry import MetricsRegistry


class WriteCounter:
    """A count that one task increments and another reads."""

    def __init__(self) -> None:
        self.count = 0


class ReservationCleaner(Protocol):
    """Removes reservations from the allocation records of nodes, apart from binds.

    After any kind of `NodewiseError` it is unknown what was done.
    """

    async def drop(self, node: str, pod: ObjectKey, uid: str, seen: str) -> bool:
        """Remove a pod's reservation if it was planned on that version of the pod, unless the pod is on the node.

        This asks the API server about the pod, and changes the pod first where a Binding may still be on its way.
        Returns whether the reservation was to be removed.
        """
        ...

    async def prune(self, node: str, entries: Mapping[str, str]) -> None:
        """Remove reservations that no longer count; by pod uid, the version that each was planned on."""
        ...


class Relister(Protocol):
    """Lists what the stores hold from the API server again."""

    async def read(self, name: str) -> Store[Any]:
        """A list of `nodes`, or of a name in `Watched`, apart from the store that is kept up to date."""
        ...

    def begin(self) -> None:
        """Fill all stores from new lists, soon, and compute the next snapshot from nothing."""
        ...


class Handle(NamedTuple):
    """What a controller may use."""

    api: Api
    objects: Mapping[str, Store[Any]]
    """By the name in `Watched`."""
    nodes: Store[Any]
    recorder: Recorder
    clock: Clock
    meters: MetricsRegistry
    node_writes: WriteCounter
    """Writes to nodes that kube-scheduler takes for an event."""
    namespace: str
    """nodewise's own namespace."""
    snapshot: Callable[[], Snapshot]
    """The newest."""
    relister: Relister
    reservations: ReservationCleaner | None
    """None where no agent binds."""


class Controller(ABC):
    """Makes true in the API server what a snapshot says."""

    @abstractmethod
    def begin(self) -> None:
        """Take the lead. Another leader may have changed what was known before."""

    @abstractmethod
    async def step(self, snapshot: Snapshot) -> None:
        """Write what differs from the snapshot. Called after each new snapshot, in the leader, one call at a time.

        Errors are kinds of `NodewiseError`; the next step tries again.
        """

    def tasks(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Endless tasks for every replica, whichever leads."""
        return ()


class ControllerKind(AgentKind):
    """An agent that has a controller."""

    @abstractmethod
    def controller(self, options: Any, handle: Handle) -> Controller: ...
