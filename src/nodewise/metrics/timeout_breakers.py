"""Circuit breakers for metrics that keep timing out.

After `MAX_TIMEOUTS` timeouts in a row a metric is not requested from that source for a pause, which doubles with each
further timeout. A timeout counts only if the source answered another request since the previous one: an outage of
the source opens no breaker, so that all metrics are fetched again when it ends.
"""

from typing import Final, NamedTuple

from nodewise.base.clock import Clock, format_rfc3339

MAX_TIMEOUTS: Final = 3
"""Timeouts in a row after which a breaker opens."""
FIRST_PAUSE_S: Final = 30.0
MAX_PAUSE_S: Final = 300.0


class Pause(NamedTuple):
    """Why a metric is not requested."""

    timeouts: int
    """In a row."""
    timeout_s: float
    """The timeout of the last call."""
    until_s: float
    """On the monotonic clock."""
    until: str
    """RFC 3339."""


class _Breaker:
    """The timeouts of one metric at one source, in a row."""

    def __init__(self, started_s: float) -> None:
        self.last_started_s = started_s
        """Start of the last call that timed out, on the monotonic clock."""
        self.timeouts = 0
        self.pause: Pause | None = None


class TimeoutBreakers:
    """The breakers of all metrics, by `MetricRequest.key` and name of the source."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._breakers: dict[str, dict[str, _Breaker]] = {}
        self._answered_s: dict[str, float] = {}
        """Time of the last answer of each source, on the monotonic clock."""

    @property
    def open(self) -> int:
        """The number of open breakers."""
        return sum(
            breaker.pause is not None
            for by_source in self._breakers.values()
            for breaker in by_source.values()
        )

    def pause(self, key: str, source: str) -> Pause | None:
        """The pause in which the metric must not be requested now; None if it may."""
        breaker = self._breakers.get(key, {}).get(source)
        pause = breaker.pause if breaker else None
        return pause if pause and self._clock.monotonic() < pause.until_s else None

    def record_timeout(self, key: str, source: str, started_s: float, timeout_s: float) -> Pause | None:
        """Count a timeout of a call that began at `started_s`. The pause that follows; None if the metric may be
        requested again.
        """
        breaker = self._breakers.setdefault(key, {}).setdefault(source, _Breaker(started_s))
        since_s, breaker.last_started_s = breaker.last_started_s, started_s
        if self._answered_s.get(source, float("-inf")) < since_s:
            return None
        breaker.timeouts += 1
        if breaker.timeouts < MAX_TIMEOUTS:
            return None
        # the exponent is limited: a float has no power of two with an exponent above 1,023
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(breaker.timeouts - MAX_TIMEOUTS, 10), MAX_PAUSE_S)
        until = format_rfc3339(self._clock.now() + pause_s)
        breaker.pause = Pause(breaker.timeouts, timeout_s, self._clock.monotonic() + pause_s, until)
        return breaker.pause

    def record_answer(self, key: str, source: str) -> bool:
        """Close the breaker. Whether it was open."""
        self._answered_s[source] = self._clock.monotonic()
        breaker = self._breakers.get(key, {}).pop(source, None)
        return breaker is not None and breaker.pause is not None

    def forget(self, gone: frozenset[str]) -> None:
        """Drop metrics that are no longer requested."""
        for key in gone & self._breakers.keys():
            del self._breakers[key]
