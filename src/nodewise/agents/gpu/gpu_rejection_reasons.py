"""Reasons why a node or a GPU is rejected, as values; their texts are rendered on demand.

The first words of each text are those of GPU Aware Scheduling 0.5.6 (`pkg/gpuscheduler/scheduler.go`), for people and
alerts that search for them. The texts appear in pod events, so there are few different ones: they contain what the pod
requests, and never the name or value of a node or GPU. `explain` shows those as details.

Some reasons depend on what other pods hold: `is_unresolvable` is then a field, which `agent` sets for nodes
that are too small even without these pods. The text is the same.
"""

from enum import StrEnum
from typing import ClassVar, Final

import msgspec

from nodewise.agent.verdicts import OWN_REASON
from nodewise.agents.gpu import allocation_record, extended_resource_amounts
from nodewise.base.errors import truncate

_PREFIX: Final = "Not enough GPU-resources for deployment: "
_UNKNOWN: Final = "Couldn't retrieve node's information"
REASON_PREFIXES: Final = (_PREFIX, _UNKNOWN)
"""The beginning of reasons with the texts of the older system."""
LATER_CONTAINERS_REMEDY: Final = (
    "an init container uses the GPUs of the containers that run after it: let one of these ask for as much"
)
_LONGEST: Final = 256
"""Characters of a text, which the response contains once for every node and in which tenants choose names."""


class RejectionKind(StrEnum):
    """The reasons of the older system, in its words. A refused bind is answered with these words alone."""

    WILL_NOT_FIT = "will not fit"
    BAD_ARGS = "bad args"
    MALFORMED = "malformed annotation"
    CONFLICT = "resources conflict"
    OVERFLOW = "integer overflow"


def _format_reason(kind: RejectionKind, words: str) -> str:
    text = f"{_PREFIX}{kind.value}: {words}" if words else f"{_PREFIX}{kind.value}"
    return truncate(text, _LONGEST)


class InvalidDemand(msgspec.Struct, frozen=True):
    """The demand of the pod fits no node."""

    kind: RejectionKind
    words: str = ""
    """The value found and the expected one, with the container, annotation or resource."""
    hint: str = ""
    """The change that solves the problem."""
    at_once: bool = True
    """Whether it applies even to a node without GPUs; otherwise such a node `will not fit`, as in the older system."""
    is_failure: ClassVar[bool] = True
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return _format_reason(self.kind, self.words)

    def remedy(self) -> str:
        return self.hint


class NoGpus(msgspec.Struct, frozen=True):
    """The node has no known GPU."""

    words: str = ""
    """What was found and what was expected; empty if nothing of the node is known."""
    hint: str = ""
    """The change that solves the problem."""
    kind: ClassVar[RejectionKind] = RejectionKind.WILL_NOT_FIT
    is_failure: ClassVar[bool] = False
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return _format_reason(
            self.kind, f"the node has no GPUs: {self.words}" if self.words else "the node has no GPUs"
        )

    def remedy(self) -> str:
        return self.hint


class _NodeReason(msgspec.Struct, frozen=True):
    """A reason with the words of the older system, followed by `words`."""

    kind: ClassVar[RejectionKind] = RejectionKind.WILL_NOT_FIT
    is_failure: ClassVar[bool] = False
    hint: ClassVar[str] = ""
    """The change that solves the problem."""

    def words(self) -> str:
        raise NotImplementedError

    def text(self) -> str:
        return _format_reason(self.kind, self.words())

    def remedy(self) -> str:
        return self.hint


class _UnresolvableReason(_NodeReason, frozen=True):
    is_unresolvable: ClassVar[bool] = True


class _PodDependentReason(_NodeReason, frozen=True, kw_only=True):
    is_unresolvable: bool = False


class NoneUsable(_UnresolvableReason, frozen=True):
    """The pod may use too few of the node's GPUs, whether or not they are free."""

    container: str
    count: int
    hint = "GPUs are taken out by gas-disable labels, gas-deny, gas-allow and nodewise.io/gpu-models"

    def words(self) -> str:
        return f"container {self.container}: {_too_few_gpus(self.count)} may be used"


class TooLittle(_PodDependentReason, frozen=True):
    """Too few usable GPUs have enough of one resource left."""

    container: str
    count: int
    """The requested number of GPUs."""
    resource: str
    amount: int
    """The requested amount per GPU."""

    def words(self) -> str:
        amount = extended_resource_amounts.format_amount(self.amount)
        return f"container {self.container}: {_too_few_gpus_have(self.count)} {amount} {self.resource} left"


