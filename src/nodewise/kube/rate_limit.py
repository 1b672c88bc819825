"""Client-side rate limit, and backoff after failures. Time and randomness are arguments."""

from collections.abc import Callable
from typing import NamedTuple


class TokenBucket:
    """A token bucket: `burst` calls at once, `qps` a second on average (client-go v0.36 util/flowcontrol)."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at_s: float | None = None

    def take(self, now_s: float, patience_s: float = float("inf")) -> float | None:
        """Seconds to wait before the call, or None if that is more than `patience_s`: then nothing is taken.

        Calls proceed in the order of `take`, as the tokens of earlier ones are already spent.
        """
        if self._at_s is not None:
            earned = max(0.0, now_s - self._at_s) * self._qps
            self._tokens = min(self._burst, self._tokens + earned)
        self._at_s = now_s
        wait_s = max(0.0, (1.0 - self._tokens) / self._qps)
        if wait_s > patience_s:
            return None
        self._tokens -= 1.0
        return wait_s


class Backoff(NamedTuple):
    """Delays that double with each consecutive failure, with jitter so that replicas do not retry simultaneously.

    The defaults are those of client-go's reflector (v0.36, tools/cache/reflector.go), except that its jitter
    only lengthens: a wait here lies between `share` and all of the doubled one, never above `most_s`.
    """

    first_s: float = 0.8
    most_s: float = 30.0
    share: float = 0.5
    reset_s: float = 120.0
    """A connection that lasted this long resets the count."""

    def delay_s(self, failures: int, random: Callable[[], float], at_least_s: float = 0.0) -> float:
        """The wait after `failures` failures in a row, the first being 1; `at_least_s` is a Retry-After.

        The wait is at least Retry-After plus the jitter, but no more than twice `most_s`.
        """
        # the exponent is bounded because 2.0 ** 1024 is an OverflowError, a month into an outage
        whole_s = min(self.most_s, self.first_s * 2.0 ** min(max(failures - 1, 0), 60))
        jittered_s = whole_s * (self.share + (1.0 - self.share) * random())
        return min(max(jittered_s, at_least_s + jittered_s * self.share), 2.0 * self.most_s)
