"""Waits of the rate limit are bounded, and the limit is kept."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.kube.api_server_interface import Backoff, TokenBucket

CHANCES = st.floats(0, 1, exclude_max=True)
BACKOFFS = st.builds(
    lambda first, ratio, share: Backoff(first, first * ratio, share),
    st.floats(0.01, 10),
    st.floats(1, 1000),
    st.floats(0, 1),
)


@settings(deadline=None)
@given(BACKOFFS, st.integers(1, 10**6), CHANCES, st.floats(0, 1e9))
def test_a_backoff_is_bounded(backoff: Backoff, failures: int, chance: float, asked_s: float) -> None:
    assert 0 <= backoff.delay_s(failures, lambda: chance, asked_s) <= 2 * backoff.most_s
    assert backoff.delay_s(failures, lambda: chance) <= backoff.most_s


@settings(deadline=None)
@given(BACKOFFS, st.integers(1, 100), CHANCES)
def test_more_failures_never_mean_less_patience(backoff: Backoff, failures: int, chance: float) -> None:
    assert backoff.delay_s(failures, lambda: chance) <= backoff.delay_s(failures + 1, lambda: chance)


@settings(deadline=None)
@given(BACKOFFS, st.integers(1, 100), CHANCES, st.floats(0, 30))
def test_a_requested_delay_is_kept(backoff: Backoff, failures: int, chance: float, asked_s: float) -> None:
    assert backoff.delay_s(failures, lambda: chance, asked_s) >= min(asked_s, backoff.most_s)


@settings(deadline=None)
@given(
    st.floats(0.1, 100),
    st.integers(1, 100),
    st.lists(st.floats(0, 10), min_size=1, max_size=60),
    st.integers(),
)
def test_a_bucket_lets_through_its_burst_and_its_rate_in_order(
    qps: float, burst: int, gaps: list[float], seed: int
) -> None:
    chance = random.Random(seed)
    bucket = TokenBucket(qps, burst)
    now_s, gone = 0.0, []
    for gap in gaps:
        now_s += gap
        wait_s = bucket.take(now_s, patience_s=chance.choice([0.0, 5.0, float("inf")]))
        if wait_s is not None:
            gone.append(now_s + wait_s)
    assert gone == sorted(gone)
    for first, begin_s in enumerate(gone):
        for last, end_s in enumerate(gone[first:], first):
            assert last - first + 1 <= burst + qps * (end_s - begin_s) + 1e-6


def test_a_bucket_that_would_keep_one_waiting_too_long_takes_nothing() -> None:
    bucket = TokenBucket(qps=1.0, burst=1)
    assert bucket.take(0.0) == 0.0
    assert bucket.take(0.0, patience_s=0.5) is None
    assert bucket.take(0.0, patience_s=1.0) == 1.0
