"""The fields of nodes and pods that the annotator reads, as the API server has them."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nodewise.kube.fields import merge
from nodewise.statistics import annotations
from nodewise.statistics.annotations import UsageAnnotations
from nodewise.statistics.holding import HoldingSpec, HoldingStatus
from nodewise.statistics.requests import RequestingPod

ALLOCATABLE_MEMORY: Final = "allocatable_memory"
REQUESTED_MEMORY: Final = "reqested_memory"
"""For people; spelled as the older annotator did."""


class WrittenAnnotations(UsageAnnotations, frozen=True, gc=False):
    """All that the annotator writes, as it stands."""

    requested_cpu: str | None = msgspec.field(default=None, name=annotations.REQUESTED_CPU)
    requested_memory: str | None = msgspec.field(default=None, name=annotations.REQUESTED_MEMORY)
    requested_pods: str | None = msgspec.field(default=None, name=annotations.REQUESTED_PODS)
    requested_gpu: str | None = msgspec.field(default=None, name=annotations.REQUESTED_GPU)
    requested_ephemeral_storage: str | None = msgspec.field(
        default=None, name=annotations.REQUESTED_EPHEMERAL_STORAGE
    )
    free_cpu: str | None = msgspec.field(default=None, name=annotations.FREE_CPU)
    free_memory: str | None = msgspec.field(default=None, name=annotations.FREE_MEMORY)
    free_pods: str | None = msgspec.field(default=None, name=annotations.FREE_PODS)
    free_gpu: str | None = msgspec.field(default=None, name=annotations.FREE_GPU)
    free_ephemeral_storage: str | None = msgspec.field(default=None, name=annotations.FREE_EPHEMERAL_STORAGE)
    allocatable_memory: str | None = msgspec.field(default=None, name=ALLOCATABLE_MEMORY)
    reqested_memory: str | None = msgspec.field(default=None, name=REQUESTED_MEMORY)


_FIELDS: Final = {one.encode_name: one.name for one in msgspec.structs.fields(WrittenAnnotations)}


class NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: WrittenAnnotations | None = None


class Condition(msgspec.Struct, frozen=True, gc=False):
    type: Any = ""
    status: Any = ""


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: msgspec.Raw = msgspec.Raw(b"null")
    conditions: tuple[Condition, ...] | None = None


class AnnotatedNode(msgspec.Struct, frozen=True, gc=False):
    """What is read of a node, besides its name and uid."""

    metadata: NodeMetadata = NodeMetadata()
    status: NodeStatus = NodeStatus()


class BoundPod(RequestingPod, frozen=True, gc=False):
    """What is read of a pod to know what it takes of which node."""

    spec: HoldingSpec = HoldingSpec()
    status: HoldingStatus = HoldingStatus()


POD: Final[Any] = merge("Pod", BoundPod)
"""The same, as a store holds it."""


def is_ready(node: Any) -> bool:
    """Whether the node's condition Ready is true."""
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())


def standing(node: Any) -> Mapping[str, str]:
    """What of the annotator's own keys stands on a node."""
    given = node.metadata.annotations
    if given is None:
        return {}
    found = ((key, getattr(given, field)) for key, field in _FIELDS.items())
    return {key: text for key, text in found if text is not None}
