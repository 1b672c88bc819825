"""Selection of sources: order, fallback and log events."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog

from nodewise.base.errors import Unavailable
from nodewise.metrics.metrics_source import MetricNotFound, MetricRequest, NoValues
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.series import Sample, Series
from nodewise.metrics.source_selection import SEARCH_PERIOD_S, FetchFailure, FetchLimits, SourceSelector
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.manual_clock import ManualClock
from tests.unit.kube import virtual_time

M = MetricRequest("m")
ONLY_RUNNING = "only a running nodewise computes predicted_cpu_share"


EMPTY = Cause("NoSeries", "b gives no series for the query")
ABSENT = Cause("SourceNotInstalled", "a is not installed")
UNKNOWN = Cause("MetricUnknown", "Prometheus has no series of this name", "correct the name")


class QuerySource:
    """A source with some metrics; it raises for others, and always if it is `absent`."""

    def __init__(
        self, name: str, *has: str, queries: bool = False, absent: bool = False, unknown: bool = False
    ) -> None:
        self.name = name
        self.has = has
        self.queries = queries
        self.absent = absent
        self.unknown = unknown
        self.requests: list[str] = []

    def supports(self, request: MetricRequest) -> bool:
        return self.queries or not (request.query or request.device_label)

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        self.requests.append(request.metric)
        if self.absent:
            raise MetricNotFound(f"{self.name} is not registered", cause=ABSENT)
        if self.unknown:
            raise NoValues("query", cause=UNKNOWN)
        if "hang" in self.has:
            await asyncio.sleep(60)
        if "nothing" in self.has:
            if not request.empty_is_healthy:
                raise NoValues("query", cause=EMPTY)
            return Series(request.metric, self.name, now, {})
        if request.metric not in self.has:
            raise Unavailable(f"no {request.metric}")
        return Series(request.metric, self.name, now, {"a": Sample(1, now)})


class SelectorFixture:
    def __init__(self, *sources: QuerySource) -> None:
        self.clock = ManualClock(1000.0)
        self.metrics_registry = MetricsRegistry()
        self.selector = SourceSelector(sources, FetchLimits(0.05, 4), self.clock, self.metrics_registry)

    async def ask(self, request: MetricRequest = M) -> str:
        """Fetch a metric and log unused sources. Returns the name of the source, or why the fetch failed."""
        outcome = await self.selector.fetch(request)
        if isinstance(outcome, FetchFailure):
            return outcome.why
        await self.selector.log_unused_sources(request)
        return outcome.source


def logged_duplicates(
    play: Callable[[SelectorFixture], Awaitable[Any]], *sources: QuerySource
) -> list[tuple[str, str, str]]:
    """The log lines about metrics that two sources have."""

    async def run() -> None:
        await play(SelectorFixture(*sources))

    with structlog.testing.capture_logs() as lines:
        virtual_time.run(run())
    return [(line["metric"], line["used"], line["unused"]) for line in lines]


def test_the_first_in_order_wins_and_the_loser_is_named_once() -> None:
    first, second, third = QuerySource("first", "m"), QuerySource("second", "m"), QuerySource("third")

    async def play(stage: SelectorFixture) -> None:
        assert [await stage.ask() for _ in range(3)] == ["first"] * 3
        stage.clock.advance(SEARCH_PERIOD_S)
        assert await stage.ask() == "first"

    assert logged_duplicates(play, first, second, third) == [("m", "first", "second")]
    assert (len(first.requests), len(second.requests), len(third.requests)) == (4, 1, 1)


def test_a_source_without_the_metric_is_asked_once_a_minute_only() -> None:
    first, second = QuerySource("first"), QuerySource("second", "m")

    async def play(stage: SelectorFixture) -> None:
        assert [await stage.ask() for _ in range(5)] == ["second"] * 5
        assert len(first.requests) == 1
        stage.clock.advance(SEARCH_PERIOD_S)
        assert [await stage.ask() for _ in range(2)] == ["second"] * 2
        assert len(first.requests) == 2

    assert logged_duplicates(play, first, second) == []


def test_an_earlier_source_that_gets_the_metric_takes_over() -> None:
    first, second = QuerySource("first"), QuerySource("second", "m")

    async def play(stage: SelectorFixture) -> None:
        assert await stage.ask() == "second"
        first.has = ("m",)
        assert await stage.ask() == "second"
        stage.clock.advance(SEARCH_PERIOD_S)
        assert [await stage.ask() for _ in range(2)] == ["first"] * 2

    assert logged_duplicates(play, first, second) == [("m", "first", "second")]


def test_while_the_first_fails_the_next_one_serves() -> None:
    first, second = QuerySource("first", "m"), QuerySource("second", "m")

    async def play(stage: SelectorFixture) -> None:
        assert await stage.ask() == "first"
        first.has = ()
        assert await stage.ask() == "second"
        first.has = ("m",)
        assert await stage.ask() == "second"
        stage.clock.advance(SEARCH_PERIOD_S)
        assert await stage.ask() == "first"

    assert logged_duplicates(play, first, second) == [("m", "first", "second")]


def test_a_source_that_hangs_delays_a_metric_once_a_minute_only() -> None:
    first, second = QuerySource("first", "hang"), QuerySource("second", "m")

    async def play(stage: SelectorFixture) -> None:
        assert [await stage.ask() for _ in range(3)] == ["second"] * 3
        assert len(first.requests) == 1

    logged_duplicates(play, first, second)


def test_every_failure_is_reported_in_order_and_all_sources_are_asked_again() -> None:
    first, second = QuerySource("first", "hang"), QuerySource("second")

    async def play(stage: SelectorFixture) -> None:
        for _ in range(2):
            assert await stage.ask() == "first: no answer within 0.05 s; second: no m"

    logged_duplicates(play, first, second)
    assert len(second.requests) == 2


def test_a_missing_source_is_reported_only_without_other_failures() -> None:
    custom, prometheus = QuerySource("custom", absent=True), QuerySource("prometheus")

    async def play(stage: SelectorFixture) -> None:
        assert await stage.ask() == "prometheus: no m"
        prometheus.absent = True
        assert (
            await stage.ask() == "custom: custom is not registered; prometheus: prometheus is not registered"
        )
        text = stage.metrics_registry.exposition().decode()
        assert 'nodewise_metric_fetches_total{outcome="not_there",source="custom"} 2.0' in text

    logged_duplicates(play, custom, prometheus)


def test_a_query_is_sent_to_sources_that_support_queries() -> None:
    custom, prometheus = QuerySource("custom", "m"), QuerySource("prometheus", "m", queries=True)

    async def play(stage: SelectorFixture) -> None:
        assert await stage.ask(MetricRequest("m", "sum(m)")) == "prometheus"

    assert logged_duplicates(play, custom, prometheus) == []
    assert custom.requests == []


def test_a_query_without_a_source_for_it_names_the_missing_option() -> None:
    async def play(stage: SelectorFixture) -> None:
        assert "answered by Prometheus only" in await stage.ask(MetricRequest("m", "sum(m)"))
        assert "give --prometheus-url" in await stage.ask(MetricRequest("m", "sum(m)"))

    logged_duplicates(play, QuerySource("custom", "m"))


def test_values_of_devices_without_prometheus_name_the_missing_option() -> None:
    async def play(stage: SelectorFixture) -> None:
        text = await stage.ask(MetricRequest("m", device_label="UUID"))
        assert text == "only Prometheus has values of devices, and none is configured: give --prometheus-url"

    logged_duplicates(play, QuerySource("custom", "m"))


class TestEmptyAnswers:
    HEALTHY = MetricRequest("m", "m > 0", empty_is_healthy=True)

    def fetch(self, request: MetricRequest, *sources: QuerySource) -> Series | FetchFailure:
        async def play() -> Series | FetchFailure:
            return await SelectorFixture(*sources).selector.fetch(request)

        return asyncio.run(play())

    def test_values_of_any_source_come_before_an_empty_answer(self) -> None:
        empty, full = QuerySource("a", "nothing", queries=True), QuerySource("b", "m", queries=True)
        for sources in ((empty, full), (full, empty)):
            outcome = self.fetch(self.HEALTHY, *sources)
            assert isinstance(outcome, Series)
            assert outcome.source == "b"

    def test_an_empty_answer_counts_beside_sources_that_are_not_there(self) -> None:
        absent, empty = QuerySource("a", absent=True, queries=True), QuerySource("b", "nothing", queries=True)
        outcome = self.fetch(self.HEALTHY, absent, empty)
        assert isinstance(outcome, Series)
        assert outcome.samples == {}

    def test_an_empty_answer_does_not_count_beside_a_source_that_failed(self) -> None:
        """The failed source could have had values."""
        broken, empty = QuerySource("a", queries=True), QuerySource("b", "nothing", queries=True)
        outcome = self.fetch(self.HEALTHY, broken, empty)
        assert isinstance(outcome, FetchFailure)
        assert (outcome.why, outcome.cause.reason) == ("a: no m", "ResponseUnreadable")

    @pytest.mark.parametrize(("first", "reason"), [("broken", "ResponseUnreadable"), ("absent", "NoSeries")])
    def test_the_cause_is_that_of_the_source_that_may_have_it(self, first: str, reason: str) -> None:
        """A source that failed could have had values; one that is not installed could not."""
        source = QuerySource("a", absent=first == "absent", queries=True)
        empty = QuerySource("b", "nothing", queries=True)
        for sources in ((source, empty), (empty, source)):
            outcome = self.fetch(self.HEALTHY._replace(empty_is_healthy=False), *sources)
            assert isinstance(outcome, FetchFailure)
            assert outcome.cause.reason == reason


def test_metrics_server_that_is_not_installed_is_the_cause_for_a_metric_of_its_names() -> None:
    """Nobody finds `memory_usage_share` by correcting its name in Prometheus."""
    resource, prometheus = QuerySource("resource", absent=True), QuerySource("prometheus", unknown=True)
    for sources in ((resource, prometheus), (prometheus, resource)):
        outcome = asyncio.run(SelectorFixture(*sources).selector.fetch(M))
        assert isinstance(outcome, FetchFailure)
        assert outcome.cause == ABSENT
        assert "resource is not registered" in outcome.why


class TestCausesOfOneOfSeveralServers:
    """Tenants read a cause, so it has the place of a server instead of its address."""

    SERVERS = ("prometheus http://secret-1", "prometheus http://secret-2", "prometheus http://secret-3")

    def cause(self, *sources: QuerySource) -> Cause:
        outcome = asyncio.run(SelectorFixture(*sources).selector.fetch(M))
        assert isinstance(outcome, FetchFailure)
        return outcome.cause

    @pytest.mark.parametrize(
        ("failing", "servers"),
        [((1,), "server 2 of 3"), ((0, 2), "servers 1, 3 of 3"), ((0, 1, 2), "servers 1, 2, 3 of 3")],
    )
    def test_the_servers_that_fail_are_named(self, failing: tuple[int, ...], servers: str) -> None:
        sources = [
            QuerySource(name, absent=number not in failing) for number, name in enumerate(self.SERVERS)
        ]
        cause = self.cause(QuerySource("custom", absent=True), *sources)
        assert cause.text == f"Prometheus gave a response that cannot be read ({servers} in --prometheus-url)"

    def test_other_sources_and_a_single_server_have_no_number(self) -> None:
        cause = self.cause(QuerySource("custom"), QuerySource("prometheus", absent=True))
        assert cause.text == "the custom metrics API gave a response that cannot be read"
        cause = self.cause(QuerySource("custom"), *(QuerySource(name, absent=True) for name in self.SERVERS))
        assert cause.text == "the custom metrics API gave a response that cannot be read"
        assert "(" not in self.cause(QuerySource("prometheus")).text


def test_metrics_that_are_no_longer_needed_are_forgotten() -> None:
    first, second = QuerySource("first", "m"), QuerySource("second", "m")

    async def play(stage: SelectorFixture) -> None:
        await stage.ask()
        stage.selector.forget(frozenset({M.key}))
        await stage.ask()

    assert len(logged_duplicates(play, first, second)) == 2


def test_an_unexpected_exception_of_a_source_is_a_failure() -> None:
    class Broken(QuerySource):
        async def fetch(self, request: MetricRequest, now: float) -> Series:
            raise ZeroDivisionError("by nothing")

    async def play() -> list[str]:
        stage = SelectorFixture(Broken("first"), QuerySource("second", "m"))
        return [await stage.ask(), await stage.ask(MetricRequest("n")), await stage.ask(MetricRequest("n"))]

    with structlog.testing.capture_logs() as lines:
        sources = asyncio.run(play())
    assert sources[0] == "second"
    assert "a defect of nodewise: ZeroDivisionError: by nothing" in sources[1]
    expected = ["fetching metric 'm'", "fetching metric 'n'"]
    assert [line["task"] for line in lines if line["event"] == "task_failed"] == expected


@pytest.mark.parametrize(
    ("metric", "source", "why"),
    [
        (
            "predicted_cpu_share",
            QuerySource("prometheus", unknown=True),
            f"{ONLY_RUNNING}: name the namespace of the running nodewise with --nodewise-namespace",
        ),
        ("predicted_cpu_share", QuerySource("computed"), "no predicted_cpu_share"),
        ("predicted_cpu_share", QuerySource("file", "predicted_cpu_share"), "file"),
        ("m", QuerySource("prometheus", unknown=True), "query"),
    ],
)
def test_commands_say_that_only_a_running_nodewise_computes_a_metric(
    metric: str, source: QuerySource, why: str
) -> None:
    assert virtual_time.run(SelectorFixture(source).ask(MetricRequest(metric))) == why
