"""Answers of a real VictoriaMetrics, as `recorded_answers/victoria_metrics.json` contains them, and its errors."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from nodewise.base.errors import BadInput, NodewiseError, Unavailable
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.node_attributes import NodeAllocatable, NodeAttributes
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import PrometheusSettings, PrometheusSource
from nodewise.metrics.series import Series
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policy_tools import backtest_history
from nodewise.policy_tools.backtest_history import HistoryRange
from tests.unit.metrics.fake_prometheus_history import FakeHistory, history_of

NANO: Final = 10**9
ANSWERS: Final[Mapping[str, Any]] = json.loads(
    (Path(__file__).parent / "recorded_answers" / "victoria_metrics.json").read_text()
)
NODES: Final = NodeAttributes(
    {name: NodeAllocatable(None, None) for name in ("a", "b")}, {"a": "a", "b": "b"}
)


def fetch(answers: Mapping[str, Any], aggregate: str, metric: str = "gpu_temp") -> Series:
    """The metric from a server with these answers by query, which has a late answer for requests without nocache."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        query = request.url.params["query"]
        late = answers.get(f"{query} without nocache")
        is_late = late is not None and request.url.params.get("nocache") != "1"
        return httpx2.Response(200, json=late if is_late else answers[query])

    async def once() -> Series:
        async def nodes() -> NodeAttributes:
            return NODES

        options = PrometheusOptions(prometheus_url=("http://vm:8428",))
        source = PrometheusSource(
            "http://vm:8428", PrometheusSettings(options, 60.0), nodes, MetricsRegistry()
        )
        source._connection.http = httpx2.AsyncClient(
            base_url="http://vm:8428", transport=httpx2.MockTransport(answer)
        )
        request = MetricRequest(metric, query=metric, max_age_s=60.0, aggregate=aggregate)
        return await source.fetch(request, 1795942297.0)

    return asyncio.run(once())


def values(series: Series) -> dict[str, float]:
    return {node: sample.value / NANO for node, sample in series.samples.items()}


AGGREGATES: Final = {
    "max": {"a": 52.0, "b": 90.0},
    "min": {"a": 41.0, "b": 41.0},
    "sum": {"a": 93.0, "b": 131.0},
}


class TestNaNAfterAValue:
    @pytest.mark.parametrize(("aggregate", "expected"), AGGREGATES.items(), ids=AGGREGATES)
    def test_failed_scrape_and_changed_labels_leave_the_last_values(
        self, aggregate: str, expected: dict[str, float]
    ) -> None:
        series = fetch(ANSWERS, aggregate)
        assert (values(series), series.invalid) == (expected, {})
        assert series.samples["a"].at == 1795942283.1

    @pytest.mark.parametrize(("aggregate", "expected"), AGGREGATES.items(), ids=AGGREGATES)
    def test_series_that_is_newer_than_the_result_of_the_instant_query_counts(
        self, aggregate: str, expected: dict[str, float]
    ) -> None:
        late = {**ANSWERS, "gpu_temp": ANSWERS["gpu_temp without nocache"]}
        assert values(fetch(late, aggregate)) == expected

    def test_value_is_as_old_as_its_sample(self) -> None:
        answer = matrix({"node": "a"}, [(900.0, "7"), (930.0, "8"), (945.0, "NaN"), (960.0, "NaN")])
        [value] = query_responses.newest_values(query_responses.decode_response(answer))
        assert (value.value, value.at, value.has_ended) == ("8", 930.0, True)

    def test_value_after_nan_counts(self) -> None:
        answer = matrix({"node": "a"}, [(900.0, "7"), (930.0, "NaN"), (945.0, "9")])
        [value] = query_responses.newest_values(query_responses.decode_response(answer))
        assert (value.value, value.at, value.has_ended) == ("9", 945.0, False)

    def test_nan_without_a_value_is_invalid(self) -> None:
        body = json.loads(matrix({"node": "b"}, [(945.0, "NaN")]))
        series = fetch({"fan_rpm[60s]": body}, "", "fan_rpm")
        assert series.invalid == {"b": "NaN is no number that a rule can compare"}

    def test_series_that_began_before_the_newest_current_one_has_ended(self) -> None:
        """The exporter was restarted, and the server has no NaN for that."""
        old, new = {"node": "a", "pod": "p-1"}, {"node": "a", "pod": "p-2"}
        samples = [{"metric": old, "values": [[100.0, "99"]]}, {"metric": new, "values": [[115.0, "30"]]}]
        instant = {"resultType": "vector", "result": [{"metric": new, "value": [120.0, "30"]}]}
        answers = {
            "watts[60s]": {"status": "success", "data": {"resultType": "matrix", "result": samples}},
            "watts": {"status": "success", "data": instant},
        }
        assert values(fetch(answers, "sum", "watts")) == {"a": 30.0}

    def test_replica_that_goes_on_comes_before_a_newer_one_that_has_ended(self) -> None:
        labels = {"node": "a", "unit": "0"}
        samples = [
            {"metric": {**labels, "replica": "1"}, "values": [[110.0, "60"], [125.0, "NaN"]]},
            {"metric": {**labels, "replica": "2"}, "values": [[107.0, "61"]]},
            {"metric": {"node": "a", "unit": "1", "replica": "2"}, "values": [[107.0, "20"]]},
        ]
        current = [{"metric": item["metric"], "value": [126.0, "0"]} for item in samples[1:]]
        answers = {
            "watts[60s]": {"status": "success", "data": {"resultType": "matrix", "result": samples}},
            "watts": {"status": "success", "data": {"resultType": "vector", "result": current}},
        }
        assert values(fetch(answers, "sum", "watts")) == {"a": 81.0}


