"""The fields of nodes and pods that the annotator reads, in the API's form."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nodewise.kube.pod_requests import HoldingSpec, HoldingStatus
from nodewise.kube.struct_type_merge import merge
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import UsageAnnotations

ALLOCATABLE_MEMORY: Final = "allocatable_memory"
REQUESTED_MEMORY: Final = "reqested_memory"
"""Only people read it; spelled as the older annotator did."""


class WrittenAnnotations(UsageAnnotations, frozen=True, gc=False):
    """All annotations that the annotator writes."""

    requested_cpu: str | None = msgspec.field(default=None, name=load_annotations.REQUESTED_CPU)
    requested_memory: str | None = msgspec.field(default=None, name=load_annotations.REQUESTED_MEMORY)
    requested_pods: str | None = msgspec.field(default=None, name=load_annotations.REQUESTED_PODS)
    requested_gpu: str | None = msgspec.field(default=None, name=load_annotations.REQUESTED_GPU)
    requested_ephemeral_storage: str | None = msgspec.field(
        default=None, name=load_annotations.REQUESTED_EPHEMERAL_STORAGE
    )
    free_cpu: str | None = msgspec.field(default=None, name=load_annotations.FREE_CPU)
    free_memory: str | None = msgspec.field(default=None, name=load_annotations.FREE_MEMORY)
    free_pods: str | None = msgspec.field(default=None, name=load_annotations.FREE_PODS)
    free_gpu: str | None = msgspec.field(default=None, name=load_annotations.FREE_GPU)
    free_ephemeral_storage: str | None = msgspec.field(
        default=None, name=load_annotations.FREE_EPHEMERAL_STORAGE
    )
    allocatable_memory: str | None = msgspec.field(default=None, name=ALLOCATABLE_MEMORY)
    reqested_memory: str | None = msgspec.field(default=None, name=REQUESTED_MEMORY)


_FIELDS: Final = {field.encode_name: field.name for field in msgspec.structs.fields(WrittenAnnotations)}


class AnnotatedNodeMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: WrittenAnnotations | None = None


class NodeCondition(msgspec.Struct, frozen=True, gc=False):
    type: Any = ""
    status: Any = ""


class AnnotatedNodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: msgspec.Raw = msgspec.Raw(b"null")
    conditions: tuple[NodeCondition, ...] | None = None


class AnnotatedNode(msgspec.Struct, frozen=True, gc=False):
    """The fields of a node besides its name and uid."""

    metadata: AnnotatedNodeMetadata = AnnotatedNodeMetadata()
    status: AnnotatedNodeStatus = AnnotatedNodeStatus()


class BoundPod(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that tell its requests and its node."""

    spec: HoldingSpec = HoldingSpec()
    status: HoldingStatus = HoldingStatus()


POD: Final[Any] = merge("Pod", BoundPod)
"""The type of pods in a store."""


def is_node_ready(node: Any) -> bool:
    """Whether the node's condition Ready is true."""
    return any(
        condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions or ()
    )


def current_annotations(node: Any) -> Mapping[str, str]:
    """The node's annotations among those that the annotator writes."""
    written = node.metadata.annotations
    if written is None:
        return {}
    texts = ((key, getattr(written, field)) for key, field in _FIELDS.items())
    return {key: text for key, text in texts if text is not None}
