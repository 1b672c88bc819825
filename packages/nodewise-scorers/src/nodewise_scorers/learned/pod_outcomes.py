"""The outcome of a pod between two versions of it, as a reward: 1 for running, 0.5 for suspicious, 0 for failed.

Events are counted, not updates of the API server: the terminations of a container are numbered, and a phase counts
when it begins. Of several containers the worst decides. A waiting container does not count, nor does a container that
runs again after it terminated: its termination was counted.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from nodewise_scorers.learned.pod_types import ContainerState, ObservedContainer, ObservedPod, TerminatedState
from nodewise_scorers.statistics import load_annotations

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