def matrix(labels: Mapping[str, str], samples: list[tuple[float, str]]) -> bytes:
    result = [{"metric": labels, "values": samples}]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


PARSE_ERRORS: Final = {
    "gpu_temp{": 'labelFilterExpr: unexpected token ""; want "ident"; unparsed data: ""',
    "rate(gpu_temp[5)": 'windowAndStep: unexpected token ")"; want "]"; unparsed data: ")"',
    "max by (node (gpu_temp)": (
        'ModifierExpr: identList: unexpected token "("; want ",", ")"; unparsed data: "(gpu_temp)"'
    ),
    "fuo(gpu_temp)": 'unsupported function "fuo"',
    'gpu_temp{pod=~"("}': (
        'cannot expand WITH expressions: invalid regexp in pod="(": error parsing regexp: missing closing ): `^(?:()$`'
    ),
    "quantile(gpu_temp)": "unexpected number of args; got 1; want 2",
    "abs(gpu_temp, 1)": "unexpected number of args; got 2; want 1",
    "gpu_temp offset 1x": 'unparsed data left: "x"',
    'label_replace(gpu_temp,"a","b","c","(")': (
        'cannot compile regex "(": error parsing regexp: missing closing ): `^(?:()$`'
    ),
}
OTHER_ERRORS: Final = {
    "gpu_temp * on(node) gpu_temp": "duplicate time series on the left side of * on(node): {gpu=",
    'label_set(gpu_temp,"pod","1","gpu","2","node","3")': "duplicate output timeseries: gpu_temp{gpu=",
    "sum_over_time(gpu_temp[1d:1ms])": "too many points for the given start=",
    "a range with too many points": "too many points for the given start=",
}


def error_of(status: int, body: bytes) -> NodewiseError:
    return query_responses.error_from_response("query", status, body, timeout_s=4.0)


def recorded_error(query: str) -> NodewiseError:
    recorded = ANSWERS["errors"][query]
    return error_of(recorded["status"], json.dumps(recorded["body"]).encode())


def test_each_recorded_error_is_tested() -> None:
    assert ANSWERS["errors"].keys() == PARSE_ERRORS.keys() | OTHER_ERRORS.keys()


@pytest.mark.parametrize(("query", "message"), PARSE_ERRORS.items(), ids=PARSE_ERRORS)
def test_message_about_a_query_that_cannot_be_parsed_is_shown(query: str, message: str) -> None:
    error = recorded_error(query)
    assert isinstance(error, BadInput)
    assert error.problems[0].found == f"bad_data: {message}"
    cause = missing_values.cause_of_error(error, source_table.PROMETHEUS)
    assert (cause.reason, cause.text) == ("InvalidQuery", f"Prometheus cannot run the query: {message}")


