"""The contract of an agent that keeps books: what a pod holds on a node stands in the node's ledger before it is bound.

A ledger is a Lease in our own namespace, one a node. No I/O here either: `extender.binding` and `extender.claims` read,
write and repeat.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from nodewise.agent import Reason, Snapshot

HOLDINGS: Final = "nodewise.io/holdings"
"""The annotation of a ledger Lease: a JSON object, by pod uid, of what the pod holds on the node."""
LEDGER: Final = "nodewise.io/ledger"
"""The label of a ledger Lease; its value is the agent's name."""


class LedgerMetadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's name
    annotations: dict[str, str] | None = None


class LedgerLease(msgspec.Struct, frozen=True):
    """The Lease `<agent>-<node>` in our own namespace, in whose `HOLDINGS` stands what pods hold on that node."""

    metadata: LedgerMetadata


class Amending(Protocol):
    """What the `StateBuilder` of a `Binder` has besides."""

    def amended(self, agent_state: Any, node: str, ledger: LedgerLease | None) -> Any:
        """The slot with another ledger of one node, at once; None: it has none. The slot given stays as it was.

        The ledger may hold entries that are about to be written. The same ledger as before gives the same slot.
        """
        ...


class BindingMetadata(msgspec.Struct, frozen=True):
    resourceVersion: str = ""  # noqa: N815 - the API's name
    annotations: dict[str, str] | None = None


class BindingSpec(msgspec.Struct, frozen=True):
    nodeName: str = ""  # noqa: N815 - the API's name


class BindingFields(msgspec.Struct, frozen=True):
    """What is read of a pod to bind it."""

    metadata: BindingMetadata = BindingMetadata()
    spec: BindingSpec = BindingSpec()


class BindPlan(NamedTuple):
    """What a pod is to hold on a node. `extender.binding` writes it into the ledger, and then binds the pod."""

    entry: Mapping[str, Any]
    """For the ledger, under the pod's uid; JSON. It counts from the moment at which it is written."""
    annotations: Mapping[str, str]
    """Of the pod, carried by its Binding."""
    stale: frozenset[str]
    """Pod uids whose entries in this node's ledger no longer count: the same write takes them out."""
    told: str
    """What the pod holds, in words: `train: card0, card1`."""


class Refusal(NamedTuple):
    """Why a pod cannot be bound to a node."""

    error: str
    """What kube-scheduler is answered."""
    reason: Reason


class Binder(Protocol):
    """What an agent has besides `Agent` that keeps a ledger: pods that need it are bound by nodewise."""

    name: str
    ledgers: str
    """The name in `Watched` of its ledgers, `LedgerLease` objects."""
    pods: str
    """The name in `Watched` of pods; a pod has at least `BindingFields`."""

    @property
    def bind_errors(self) -> Literal["status", "field"]:
        """How kube-scheduler is told that a pod is not bound: by status 404, or by status 200 and words."""
        ...

    def bind(self, pod: Any, node: str, snapshot: Snapshot, now: float) -> BindPlan | Refusal | None:
        """What the pod would hold there. None: nothing, it needs no entry. A pod that has one keeps what it holds."""
        ...
