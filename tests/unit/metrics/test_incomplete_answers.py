"""Responses that lack a part of the series: which are, and what sources and commands make of them."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest

from nodewise.base.clock import SystemClock
from nodewise.metrics.aggregation import distribution_of
from nodewise.metrics.metrics_source import MetricRequest, NoValues, RefreshOptions
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.prometheus.range_matrix import TimeGrid
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.metrics.series import Sample, Series
from nodewise.metrics.source_selection import FetchLimits, SourceSelector
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policy_tools import backtest_history, policy_writer
from nodewise_scorers.annotator import ForecastOptions
from nodewise_scorers.annotator.node_usage import PrometheusUsageSource, UsageMeasurement
from nodewise_scorers.statistics.node_usage_reader import WindowOptions
from tests.unit.metrics.fake_prometheus import PrometheusDouble, run_prometheus
from tests.unit.metrics.fake_prometheus_history import FakeHistory, history_of, request_of
from tests.unit.metrics.prometheus_suite import fetch, source, values

STORE = "receive series from Addr: 10.0.0.5:10901 …: rpc error: code = Unavailable desc = connection refused"
HINT = (
    'PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: "m" (1:6)'
)
MIXED = "PromQL warning: encountered a mix of histograms and floats for aggregation (1:5)"

INCOMPLETE: dict[str, tuple[dict[str, Any], str]] = {
    "Thanos": ({"warnings": [STORE]}, STORE),
    "a warning beside hints": ({"warnings": [HINT, STORE, MIXED]}, STORE),
    "a cluster of VictoriaMetrics": ({"isPartial": True}, "isPartial: a storage node did not respond"),
    "both": ({"isPartial": True, "warnings": ["w"]}, "isPartial: a storage node did not respond; w"),
    "a text": ({"warnings": "half of it"}, "half of it"),
    "another type": ({"warnings": {"store": 7}}, "{'store': 7}"),
    "a number in a list": ({"warnings": [4]}, "4"),
    "the same several times": ({"warnings": ["x", "x", "y"]}, "x; y"),
    "many": (
        {"warnings": [f"store {number}" for number in range(90)]},
        "store 0; store 1; store 2; and 87 more",
    ),
    "control characters": ({"warnings": ["a\x1b[2J\nb\u202e"]}, "a\\x1b[2J b\\u202e"),
    "a long one": ({"warnings": ["x" * 100_000]}, "x" * 199 + "…"),
}
COMPLETE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "no warnings": {"warnings": [], "isPartial": False},
    "null": {"warnings": None, "isPartial": None},
    "hints": {"warnings": [HINT, MIXED]},
    "hints of Prometheus 3": {"infos": [HINT]},
    "an empty warning": {"warnings": [""]},
}


def decode(**more: Any) -> query_responses.QueryResponse:
    body = {"status": "success", "data": {"resultType": "vector", "result": []}} | more
    return query_responses.decode_response(json.dumps(body).encode())


@pytest.mark.parametrize(("more", "text"), INCOMPLETE.values(), ids=INCOMPLETE)
def test_incomplete_response_says_why(more: dict[str, Any], text: str) -> None:
    assert decode(**more).incomplete == text


@pytest.mark.parametrize("more", COMPLETE.values(), ids=COMPLETE)
def test_hints_about_a_query_do_not_make_a_response_incomplete(more: dict[str, Any]) -> None:
    assert decode(**more).incomplete == ""


@pytest.fixture
def server() -> Iterator[PrometheusDouble]:
    with run_prometheus(PrometheusDouble({'fan{instance="a"}': "7", 'fan{instance="x:1"}': "8"})) as double:
        double.warnings = [STORE]
        yield double


@pytest.mark.parametrize("query", ["", 'fan{instance="a"} * 2'])
def test_nodes_in_an_incomplete_response_have_values(server: PrometheusDouble, query: str) -> None:
    series = fetch(server.url, "fan", query=query)
    assert (values(series), series.incomplete) == ({"a": 14.0 if query else 7.0}, STORE)
    server.warnings = [HINT]
    assert fetch(server.url, "fan", query=query).incomplete == ""


@pytest.mark.parametrize(
    "request_fields",
    [
        {"metric": "absent"},
        {"metric": "x", "query": "absent * 1"},
        {"metric": "x", "query": "absent * 1", "empty_is_healthy": True},
        {"metric": "x", "query": 'fan{instance="x:1"} * 1', "empty_is_healthy": True},
        {"metric": "absent", "aggregate": "max"},
    ],
)
def test_incomplete_response_without_values_is_a_failure(
    server: PrometheusDouble, request_fields: dict[str, Any]
) -> None:
    with pytest.raises(NoValues, match=r"an incomplete response: receive series from Addr") as caught:
        fetch(server.url, **request_fields)
    cause = caught.value.cause
    assert cause.reason == "IncompleteAnswer"
    assert cause.text == "Prometheus gave an incomplete response, without a value of a node"
    assert "10.0.0.5" not in str(cause), "tenants read it"


def test_metric_is_1_while_responses_are_incomplete(server: PrometheusDouble) -> None:
    registry = MetricsRegistry()
    healthy = MetricRequest("none", query="absent * 1", empty_is_healthy=True)

    async def incomplete_metrics() -> dict[str, float]:
        made = source(server.url)
        refresher = MetricsRefresher([made], RefreshOptions(), SystemClock(), registry)
        refresher.set_requests(frozenset({MetricRequest("fan"), healthy}))
        await refresher.settle()
        await made.close()
        lines = registry.exposition().decode().splitlines()
        found_values = dict(line.rsplit(" ", 1) for line in lines if "nodewise_metric_incomplete{" in line)
        return {name.partition('"')[2].rstrip('"}'): float(text) for name, text in found_values.items()}

    assert asyncio.run(incomplete_metrics()) == {"fan": 1.0, "none": 1.0}
    server.warnings = [HINT]
    assert asyncio.run(incomplete_metrics()) == {"fan": 0.0, "none": 0.0}


def test_samples_of_an_incomplete_response_are_an_error(server: PrometheusDouble) -> None:
    async def samples() -> Any:
        made = source(server.url)
        try:
            return await made.samples("fan[60s]")
        finally:
            await made.close()

    with pytest.raises(NoValues, match="an incomplete response"):
        asyncio.run(samples())
    server.warnings = []
    assert list(asyncio.run(samples())) == ["a"]


class PartialHistory(FakeHistory):
    """A history of which a part is missing."""

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(super().answer(request).content)
        return httpx2.Response(200, json=body | {"warnings": [STORE]})


def test_history_is_incomplete() -> None:
    labels = (("__name__", "fan"), ("instance", "a:1"))
    history = history_of(PartialHistory({labels: lambda _: "5"}, most_points=3), ("a", "b"))
    grid = TimeGrid(1_699_000_020.0, 60.0, 8)
    [matrix] = asyncio.run(history.read([request_of("fan")], grid)).values()
    assert matrix.incomplete == STORE
    assert np.array_equal(matrix.values[:, 0], [5 * 10**9] * 8)
    assert list(backtest_history.incomplete_notes(history)) == [
        f"the history is incomplete, and nodes that are absent keep their last verdicts: {STORE}"
    ]


def test_complete_history_has_no_note() -> None:
    history = history_of(FakeHistory({}), ("a",))
    asyncio.run(history.series("kube_pod_info"))
    assert list(backtest_history.incomplete_notes(history)) == []


def test_proposed_policy_warns_about_an_incomplete_response() -> None:
    series = Series("fan", "prometheus", 1.0, {"a": Sample(7 * 10**9, 1.0)}, incomplete=STORE)
    distribution = distribution_of({"a": 7 * 10**9}, ["b"])
    lines = list(policy_writer.distribution_lines(distribution, series))
    assert f"Warning: the response is incomplete, so values may be missing: {STORE}" in lines
    complete = msgspec.structs.replace(series, incomplete="")
    assert list(policy_writer.distribution_lines(distribution, complete)) == [lines[0], *lines[2:]]


def test_annotator_reports_incomplete_responses(server: PrometheusDouble) -> None:
    statistic = 'fan{instance="a"} * 1'
    options = WindowOptions(
        cpu_mean_query=statistic,
        cpu_deviation_query=statistic,
        memory_mean_query="absent * 1",
        memory_deviation_query="absent * 1",
    )

    async def measure() -> UsageMeasurement:
        made = source(server.url)
        clock, limits = SystemClock(), FetchLimits(60.0, 4)
        usage = PrometheusUsageSource(
            SourceSelector([made], limits, clock, MetricsRegistry()),
            options,
            ForecastOptions(),
            [made],
            clock,
        )
        try:
            return await usage.measure({})
        finally:
            await made.close()

    measured = asyncio.run(measure())
    assert measured.usage["a"].cpu.mean == 7000.0
    assert [STORE in failure for failure in measured.failures] == [True] * 4
