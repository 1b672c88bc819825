"""The rate of writes to the API server, which follows how fast it responds. Pure computation; time is an argument.

Additive increase and multiplicative decrease: from any state this converges to the capacity, shared equally by the
clients that do the same, such as the replicas of a sharded controller. Source: D.-M. Chiu and R. Jain, "Analysis of the
Increase and Decrease Algorithms for Congestion Avoidance in Computer Networks", Computer Networks and ISDN Systems 17
(1989). As in TCP, one decrease answers for all requests that were sent before it (RFC 6582), an increase requires that
the limit delays requests, and an idle time ends what was learned (RFC 7661).

Calls are also limited in number: more calls at once than the rate needs would only wait in the API server, where they
delay the calls of others.
"""

from typing import Final

from nodewise.kube.api_server_interface import TokenBucket

START_QPS: Final = 50.0
"""The rate at the beginning and after an idle time, and with an API server that responds slowly but without errors."""
LEAST_QPS: Final = 5.0
QUICK_S: Final = 0.025
"""The mean time to a response up to which the rate rises above `START_QPS`."""
SLOW_S: Final = 1.0
"""The mean time, apart from failures, above which the API server counts as overloaded; Kubernetes' objective for calls
that write."""
LONGEST_PAUSE_S: Final = 30.0
"""The longest Retry-After that is obeyed."""
IDLE_S: Final = 10.0
_INTERVAL_S: Final = 0.5
"""The shortest time between two changes of the rate, apart from 429."""
_LEAST_RESPONSES: Final = 10
"""Responses that a change of the rate is based on, apart from 429."""
_FAILING_SHARE: Final = 0.1
"""The share of failures above which the API server counts as overloaded. Fewer are of single objects, such as a node
whose webhook does not respond, and must not delay the others."""
_FIRST_INCREASE_QPS: Final = 25.0
"""The increase in an interval until the first decrease."""
_INCREASE_QPS: Final = 5.0
_GENTLE_DECREASE: Final = 0.8
"""The decrease when responses become slow; after errors, the rate is halved."""


class WriteRate(TokenBucket):
    """A token bucket whose rate is at most `most_qps`, and lower while the API server is slow or refuses calls.

    The end of each call is reported to `record_refusal` or `record_response`. The API server limits a client by queues
    and by the number of concurrent calls of its priority level (API Priority and Fairness); it says so by 429 with
    Retry-After.
    """

    def __init__(self, most_qps: float, burst: int) -> None:
        super().__init__(min(START_QPS, most_qps), burst)
        self._most_qps = most_qps
        self._least_qps = min(LEAST_QPS, most_qps / 10)
        self._used_s = float("-inf")
        """The time of the last call."""
        self._paused_until_s = float("-inf")
        self._departure_s = float("-inf")
        """When the last call proceeds."""
        self._mean_s = 0.0
        """The mean time to a response in the last interval."""
        self._shortest_s = float("inf")
        """The shortest of these means since the last idle time."""
        self._begin_interval(float("-inf"))
        self._increase_qps = _FIRST_INCREASE_QPS

    @property
    def qps(self) -> float:
        """The present rate, calls per second."""
        return self._qps

    @property
    def concurrency(self) -> int:
        """How many calls are useful at once, by Little's law: those that the most rate needs while the API server
        responds fastest, and those that `START_QPS` needs at present. What our own calls delay adds no more calls. A
        fraction is rounded: one call more writes labels sooner, but delays the writes of other clients.
        """
        shortest_s = min(self._shortest_s, self._mean_s)
        start_qps = min(START_QPS, self._most_qps)
        return max(1, round(max(self._most_qps * shortest_s, start_qps * self._mean_s)))

    @property
    def is_reduced(self) -> bool:
        """Whether the API server refused calls or did not respond, and the rate has not recovered."""
        return self._qps < min(START_QPS, self._most_qps)

    def take(self, now_s: float, patience_s: float = float("inf")) -> float | None:
        if now_s - self._used_s > IDLE_S:
            self._qps = min(self._qps, START_QPS)
            self._increase_qps = _FIRST_INCREASE_QPS
            self._mean_s, self._shortest_s = 0.0, float("inf")
            self._begin_interval(now_s)
        self._used_s = now_s
        at_s = max(now_s, self._paused_until_s)
        before = self._tokens, self._at_s
        wait_s = super().take(at_s)
        assert wait_s is not None
        departure_s = at_s + wait_s
        if wait_s:
            # calls keep their order and distance after an increase of the rate, too
            departure_s = max(departure_s, self._departure_s + 1.0 / self._most_qps)
            self._is_limiting = True
        if departure_s - now_s > patience_s:
            self._tokens, self._at_s = before
            return None
        self._departure_s = max(self._departure_s, departure_s)
        return departure_s - now_s

    def is_paused(self, now_s: float) -> bool:
        """Whether a call that has waited must `take` again, because the API server refused another one meanwhile."""
        return now_s < self._paused_until_s

    def record_refusal(self, sent_s: float, now_s: float, retry_after_s: float) -> None:
        """Adapt the rate to a 429: no call proceeds during the next `retry_after_s`, and then without a burst."""
        self._paused_until_s = max(self._paused_until_s, now_s + min(retry_after_s, LONGEST_PAUSE_S))
        if sent_s >= self._changed_s:
            self._decrease(0.5, self._least_qps, now_s)
        self._tokens = min(self._tokens, 0.0)
        self._at_s = max(self._paused_until_s, self._at_s or now_s)

    def record_response(self, sent_s: float, now_s: float, *, is_failure: bool = False) -> None:
        """Adapt the rate to another end of a call that was sent at `sent_s`. A failure is a 5xx or no response."""
        if sent_s < self._changed_s:
            return
        self._responses += 1
        self._failures += is_failure
        if not is_failure:
            self._seconds += now_s - sent_s
        if self._responses < _LEAST_RESPONSES or now_s - self._changed_s < _INTERVAL_S:
            return
        mean_s = self._seconds / max(self._responses - self._failures, 1)
        if self._failures < self._responses:
            self._mean_s, self._shortest_s = mean_s, min(self._shortest_s, mean_s)
        limit_qps = self._most_qps if mean_s <= QUICK_S else min(START_QPS, self._most_qps)
        if mean_s > SLOW_S or self._failures > _FAILING_SHARE * self._responses:
            self._decrease(0.5, self._least_qps, now_s)
        elif self._qps > limit_qps:
            self._decrease(_GENTLE_DECREASE, limit_qps, now_s)
        else:
            if self._is_limiting:
                self._qps = min(self._qps + self._increase_qps, limit_qps)
            self._begin_interval(now_s)

    def _decrease(self, factor: float, least_qps: float, now_s: float) -> None:
        self._qps = min(max(self._qps * factor, least_qps), self._qps)
        self._increase_qps = _INCREASE_QPS
        self._begin_interval(now_s)

    def _begin_interval(self, now_s: float) -> None:
        """Forget the responses so far; those to calls that were sent before do not count any more."""
        self._changed_s = now_s
        self._responses = self._failures = 0
        self._seconds = 0.0
        self._is_limiting = False
