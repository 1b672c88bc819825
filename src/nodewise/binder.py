"""The interface of an agent that allocates devices: an allocation is recorded for the node before the pod is bound.

The record is a Lease in nodewise's own namespace, one per node. No I/O here either: `extender.binding` and
`extender.reservations` read, write and repeat.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from nodewise.agent import Plugin, PodT, Reason, Snapshot, StateBuilder, StateT

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


class AllocationStateBuilder(StateBuilder[StateT]):
    """The state builder of an agent with a `BindPlugin`."""

    @abstractmethod
    def amended(self, agent_state: StateT, node: str, ledger: LedgerLease | None) -> StateT:
        """A state with another allocation record of one node; None for no record. The given state does not change.

        The record may hold reservations that are about to be written. The same record returns the same state.
        """


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


class BindPlugin(Plugin[PodT, StateT]):
    """Allocates devices to pods; nodewise binds the pods that concern it."""

    @property
    @abstractmethod
    def allocation_records(self) -> str:
        """The name in `Watched` of the allocation records, which are `LedgerLease` objects."""

    @property
    @abstractmethod
    def pods(self) -> str:
        """The name in `Watched` of pods; a pod has at least `BindingFields`."""

    @property
    @abstractmethod
    def bind_errors(self) -> Literal["status", "field"]:
        """How a failed bind is reported to kube-scheduler: by status 404, or by status 200 and a text."""

    @abstractmethod
    def bind(self, pod: Any, node: str, snapshot: Snapshot, now: float) -> BindPlan | Refusal | None:
        """What the pod would hold there. None: nothing, it needs no reservation. A pod with one keeps what it holds."""
