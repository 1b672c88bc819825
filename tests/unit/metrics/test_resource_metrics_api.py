"""metrics.k8s.io: four metrics from one call."""

import asyncio
import json
from typing import Any

import pytest

from nodewise.base import clock
from nodewise.base.errors import BadInput, NodewiseError, Unavailable
from nodewise.kube.api_server_interface import NotFound
from nodewise.metrics import resource_metrics_api
from nodewise.metrics.metrics_source import MetricNotFound, MetricRequest
from nodewise.metrics.node_attributes import NodeAllocatable, NodeAttributes
from nodewise.metrics.resource_metrics_api import METRICS, POD_METRICS, ResourceMetricsSource
from nodewise.metrics.series import Sample, Series

NANO = 10**9
GI = 2**30 * NANO
STAMP = "2026-11-21T00:00:00Z"
AT = clock.parse_rfc3339(STAMP)
ROOMS = {
    "a": NodeAllocatable(4 * NANO, 8 * GI),
    "thirds": NodeAllocatable(3 * NANO, 3 * GI),
    "full": NodeAllocatable(0, None),
}


NODES = NodeAttributes(ROOMS, {})


async def nodes() -> NodeAttributes:
    return NODES


class FakeMetricsServer:
    """An API server with one response."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.requests: list[str] = []

    async def get(self, path: str, *_: Any, **__: Any) -> bytes:
        self.requests.append(path)
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()


def item(node: str, cpu: Any, memory: Any = "1Gi", **more: Any) -> dict[str, Any]:
    measured = {"metadata": {"name": node}, "timestamp": STAMP, "window": "20.05s"}
    return measured | {"usage": {"cpu": cpu, "memory": memory}} | more


def fetch(*items: Any) -> dict[str, Series]:
    api: Any = FakeMetricsServer({"items": items})
    source = ResourceMetricsSource(api, nodes)

    async def all_four() -> dict[str, Series]:
        fetched = await asyncio.gather(*(source.fetch(MetricRequest(metric), 5.0) for metric in METRICS))
        return dict(zip(METRICS, fetched, strict=True))

    return asyncio.run(all_four())


def test_usage_and_its_share_of_allocatable() -> None:
    by_metric = fetch(item("a", "1500m", "2Gi"))
    assert {metric: series.samples["a"] for metric, series in by_metric.items()} == {
        "cpu_usage": Sample(1_500_000_000, AT, 20.05),
        "memory_usage": Sample(2 * GI, AT, 20.05),
        "cpu_usage_share": Sample(375_000_000, AT, 20.05),
        "memory_usage_share": Sample(250_000_000, AT, 20.05),
    }
    assert {(series.source, series.fetched_at) for series in by_metric.values()} == {("resource", 5.0)}


SHARES = {
    "a third goes down": ("1", 333_333_333),
    "two thirds go up": ("2", 666_666_667),
    "more than all": ("4500m", 1_500_000_000),
    "next to nothing": ("1n", 0),
    "nothing": ("0", 0),
}


@pytest.mark.parametrize(("cpu", "nano"), SHARES.values(), ids=SHARES)
def test_a_share_is_to_the_nearest_nano(cpu: str, nano: int) -> None:
    assert fetch(item("thirds", cpu))["cpu_usage_share"].samples["thirds"].value == nano


def test_without_allocatable_there_is_no_share() -> None:
    by_metric = fetch(item("full", "1"))
    assert by_metric["cpu_usage"].samples["full"].value == NANO
    assert by_metric["cpu_usage_share"].invalid == {"full": "the Node reports no allocatable cpu"}
    assert by_metric["memory_usage_share"].invalid == {"full": "the Node reports no allocatable memory"}


def test_deleted_node_has_no_share_and_is_no_problem() -> None:
    by_metric = fetch(item("deleted", "1"), item("thirds", "1"))
    for share in ("cpu_usage_share", "memory_usage_share"):
        assert "deleted" not in by_metric[share].samples
        assert "deleted" not in by_metric[share].invalid


def test_usage_of_no_node_is_named_as_such() -> None:
    by_metric = fetch(item("elsewhere-1", "1"), item("elsewhere-2", "many"))
    expected = dict.fromkeys(("elsewhere-1", "elsewhere-2"), "no Node has this name")
    assert by_metric["cpu_usage_share"].invalid == by_metric["memory_usage_share"].invalid == expected


def test_overflow_of_the_adapter_is_invalid() -> None:
    by_metric = fetch(item("thirds", "-9223372036854775808m"))
    assert by_metric["cpu_usage"].samples == {}
    assert "prometheus-adapter" in by_metric["cpu_usage_share"].invalid["thirds"]


@pytest.mark.parametrize("bad", ["NaN", "many", None, True, [], {}])
def test_a_bad_value_spoils_its_own_metric_and_node_only(bad: Any) -> None:
    by_metric = fetch(item("a", bad), item("thirds", "1"))
    assert list(by_metric["cpu_usage"].samples) == list(by_metric["cpu_usage_share"].samples) == ["thirds"]
    assert list(by_metric["cpu_usage"].invalid) == list(by_metric["cpu_usage_share"].invalid) == ["a"]
    assert list(by_metric["memory_usage_share"].samples) == ["a", "thirds"]


@pytest.mark.parametrize("more", [{"timestamp": "noon"}, {"window": "long"}])
def test_a_bad_time_spoils_its_own_node_only(more: dict[str, Any]) -> None:
    series = fetch(item("a", "1", **more), item("thirds", "1"))["cpu_usage"]
    assert (list(series.samples), list(series.invalid)) == (["thirds"], ["a"])


def test_a_node_without_a_time_is_as_new_as_the_reading() -> None:
    sample = fetch(item("a", "1", timestamp=None, window=None))["cpu_usage"].samples["a"]
    assert (sample.at, sample.window_s) == (None, 60.0)


@pytest.mark.parametrize("odd", [3, {}, {"usage": None}, {"metadata": {"name": 7}}, {"usage": {"cpu": "1"}}])
def test_an_item_that_names_no_node_is_passed_over(odd: Any) -> None:
    assert list(fetch(odd, item("a", "1"))["cpu_usage"].samples) == ["a"]


FAILURES: dict[str, tuple[Any, type[NodewiseError], str]] = {
    "not registered": (
        NotFound("get"),
        MetricNotFound,
        "metrics.k8s.io is not registered.*install metrics-server",
    ),
    "not answering": (Unavailable("get: 503"), Unavailable, "503"),
    "empty": ({"items": []}, Unavailable, "an empty list; expected the usage of nodes"),
    "null": ({"items": None}, Unavailable, "an empty list"),
    "no list": (b"[]", BadInput, "a NodeMetricsList"),
    "garbage": (b"garbage", BadInput, "a NodeMetricsList"),
}


@pytest.mark.parametrize(("answer", "kind", "words"), FAILURES.values(), ids=FAILURES)
def test_failures(answer: Any, kind: type[NodewiseError], words: str) -> None:
    api: Any = FakeMetricsServer(answer)
    with pytest.raises(kind, match=words):
        asyncio.run(ResourceMetricsSource(api, nodes).fetch(MetricRequest("cpu_usage"), 0.0))


ASKS: dict[str, tuple[list[tuple[str, float]], int]] = {
    "four in a round": ([(metric, 0.0) for metric in METRICS], 1),
    "two rounds": ([(metric, at) for at in (0.0, 5.0) for metric in METRICS], 2),
    "two rounds in another order": (
        [("cpu_usage", 0.0), ("memory_usage", 0.0), ("memory_usage", 5.0), ("cpu_usage", 5.0)],
        2,
    ),
    "a metric has each answer once, however short the period": ([("cpu_usage", 0.0), ("cpu_usage", 0.5)], 2),
    "a metric that comes late gets a new answer": ([("cpu_usage", 0.0), ("memory_usage", 3.0)], 2),
}


@pytest.mark.parametrize(("calls", "times"), ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("answer", [{"items": [item("a", "1")]}, Unavailable("503")], ids=["good", "failed"])
def test_calls(calls: list[tuple[str, float]], times: int, answer: Any) -> None:
    api: Any = FakeMetricsServer(answer)
    source = ResourceMetricsSource(api, nodes)

    async def play() -> None:
        rounds = {at: [metric for metric, other in calls if other == at] for _, at in calls}
        for at, metrics in rounds.items():
            fetches = (source.fetch(MetricRequest(metric), at) for metric in metrics)
            await asyncio.gather(*fetches, return_exceptions=True)

    asyncio.run(play())
    assert api.requests == ["/apis/metrics.k8s.io/v1beta1/nodes"] * times


@pytest.mark.parametrize("by_pod", [False, True], ids=["nodes", "pods"])
def test_response_is_not_kept_until_the_next_refresh(
    monkeypatch: pytest.MonkeyPatch, *, by_pod: bool
) -> None:
    monkeypatch.setattr(resource_metrics_api, "_SHARED_S", 0.05)
    container = {"name": "c", "usage": {"cpu": "1", "memory": "1Gi"}}
    pod = item("a", "1") | {"metadata": {"name": "p", "namespace": "n"}, "containers": [container]}
    api: Any = FakeMetricsServer({"items": [pod if by_pod else item("a", "1")]})
    source = ResourceMetricsSource(api, nodes)
    metric = (POD_METRICS if by_pod else METRICS)[0]

    async def play() -> None:
        await source.fetch(MetricRequest(metric, by_pod=by_pod), 0.0)
        assert source._responses
        await asyncio.sleep(0.2)
        assert not source._responses

    asyncio.run(play())


def test_response_is_not_shared_once_other_nodes_are_known() -> None:
    """A replica that has listed the nodes of another shard writes their labels once their metrics are fetched."""
    api: Any = FakeMetricsServer({"items": [item("a", "1"), item("thirds", "1")]})
    known = NodeAttributes({"a": ROOMS["a"]}, {})

    async def current_nodes() -> NodeAttributes:
        return known

    source = ResourceMetricsSource(api, current_nodes)

    async def play() -> Series:
        nonlocal known
        await source.fetch(MetricRequest("cpu_usage"), 0.0)
        known = NODES
        return await source.fetch(MetricRequest("cpu_usage_share"), 0.5)

    assert asyncio.run(play()).samples.keys() == {"a", "thirds"}


def test_cancelled_request_does_not_block_the_others() -> None:
    api: Any = FakeMetricsServer({"items": [item("a", "1")]})
    source = ResourceMetricsSource(api, nodes)

    async def play() -> Series:
        first = asyncio.create_task(source.fetch(MetricRequest("cpu_usage"), 0.0))
        second = asyncio.create_task(source.fetch(MetricRequest("memory_usage"), 0.0))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(play()).samples


def test_only_the_four_are_taken() -> None:
    source = ResourceMetricsSource(FakeMetricsServer({}), nodes)  # type: ignore[arg-type]
    assert all(source.supports(MetricRequest(metric)) for metric in METRICS)
    assert not any(
        source.supports(request)
        for request in (MetricRequest("temp"), MetricRequest("cpu_usage", "cpu_usage * 2"))
    )