@pytest.mark.parametrize(("query", "beginning"), OTHER_ERRORS.items(), ids=OTHER_ERRORS)
def test_message_about_series_is_only_in_the_log(query: str, beginning: str) -> None:
    error = recorded_error(query)
    assert isinstance(error, BadInput)
    assert error.problems[0].found.startswith(beginning)
    cause = missing_values.cause_of_error(error, source_table.PROMETHEUS)
    assert (cause.reason, cause.text) == ("InvalidQuery", "Prometheus cannot run the query (HTTP status 422)")


def test_error_as_plain_text_is_shown() -> None:
    query = "max by (node) (" + "a + " * 100
    body = f'error when executing query="{query}" for (time=1, step=300000): singleExpr: unexpected token ""'
    for status in (400, 422):
        error = error_of(status, body.encode())
        assert isinstance(error, BadInput)
        assert error.problems[0].found == 'bad_data: singleExpr: unexpected token ""'
    page = error_of(422, b"<html>" + b"x" * 10_000)
    assert len(page.problems[0].found) == 200


def json_error(error_type: str, message: str) -> bytes:
    return json.dumps({"status": "error", "errorType": error_type, "error": message}).encode()


_PREFIX: Final = 'error when executing query="sum(a)" for (time=1795941743000, step=300000): '
_HINT: Final = "the timeout can be adjusted with `-search.maxQueryDuration` command-line flag"
TIMEOUTS: Final = {
    # VictoriaMetrics, app/vmselect/netstorage/netstorage.go, v1.112: it was too fast to record them
    "blocks": (
        422,
        json_error(
            "422",
            f"{_PREFIX}timeout exceeded while fetching data block #7 from storage: 4.000 seconds "
            f"(elapsed 4.100 seconds); {_HINT}",
        ),
    ),
    "start": (
        503,
        json_error(
            "503", f"{_PREFIX}timeout exceeded before starting the query processing: 1.000 seconds; {_HINT}"
        ),
    ),
    "plain text": (503, b"timeout exceeded during query execution: 1.000 seconds (elapsed 1.2 seconds)"),
    # Prometheus 2.53.3
    "Prometheus": (503, json_error("timeout", "query timed out in expression evaluation")),
    # Thanos, pkg/api/query/v1.go v0.41: errors of stores have the type of errors in execution
    "Thanos": (
        422,
        json_error(
            "execution",
            "expanding series: rpc error: code = DeadlineExceeded desc = context deadline exceeded",
        ),
    ),
    "a proxy": (504, b"<html><h1>504 Gateway Time-out</h1>"),
}
NO_TIMEOUTS: Final = {
    "a query": (422, json_error("422", 'unsupported function "timeout exceeded"')),
    "a query of Prometheus": (400, json_error("bad_data", 'parse error: unexpected "timed out"')),
    "too many requests": (
        429,
        json_error("429", "couldn't start executing the request in 4.000 seconds, since …"),
    ),
    "no right": (403, b"session timed out"),
    "not ready": (503, b"Service Unavailable"),
}


@pytest.mark.parametrize(("status", "body"), TIMEOUTS.values(), ids=TIMEOUTS)
def test_timeout_on_the_server_is_a_timeout(status: int, body: bytes) -> None:
    error = error_of(status, body)
    assert isinstance(error, Unavailable)
    assert error.timeout_s == 4.0
    assert missing_values.cause_of_error(error, source_table.PROMETHEUS).reason == "SourceTimesOut"


@pytest.mark.parametrize(("status", "body"), NO_TIMEOUTS.values(), ids=NO_TIMEOUTS)
def test_other_errors_are_no_timeouts(status: int, body: bytes) -> None:
    assert not getattr(error_of(status, body), "timeout_s", 0.0)


class LateHistory(FakeHistory):
    """A server that answers instant queries as of 30 s ago, and shifts ranges, unless they have nocache."""

    late_s = 30.5

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.params.get("nocache") == "1":
            return super().answer(request)
        body = ANSWERS["vector(time()) without nocache"]
        body["data"]["result"][0]["value"][1] = f"{self.now - self.late_s:.3f}"
        return httpx2.Response(200, json=body)


def test_backtest_finds_no_clock_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    server = LateHistory({})
    monkeypatch.setattr("nodewise.base.clock.SystemClock.now", lambda _: server.now)
    notes: list[str] = []
    grid = asyncio.run(
        backtest_history.time_grid(history_of(server, ("a",)), HistoryRange(3600.0, None, 60.0), notes)
    )
    assert (grid.end, notes) == (server.now // 60 * 60, [])
