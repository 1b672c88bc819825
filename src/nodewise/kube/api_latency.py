"""Measures how long the API server takes to respond, and decides whether leader election needs longer durations.

A measurement is the time from a call until the next response, through all timeouts in between. So an API server that is
stopped or restarted counts once, whatever number of calls fails meanwhile, and only one that is slow again and again
counts as slow.
"""

from collections import deque
from typing import Final

_MEASUREMENTS: Final = 60
"""A leader renews its Lease every one to two seconds, so these are one to two minutes."""
_SLOW_MEASUREMENTS: Final = 2
_QUICK_SHARE: Final = 0.4
"""An API server is quick again when all measurements are below this share of the limit."""
_MOST_DOUBLINGS: Final = 10


class ApiLatency:
    """The last measurements. `limit_s` is the longest time that a quick API server takes."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._measured_s: deque[float] = deque(maxlen=_MEASUREMENTS)
        self._unanswered_since_s: float | None = None
        self._timeouts = 0
        self.is_slow = False

    @property
    def last_s(self) -> float:
        """The last measurement."""
        return self._measured_s[-1] if self._measured_s else 0.0

    @property
    def is_unclear(self) -> bool:
        """Whether the last measurement was long, and it is not known yet whether the next ones will be."""
        return not self.is_slow and self.last_s > self._limit_s

    def record_timeout(self, sent_s: float) -> None:
        """Record a call without a response, and the monotonic time at which it was sent."""
        self._timeouts += 1
        if self._unanswered_since_s is None:
            self._unanswered_since_s = sent_s

    def record_response(self, sent_s: float, now_s: float) -> None:
        """Record a response."""
        since_s = sent_s if self._unanswered_since_s is None else self._unanswered_since_s
        self._unanswered_since_s = None
        self._timeouts = 0
        self._measured_s.append(now_s - since_s)
        if not self.is_slow:
            slow = sum(measured_s > self._limit_s for measured_s in self._measured_s)
            self.is_slow = slow >= _SLOW_MEASUREMENTS
            if self.is_slow:
                self._measured_s = deque([self.last_s], maxlen=_MEASUREMENTS)
        elif len(self._measured_s) == _MEASUREMENTS:
            self.is_slow = max(self._measured_s) > _QUICK_SHARE * self._limit_s

    def timeout_s(self, first_s: float, most_s: float) -> float:
        """The timeout of the next call, which doubles from the second timeout in a row on.

        After the first one, only the connection may be lost, and a new one is quick. A measurement is completed with
        the longest timeout.
        """
        if self.is_unclear:
            return most_s
        doublings = min(max(0, self._timeouts - 1), _MOST_DOUBLINGS)
        return min(most_s, first_s * 2.0**doublings)
