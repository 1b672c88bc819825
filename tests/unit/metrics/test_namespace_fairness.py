"""Hanging requests of some namespaces do not delay the metrics of others."""

import asyncio

import pytest
import structlog

from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.refresher import MetricsRefresher, RefreshOptions
from nodewise.metrics.series import Sample, Series
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.unit.kube import virtual_time
from tests.unit.kube.virtual_time import VirtualClock

PERIOD_S = 5.0


class SlowSource:
    """A source whose queries hang if they begin with `hang`; any other takes 50 ms."""

    name = "s"

    def __init__(self) -> None:
        self.calls = 0
        self.running = 0

    def supports(self, request: MetricRequest) -> bool:
        return True

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        self.calls += 1
        self.running += 1
        try:
            await asyncio.sleep(3600 if request.query.startswith("hang") else 0.05)
        finally:
            self.running -= 1
        return Series(request.metric, self.name, now, {"a": Sample(1, now)})


def request(query: str, *namespaces: str) -> MetricRequest:
    return MetricRequest("m", query, namespaces=frozenset(namespaces))


def hanging(namespace: str, count: int) -> set[MetricRequest]:
    return {request(f"hang {namespace} {number}", namespace) for number in range(count)}


def oldest_age_s(
    source: SlowSource, attack: set[MetricRequest], good: MetricRequest, for_s: float = 40.0
) -> float:
    """The highest age of a good metric under attack."""

    async def run() -> float:
        clock = VirtualClock()
        refresher = MetricsRefresher([source], RefreshOptions(), clock, MetricsRegistry())
        refresher.set_requests(frozenset(attack | {good}))
        running = asyncio.create_task(refresher.run())
        oldest_s, fetched_at = 0.0, clock.now()
        for _ in range(int(for_s * 2)):
            await clock.sleep(0.5)
            series = refresher.snapshot.series.get(good.key)
            fetched_at = series.fetched_at if series else fetched_at
            oldest_s = max(oldest_s, clock.now() - fetched_at)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(0)
        assert source.running == 0
        return oldest_s

    with structlog.testing.capture_logs():
        return virtual_time.run(run())


ONE_NAMESPACE = hanging("a", 2000)
TWENTY_NAMESPACES = {hung for number in range(20) for hung in hanging(f"a{number}", 100)}
ATTACKS = {
    "one namespace with 2,000 queries": (ONE_NAMESPACE, request("good", "b")),
    "20 namespaces with 100 queries each": (TWENTY_NAMESPACES, request("good", "b")),
    "against an agent of nodewise": (TWENTY_NAMESPACES, request("good")),
    "against a metric that the attacker requests too": (ONE_NAMESPACE, request("good", "a", "b")),
    "with a query of both": ({*ONE_NAMESPACE, request("hang", "a", "b")}, request("good", "b")),
}


@pytest.mark.parametrize(("attack", "good"), ATTACKS.values(), ids=ATTACKS.keys())
def test_hanging_queries_of_a_namespace_do_not_age_the_metric_of_another(
    attack: set[MetricRequest], good: MetricRequest
) -> None:
    assert oldest_age_s(SlowSource(), attack, good) <= 2 * PERIOD_S


def test_hanging_queries_are_sent_less_often_while_others_are_answered() -> None:
    """In two minutes: three times until the breaker opens, and once after pauses of 30 s and a minute each."""
    source = SlowSource()
    oldest_age_s(source, hanging("a", 10), request("good", "b"), 120.0)
    good = 120 / PERIOD_S
    assert source.calls - good in range(10 * 4, 10 * 5 + 2)
