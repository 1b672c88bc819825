"""Which pod is tried next, and when a pod that was rejected is tried again.

    active       to be tried now: the higher priority first, then who has waited longer
    backing off  to be tried when its back-off has passed, or earlier if nothing is active
    failed       to be tried when its back-off has passed: the attempt itself failed
    waiting      rejected; an event that may help moves it on, or five minutes do

All times are seconds of one clock. Sources: kubernetes v1.36.3 pkg/scheduler/backend/queue/{scheduling_queue,
backoff_queue,active_queue}.go, with the gates SchedulerQueueingHints and SchedulerPopFromBackoffQ as they are
by default.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

_FIRST_BACKOFF_S: Final = 1.0
_LONGEST_BACKOFF_S: Final = 10.0
_WINDOW_S: Final = 1.0
"""Back-offs end at whole seconds, so that pods of one second are tried in the order of their priority."""

_FLUSH_AFTER_S: Final = 300.0
_FLUSH_EVERY_S: Final = 30.0

_MOST_EARLY: Final = 10
"""How often in a row a pod is tried before its back-off has passed, for nothing but its own change of status.

Upstream has no such limit: a pod whose message is another one each time is tried again without end.
"""

Stage = Literal["active", "backing off", "failed", "waiting"]


@dataclass
class Entry:
    """A pod in the queue. `rejectors` are the plugins that stood against it, none where the attempt failed."""

    key: str
    priority: int
    since_s: float
    order: int
    stage: Stage = "active"
    rejectors: frozenset[str] = frozenset()
    rejections: int = 0
    failures: int = 0
    early: int = 0

    @property
    def rank(self) -> tuple[int, float, int]:
        """Sorts who is tried first to the front."""
        return -self.priority, self.since_s, self.order

    @property
    def ready_s(self) -> float:
        """When the back-off has passed."""
        count = self.failures or self.rejections
        if not count:
            return -math.inf
        wait_s = min(math.ldexp(_FIRST_BACKOFF_S, count - 1), _LONGEST_BACKOFF_S)
        return math.floor((self.since_s + wait_s) / _WINDOW_S) * _WINDOW_S + _WINDOW_S


class Queue:
    """The pods that are on no node yet, each in one stage. `began_s` is when the scheduler started."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._entries: dict[str, Entry] = {}
        self._added = 0

    def add(self, key: str, priority: int, now_s: float) -> None:
        """A new pod."""
        self._added += 1
        self._entries[key] = Entry(key, priority, now_s, self._added)

    def remove(self, key: str) -> None:
        """A pod that is bound, or gone."""
        self._entries.pop(key, None)

    def pop(self, now_s: float) -> str | None:
        """The pod to try now; it stays in the queue until it is removed or put back."""
        self._flush(now_s)
        active = self._in("active")
        if active:
            return min(active, key=lambda entry: entry.rank).key
        early = [entry for entry in self._in("backing off") if entry.early < _MOST_EARLY]
        if not early:
            return None
        first = min(early, key=lambda entry: (entry.ready_s, entry.rank))
        first.early += 1
        return first.key

    def put_back(self, key: str, rejectors: frozenset[str], now_s: float) -> None:
        """A pod that was tried in vain."""
        entry = self._entries[key]
        if rejectors:
            entry.rejections, entry.failures = entry.rejections + 1, 0
        else:
            entry.failures += 1
        entry.rejectors, entry.since_s = rejectors, now_s
        entry.stage = "waiting" if rejectors else "failed"

    def move(self, may_help: Callable[[Entry], bool], now_s: float) -> None:
        """Something happened: who waits and may be helped by it is tried again."""
        for entry in self._in("waiting"):
            if may_help(entry):
                entry.early = 0
                self._move(entry, now_s)

    def again(self, key: str, now_s: float) -> None:
        """A pod that waits is tried again for a change of its own."""
        entry = self._entries[key]
        if entry.stage == "waiting":
            self._move(entry, now_s)

    def keys(self) -> list[str]:
        """All pods of the queue, in the order in which they came."""
        return list(self._entries)

    def next_due_s(self) -> float:
        """When time alone will have a pod tried again; infinite if never."""
        return min((self._due_s(entry) for entry in self._entries.values()), default=math.inf)

    def _move(self, entry: Entry, now_s: float) -> None:
        entry.stage = "backing off" if entry.ready_s > now_s else "active"

    def _flush(self, now_s: float) -> None:
        for entry in self._entries.values():
            if entry.stage != "active" and self._due_s(entry) <= now_s:
                entry.stage, entry.early = "active", 0

    def _due_s(self, entry: Entry) -> float:
        if entry.stage == "active":
            return -math.inf
        if entry.stage != "waiting":
            return entry.ready_s
        ticks = math.floor((entry.since_s + _FLUSH_AFTER_S - self._began_s) / _FLUSH_EVERY_S) + 1
        return self._began_s + ticks * _FLUSH_EVERY_S

    def _in(self, stage: Stage) -> list[Entry]:
        return [entry for entry in self._entries.values() if entry.stage == stage]
