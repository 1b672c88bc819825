"""The fields of pods that are read, the type of a pod, and its outcome between two versions.

A pod's type is its label `podtype`, or `app`, or `name`; without these its controller's name, so that the replicas of
one workload are of one type, or else its own. Types of different namespaces are different: the
pods of one tenant do not affect those of another.

An outcome is a reward: 1 for running, 0.5 for suspicious, 0 for failed. Events are counted, not updates of the API
server: the terminations of a container are numbered, and a phase counts when it begins. Of several containers the worst
decides. A waiting container does not count, nor does a container that runs again after it terminated: its termination
was counted.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from sys import intern
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from nodewise.agent import ReadKeys
from nodewise_scorers.load.bound_pods import ControllerReference, OwnedMetadata, OwnedPod
from nodewise_scorers.statistics import load_annotations

T = TypeVar("T")

_OBSERVED_PHASES: Final = frozenset({"Running", "Failed", "Unknown"})  # phases to learn from
_MOST_CONTAINERS: Final = 64  # a tenant can create pods with thousands, each of whose states would be stored
_NODE_BOUND_CONTROLLERS: Final = frozenset({"DaemonSet", "Node"})
"""Controllers whose pods are made for a certain node."""


class PodFieldsMetadata(OwnedMetadata, frozen=True, gc=False, kw_only=True):
    labels: Annotated[dict[str, str] | None, ReadKeys(("podtype", "app", "name", "pod-template-hash"))] = None


class PodFields(OwnedPod, frozen=True, gc=False, kw_only=True):
    """The fields of a pod to schedule; those of the spec are read only to count pods in flight."""

    metadata: PodFieldsMetadata = PodFieldsMetadata()


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
    ownerReferences: tuple[ControllerReference, ...] | None = None  # noqa: N815 - the API's name
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
        metadata, spec, status = pod.metadata, pod.spec, pod.status
        containers = status.containerStatuses or ()
        if not spec.nodeName or status.phase not in _OBSERVED_PHASES or metadata.deletionTimestamp:
            return None
        if len(containers) > _MOST_CONTAINERS:
            return None
        if allowed_namespaces and metadata.namespace not in allowed_namespaces:
            return None
        controller = _controller_owner(metadata.ownerReferences)
        if controller and controller.kind in _NODE_BOUND_CONTROLLERS:
            return None
        # values that thousands of pods share are stored once, and the owner only if that is the type
        keeps_owner = controller and not _type_from_labels(metadata)
        metadata = msgspec.structs.replace(
            metadata,
            namespace=intern(metadata.namespace),
            labels=_deduplicate(metadata.labels),
            ownerReferences=_deduplicate((controller,)) if keeps_owner else None,
        )
        reduced = []
        for container in containers:
            last = container.lastState if container.lastState and container.lastState.terminated else None
            reduced.append(msgspec.structs.replace(container, name=intern(container.name), lastState=last))
        return ObservedPod(
            metadata=metadata,
            spec=ObservedPodSpec(intern(spec.nodeName)),
            status=ObservedPodStatus(intern(status.phase), tuple(reduced)),
        )

    return keep


@lru_cache(4096)
def _deduplicate(value: T) -> T:
    """Return an equal value from the cache, or the value."""
    return value


def pending_pod_type(pod: PodFields) -> str:
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


def _type_from_owner(metadata: PodFieldsMetadata | ObservedPodMetadata) -> str:
    controller = _controller_owner(metadata.ownerReferences)
    return (controller.name if controller else "") or metadata.name


def _controller_owner(owners: tuple[ControllerReference, ...] | None) -> ControllerReference | None:
    return next((owner for owner in owners or () if owner.controller), None)


def pod_type_key(namespace: str, type_: str) -> str:
    return f"{namespace}/{type_}"


RUNS: Final = 1.0
SUSPICIOUS: Final = 0.5
FAILED: Final = 0.0

_FAILURES: Final = frozenset({"Failed", "Unknown"})  # phases
_MAX_ENDS: Final = 10  # terminations that count when only the restart count shows them
_NO_STATE: Final = ContainerState()


class PodOutcome(NamedTuple):
    reward: float
    times: int
    """The number of times it happened."""
    at: float
    """When, by the kubelet's clock: seconds since 1970; NaN if unknown."""


