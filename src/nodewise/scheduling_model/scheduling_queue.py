"""The scheduling queue: which pod is tried next, and when rejected pods are retried.

    active       ready to be tried: higher priority first, then longer wait
    backing off  ready after its back-off, or earlier if no pod is active
    failed       ready after its back-off, because the attempt itself failed
    waiting      rejected; ready after an event that may help, or after five minutes

All times are seconds of one clock. Sources: kubernetes v1.36.3 pkg/scheduler/backend/queue/{scheduling_queue,
backoff_queue,active_queue}.go, with the gates SchedulerQueueingHints and SchedulerPopFromBackoffQ at their
defaults.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

_FIRST_BACKOFF_S: Final = 1.0
_LONGEST_BACKOFF_S: Final = 10.0
_WINDOW_S: Final = 1.0
"""Back-offs end at whole seconds, so that pods of the same second are tried by priority."""

_FLUSH_AFTER_S: Final = 300.0
_FLUSH_EVERY_S: Final = 30.0

_MAX_EARLY_RETRIES: Final = 10
"""Maximum number of consecutive retries before the end of the back-off that only the pod's own status change caused.

kube-scheduler has no such limit: it retries a pod whose message changes each time without end.
"""

Stage = Literal["active", "backing off", "failed", "waiting"]


@dataclass
class QueuedPod:
    """A pod in the queue. `rejectors` are the plugins that rejected it, empty if the attempt failed."""

    key: str
    priority: int
    since_s: float
    order: int
    stage: Stage = "active"
    rejectors: frozenset[str] = frozenset()
    rejections: int = 0
    failures: int = 0
    early_retries: int = 0

    @property
    def retry_sort_key(self) -> tuple[int, float, int]:
        """Sort key: the pod to try first."""
        return -self.priority, self.since_s, self.order

    @property
    def ready_s(self) -> float:
        """End of the back-off."""
        count = self.failures or self.rejections
        if not count:
            return -math.inf
        wait_s = min(math.ldexp(_FIRST_BACKOFF_S, count - 1), _LONGEST_BACKOFF_S)
        return math.floor((self.since_s + wait_s) / _WINDOW_S) * _WINDOW_S + _WINDOW_S


class Queue:
    """Pending pods, each in one stage. `began_s` is the start time of the scheduler."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._entries: dict[str, QueuedPod] = {}
        self._added = 0

    def add(self, key: str, priority: int, now_s: float) -> None:
        """Add a new pod."""
        self._added += 1
        self._entries[key] = QueuedPod(key, priority, now_s, self._added)

    def remove(self, key: str) -> None:
        """Remove a bound or deleted pod."""
        self._entries.pop(key, None)

    def pop(self, now_s: float) -> str | None:
        """The pod to try now, None if there is none; it stays in the queue until it is removed or put back."""
        self._activate_due_pods(now_s)
        active = self._pods_in_stage("active")
        if active:
            return min(active, key=lambda entry: entry.retry_sort_key).key
        early = [
            entry for entry in self._pods_in_stage("backing off") if entry.early_retries < _MAX_EARLY_RETRIES
        ]
        if not early:
            return None
        first = min(early, key=lambda entry: (entry.ready_s, entry.retry_sort_key))
        first.early_retries += 1
        return first.key

    def put_back(self, key: str, rejectors: frozenset[str], now_s: float) -> None:
        """Return a pod to the queue after an unsuccessful attempt."""
        entry = self._entries[key]
        if rejectors:
            entry.rejections, entry.failures = entry.rejections + 1, 0
        else:
            entry.failures += 1
        entry.rejectors, entry.since_s = rejectors, now_s
        entry.stage = "waiting" if rejectors else "failed"

    def move(self, may_help: Callable[[QueuedPod], bool], now_s: float) -> None:
        """Move the waiting pods that an event may help."""
        for entry in self._pods_in_stage("waiting"):
            if may_help(entry):
                entry.early_retries = 0
                self._move_to_active_or_backoff(entry, now_s)

    def again(self, key: str, now_s: float) -> None:
        """Retry a waiting pod after a change of its own status."""
        entry = self._entries[key]
        if entry.stage == "waiting":
            self._move_to_active_or_backoff(entry, now_s)

    def keys(self) -> list[str]:
        """All pods of the queue, in order of arrival."""
        return list(self._entries)

    def next_due_s(self) -> float:
        """Time of the next retry without an event; infinite if there is none."""
        return min((self._retry_time_s(entry) for entry in self._entries.values()), default=math.inf)

    def _move_to_active_or_backoff(self, entry: QueuedPod, now_s: float) -> None:
        entry.stage = "backing off" if entry.ready_s > now_s else "active"

    def _activate_due_pods(self, now_s: float) -> None:
        for entry in self._entries.values():
            if entry.stage != "active" and self._retry_time_s(entry) <= now_s:
                entry.stage, entry.early_retries = "active", 0

    def _retry_time_s(self, entry: QueuedPod) -> float:
        if entry.stage == "active":
            return -math.inf
        if entry.stage != "waiting":
            return entry.ready_s
        ticks = math.floor((entry.since_s + _FLUSH_AFTER_S - self._began_s) / _FLUSH_EVERY_S) + 1
        return self._began_s + ticks * _FLUSH_EVERY_S

    def _pods_in_stage(self, stage: Stage) -> list[QueuedPod]:
        return [entry for entry in self._entries.values() if entry.stage == stage]
