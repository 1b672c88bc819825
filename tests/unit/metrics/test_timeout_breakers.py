"""Circuit breakers for metrics that keep timing out."""

import asyncio

import pytest
import structlog

from nodewise.base.errors import Unavailable
from nodewise.metrics.metrics_source import MetricRequest, RefreshOptions
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.metrics.series import Sample, Series
from nodewise.metrics.source_selection import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    MAX_TIMEOUTS,
    FetchFailure,
    FetchLimits,
    SourceSelector,
    TimeoutBreakers,
)
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.manual_clock import ManualClock
from tests.unit.kube import virtual_time
from tests.unit.kube.virtual_time import VirtualClock


class Breakers(TimeoutBreakers):
    """The breaker of metric `m` at source `s`, which answers another request before each timeout."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0)
        super().__init__(self.clock)

    def time_out(self, *, answering: bool = True) -> float | None:
        """Let a call of 5 s time out. The pause that follows, in seconds."""
        begun_s = self.clock.monotonic()
        if answering:
            self.record_answer("other", "s")
        self.clock.advance(5.0)
        pause = self.record_timeout("m", "s", begun_s, 5.0)
        return pause.until_s - self.clock.monotonic() if pause else None

    def may_send(self) -> bool:
        return self.pause("m", "s") is None


def test_a_breaker_opens_at_the_last_timeout_of_a_row_and_not_before() -> None:
    breakers = Breakers()
    assert [breakers.time_out() for _ in range(MAX_TIMEOUTS)] == [None, None, FIRST_PAUSE_S]
    assert not breakers.may_send()
    assert breakers.open == 1
    assert breakers.pause("m", "other source") is None


def test_the_pause_doubles_up_to_a_limit_and_ends_with_one_trial() -> None:
    breakers = Breakers()
    pauses = []
    for _ in range(1100):
        if pause_s := breakers.time_out():
            pauses.append(pause_s)
            breakers.clock.advance(pause_s - 0.1)
            assert not breakers.may_send()
            breakers.clock.advance(0.1)
            assert breakers.may_send()
    assert pauses[:6] == [30.0, 60.0, 120.0, 240.0, MAX_PAUSE_S, MAX_PAUSE_S]
    assert set(pauses[6:]) == {MAX_PAUSE_S}


def test_an_answer_closes_the_breaker_and_begins_a_new_row() -> None:
    breakers = Breakers()
    for _ in range(MAX_TIMEOUTS - 1):
        breakers.time_out()
    assert not breakers.record_answer("m", "s")
    assert [breakers.time_out() for _ in range(MAX_TIMEOUTS)] == [None, None, FIRST_PAUSE_S]
    assert breakers.record_answer("m", "s")
    assert breakers.may_send()
    assert breakers.open == 0


def test_an_outage_of_the_source_opens_no_breaker_and_extends_no_pause() -> None:
    breakers = Breakers()
    breakers.record_answer("other", "s")
    breakers.clock.advance(1.0)
    assert not any(breakers.time_out(answering=False) for _ in range(10))
    for _ in range(MAX_TIMEOUTS):
        breakers.time_out()
    breakers.clock.advance(FIRST_PAUSE_S)
    # the source answered in the pause, so this timeout counts
    assert breakers.time_out(answering=False) == 2 * FIRST_PAUSE_S
    breakers.clock.advance(2 * FIRST_PAUSE_S)
    for _ in range(10):
        assert breakers.time_out(answering=False) is None
        assert breakers.may_send()


def test_a_metric_that_is_no_longer_requested_is_forgotten() -> None:
    breakers = Breakers()
    for _ in range(MAX_TIMEOUTS):
        breakers.time_out()
    breakers.forget(frozenset({"m"}))
    assert breakers.may_send()
    assert breakers.open == 0


class Prometheus:
    """A source that answers `good`. `hang` times out at the timeout of the caller, and `own` at that of the source."""

    name = "prometheus"

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.is_fast = False

    def supports(self, request: MetricRequest) -> bool:
        return True

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        self.queries.append(request.query)
        if request.query == "own" and not self.is_fast:
            raise Unavailable("query own: no answer within 4 s", timeout_s=4.0)
        if request.query == "hang" and not self.is_fast:
            await asyncio.sleep(3600)
        return Series(request.metric, self.name, now, {"a": Sample(1, now)})


class Selection:
    def __init__(self, calls: int = 4) -> None:
        self.clock, self.registry, self.prometheus = ManualClock(0.0), MetricsRegistry(), Prometheus()
        self.selector = SourceSelector([self.prometheus], FetchLimits(5.0, calls), self.clock, self.registry)

    async def fetch(self, query: str, *namespaces: str) -> FetchFailure:
        """Fetch `good`, and then another query. Its failure; empty if it succeeds."""
        await self.selector.fetch(MetricRequest("m", "good"))
        result = await self.selector.fetch(MetricRequest("m", query, namespaces=frozenset(namespaces)))
        return result if isinstance(result, FetchFailure) else FetchFailure("", Cause("NoSeries", ""))

    def metric(self, text: str) -> str:
        lines = self.registry.exposition().decode().splitlines()
        return next(line for line in lines if line.startswith(f"nodewise_{text}")).split()[-1]


def test_a_query_that_keeps_timing_out_is_paused_with_a_reason() -> None:
    async def run() -> None:
        for query, timeout in (("hang", "5 s"), ("own", "4 s")):
            on = Selection()
            for _ in range(MAX_TIMEOUTS - 1):
                failure = await on.fetch(query, "a")
                assert failure.why.endswith(f"no answer within {timeout}")
                assert failure.cause == Cause(
                    "SourceTimesOut",
                    f"Prometheus did not respond within {timeout}",
                    "record the metric by node with nodewise policy recording-rules, use a cheaper query,"
                    " or raise --prometheus-timeout",
                )
            text = (
                f"no answer within {timeout}, 3 times in a row;"
                " tried again at 1970-01-01T00:00:30Z: use a cheaper query"
            )
            cause = Cause(
                "RequestsPaused",
                f"Prometheus did not respond within {timeout} several times in a row, so it is asked less often",
                "use a cheaper query",
            )
            for _ in range(3):
                assert await on.fetch(query, "a") == FetchFailure(text, cause)
            assert on.prometheus.queries.count(query) == MAX_TIMEOUTS
            assert on.metric("metric_requests_paused") == "1.0"
            assert on.metric('metric_fetches_total{outcome="paused"') == "2.0"
            on.prometheus.is_fast = True
            on.clock.advance(FIRST_PAUSE_S)
            assert not (await on.fetch(query, "a")).why
            assert on.metric("metric_requests_paused") == "0.0"

    with structlog.testing.capture_logs() as lines:
        virtual_time.run(run())
    paused = {
        "event": "metric_paused",
        "log_level": "warning",
        "metric": "m by hang",
        "source": "prometheus",
        "namespaces": ["a"],
        "timeouts": 3,
        "until": "1970-01-01T00:00:30Z",
    }
    resumed = {"event": "metric_resumed", "log_level": "info", "metric": "m by hang", "source": "prometheus"}
    assert lines[:2] == [paused, resumed]


NO_SLOT = Cause(
    "BudgetExceeded",
    "Prometheus was not queried: no free request slot in time",
    "raise --metrics-concurrency",
)


def test_a_request_without_a_slot_in_time_names_the_excess_of_its_own_namespace_only() -> None:
    async def run() -> list[FetchFailure]:
        on = Selection(calls=2)
        hanging = [
            asyncio.create_task(
                on.selector.fetch(MetricRequest("m", "hang", float(n), namespaces=frozenset({name})))
            )
            for n, name in enumerate("aabb")
        ]
        await asyncio.sleep(0)
        waiting = [
            on.selector.fetch(MetricRequest("m", "good", namespaces=frozenset({name}))) for name in "ac"
        ]
        failures = await asyncio.gather(*waiting)
        await asyncio.gather(*hanging)
        return [failure for failure in failures if isinstance(failure, FetchFailure)]

    assert virtual_time.run(run()) == [
        FetchFailure(
            "no free request slot within 5 s: namespace a had 2 requests before it (--metrics-concurrency 2)",
            NO_SLOT._replace(remedy="use fewer metrics in the namespace, or cheaper queries"),
        ),
        FetchFailure(
            "no free request slot within 5 s: requests of other namespaces use all 2 (--metrics-concurrency)",
            NO_SLOT,
        ),
    ]


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
