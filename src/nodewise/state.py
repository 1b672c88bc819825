"""What an agent computes its state from, and the builder that computes it while no request waits.

Objects and samples in, a slot out, the same way online and offline. Nothing here does I/O or asks what time it is.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from nodewise.kube.resources import Resource
from nodewise.metrics.index import NodeIndex
from nodewise.metrics.snapshot import MetricsSnapshot
from nodewise.metrics.source import Want

ObjectKey = tuple[str, str]
"""Namespace and name; the namespace is empty for objects that have none."""


class Snapshot(msgspec.Struct, frozen=True):
    """The world as one request sees it, from beginning to end."""

    nodes: NodeIndex
    agent_states: Mapping[str, Any]
    """By agent name: what its `State` computed. An agent whose stores are not synced yet has no slot."""
    at: float
    """Seconds since 1970 when it was computed."""
    generation: int = 0


class ClusterState(msgspec.Struct, frozen=True):
    """What an agent's slot is computed from."""

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


class Watched(NamedTuple):
    """A kind of object that an agent needs."""

    name: str
    """Its key in `World.objects`; not `nodes`."""
    resource: Resource
    type: type[msgspec.Struct]
    keep: Callable[[Any], Any | None] | None = None
    """What is held of an object, None for nothing; without it all of each. It looks at the object alone."""
    own_namespace: bool = False
    """Whether only those in nodewise's own namespace count, where no tenant writes."""
    selectors: Mapping[str, str] = {}
    """`fieldSelector` and `labelSelector`, as the API takes them; objects of files are not selected."""


class Inputs(NamedTuple):
    """What a slot depends on besides the node index. It is computed again when one of these changed.

    And once a refresh period, as values grow old.
    """

    objects: frozenset[str]
    """By the name in `Watched`."""
    node_objects: bool = False
    metrics: bool = True


class StateBuilder(Protocol):
    """Objects and samples in, a slot of the snapshot out."""

    inputs: Inputs

    def wants(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[Want]:
        """The metrics that these objects name."""
        ...

    def problems(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> Mapping[str, tuple[str, ...]]:
        """What is wrong with these objects, in words, by the object's name; only those with problems."""
        ...

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Any]:
        """Compute the slot; yields between its parts, so that the event loop can go on."""
        ...


@runtime_checkable
class Counting(Protocol):
    """What an `StateBuilder` has besides whose answers rest on the pods that were asked about before.

    Its slots refer to what it counts, so that the next answer knows it.
    """

    def asked(self, pod: Any) -> None:
        """A prioritize call about the pod was answered; it may be asked again, and counts once."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """What an `StateBuilder` has besides whose slots rest on what must outlive the process."""

    each_replica_learns: bool
    """Whether every replica has news of its own to keep; else all see the same, and the leader keeps it."""

    def recall(self, kept: bytes) -> None:
        """What was kept, by an earlier process or another replica. `BadInput` if it cannot be read: nothing changed.

        Bytes that `keep` gave: they are kept now, and the news in them are none any more. What came since stays news.
        """
        ...

    def keep(self, kept: bytes | None) -> bytes | None:
        """What is to be kept, as JSON: what is kept now, with the news since then; None where there is no news.

        It is written by compare-and-swap; if somebody else was faster, asked again with what that one wrote.
        """
        ...


@runtime_checkable
class Forgetting(Protocol):
    """What an `StateBuilder` has besides that computes only what changed."""

    def forget(self) -> None:
        """Compute the next slot from nothing."""
        ...
