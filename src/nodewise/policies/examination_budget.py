"""Limits the work that changes of node labels cause in kube-scheduler while many pods wait. No I/O.

Whenever a label of a node changes, kube-scheduler examines all waiting pods that its plugin NodeAffinity rejected,
while its queue is locked (v1.36 pkg/scheduler/backend/queue/scheduling_queue.go, `movePodsToActiveOrBackoffQueue`). If
changes come faster than that, it binds few pods of any namespace, and sees labels minutes after they were written.
Labels that change back in the meantime need no write at all.
"""

from typing import Final

EXAMINATIONS_PER_S: Final = 25_000.0
"""Waiting pods times changed nodes, per second on average.

kube-scheduler took 8 µs for each while two cores were busy (its metric `event_handling_duration_seconds`), so it needs
about a fifth of its time for them. 5,000 waiting pods then leave 5 nodes per second: if each recovered node accepts ten
pods, these are as many as kube-scheduler binds with its default client limits.
"""
LEAST_CHANGES_PER_S: Final = 5.0
"""Changed nodes per second on average, however many pods wait."""
BURST_S: Final = 5.0
"""The time for which the budget accumulates: as many nodes may be changed at once."""


class ExaminationBudget:
    """How many nodes may be changed now. With up to 500 waiting pods, the client's default limit is lower."""

    def __init__(self) -> None:
        self._left_s = BURST_S
        """The unspent time of the budget; negative after urgent changes."""
        self._at_s: float | None = None

    def take(self, now_s: float, waiting_pods: int, *, is_urgent: bool) -> bool:
        """Whether a node may be changed at this monotonic time, which is then paid for.

        `waiting_pods` are those that kube-scheduler examines. An urgent change is always allowed, and delays others.
        """
        if self._at_s is not None:
            self._left_s = min(BURST_S, self._left_s + max(0.0, now_s - self._at_s))
        self._at_s = now_s
        cost_s = min(waiting_pods / EXAMINATIONS_PER_S, 1.0 / LEAST_CHANGES_PER_S)
        if cost_s and self._left_s <= 0.0 and not is_urgent:
            return False
        self._left_s = max(self._left_s - cost_s, -BURST_S)
        return True
