"""Responses of a real Mimir and a real Cortex, as `recorded_answers` contains them."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from nodewise.base.errors import BadInput, NodewiseError, Refused, Unavailable
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.metrics_source import NoValues
from tests.unit.metrics.prometheus_suite import values
from tests.unit.metrics.recorded_responses import error_of, fetch, metric_names, recorded

MIMIR: Final = recorded("mimir")
CORTEX: Final = recorded("cortex")
NOW: Final = 1795956330.0
"""Of the responses of Mimir."""
CORTEX_NOW: Final = 1795957605.0
NODES: Final = tuple(f"m{number}" for number in range(1, 9))
QUERIES: Final = ("fan_rpm", "fan_rpm > 2006", "fan_rpm > 9000")
SERVERS: Final = pytest.mark.parametrize(
    ("server", "now"), [(MIMIR, NOW), (CORTEX, CORTEX_NOW)], ids=["Mimir", "Cortex"]
)
PARTIAL: Final = CORTEX["one of two ingesters was killed, query_partial_data"]
BEFORE: Final = CORTEX["query_partial_data, before"]
OTHER_ERRORS: Final = ("fan_rpm * on(job) fan_rpm", 'label_replace(fan_rpm,"a","b","c","(")')


def reason_of(error: NodewiseError) -> str:
    return missing_values.cause_of_error(error, source_table.PROMETHEUS).reason


@SERVERS
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("fan_rpm", {f"m{number}": 2000.0 + number for number in range(1, 9)}),
        ("fan_rpm > 2006", {"m7": 2007.0, "m8": 2008.0}),
        ("fan_rpm > 9000", {}),
    ],
)
def test_responses_to_a_tenant_are_complete(
    server: Mapping[str, Any], now: float, query: str, expected: dict[str, float]
) -> None:
    series = fetch(server["a tenant"], query, NODES, now)
    assert (values(series), series.incomplete) == (expected, "")


@SERVERS
def test_hints_about_a_query_do_not_make_a_response_incomplete(server: Mapping[str, Any], now: float) -> None:
    query = "rate(ecc_errors_seen[60s])"
    assert server is CORTEX or "infos" in server["a tenant"][query]["body"]
    series = fetch(server["a tenant"], query, NODES, now)
    assert (set(series.samples), series.incomplete) == (set(NODES), "")
    assert server is CORTEX or series.samples["m3"].value > 0


@SERVERS
def test_names_of_metrics(server: Mapping[str, Any], now: float) -> None:
    assert {"ecc_errors_seen", "fan_rpm"} <= set(metric_names(server["a tenant"]["names"]))


@pytest.mark.parametrize(
    ("response", "status"),
    [
        (MIMIR["no tenant"]["fan_rpm"], 401),
        (MIMIR["other tenants"]["two tenants"], 422),
        (MIMIR["other tenants"]["an invalid name"], 401),
        (CORTEX["no tenant"]["fan_rpm"], 401),
        (CORTEX["other tenants"]["two tenants"], 400),
        (CORTEX["other tenants"]["an invalid name"], 400),
    ],
)
def test_refused_tenant_names_the_flag(response: Mapping[str, Any], status: int) -> None:
    """Whatever the status of the error is."""
    assert response["status"] == status
    with pytest.raises(Refused, match=rf"HTTP status {status}: .*--prometheus-header X-Scope-OrgID=TENANT"):
        fetch({"fan_rpm * 2": response}, "fan_rpm * 2", NODES, NOW)
    cause = missing_values.cause_of_error(error_of(response), source_table.PROMETHEUS)
    assert cause.reason == "SourceRefusesAccess"
    assert "--prometheus-header for a tenant" in cause.remedy


def test_names_of_metrics_are_refused_without_a_tenant() -> None:
    with pytest.raises(Refused, match=r"no org id.*--prometheus-header"):
        metric_names(MIMIR["no tenant"]["names"])


@SERVERS
def test_unknown_tenant_has_no_series(server: Mapping[str, Any], now: float) -> None:
    """A limit: the response does not say that there is no such tenant."""
    responses = {"fan_rpm * 2": server["other tenants"]["a tenant without series"]}
    assert fetch(responses, "fan_rpm * 2", NODES, now).samples == {}
    with pytest.raises(NoValues, match="no series"):
        fetch(responses, "fan_rpm * 2", NODES, now, empty_is_healthy=False)


def test_text_of_a_query_is_not_about_the_tenant() -> None:
    body = {"status": "error", "errorType": "bad_data", "error": 'no org id": parse error'}
    assert isinstance(error_of({"status": 400, "body": body}), BadInput)


PARSE_ERRORS: Final = {
    "fan_rpm{": 'invalid parameter "query": 1:9: parse error: unexpected end of input inside braces',
    "fuo(fan_rpm)": 'invalid parameter "query": 1:1: parse error: unknown function with name "fuo"',
    "sum(fan_rpm, 1)": (
        'invalid parameter "query": 1:1: parse error: wrong number of arguments for aggregate expression provided,'
        " expected 1, got 2"
    ),
    'fan_rpm{node=~"("}': (
        'invalid parameter "query": 1:9: parse error: error parsing regexp: missing closing ): `(`'
    ),
    "fan_rpm offset 1x": 'invalid parameter "query": 1:16: parse error: bad number or duration syntax: "1"',
    "too_many[1d": 'invalid parameter "query": 1:12: parse error: unclosed left bracket',
}


def test_each_recorded_error_is_tested() -> None:
    assert MIMIR["errors in queries"].keys() == PARSE_ERRORS.keys() | set(OTHER_ERRORS)


@pytest.mark.parametrize(("query", "message"), PARSE_ERRORS.items(), ids=PARSE_ERRORS)
def test_message_about_a_query_that_cannot_be_parsed_is_shown(query: str, message: str) -> None:
    cause = missing_values.cause_of_error(
        error_of(MIMIR["errors in queries"][query]), source_table.PROMETHEUS
    )
    assert (cause.reason, cause.text) == ("InvalidQuery", f"Prometheus cannot run the query: {message}")


@pytest.mark.parametrize(
    ("server", "query"),
    [
        *((MIMIR, query) for query in OTHER_ERRORS),
        *((CORTEX, query) for query in CORTEX["errors in queries"]),
    ],
)
def test_message_is_shown_unless_it_is_about_series(server: Mapping[str, Any], query: str) -> None:
    response = server["errors in queries"][query]
    error = error_of(response)
    assert isinstance(error, BadInput)
    cause = missing_values.cause_of_error(error, source_table.PROMETHEUS)
    message = " (HTTP status 422)" if query in OTHER_ERRORS else f": {response['body']['error']}"
    assert (cause.reason, cause.text) == ("InvalidQuery", f"Prometheus cannot run the query{message}")


@pytest.mark.parametrize("response", [*MIMIR["limits"].values(), *CORTEX["limits"].values()])
def test_limit_of_a_tenant_is_the_fault_of_the_query(response: Mapping[str, Any]) -> None:
    error = error_of(response)
    assert isinstance(error, BadInput)
    assert reason_of(error) == "InvalidQuery"


@SERVERS
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("when", ["one of two ingesters was killed", "75 s later"])
def test_there_is_no_response_without_the_series_of_an_ingester(
    server: Mapping[str, Any], now: float, when: str, query: str
) -> None:
    """Mimir has no partial responses, and Cortex fails by default, also if the result would be empty."""
    error_type = "internal" if server is MIMIR else "server_error"
    with pytest.raises(NoValues, match=f"HTTP status 500: {error_type}") as caught:
        fetch(server[when], query, NODES, now)
    assert reason_of(caught.value) == "IncompleteAnswer"
    assert "ingesters of Mimir" in caught.value.cause.remedy
    assert "127.0.0.1" not in str(caught.value.cause)


def test_names_of_metrics_fail_without_an_ingester() -> None:
    with pytest.raises(NoValues, match="HTTP status 422: execution"):
        metric_names(MIMIR["one of two ingesters was killed"]["names"])


@pytest.mark.parametrize(
    ("responses", "now"),
    [(MIMIR["a query that takes 9 s"], NOW), (CORTEX["a query that takes 5 s"], CORTEX_NOW)],
)
def test_timeout_of_a_request_is_ignored(responses: Mapping[str, Any], now: float) -> None:
    """A limit: the server goes on with a query for which nodewise does not wait any more."""
    assert set(fetch(responses, "max_over_time(fan_rpm[1d:1ms])", NODES, now).samples) == set(NODES)


def test_timeout_on_the_server_is_a_timeout() -> None:
    [response] = MIMIR["-querier.timeout=500ms"].values()
    assert response["body"]["errorType"] == "internal"
    error = error_of(response)
    assert isinstance(error, Unavailable)
    assert (reason_of(error), error.timeout_s) == ("SourceTimesOut", 4.0)


@pytest.mark.parametrize("message", ["pool closed", "expanded matching posting: context canceled"])
def test_other_internal_errors_are_no_timeouts(message: str) -> None:
    body = {"status": "error", "errorType": "internal", "error": message}
    error = error_of({"status": 500, "body": body})
    assert not getattr(error, "timeout_s", 0.0)
    assert reason_of(error) == "SourceFails"


class TestQueryPartialData:
    """A tenant of Cortex with the option `query_partial_data`, of which one of two ingesters was killed."""

    def test_nodes_in_a_partial_response_have_values(self) -> None:
        before = fetch(BEFORE, "fan_rpm", NODES, CORTEX_NOW)
        assert (len(before.samples), before.incomplete) == (8, "")
        series = fetch(PARTIAL, "fan_rpm", NODES, CORTEX_NOW)
        assert values(series) == {"m2": 2002.0, "m3": 2003.0, "m4": 2004.0, "m7": 2007.0}
        assert series.incomplete == "query result may contain partial data"

    def test_result_of_an_expression_is_partial_too(self) -> None:
        assert set(fetch(BEFORE, "fan_rpm > 2006", NODES, CORTEX_NOW).samples) == {"m7", "m8"}
        series = fetch(PARTIAL, "fan_rpm > 2006", NODES, CORTEX_NOW)
        expected = ({"m7": 2007.0}, "query result may contain partial data")
        assert (values(series), series.incomplete) == expected

    def test_partial_response_without_series_is_a_failure_although_empty_means_healthy(self) -> None:
        with pytest.raises(NoValues, match="an incomplete response: query result may contain") as caught:
            fetch(PARTIAL, "fan_rpm > 9000", NODES, CORTEX_NOW)
        assert caught.value.cause.reason == "IncompleteAnswer"

    @pytest.mark.parametrize("query", ["fan_fault_a > 0", "rate(ecc_errors_seen[60s])"])
    def test_response_has_no_warning_if_no_series_of_its_metrics_remain(self, query: str) -> None:
        """A limit: the series were in the killed ingester, and the response looks healthy."""
        assert fetch(PARTIAL, query, NODES, CORTEX_NOW).samples == {}
        with pytest.raises(NoValues, match="no series"):
            fetch(PARTIAL, query, NODES, CORTEX_NOW, empty_is_healthy=False)

    def test_series_of_the_other_ingester_remain(self) -> None:
        for query in ("fan_fault_a > 0", "fan_fault_d > 0"):
            assert set(fetch(BEFORE, query, NODES, CORTEX_NOW).samples) == {"m3"}
        series = fetch(PARTIAL, "fan_fault_d > 0", NODES, CORTEX_NOW)
        assert (set(series.samples), bool(series.incomplete)) == ({"m3"}, True)
