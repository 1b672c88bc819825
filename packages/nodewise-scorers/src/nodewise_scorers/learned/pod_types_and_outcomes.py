"""The fields of pods that are read, the type of a pod, and the outcome between two versions of it.

The fields of pods that are read, and the type of a pod.

A pod's type is its label `podtype`, or `app`, or `name`; without these its controller's name, so that the replicas of
one workload are of one type, or else its own. Types of different namespaces are different: the
pods of one tenant do not affect those of another.

The outcome of a pod between two versions of it, as a reward: 1 for running, 0.5 for suspicious, 0 for failed.

Events are counted, not updates of the API server: the terminations of a container are numbered, and a phase counts
when it begins. Of several containers the worst decides. A waiting container does not count, nor does a container that
runs again after it terminated: its termination was counted.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from sys import intern
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from nodewise.agent import ReadKeys
from nodewise_scorers.statistics import load_annotations

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


RUNS: Final = 1.0
SUSPICIOUS: Final = 0.5
FAILED: Final = 0.0

_FAILURES: Final = frozenset({"Failed", "Unknown"})
"""Phases."""
_RUNNING: Final = "Running"
_MAX_ENDS: Final = 10
"""Terminations that count when only the restart count shows them."""
_NO_STATE: Final = ContainerState()


class PodOutcome(NamedTuple):
    """The outcome of a pod on its node."""

    reward: float
    times: int
    """The number of times it happened."""
    at: float
    """When, by the kubelet's clock: seconds since 1970; NaN if unknown."""


class _End(NamedTuple):
    """The newest termination of a container that counts."""

    reward: float
    times: int
    at: float


def outcome_between(before: ObservedPod | None, after: ObservedPod, mttf_s: float) -> PodOutcome | None:
    """The outcome between two versions of a pod; None if nothing counts.

    `before` is None for the first version. Earlier terminations do not count then, unless the container is terminated.
    """
    phase = after.status.phase
    if phase in _FAILURES:
        is_known = before is not None and before.status.phase in _FAILURES
        return None if is_known else PodOutcome(FAILED, 1, _pod_end_time(after))
    if phase != _RUNNING:
        return None
    ended = _worst_termination_outcome(_terminations_between(before, after, mttf_s))
    if ended is not None:
        return ended
    if not _runs_without_terminations(after) or (before is not None and _runs_without_terminations(before)):
        return None
    return PodOutcome(RUNS, 1, _latest_container_start(after))


def _terminations_between(before: ObservedPod | None, after: ObservedPod, mttf_s: float) -> Iterator[_End]:
    """The terminations of containers between two versions of a pod."""
    earlier = {container.name: container for container in _container_statuses(before)} if before else {}
    for container in _container_statuses(after):
        if (end := _newest_termination_since(earlier.get(container.name), container, mttf_s)) is not None:
            yield end


def outcome_since(pod: ObservedPod, until_s: float, mttf_s: float) -> PodOutcome | None:
    """The outcome of a pod after a time, as far as its status still shows it."""
    phase = pod.status.phase
    if phase in _FAILURES:
        return PodOutcome(FAILED, 1, _pod_end_time(pod)) if _pod_end_time(pod) > until_s else None
    if phase != _RUNNING:
        return None
    ended = _worst_termination_outcome(
        _End(_termination_outcome(None, container, mttf_s), 1, at)
        for container in _container_statuses(pod)
        if (at := _termination_time(_newest_termination(container), "finishedAt")) > until_s
    )
    if ended is not None:
        return ended
    return (
        PodOutcome(RUNS, 1, _latest_container_start(pod))
        if _runs_without_terminations(pod) and _latest_container_start(pod) > until_s
        else None
    )


def _container_statuses(pod: ObservedPod) -> tuple[ObservedContainer, ...]:
    return pod.status.containerStatuses or ()


def _worst_termination_outcome(ends: Iterable[_End]) -> PodOutcome | None:
    all_ends = list(ends)
    if not all_ends:
        return None
    times = min(max(end.times for end in all_ends), _MAX_ENDS)
    return PodOutcome(min(end.reward for end in all_ends), times, max(end.at for end in all_ends))


def _runs_without_terminations(pod: ObservedPod) -> bool:
    """Whether it runs, and no container ever terminated."""
    return pod.status.phase == _RUNNING and all(
        (container.state or _NO_STATE).running is not None and not _termination_count(container)
        for container in _container_statuses(pod)
    )


def _termination_count(container: ObservedContainer) -> int:
    """The number of terminations of the container.

    The kubelet counts restarts: a running container terminated as often as it restarted, another one once more.
    """
    state, last = container.state or _NO_STATE, (container.lastState or _NO_STATE).terminated
    known = max(container.restartCount, 0)
    if state.terminated is not None:
        return max(known, int(last is not None)) + 1
    if last is None:
        return known
    return max(known, 1) if state.running is not None else known + 1


def _newest_termination(container: ObservedContainer) -> TerminatedState | None:
    return (container.state or _NO_STATE).terminated or (container.lastState or _NO_STATE).terminated


def _newest_termination_since(
    before: ObservedContainer | None, after: ObservedContainer, mttf_s: float
) -> _End | None:
    """The newest termination since `before`; without `before` only the container's current state counts."""
    ended = _termination_count(after)
    is_over = (after.state or _NO_STATE).terminated is not None
    new = ended - (_termination_count(before) if before else ended - int(is_over))
    if new <= 0:
        return None
    return _End(
        _termination_outcome(before, after, mttf_s),
        new,
        _termination_time(_newest_termination(after), "finishedAt"),
    )


def _termination_outcome(before: ObservedContainer | None, after: ObservedContainer, mttf_s: float) -> float:
    """The first termination is suspicious. A later one is a failure unless it comes long after the previous one."""
    if _termination_count(after) <= 1:
        return SUSPICIOUS
    newest = _newest_termination(after)
    ended_s, began_s = _termination_time(newest, "finishedAt"), _termination_time(newest, "startedAt")
    earlier_s = _termination_time(_previous_termination(before, after), "finishedAt")
    # an unknown time has a safe bound: a container starts after its previous end, and ends after its start
    last_s = began_s if np.isnan(ended_s) else ended_s
    first_s = began_s if np.isnan(earlier_s) else earlier_s
    return SUSPICIOUS if last_s - first_s > mttf_s else FAILED


def _previous_termination(
    before: ObservedContainer | None, after: ObservedContainer
) -> TerminatedState | None:
    """The termination before the newest, if it is known."""
    if (after.state or _NO_STATE).terminated is not None and after.lastState is not None:
        return after.lastState.terminated
    return (
        _newest_termination(before)
        if before is not None and _termination_count(before) == _termination_count(after) - 1
        else None
    )


def _pod_end_time(pod: ObservedPod) -> float:
    return _latest_time(
        _termination_time(_newest_termination(container), "finishedAt")
        for container in _container_statuses(pod)
    )


def _latest_container_start(pod: ObservedPod) -> float:
    return _latest_time(
        load_annotations.time(_container_start_time(container)) for container in _container_statuses(pod)
    )


def _container_start_time(container: ObservedContainer) -> str | None:
    running = (container.state or _NO_STATE).running
    return running.startedAt if running is not None else None


def _latest_time(times_s: Iterable[float]) -> float:
    return max((at for at in times_s if not np.isnan(at)), default=np.nan)


def _termination_time(ended: TerminatedState | None, which: str) -> float:
    return load_annotations.time(getattr(ended, which)) if ended is not None else np.nan
