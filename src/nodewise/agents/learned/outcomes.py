"""What happened to a pod between two looks at it, as a reward: 1 it runs, 0.5 that is suspicious, 0 it failed.

What is counted is what happened, not how often the API server told of it: a container's terminations have numbers, and
a phase counts when it begins. Of several containers the worst decides. A container that waits, or that runs again after
it had ended, says nothing: its end was counted.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from nodewise.agents.learned.pods import Container, ContainerState, LivingPod, Terminated
from nodewise.statistics import annotations

RUNS: Final = 1.0
SUSPICIOUS: Final = 0.5
FAILED: Final = 0.0

_FAILURES: Final = frozenset({"Failed", "Unknown"})
"""Phases."""
_RUNNING: Final = "Running"
_MOST: Final = 10
"""Ends of a container that count where we see only that it was started again so many times."""
_NOTHING: Final = ContainerState()


class Outcome(NamedTuple):
    """What a pod says of its node."""

    reward: float
    times: int
    """It happened so many times."""
    at: float
    """When, by the kubelet's clock: seconds since 1970; NaN where that is not told."""


class _End(NamedTuple):
    """The newest end of a container that counts."""

    reward: float
    times: int
    at: float


def between(before: LivingPod | None, after: LivingPod, mttf_s: float) -> Outcome | None:
    """What happened from one look at a pod to the next; None for nothing that counts.

    `before` is None at the first look. What had ended before that does not count, unless it is over just now.
    """
    phase = after.status.phase
    if phase in _FAILURES:
        is_known = before is not None and before.status.phase in _FAILURES
        return None if is_known else Outcome(FAILED, 1, _ended_at(after))
    if phase != _RUNNING:
        return None
    ended = _worst(_ends_between(before, after, mttf_s))
    if ended is not None:
        return ended
    if not _is_up(after) or (before is not None and _is_up(before)):
        return None
    return Outcome(RUNS, 1, _up_at(after))


def _ends_between(before: LivingPod | None, after: LivingPod, mttf_s: float) -> Iterator[_End]:
    """The ends of containers from one look at a pod to the next."""
    earlier = {container.name: container for container in _containers(before)} if before else {}
    for container in _containers(after):
        if (end := _end(earlier.get(container.name), container, mttf_s)) is not None:
            yield end


def since(pod: LivingPod, until_s: float, mttf_s: float) -> Outcome | None:
    """What happened to a pod after a time, as far as it can still be seen."""
    phase = pod.status.phase
    if phase in _FAILURES:
        return Outcome(FAILED, 1, _ended_at(pod)) if _ended_at(pod) > until_s else None
    if phase != _RUNNING:
        return None
    ended = _worst(
        _End(_verdict(None, one, mttf_s), 1, at)
        for one in _containers(pod)
        if (at := _time(_newest_end(one), "finishedAt")) > until_s
    )
    if ended is not None:
        return ended
    return Outcome(RUNS, 1, _up_at(pod)) if _is_up(pod) and _up_at(pod) > until_s else None


def _containers(pod: LivingPod) -> tuple[Container, ...]:
    return pod.status.containerStatuses or ()


def _worst(ends: Iterable[_End]) -> Outcome | None:
    found = list(ends)
    if not found:
        return None
    times = min(max(one.times for one in found), _MOST)
    return Outcome(min(one.reward for one in found), times, max(one.at for one in found))


def _is_up(pod: LivingPod) -> bool:
    """Whether it runs, and no container ever ended."""
    return pod.status.phase == _RUNNING and all(
        (one.state or _NOTHING).running is not None and not _ends(one) for one in _containers(pod)
    )


def _ends(one: Container) -> int:
    """How often the container ended until now.

    The kubelet counts a start anew: a container that runs ended as often as it was started again, one that does not
    run once more.
    """
    state, last = one.state or _NOTHING, (one.lastState or _NOTHING).terminated
    known = max(one.restartCount, 0)
    if state.terminated is not None:
        return max(known, int(last is not None)) + 1
    if last is None:
        return known
    return max(known, 1) if state.running is not None else known + 1


def _newest_end(one: Container) -> Terminated | None:
    return (one.state or _NOTHING).terminated or (one.lastState or _NOTHING).terminated


def _end(before: Container | None, after: Container, mttf_s: float) -> _End | None:
    """The newest end since the look before; at the first look only one that is the container's state."""
    ended = _ends(after)
    is_over = (after.state or _NOTHING).terminated is not None
    new = ended - (_ends(before) if before else ended - int(is_over))
    if new <= 0:
        return None
    return _End(_verdict(before, after, mttf_s), new, _time(_newest_end(after), "finishedAt"))


def _verdict(before: Container | None, after: Container, mttf_s: float) -> float:
    """A first end is suspicious. A later one is a failure, unless it comes long after the one before."""
    if _ends(after) <= 1:
        return SUSPICIOUS
    newest = _newest_end(after)
    ended_s, began_s = _time(newest, "finishedAt"), _time(newest, "startedAt")
    earlier_s = _time(_end_before(before, after), "finishedAt")
    # what is not told is on the safe side: a container begins after it ended, and ends after it began
    last_s = began_s if np.isnan(ended_s) else ended_s
    first_s = began_s if np.isnan(earlier_s) else earlier_s
    return SUSPICIOUS if last_s - first_s > mttf_s else FAILED


def _end_before(before: Container | None, after: Container) -> Terminated | None:
    """The end before the newest, if somebody still knows it."""
    if (after.state or _NOTHING).terminated is not None and after.lastState is not None:
        return after.lastState.terminated
    return _newest_end(before) if before is not None and _ends(before) == _ends(after) - 1 else None


def _ended_at(pod: LivingPod) -> float:
    return _latest(_time(_newest_end(one), "finishedAt") for one in _containers(pod))


def _up_at(pod: LivingPod) -> float:
    return _latest(annotations.time(_started(one)) for one in _containers(pod))


def _started(one: Container) -> str | None:
    running = (one.state or _NOTHING).running
    return running.startedAt if running is not None else None


def _latest(times_s: Iterable[float]) -> float:
    return max((at for at in times_s if not np.isnan(at)), default=np.nan)


def _time(ended: Terminated | None, which: str) -> float:
    return annotations.time(getattr(ended, which)) if ended is not None else np.nan