def outcome_between(before: ObservedPod | None, after: ObservedPod, mttf_s: float) -> PodOutcome | None:
    """The outcome between two versions of a pod; None if nothing counts.

    `before` is None for the first version. Earlier terminations do not count then, unless the container is terminated.
    """
    if after.status.phase in _FAILURES:
        is_known = before is not None and before.status.phase in _FAILURES
        return None if is_known else PodOutcome(FAILED, 1, _pod_end_time(after))
    earlier = {container.name: container for container in _containers(before)} if before else {}
    ends = []
    for container in _containers(after):
        previous = earlier.get(container.name)
        count = _termination_count(container)
        # without an earlier version only the container's current state counts
        is_over = (container.state or _NO_STATE).terminated is not None
        new = count - (_termination_count(previous) if previous else count - int(is_over))
        if new > 0:
            reward = _termination_outcome(previous, container, mttf_s)
            ends.append(PodOutcome(reward, new, _end_time(_newest_termination(container))))
    return _worst_outcome(after, ends, has_run=before is not None and _runs_without_terminations(before))


def outcome_since(pod: ObservedPod, until_s: float, mttf_s: float) -> PodOutcome | None:
    """The outcome of a pod after a time, as far as its status still shows it."""
    if pod.status.phase in _FAILURES:
        return PodOutcome(FAILED, 1, _pod_end_time(pod)) if _pod_end_time(pod) > until_s else None
    ends = [
        PodOutcome(_termination_outcome(None, container, mttf_s), 1, at)
        for container in _containers(pod)
        if (at := _end_time(_newest_termination(container))) > until_s
    ]
    return _worst_outcome(pod, ends, has_run=not _latest_start_time(pod) > until_s)


def _worst_outcome(pod: ObservedPod, ends: list[PodOutcome], *, has_run: bool) -> PodOutcome | None:
    """The outcome of the terminations of a running pod; without any, that it runs, unless that is known."""
    if pod.status.phase != "Running":
        return None
    if ends:
        rewards, times, at = zip(*ends, strict=True)
        return PodOutcome(min(rewards), min(max(times), _MAX_ENDS), max(at))
    if has_run or not _runs_without_terminations(pod):
        return None
    return PodOutcome(RUNS, 1, _latest_start_time(pod))


def _containers(pod: ObservedPod) -> tuple[ObservedContainer, ...]:
    return pod.status.containerStatuses or ()


def _runs_without_terminations(pod: ObservedPod) -> bool:
    """Whether it runs, and no container ever terminated."""
    return pod.status.phase == "Running" and all(
        (container.state or _NO_STATE).running is not None and not _termination_count(container)
        for container in _containers(pod)
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


def _termination_outcome(before: ObservedContainer | None, after: ObservedContainer, mttf_s: float) -> float:
    """The first termination is suspicious. A later one is a failure unless it comes long after the previous one."""
    if _termination_count(after) <= 1:
        return SUSPICIOUS
    previous = None  # the termination before the newest, if it is known
    if (after.state or _NO_STATE).terminated is not None and after.lastState is not None:
        previous = after.lastState.terminated
    elif before is not None and _termination_count(before) == _termination_count(after) - 1:
        previous = _newest_termination(before)
    newest = _newest_termination(after)
    began_s = load_annotations.time(newest.startedAt) if newest is not None else np.nan
    ended_s, earlier_s = _end_time(newest), _end_time(previous)
    # an unknown time has a safe bound: a container starts after its previous end, and ends after its start
    last_s = began_s if np.isnan(ended_s) else ended_s
    first_s = began_s if np.isnan(earlier_s) else earlier_s
    return SUSPICIOUS if last_s - first_s > mttf_s else FAILED


def _end_time(ended: TerminatedState | None) -> float:
    return load_annotations.time(ended.finishedAt) if ended is not None else np.nan


def _pod_end_time(pod: ObservedPod) -> float:
    return _latest(_end_time(_newest_termination(container)) for container in _containers(pod))


def _latest_start_time(pod: ObservedPod) -> float:
    running = ((container.state or _NO_STATE).running for container in _containers(pod))
    return _latest(load_annotations.time(state.startedAt) for state in running if state is not None)


def _latest(times_s: Iterable[float]) -> float:
    return max((at for at in times_s if not np.isnan(at)), default=np.nan)
