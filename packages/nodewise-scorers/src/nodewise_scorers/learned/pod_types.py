"""The fields of pods that are read, and the type of a pod.

A pod's type is its label `podtype`, or `app`, or `name`; without these its controller's name, so that the replicas of
one workload are of one type, or else its own. Types of different namespaces are different: the
pods of one tenant do not affect those of another.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from sys import intern
from typing import Annotated, Final, TypeVar

import msgspec

from nodewise.agent import ReadKeys

T = TypeVar("T")

_OBSERVED_PHASES: Final = frozenset({"Running", "Failed", "Unknown"})
"""Phases to learn from."""
_MOST_CONTAINERS: Final = 64
"""A tenant can create pods with thousands, each of whose states would be stored."""
_NODE_BOUND_CONTROLLERS: Final = frozenset({"DaemonSet", "Node"})
"""Controllers whose pods are made for a certain node."""


class OwnerReference(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class PendingPodMetadata(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    name: str
    namespace: str = ""
    labels: Annotated[dict[str, str] | None, ReadKeys(("podtype", "app", "name"))] = None
    ownerReferences: tuple[OwnerReference, ...] | None = None  # noqa: N815 - the API's name


class PendingPod(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod to schedule."""

    metadata: PendingPodMetadata


class TypeLabels(msgspec.Struct, frozen=True, gc=False):
    podtype: str | None = None
    app: str | None = None
    name: str | None = None


_NONE: Final = TypeLabels()


class ObservedPodMetadata(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""
    labels: TypeLabels | None = None
    ownerReferences: tuple[OwnerReference, ...] | None = None  # noqa: N815 - the API's name
    deletionTimestamp: str | None = None  # noqa: N815 - the API's name


class ObservedPodSpec(msgspec.Struct, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class RunningState(msgspec.Struct, frozen=True, gc=False):
    startedAt: str | None = None  # noqa: N815 - the API's name


class TerminatedState(msgspec.Struct, frozen=True, gc=False):
    startedAt: str | None = None  # noqa: N815 - the API's name
    finishedAt: str | None = None  # noqa: N815 - the API's name


class ContainerState(msgspec.Struct, frozen=True, gc=False):
    """A container is waiting if it is neither."""

    running: RunningState | None = None
    terminated: TerminatedState | None = None


class ObservedContainer(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    restartCount: int = 0  # noqa: N815 - the API's name
    state: ContainerState | None = None
    lastState: ContainerState | None = None  # noqa: N815 - the API's name


class ObservedPodStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""
    containerStatuses: tuple[ObservedContainer, ...] | None = None  # noqa: N815 - the API's name


class ObservedPod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The fields of a bound pod that show its outcome."""

    metadata: ObservedPodMetadata
    spec: ObservedPodSpec = ObservedPodSpec()
    status: ObservedPodStatus = ObservedPodStatus()


def make_pod_reducer(namespaces: Iterable[str]) -> Callable[[ObservedPod], ObservedPod | None]:
    """Return a function that reduces a pod to what is stored, or to None. No namespaces: all.

    A terminating pod is dropped: its containers end because it is deleted. So is one with very many containers.
    """
    allowed_namespaces = frozenset(namespaces)

    def keep(pod: ObservedPod) -> ObservedPod | None:
        metadata = pod.metadata
        is_observed = (
            pod.spec.nodeName and pod.status.phase in _OBSERVED_PHASES and not metadata.deletionTimestamp
        )
        if len(pod.status.containerStatuses or ()) > _MOST_CONTAINERS:
            return None
        if not is_observed or (allowed_namespaces and metadata.namespace not in allowed_namespaces):
            return None
        controller = _controller_owner(metadata.ownerReferences)
        return (
            None
            if controller and controller.kind in _NODE_BOUND_CONTROLLERS
            else _deduplicate_pod_fields(pod, controller)
        )

    return keep


def _deduplicate_pod_fields(pod: ObservedPod, controller: OwnerReference | None) -> ObservedPod:
    """The pod with values that thousands of pods share stored once, and its owner only if that is its type."""
    metadata, phase = pod.metadata, pod.status.phase
    metadata = msgspec.structs.replace(
        metadata,
        namespace=intern(metadata.namespace),
        labels=_deduplicate(metadata.labels),
        ownerReferences=_deduplicate((controller,))
        if controller and not _type_from_labels(metadata)
        else None,
    )
    containers = tuple(map(_compact_container_status, pod.status.containerStatuses or ()))
    spec = ObservedPodSpec(intern(pod.spec.nodeName))
    return ObservedPod(metadata=metadata, spec=spec, status=ObservedPodStatus(intern(phase), containers))


def _compact_container_status(container: ObservedContainer) -> ObservedContainer:
    last = container.lastState if container.lastState and container.lastState.terminated else None
    return msgspec.structs.replace(container, name=intern(container.name), lastState=last)


@lru_cache(4096)
def _deduplicate(value: T) -> T:
    """Return an equal value from the cache, or the value."""
    return value


def pending_pod_type(pod: PendingPod) -> str:
    """The type of a pod to schedule."""
    metadata = pod.metadata
    labels = metadata.labels or {}
    own = labels.get("podtype") or labels.get("app") or labels.get("name")
    return own or _type_from_owner(metadata)


def bound_pod_type(pod: ObservedPod) -> str:
    """The type of a bound pod, by the same rule."""
    return _type_from_labels(pod.metadata) or _type_from_owner(pod.metadata)


def _type_from_labels(metadata: ObservedPodMetadata) -> str:
    labels = metadata.labels or _NONE
    return labels.podtype or labels.app or labels.name or ""


def _type_from_owner(metadata: PendingPodMetadata | ObservedPodMetadata) -> str:
    controller = _controller_owner(metadata.ownerReferences)
    return (controller.name if controller else "") or metadata.name


def _controller_owner(owners: tuple[OwnerReference, ...] | None) -> OwnerReference | None:
    return next((owner for owner in owners or () if owner.controller), None)


def pod_type_key(namespace: str, type_: str) -> str:
    """The key of a type."""
    return f"{namespace}/{type_}"
