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


class NoneUsable(msgspec.Struct, frozen=True):
    """The pod may use too few of the node's GPUs, whether or not they are free."""

    container: str
    count: int
    kind: ClassVar[RejectionKind] = RejectionKind.WILL_NOT_FIT
    is_failure: ClassVar[bool] = False
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return _format_reason(
            self.kind, f"container {self.container}: {_gpu_count_with_verb(self.count)} may be used"
        )

    def remedy(self) -> str:
        return "GPUs are taken out by gas-disable labels, gas-deny, gas-allow and nodewise.io/gpu-models"


class TooLittle(msgspec.Struct, frozen=True):
    """Too few usable GPUs have enough of one resource left."""

    container: str
    count: int
    """The requested number of GPUs."""
    resource: str
    amount: int
    """The requested amount per GPU."""
    is_unresolvable: bool = False
    kind: ClassVar[RejectionKind] = RejectionKind.WILL_NOT_FIT
    is_failure: ClassVar[bool] = False

    def text(self) -> str:
        gpus = _gpu_count_with_verb(self.count, "has", "have")
        amount = extended_resource_amounts.format_amount(self.amount)
        return _format_reason(self.kind, f"container {self.container}: {gpus} {amount} {self.resource} left")

    def remedy(self) -> str:
        return ""


class NotTogether(msgspec.Struct, frozen=True):
    """Enough GPUs have each resource, but too few have all of them."""

    container: str
    count: int
    is_unresolvable: bool = False
    kind: ClassVar[RejectionKind] = RejectionKind.WILL_NOT_FIT
    is_failure: ClassVar[bool] = False

    def text(self) -> str:
        gpus = _gpu_count_with_verb(self.count, "has", "have")
        return _format_reason(self.kind, f"container {self.container}: {gpus} all that it wants left")

    def remedy(self) -> str:
        return ""


class NotLinked(msgspec.Struct, frozen=True):
    """Enough GPUs are suitable, but too few pairs of them are linked with both sub-devices free."""

    container: str
    pairs: int
    is_unresolvable: bool = False
    kind: ClassVar[RejectionKind] = RejectionKind.WILL_NOT_FIT
    is_failure: ClassVar[bool] = False

    def text(self) -> str:
        pairs = "no free pair" if self.pairs == 1 else f"fewer than {self.pairs} free pairs"
        return _format_reason(self.kind, f"container {self.container}: {pairs} of GPUs with an Xe Link")

    def remedy(self) -> str:
        return "links are named by the node's label gpu.intel.com/xe-links"


class NotInOneGroup(msgspec.Struct, frozen=True):
    """Enough GPUs are suitable, but not within one NUMA node."""

    container: str
    count: int
    is_unresolvable: bool = False
    kind: ClassVar[RejectionKind] = RejectionKind.WILL_NOT_FIT
    is_failure: ClassVar[bool] = False

    def text(self) -> str:
        gpus = "such a GPU" if self.count == 1 else f"{self.count} such GPUs"
        return _format_reason(self.kind, f"container {self.container}: no single NUMA node has {gpus}")

    def remedy(self) -> str:
        return "NUMA nodes are named by the node's label gpu.intel.com/numa-gpu-map"


class LaterContainersTooSmall(msgspec.Struct, frozen=True):
    """On this node the GPUs of the later containers do not suffice for an init container, because they share GPUs."""

    container: str
    count: int
    """The number of GPUs that the init container requests."""
    later: int
    """The number of GPUs that the later containers request together."""
    is_unresolvable: bool = False
    kind: ClassVar[RejectionKind] = RejectionKind.WILL_NOT_FIT
    is_failure: ClassVar[bool] = False

    def text(self) -> str:
        gpus = _gpu_count_with_verb(self.count, "has", "have")
        there = f"among the {self.later} of the containers after it, which share GPUs here,"
        words, _, verb = gpus.rpartition(" ")
        return _format_reason(
            self.kind, f"init container {self.container}: {words} {there} {verb} all that it wants"
        )

    def remedy(self) -> str:
        return LATER_CONTAINERS_REMEDY


class RecordFull(msgspec.Struct, frozen=True):
    """The node's allocation record has no space for the pod's reservation."""

    is_unresolvable: bool = False
    kind: ClassVar[RejectionKind] = RejectionKind.WILL_NOT_FIT
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return _format_reason(
            self.kind,
            f"no room in the node's allocation record: at most {allocation_record.RECORD_BYTES} bytes,"
            f" and {allocation_record.LONGEST_NODE} characters of the node's name",
        )

    def remedy(self) -> str:
        return "wait until pods with GPUs have ended on the node, or spread them over more nodes"


class BrokenMap(msgspec.Struct, frozen=True):
    """The pod requires one NUMA node, and the node's NUMA label is invalid."""

    kind: ClassVar[RejectionKind] = RejectionKind.BAD_ARGS
    is_failure: ClassVar[bool] = False
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return _format_reason(self.kind, "the node's label gpu.intel.com/numa-gpu-map cannot be read")

    def remedy(self) -> str:
        return "the label is written like 0-0.1_1-2.3: NUMA node, -, numbers of its GPUs"


class UnknownNode(msgspec.Struct, frozen=True):
    """The node is not known."""

    is_failure: ClassVar[bool] = False
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return _UNKNOWN

    def remedy(self) -> str:
        return "wait until nodewise has read the node; kube_lost in its log contains the cause if it cannot"


class PassedOver(msgspec.Struct, frozen=True):
    """The pod fits this node, but fits another one with a GPU that a telemetry policy prefers."""

    is_failure: ClassVar[bool] = False
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return f"{OWN_REASON}a node with a preferred GPU fits"

    def remedy(self) -> str:
        return "nodes are preferred by their label telemetry.aware.scheduling.<policy>/gas-prefer-gpu"


class GpuStateNotReady(msgspec.Struct, frozen=True):
    """The pod requests GPUs, and nodes or pods have not been read yet."""

    is_failure: ClassVar[bool] = True
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return f"{OWN_REASON}starting, nodes and pods are not read yet"

    def remedy(self) -> str:
        return "wait; /readyz on the admin port names what is missing, the log's kube_lost why"


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


def _gpu_count_with_verb(count: int, singular_verb: str = "", plural_verb: str = "") -> str:
    """`no GPU`, `fewer than 3 GPUs`, with a verb where one follows."""
    words = ("no GPU", singular_verb) if count == 1 else (f"fewer than {count} GPUs", plural_verb)
    return " ".join(filter(None, words))
