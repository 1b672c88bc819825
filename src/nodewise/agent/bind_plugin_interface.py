"""The interface of an agent that allocates devices. A pod's allocation is recorded for its node before it is bound.

The allocation record of a node is a Lease in nodewise's own namespace. A plugin does no I/O:
`extender.reservation_writer` reads and writes the records, and `extender.binding` binds the pods.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from nodewise.agent import Plugin, PodT, Reason, Snapshot, StateBuilder, StateT

RESERVATIONS_ANNOTATION: Final = "nodewise.io/holdings"
"""The annotation of an allocation record: a JSON object with the reservation of each pod, by pod uid."""
ALLOCATION_RECORD_LABEL: Final = "nodewise.io/ledger"
"""The label of an allocation record. Its value is the agent's name."""


class AllocationRecordMetadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's name
    annotations: dict[str, str] | None = None


class AllocationRecordLease(msgspec.Struct, frozen=True):
    """The allocation record of one node: the Lease `<agent>-<node>`, with reservations in `RESERVATIONS_ANNOTATION`."""

    metadata: AllocationRecordMetadata


class AllocationStateBuilder(StateBuilder[StateT]):
    """The state builder of an agent with a `BindPlugin`."""

    @abstractmethod
    def apply_allocation_record(
        self, agent_state: StateT, node: str, record: AllocationRecordLease | None
    ) -> StateT:
        """Return a state with another allocation record of one node; None for no record.

        The given state does not change. The record may hold reservations that are not written yet. The record that the
        state has already returns the same state.
        """


class BindingMetadata(msgspec.Struct, frozen=True):
    resourceVersion: str = ""  # noqa: N815 - the API's name
    annotations: dict[str, str] | None = None
    oversized_bytes: int = 0
    """Not 0 if the store keeps only a part of the pod, because all of it would take so much memory. A bind then reads
    the pod."""


class BindingSpec(msgspec.Struct, frozen=True):
    nodeName: str = ""  # noqa: N815 - the API's name


class BindingFields(msgspec.Struct, frozen=True):
    """The fields of a pod that binding reads."""

    metadata: BindingMetadata = BindingMetadata()
    spec: BindingSpec = BindingSpec()


class BindPlan(NamedTuple):
    """What a pod gets on a node. `extender.binding` writes the reservation and then binds the pod."""

    reservation: Mapping[str, Any]
    """JSON, stored in the allocation record under the pod's uid. It counts from the moment of its write."""
    annotations: Mapping[str, str]
    """Annotations of the pod, which its Binding sets."""
    stale: frozenset[str]
    """Pod uids whose reservations on this node no longer count. The same write removes them."""
    description: str
    """What the pod gets, as text: `train: card0, card1`."""


class Refusal(NamedTuple):
    """Why a pod cannot be bound to a node."""

    error: str
    """The error in the response to kube-scheduler."""
    reason: Reason


class BindPlugin(Plugin[PodT, StateT]):
    """Allocates devices to pods. nodewise binds the pods that concern the agent."""

    @property
    @abstractmethod
    def allocation_records(self) -> str:
        """The name in `Watched` of the allocation records, which are `AllocationRecordLease` objects."""

    @property
    @abstractmethod
    def pods(self) -> str:
        """The name in `Watched` of pods. Their type has at least `BindingFields`."""

    @property
    @abstractmethod
    def bind_errors(self) -> Literal["status", "field"]:
        """How kube-scheduler learns of a failed bind: by status 404, or by status 200 and the field `Error`."""

    def serve(self) -> None:
        """Called once before requests of kube-scheduler are answered, which come in the order of its decisions."""

    @abstractmethod
    def bind(self, pod: Any, node: str, snapshot: Snapshot, now: float) -> BindPlan | Refusal | None:
        """What the pod gets on the node; None for a pod that needs no reservation.

        A pod that has a reservation there keeps it.
        """