class NotTogether(_PodDependentReason, frozen=True):
    """Enough GPUs have each resource, but too few have all of them."""

    container: str
    count: int

    def words(self) -> str:
        return f"container {self.container}: {_too_few_gpus_have(self.count)} all that it wants left"


class NotLinked(_PodDependentReason, frozen=True):
    """Enough GPUs are suitable, but too few pairs of them are linked with both sub-devices free."""

    container: str
    pairs: int
    hint = "links are named by the node's label gpu.intel.com/xe-links"

    def words(self) -> str:
        pairs = "no free pair" if self.pairs == 1 else f"fewer than {self.pairs} free pairs"
        return f"container {self.container}: {pairs} of GPUs with an Xe Link"


class NotInOneGroup(_PodDependentReason, frozen=True):
    """Enough GPUs are suitable, but not within one NUMA node."""

    container: str
    count: int
    hint = "NUMA nodes are named by the node's label gpu.intel.com/numa-gpu-map"

    def words(self) -> str:
        gpus = "such a GPU" if self.count == 1 else f"{self.count} such GPUs"
        return f"container {self.container}: no single NUMA node has {gpus}"


class LaterContainersTooSmall(_PodDependentReason, frozen=True):
    """On this node the GPUs of the later containers do not suffice for an init container, because they share GPUs."""

    container: str
    count: int
    """The number of GPUs that the init container requests."""
    later: int
    """The number of GPUs that the later containers request together."""
    hint = LATER_CONTAINERS_REMEDY

    def words(self) -> str:
        there = f"among the {self.later} of the containers after it, which share GPUs here,"
        verb = "has" if self.count == 1 else "have"
        return (
            f"init container {self.container}: {_too_few_gpus(self.count)} {there} {verb} all that it wants"
        )


class RecordFull(_PodDependentReason, frozen=True):
    """The node's allocation record has no space for the pod's reservation."""

    is_failure = True
    hint = "wait until pods with GPUs have ended on the node, or spread them over more nodes"

    def words(self) -> str:
        return (
            f"no room in the node's allocation record: at most {allocation_record.RECORD_BYTES} bytes,"
            f" and {allocation_record.LONGEST_NODE} characters of the node's name"
        )


class BrokenMap(_UnresolvableReason, frozen=True):
    """The pod requires one NUMA node, and the node's NUMA label is invalid."""

    kind = RejectionKind.BAD_ARGS
    hint = "the label is written like 0-0.1_1-2.3: NUMA node, -, numbers of its GPUs"

    def words(self) -> str:
        return "the node's label gpu.intel.com/numa-gpu-map cannot be read"


class _PlainReason(msgspec.Struct, frozen=True):
    """A reason that the older system did not have, or had in other words."""

    is_failure: ClassVar[bool] = False
    is_unresolvable: ClassVar[bool] = True
    message: ClassVar[str]
    hint: ClassVar[str]

    def text(self) -> str:
        return self.message

    def remedy(self) -> str:
        return self.hint


class UnknownNode(_PlainReason, frozen=True):
    """The node is not known."""

    message = _UNKNOWN
    hint = "wait until nodewise has read the node; kube_lost in its log contains the cause if it cannot"


class PassedOver(_PlainReason, frozen=True):
    """The pod fits this node, but fits another one with a GPU that a telemetry policy prefers."""

    message = f"{OWN_REASON}a node with a preferred GPU fits"
    hint = "nodes are preferred by their label telemetry.aware.scheduling.<policy>/gas-prefer-gpu"


class GpuStateNotReady(_PlainReason, frozen=True):
    """The pod requests GPUs, and nodes or pods have not been read yet."""

    is_failure = True
    message = f"{OWN_REASON}starting, nodes and pods are not read yet"
    hint = "wait; /readyz on the admin port names what is missing, the log's kube_lost why"


class Shortfall(msgspec.Struct, frozen=True):
    """The lacking amount of a candidate: the resource that is short on the GPU that comes closest."""

    gpu: str
    resource: str
    free: int
    wanted: int

    def text(self) -> str:
        free = max(self.free, 0)
        free_text, wanted, short = map(
            extended_resource_amounts.format_amount, (free, self.wanted, self.wanted - free)
        )
        return f"{self.gpu} has {free_text} {self.resource} left, {wanted} wanted: {short} too little"


def _too_few_gpus(count: int) -> str:
    return "no GPU" if count == 1 else f"fewer than {count} GPUs"


def _too_few_gpus_have(count: int) -> str:
    return f"{_too_few_gpus(count)} {'has' if count == 1 else 'have'}"
