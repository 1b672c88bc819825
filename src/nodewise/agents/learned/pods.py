"""The fields of pods that are read, and of which type a pod is.

A pod's type is its label `podtype`, or `app`, or `name`; without these its controller's name, so that the replicas of
one workload are of one type, or else its own. Types are told apart by namespace: what one tenant's pods teach concerns
no other's.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from sys import intern
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

_FOLLOWED: Final = frozenset({"Running", "Failed", "Unknown"})
"""Phases that can teach something; a pod's first look is its last in the others."""
_PINNED: Final = frozenset({"DaemonSet", "Node"})
"""Controllers whose pods nobody chooses a node for."""


class Owner(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class AskingMetadata(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    name: str
    namespace: str = ""
    labels: dict[str, str] | None = None
    ownerReferences: tuple[Owner, ...] | None = None  # noqa: N815 - the API's name


class AskingPod(msgspec.Struct, frozen=True, gc=False):
    """What is read of a pod to place it."""

    metadata: AskingMetadata


class TypeLabels(msgspec.Struct, frozen=True, gc=False):
    podtype: str | None = None
    app: str | None = None
    name: str | None = None


_NONE: Final = TypeLabels()


class LivingMetadata(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""
    labels: TypeLabels | None = None
    ownerReferences: tuple[Owner, ...] | None = None  # noqa: N815 - the API's name
    deletionTimestamp: str | None = None  # noqa: N815 - the API's name


class LivingSpec(msgspec.Struct, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class Running(msgspec.Struct, frozen=True, gc=False):
    startedAt: str | None = None  # noqa: N815 - the API's name


class Terminated(msgspec.Struct, frozen=True, gc=False):
    startedAt: str | None = None  # noqa: N815 - the API's name
    finishedAt: str | None = None  # noqa: N815 - the API's name


class ContainerState(msgspec.Struct, frozen=True, gc=False):
    """Neither: it waits."""

    running: Running | None = None
    terminated: Terminated | None = None


class Container(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    restartCount: int = 0  # noqa: N815 - the API's name
    state: ContainerState | None = None
    lastState: ContainerState | None = None  # noqa: N815 - the API's name


class LivingStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""
    containerStatuses: tuple[Container, ...] | None = None  # noqa: N815 - the API's name


class LivingPod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is read of a pod to see how it fares."""

    metadata: LivingMetadata
    spec: LivingSpec = LivingSpec()
    status: LivingStatus = LivingStatus()


def keeper(namespaces: Iterable[str]) -> Callable[[LivingPod], LivingPod | None]:
    """What is held of a pod: nothing of one that can teach nothing. No namespaces: all.

    A pod that is to go is no more followed: its containers end because somebody wants it.
    """
    wanted = frozenset(namespaces)

    def keep(pod: LivingPod) -> LivingPod | None:
        about = pod.metadata
        follows = pod.spec.nodeName and pod.status.phase in _FOLLOWED and not about.deletionTimestamp
        if not follows or (wanted and about.namespace not in wanted):
            return None
        controller = _controller(about.ownerReferences)
        return None if controller and controller.kind in _PINNED else _shared(pod, controller)

    return keep


def _shared(pod: LivingPod, controller: Owner | None) -> LivingPod:
    """The same pod with what thousands have in common held once, and its owner only if that is its type."""
    about, phase = pod.metadata, pod.status.phase
    metadata = msgspec.structs.replace(
        about,
        namespace=intern(about.namespace),
        labels=_once(about.labels),
        ownerReferences=_once((controller,)) if controller and not _labelled(about) else None,
    )
    containers = tuple(map(_slim, pod.status.containerStatuses or ()))
    spec = LivingSpec(intern(pod.spec.nodeName))
    return LivingPod(metadata=metadata, spec=spec, status=LivingStatus(intern(phase), containers))


def _slim(container: Container) -> Container:
    last = container.lastState if container.lastState and container.lastState.terminated else None
    return msgspec.structs.replace(container, name=intern(container.name), lastState=last)


@lru_cache(4096)
def _once(value: T) -> T:
    """The value, or an equal one from before."""
    return value


def asking_type(pod: AskingPod) -> str:
    """Of a pod that is to be placed."""
    about = pod.metadata
    labels = about.labels or {}
    own = labels.get("podtype") or labels.get("app") or labels.get("name")
    return own or _unlabelled(about)


def living_type(pod: LivingPod) -> str:
    """Of a pod that is on a node; the same rule."""
    return _labelled(pod.metadata) or _unlabelled(pod.metadata)


def _labelled(about: LivingMetadata) -> str:
    labels = about.labels or _NONE
    return labels.podtype or labels.app or labels.name or ""


def _unlabelled(about: AskingMetadata | LivingMetadata) -> str:
    controller = _controller(about.ownerReferences)
    return (controller.name if controller else "") or about.name


def _controller(owners: tuple[Owner, ...] | None) -> Owner | None:
    return next((owner for owner in owners or () if owner.controller), None)


def key(namespace: str, type_: str) -> str:
    """What a type is remembered by."""
    return f"{namespace}/{type_}"
