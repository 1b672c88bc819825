"""The rate of writes stays below its maximum, follows the API server, recovers, and is shared by several clients."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.kube.write_rate import LONGEST_PAUSE_S, QUICK_S, START_QPS, WriteRate

AT_ONCE = 8
MOST_QPS = st.floats(0.5, 500)


class Response(NamedTuple):
    """How an API server ends a call."""

    latency_s: float
    is_failure: bool = False
    retry_after_s: float | None = None
    """None unless the response is a 429."""

    def record(self, rate: WriteRate, sent_s: float) -> None:
        end_s = sent_s + self.latency_s
        if self.retry_after_s is None:
            rate.record_response(sent_s, end_s, is_failure=self.is_failure)
        else:
            rate.record_refusal(sent_s, end_s, self.retry_after_s)


RESPONSES = st.builds(Response, st.floats(0, 3), st.booleans(), st.sampled_from([None, 0.0, 1.0, 7.0, 1e6]))
QUICK = Response(QUICK_S / 5)


class SimulatedServer:
    """Responds quickly up to a number of calls per second, and with 429 beyond."""

    def __init__(self, capacity_qps: float) -> None:
        self._capacity_qps = capacity_qps
        self._calls: deque[float] = deque()

    def respond(self, now_s: float) -> Response:
        while self._calls and self._calls[0] <= now_s - 1.0:
            self._calls.popleft()
        if len(self._calls) >= self._capacity_qps:
            return Response(0.002, retry_after_s=1.0)
        self._calls.append(now_s)
        return QUICK


def write_all_the_time(
    rates: Sequence[WriteRate], server: SimulatedServer, begin_s: float, seconds: float
) -> list[int]:
    """Lets each client write with up to `AT_ONCE` concurrent calls; returns the calls that succeeded, by client."""
    done = [0 for _ in rates]
    ends = [(begin_s, client) for client in range(len(rates)) for _ in range(AT_ONCE)]
    calls: list[tuple[float, int]] = sorted(ends)
    while calls:
        now_s, client = calls.pop(0)
        if now_s > begin_s + seconds:
            break
        wait_s = rates[client].take(now_s)
        assert wait_s is not None
        sent_s = now_s + wait_s
        response = server.respond(sent_s)
        response.record(rates[client], sent_s)
        done[client] += response.retry_after_s is None
        calls.append((sent_s + response.latency_s, client))
        calls.sort()
    return done


@settings(deadline=None)
@given(MOST_QPS, st.integers(1, 50), st.lists(st.tuples(st.floats(0, 12), RESPONSES), max_size=120))
def test_no_more_calls_proceed_than_the_maximum_permits(
    most_qps: float, burst: int, steps: list[tuple[float, Response]]
) -> None:
    rate = WriteRate(most_qps, burst)
    now_s, sent = 0.0, list[float]()
    for gap_s, response in steps:
        now_s += gap_s / AT_ONCE
        wait_s = rate.take(now_s)
        assert wait_s is not None
        sent.append(now_s + wait_s)
        response.record(rate, sent[-1])
        assert 0 < rate.qps <= most_qps
    for first, begin_s in enumerate(sent):
        for last, end_s in enumerate(sent[first:], first):
            assert last - first <= burst + most_qps * max(end_s - begin_s, 0.0) + 1e-6


@settings(deadline=None)
@given(MOST_QPS, st.integers(1, 500), st.floats(0, 1e6))
def test_after_a_429_the_rate_is_halved_once_and_nothing_is_sent_until_retry_after(
    most_qps: float, burst: int, retry_after_s: float
) -> None:
    rate = WriteRate(most_qps, burst)
    before_qps = rate.qps
    sent_s = [rate.take(0.0) or 0.0 for _ in range(3)]
    now_s = max(sent_s) + 0.01
    for at_s in sent_s:
        rate.record_refusal(at_s, now_s, retry_after_s)
        assert rate.qps == pytest.approx(before_qps / 2), (
            "calls that were sent before the decrease count once"
        )
    pause_s = min(retry_after_s, LONGEST_PAUSE_S)
    waits_s = [rate.take(now_s) for _ in range(3)]
    assert waits_s == sorted(waits_s, key=lambda wait_s: wait_s or 0.0)
    assert (waits_s[0] or 0.0) >= pause_s - 1e-9, "the burst is lost"
    assert rate.take(now_s, patience_s=pause_s / 2) is None or not pause_s
    assert rate.qps == pytest.approx(before_qps / 2)


@settings(deadline=None, max_examples=20)
@given(st.floats(60, 400), st.integers(0, 10))
def test_the_rate_reaches_the_maximum_while_responses_are_quick_and_recovers_after_errors(
    most_qps: float, errors: int
) -> None:
    rate = WriteRate(most_qps, 20)
    write_all_the_time([rate], SimulatedServer(1e9), 0.0, 20.0)
    assert rate.qps == most_qps
    for number in range(errors):
        rate.record_refusal(21.0 + number, 21.5 + number, 0.0)
    assert rate.qps == pytest.approx(max(most_qps / 2**errors, min(5.0, most_qps / 10)))
    write_all_the_time([rate], SimulatedServer(1e9), 33.0, 60.0)
    assert rate.qps == most_qps


@pytest.mark.parametrize("latency_s", [0.1, 0.5])
def test_the_rate_does_not_rise_above_the_start_while_responses_are_slow(latency_s: float) -> None:
    rate, now_s = WriteRate(250.0, 1), 0.0
    for _ in range(2000):
        now_s += rate.take(now_s) or 0.0
        rate.record_response(now_s, now_s + latency_s)
    assert rate.qps == START_QPS


def test_the_rate_falls_to_the_start_when_responses_become_slow_and_below_after_seconds() -> None:
    rate = WriteRate(250.0, 1)
    write_all_the_time([rate], SimulatedServer(1e9), 0.0, 10.0)
    now_s, rates = 10.0, list[float]()
    for latency_s in (0.2, 3.0):
        for _ in range(2000):
            now_s += rate.take(now_s) or 0.0
            rate.record_response(now_s, now_s + latency_s)
        rates.append(rate.qps)
    assert rates == [START_QPS, 5.0]


@pytest.mark.parametrize(("failing", "least_qps", "most_qps"), [(1, 250.0, 250.0), (30, 5.0, 50.0)])
def test_failures_of_single_objects_do_not_reduce_the_rate(
    failing: int, least_qps: float, most_qps: float
) -> None:
    """Of 100 writes one fails, such as that of a node whose webhook does not respond, or 30."""
    rate, now_s = WriteRate(250.0, 1), 0.0
    for number in range(5000):
        now_s += rate.take(now_s) or 0.0
        rate.record_response(now_s, now_s + 0.005, is_failure=number % 100 < failing)
    assert least_qps <= rate.qps <= most_qps


def test_the_duration_of_a_single_timeout_does_not_reduce_the_rate() -> None:
    rate, now_s = WriteRate(250.0, 1), 10.0
    rate.take(0.0)
    rate.record_response(0.0, now_s, is_failure=True)
    for _ in range(9):
        rate.record_response(now_s, now_s + 0.005)
    assert rate.qps >= START_QPS


def test_after_an_idle_time_the_rate_begins_at_the_start_again() -> None:
    rate = WriteRate(250.0, 1)
    write_all_the_time([rate], SimulatedServer(1e9), 0.0, 10.0)
    assert rate.qps == 250.0
    rate.take(30.0)
    assert rate.qps == START_QPS
    rate.record_refusal(30.0, 30.1, 1.0)
    rate.take(60.0)
    assert rate.qps == START_QPS / 2, "an idle time is no sign of capacity"


@settings(deadline=None, max_examples=10)
@given(st.floats(40, 160), st.integers(2, 4))
def test_clients_share_the_capacity_of_an_overloaded_server(capacity_qps: float, clients: int) -> None:
    """As the replicas of a sharded controller do: most of the capacity is used, and each has a similar share."""
    rates = [WriteRate(250.0, 1) for _ in range(clients)]
    server = SimulatedServer(capacity_qps)
    write_all_the_time(rates[:1], server, 0.0, 20.0)  # one begins before the others
    write_all_the_time(rates, server, 20.0, 120.0)
    done = write_all_the_time(rates, server, 140.0, 240.0)
    assert sum(done) >= 0.3 * 240 * capacity_qps
    assert max(done) <= 2.5 * min(done), done


def test_calls_that_wait_in_the_server_do_not_lead_to_more_calls_at_once() -> None:
    rate, now_s = WriteRate(250.0, 1), 0.0
    at_once = []
    for latency_s in (0.004, 0.008, 0.02):
        for _ in range(1000):
            now_s += rate.take(now_s) or 0.0
            rate.record_response(now_s, now_s + latency_s)
        at_once.append(rate.concurrency)
    assert at_once == [1, 1, 1]
    rate.take(now_s + 60.0)
    rate.record_response(now_s + 60.0, now_s + 60.02)
    assert rate.concurrency == 1, "after an idle time, until the response time is known"
    for number in range(20):
        rate.record_response(now_s + 61.0 + number, now_s + 61.02 + number)
    assert rate.concurrency == 5
