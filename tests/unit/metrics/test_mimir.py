"""Responses of a real Mimir, as `recorded_answers/mimir.json` contains them."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from nodewise.base.errors import BadInput, NodewiseError, Refused, Unavailable
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.metrics_source import NoValues
from tests.unit.metrics.prometheus_suite import values
from tests.unit.metrics.recorded_responses import error_of, fetch, metric_names, recorded

RESPONSES: Final = recorded("mimir")
TENANT: Final = RESPONSES["a tenant"]
QUERIES: Final = ("fan_rpm", "fan_rpm > 2006", "fan_rpm > 9000")
NODES: Final = tuple(f"m{number}" for number in range(1, 9))
NOW: Final = 1795956330.0


def reason_of(error: NodewiseError) -> str:
    return missing_values.cause_of_error(error, source_table.PROMETHEUS).reason


class TestTenant:
    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("fan_rpm", {f"m{number}": 2000.0 + number for number in range(1, 9)}),
            ("fan_rpm > 2006", {"m7": 2007.0, "m8": 2008.0}),
            ("fan_rpm > 9000", {}),
        ],
    )
    def test_responses_are_complete(self, query: str, expected: dict[str, float]) -> None:
        series = fetch(TENANT, query, NODES, NOW)
        assert (values(series), series.incomplete) == (expected, "")

    def test_hints_about_a_query_do_not_make_a_response_incomplete(self) -> None:
        assert "infos" in TENANT["rate(ecc_errors_seen[60s])"]["body"]
        series = fetch(TENANT, "rate(ecc_errors_seen[60s])", NODES, NOW)
        assert (set(series.samples), series.incomplete) == (set(NODES), "")
        assert series.samples["m3"].value > 0

    def test_names_of_metrics(self) -> None:
        assert {"ecc_errors_seen", "fan_rpm"} <= set(metric_names(TENANT["names"]))


class TestTenantHeader:
    """Errors about the tenant name the flag, whatever their status is."""

    @pytest.mark.parametrize(
        ("response", "status"),
        [
            (RESPONSES["no tenant"]["fan_rpm"], 401),
            (RESPONSES["other tenants"]["two tenants"], 422),
            (RESPONSES["other tenants"]["an invalid name"], 401),
        ],
        ids=["no tenant", "two tenants", "an invalid name"],
    )
    def test_refused_tenant_names_the_flag(self, response: Mapping[str, Any], status: int) -> None:
        assert response["status"] == status
        with pytest.raises(
            Refused, match=f"HTTP status {status}: .*--prometheus-header X-Scope-OrgID=TENANT"
        ):
            fetch({"fan_rpm * 2": response}, "fan_rpm * 2", NODES, NOW)
        cause = missing_values.cause_of_error(error_of(response), source_table.PROMETHEUS)
        assert cause.reason == "SourceRefusesAccess"
        assert "--prometheus-header for a tenant" in cause.remedy

    def test_names_of_metrics_are_refused_too(self) -> None:
        with pytest.raises(Refused, match=r"no org id.*--prometheus-header"):
            metric_names(RESPONSES["no tenant"]["names"])

    def test_unknown_tenant_has_no_series(self) -> None:
        """A limit: the response does not say that there is no such tenant."""
        response = RESPONSES["other tenants"]["a tenant without series"]
        assert fetch({"fan_rpm * 2": response}, "fan_rpm * 2", NODES, NOW).samples == {}
        with pytest.raises(NoValues, match="no series"):
            fetch({"fan_rpm * 2": response}, "fan_rpm * 2", NODES, NOW, empty_is_healthy=False)

    def test_text_of_a_query_is_not_about_the_tenant(self) -> None:
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
OTHER_ERRORS: Final = ("fan_rpm * on(job) fan_rpm", 'label_replace(fan_rpm,"a","b","c","(")')


def test_each_recorded_error_is_tested() -> None:
    assert RESPONSES["errors in queries"].keys() == PARSE_ERRORS.keys() | set(OTHER_ERRORS)


@pytest.mark.parametrize(("query", "message"), PARSE_ERRORS.items(), ids=PARSE_ERRORS)
def test_message_about_a_query_that_cannot_be_parsed_is_shown(query: str, message: str) -> None:
    error = error_of(RESPONSES["errors in queries"][query])
    cause = missing_values.cause_of_error(error, source_table.PROMETHEUS)
    assert (cause.reason, cause.text) == ("InvalidQuery", f"Prometheus cannot run the query: {message}")


@pytest.mark.parametrize("query", OTHER_ERRORS)
def test_message_about_series_is_only_in_the_log(query: str) -> None:
    error = error_of(RESPONSES["errors in queries"][query])
    assert isinstance(error, BadInput)
    cause = missing_values.cause_of_error(error, source_table.PROMETHEUS)
    assert cause.text == "Prometheus cannot run the query (HTTP status 422)"


@pytest.mark.parametrize("limit", RESPONSES["limits"])
def test_limit_of_a_tenant_is_the_fault_of_the_query(limit: str) -> None:
    error = error_of(RESPONSES["limits"][limit])
    assert isinstance(error, BadInput)
    assert reason_of(error) == "InvalidQuery"


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("when", ["one of two ingesters was killed", "75 s later"])
def test_there_is_no_response_without_the_series_of_an_ingester(when: str, query: str) -> None:
    """Mimir has no partial responses: it fails, also if the result would be empty."""
    with pytest.raises(NoValues, match="HTTP status 500: internal") as caught:
        fetch(RESPONSES[when], query, NODES, NOW)
    assert reason_of(caught.value) == "IncompleteAnswer"
    assert "ingesters of Mimir" in caught.value.cause.remedy
    assert "127.0.0.1" not in str(caught.value.cause)


def test_names_of_metrics_fail_without_an_ingester() -> None:
    with pytest.raises(NoValues, match="HTTP status 422: execution"):
        metric_names(RESPONSES["one of two ingesters was killed"]["names"])


def test_timeout_of_a_request_is_ignored() -> None:
    """A limit: the server goes on with a query for which nodewise does not wait any more."""
    query = "max_over_time(fan_rpm[1d:1ms])"
    assert set(fetch(RESPONSES["a query that takes 9 s"], query, NODES, NOW).samples) == set(NODES)


def test_timeout_on_the_server_is_a_timeout() -> None:
    [response] = RESPONSES["-querier.timeout=500ms"].values()
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
