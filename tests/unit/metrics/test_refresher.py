"""Each metric has its own call, deadline and outcome."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, Unavailable
from nodewise.metrics.metrics_source import MetricRequest, RefreshOptions
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.metrics.series import Sample, Series
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.unit.kube import virtual_time
from tests.unit.kube.virtual_time import VirtualClock


class FakeSource:
    """A source with some metrics; it hangs on `hang` and fails for others."""

    def __init__(self, name: str = "s", *has: str) -> None:
        self.name = name
        self.has = has or ("m", "k")
        self.requests: list[str] = []

    def supports(self, request: MetricRequest) -> bool:
        return not request.query

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        self.requests.append(request.metric)
        if request.metric == "hang":
            await asyncio.sleep(3600)
        if request.metric not in self.has:
            raise Unavailable(f"no {request.metric}")
        return Series(request.metric, self.name, now, {"a": Sample(1, now)})


def requests(*names: str) -> frozenset[MetricRequest]:
    return frozenset(MetricRequest(name) for name in names)


def scenario(
    play: Callable[[MetricsRefresher], Awaitable[Any]], *sources: FakeSource, timeout_s: float = 0.05
) -> MetricsRefresher:
    async def run() -> MetricsRefresher:
        options = RefreshOptions(sync_period_s=0.02, metrics_timeout_s=timeout_s)
        refresher = MetricsRefresher(sources or (FakeSource(),), options, VirtualClock(), MetricsRegistry())
        await play(refresher)
        return refresher

    return virtual_time.run(run())


def test_a_new_metric_is_asked_for_at_once_and_only_once() -> None:
    source = FakeSource()

    async def play(refresher: MetricsRefresher) -> None:
        refresher.set_requests(requests("m"))
        refresher.set_requests(requests("m"))
        assert not refresher.snapshot.was_fetched("m")
        await refresher.settle()

    assert scenario(play, source).snapshot.series.keys() == {"m"}
    assert source.requests == ["m"]


def test_one_that_hangs_delays_no_other_and_ends_at_its_deadline() -> None:
    async def play(refresher: MetricsRefresher) -> None:
        refresher.set_requests(requests("hang", "m"))
        await asyncio.sleep(0.01)
        assert refresher.snapshot.series.keys() == {"m"}
        assert not refresher.snapshot.was_fetched("hang")
        await refresher.settle()

    assert scenario(play).snapshot.failures == {"hang": "no answer within 0.05 s"}


def test_each_refresh_requests_all_metrics_without_a_running_call() -> None:
    source = FakeSource()

    async def play(refresher: MetricsRefresher) -> None:
        refresher.set_requests(requests("hang", "m"))
        running = asyncio.create_task(refresher.run())
        await asyncio.sleep(0.15)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await refresher.settle()

    scenario(play, source, timeout_s=10)
    assert source.requests.count("m") >= 3
    assert source.requests.count("hang") == 1


def test_the_first_source_that_has_a_metric_wins() -> None:
    first, second = FakeSource("first", "m"), FakeSource("second", "m", "k")

    async def play(refresher: MetricsRefresher) -> None:
        refresher.set_requests(requests("m", "k"))
        await refresher.settle()

    by_metric = scenario(play, first, second).snapshot.series
    assert {name: series.source for name, series in by_metric.items()} == {"m": "first", "k": "second"}


def test_metric_without_requests_is_dropped_during_its_call() -> None:
    async def play(refresher: MetricsRefresher) -> None:
        refresher.set_requests(requests("m"))
        refresher.set_requests(requests("k"))
        await refresher.settle()

    assert scenario(play).snapshot.series.keys() == {"k"}


def test_failure_keeps_the_values_and_is_logged() -> None:
    source = FakeSource()
    notifications: list[int] = []

    async def play(refresher: MetricsRefresher) -> None:
        refresher.subscribe(lambda: notifications.append(1))
        refresher.set_requests(requests("m"))
        await refresher.settle()
        source.has = ("k",)
        running = asyncio.create_task(refresher.run())
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    snapshot = scenario(play, source).snapshot
    assert snapshot.series["m"].samples["a"].value == 1
    assert snapshot.failures == {"m": "no m"}
    assert len(notifications) >= 2


def test_without_a_source_every_metric_fails_and_says_why() -> None:
    async def run() -> MetricsRefresher:
        refresher = MetricsRefresher((), RefreshOptions(), SystemClock(), MetricsRegistry())
        refresher.set_requests(requests("m"))
        await refresher.settle()
        return refresher

    assert asyncio.run(run()).snapshot.failures == {"m": "no source of metrics is configured"}


class RecordingSource(FakeSource):
    """A source that supports queries and returns the number of its requests."""

    def supports(self, request: MetricRequest) -> bool:
        return True

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        self.requests.append(request.query or request.metric)
        return Series(
            request.metric, self.name, now, {"a": Sample(len(self.requests), 1000.0 - len(self.requests))}
        )


def test_a_name_by_two_queries_is_two_things_and_neither_stands_in_the_others_way() -> None:
    source = RecordingSource()

    async def play(refresher: MetricsRefresher) -> None:
        refresher.set_requests(frozenset({MetricRequest("m"), MetricRequest("m", "one")}))
        await refresher.settle()
        refresher.set_requests(
            frozenset({MetricRequest("m"), MetricRequest("m", "one"), MetricRequest("m", "two")})
        )
        assert not refresher.snapshot.was_fetched("m by two")
        await refresher.settle()
        assert refresher.snapshot.series.keys() == {"m", "m by one", "m by two"}
        refresher.set_requests(frozenset({MetricRequest("m")}))

    assert scenario(play, source).snapshot.series.keys() == {"m"}
    assert sorted(source.requests) == ["m", "one", "two"]


def test_rules_of_several_ages_ask_once_with_the_longest() -> None:
    source = RecordingSource()

    async def play(refresher: MetricsRefresher) -> None:
        refresher.set_requests(frozenset({MetricRequest("m", "", 60.0), MetricRequest("m", "", 300.0)}))
        await refresher.settle()
        assert refresher._requests == {"m": MetricRequest("m", "", 300.0)}
        refresher.set_requests(frozenset({MetricRequest("m", "", 60.0)}))
        assert refresher.snapshot.was_fetched(
            "m"
        )  # only the age changed: the values remain until new ones arrive
        await refresher.settle()

    scenario(play, source)
    assert source.requests == ["m", "m"]


def test_a_namespace_that_requests_a_known_metric_causes_no_call() -> None:
    source = RecordingSource()

    async def play(refresher: MetricsRefresher) -> None:
        refresher.set_requests(frozenset({MetricRequest("m", namespaces=frozenset({"x"}))}))
        await refresher.settle()
        refresher.set_requests(frozenset({MetricRequest("m", namespaces=frozenset({name})) for name in "xy"}))
        await refresher.settle()

    scenario(play, source)
    assert source.requests == ["m"]


def test_a_dropped_metric_frees_its_call_and_can_be_requested_again() -> None:
    source = FakeSource()

    async def play(refresher: MetricsRefresher) -> None:
        for _ in range(3):
            refresher.set_requests(requests("hang"))
            await asyncio.sleep(0.001)
            refresher.set_requests(requests())
        refresher.set_requests(requests("hang"))
        await asyncio.sleep(0.001)
        assert len(refresher._under_way) == 1
        await refresher.settle()

    assert scenario(play, source).snapshot.failures.keys() == {"hang"}
    assert source.requests == ["hang"] * 4


def test_a_metric_that_was_never_fetched_is_exported_as_being_on_no_node() -> None:
    registry = MetricsRegistry()

    def exported() -> list[str]:
        lines = registry.exposition().decode().splitlines()
        return sorted(line for line in lines if line.startswith("nodewise_metric_nodes{"))

    async def run() -> None:
        source = FakeSource("s", "m")
        refresher = MetricsRefresher((source,), RefreshOptions(), VirtualClock(), registry)
        refresher.set_requests(requests("m", "typo"))
        await refresher.settle()
        expected = ['nodewise_metric_nodes{metric="m"} 1.0', 'nodewise_metric_nodes{metric="typo"} 0.0']
        assert exported() == expected
        source.has = ()
        refresher.set_requests(requests())
        refresher.set_requests(requests("m"))
        await refresher.settle()
        assert exported() == ['nodewise_metric_nodes{metric="m"} 0.0']

    virtual_time.run(run())


class MeasuredSource(FakeSource):
    """A source with samples every minute, whose response is too large if it looks back 10 minutes."""

    def __init__(self, *, too_large: bool) -> None:
        super().__init__()
        self.too_large = too_large
        self.sent: list[tuple[float, float]] = []

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        self.sent.append((request.max_age_s, request.lookback_s))
        if self.too_large and request.lookback_s:
            raise BadInput("answer", [])
        return Series(
            "m", self.name, now, {"a": Sample(1, now)}, sample_distance_s=60.0, is_distance_measured=True
        )


def sent_requests(source: MeasuredSource, periods: int) -> list[tuple[float, float]]:
    async def play(refresher: MetricsRefresher) -> None:
        refresher.set_requests(frozenset({MetricRequest("m", max_age_s=60.0)}))
        task = asyncio.create_task(refresher.run())
        while len(source.sent) < periods:
            await asyncio.sleep(0.01)
        task.cancel()

    scenario(play, source)
    return source.sent[:periods]


def test_the_first_request_looks_back_and_the_next_ones_follow_the_distance() -> None:
    assert sent_requests(MeasuredSource(too_large=False), 3) == [(60.0, 600.0), (150.0, 0.0), (150.0, 0.0)]


def test_after_a_response_that_is_too_large_the_next_request_does_not_look_back() -> None:
    assert sent_requests(MeasuredSource(too_large=True), 3) == [(60.0, 600.0), (60.0, 0.0), (150.0, 0.0)]
