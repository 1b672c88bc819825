"""Laws of the accounting of pods in flight, for any history of bindings, samples, restarts and clocks."""

from math import inf
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodewise.base import cooperative_scheduling
from nodewise_scorers.load.in_flight import MAX_LAG_S, InFlightPod, PodsInFlight, StatisticsWindow
from nodewise_scorers.load.in_flight_accounting import estimate_requests
from scorers_tests.unit.load.load_clusters import LoadCluster, bound_pod, in_flight_milli

SECONDS = st.integers(0, 400)
WINDOWS = st.sampled_from([10, 15, 60, 120])


class History(NamedTuple):
    """What happens on one node, in seconds after NOW."""

    bindings: list[tuple[int, int | None]]
    """When each pod is bound, and how long after that it starts; None for never."""
    samples: list[int]
    """The ends of windows."""
    window_s: int
    skew_s: int
    """By which the clock of the kubelet, which says when a pod starts, is ahead of the others."""
    restarts: list[int]
    """When nodewise restarts."""
    container_restarts: list[int]
    """When the containers of running pods restart."""


HISTORIES = st.builds(
    History,
    st.lists(st.tuples(SECONDS, st.none() | st.integers(0, 120)), min_size=1, max_size=6),
    st.lists(SECONDS, max_size=12),
    WINDOWS,
    st.sampled_from([0, 0, 0, -90, -5, 5, 90]),
    st.lists(SECONDS, max_size=3),
    st.lists(SECONDS, max_size=2),
)


def share_in_sample(started: float, end: float, window_s: float) -> float:
    """The share of a pod's usage that a mean over a window includes."""
    return min(max((end - started) / window_s, 0.0), 1.0)


@given(HISTORIES)
def test_no_pod_counts_twice_or_after_the_statistics_include_it(history: History) -> None:
    cluster = LoadCluster("n", estimate=estimate_requests)
    seen: set[int] = set()
    skew_s, newest = history.skew_s, -inf
    events = {*history.samples, *history.restarts, *history.container_restarts}
    for bound, delay_s in history.bindings:
        events |= {bound} if delay_s is None else {bound, bound + delay_s}
    for now in sorted(events):
        if now in history.restarts:
            cluster.restart()
        for pod, (bound, delay_s) in enumerate(history.bindings):
            if bound > now:
                continue
            has_started = delay_s is not None and bound + delay_s <= now
            # one milli-CPU, ten, a hundred …: the sum tells which pods count
            more = {"started": -(bound + delay_s + skew_s)} if has_started and delay_s is not None else {}
            is_restarted = has_started and now in history.container_restarts
            more |= {"restarts": 1} if is_restarted else {}
            cluster.bind(bound_pod(f"p{pod}", "n", f"{10**pod}m", bound=-bound, **more))
        if now in history.samples:
            newest = now
            cluster.measure({"n": 1.0}, at=now, window_s=history.window_s)
        total = in_flight_milli_exact(cluster, now)
        expected_most = 0.0
        for pod, (bound, delay_s) in enumerate(history.bindings):
            if bound > now:
                continue
            started = inf if delay_s is None or bound + delay_s > now else bound + delay_s
            missing = 1 - share_in_sample(started, newest, history.window_s)
            tolerated = abs(skew_s) / history.window_s
            expected_most += 10**pod * min(missing + tolerated, 1.0)
            if started + max(skew_s, 0) <= newest - history.window_s:
                seen.add(pod)
        assert total <= expected_most + 1e-6, f"a pod counts twice at {now}"
        in_flight = cluster.builder._bound.in_flight
        assert not [pod for pod in seen if f"uid-p{pod}" in in_flight], "a pod counts after it was seen"


def in_flight_milli_exact(cluster: LoadCluster, now: float) -> float:
    return float(cluster.state(now).in_flight[0, 0])


def test_nothing_counts_after_the_clock_is_set_back() -> None:
    pods, day_s = PodsInFlight(), 86_400.0
    for uid, started_at in (("started", day_s), ("waiting", inf)):
        pods.bind(uid, InFlightPod(0, (1.0, 1.0), day_s, started_at, lambda _age_s: (1.0, 1.0)), day_s)
    counts = []
    for now in (0.0, 60.0, 120.0, 2 * 60.0 + MAX_LAG_S + 1):
        window = StatisticsWindow(np.array([now]), np.array([60.0]))
        usage, _ = cooperative_scheduling.run_without_pauses(pods.count(window, now))
        counts.append(usage[0, 0])
    assert counts == [2.0, 1.0, 1.0, 0.0]


@given(HISTORIES)
def test_nothing_counts_after_a_quiet_period(history: History) -> None:
    pods = PodsInFlight()
    for number, (bound, delay_s) in enumerate(history.bindings):
        started = inf if delay_s is None else bound + delay_s + history.skew_s
        pods.bind(str(number), InFlightPod(0, (1.0, 1.0), bound, started, lambda _age: (1.0, 1.0)), bound)
    latest = max(bound for bound, _ in history.bindings)
    for end in (np.nan, -inf, latest):
        window = StatisticsWindow(np.array([end]), np.array([float(history.window_s)]))
        quiet_at = latest + 2 * history.window_s + MAX_LAG_S + 1
        usage, requests = cooperative_scheduling.run_without_pauses(pods.count(window, quiet_at))
        assert not usage.any()
        assert not requests.any()
        assert not len(pods)


@given(HISTORIES)
def test_replicas_derive_the_same_from_the_objects_of_the_api_server(history: History) -> None:
    """One replica sees every change, the other one starts at the end; with equal clocks they agree."""
    if history.skew_s:
        return
    first, second = (LoadCluster("n", estimate=estimate_requests) for _ in range(2))
    end = 500
    for now in (*sorted(history.samples), end):
        for pod, (bound, delay_s) in enumerate(history.bindings):
            if bound <= now:
                has_started = delay_s is not None and bound + delay_s <= now
                more = {"started": -(bound + delay_s)} if has_started and delay_s is not None else {}
                first.bind(bound_pod(f"p{pod}", "n", bound=-bound, **more))
        if now in history.samples:
            first.measure({"n": 1.0}, at=now, window_s=history.window_s)
        seen_by_first = in_flight_milli(first.state(now))
    second.bind(*first.pods.values())
    second.metrics = first.metrics
    assert in_flight_milli(second.state(end)) == seen_by_first
