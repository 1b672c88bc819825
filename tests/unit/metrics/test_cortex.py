"""Responses of a real Cortex, as `recorded_answers/cortex.json` contains them."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from nodewise.base.errors import BadInput, Refused
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.metrics_source import NoValues
from tests.unit.metrics.prometheus_suite import values
from tests.unit.metrics.recorded_responses import error_of, fetch, metric_names, recorded

RESPONSES: Final = recorded("cortex")
TENANT: Final = RESPONSES["a tenant"]
PARTIAL: Final = RESPONSES["one of two ingesters was killed, query_partial_data"]
QUERIES: Final = ("fan_rpm", "fan_rpm > 2006", "fan_rpm > 9000")
BEFORE: Final = RESPONSES["query_partial_data, before"]
NODES: Final = tuple(f"m{number}" for number in range(1, 9))
NOW: Final = 1795957605.0
OTHER_ERRORS: Final = ("fan_rpm * on(job) fan_rpm", 'label_replace(fan_rpm,"a","b","c","(")')


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("fan_rpm", {f"m{number}": 2000.0 + number for number in range(1, 9)}),
        ("fan_rpm > 2006", {"m7": 2007.0, "m8": 2008.0}),
        ("fan_rpm > 9000", {}),
    ],
)
def test_responses_to_a_tenant_are_complete(query: str, expected: dict[str, float]) -> None:
    series = fetch(TENANT, query, NODES, NOW)
    assert (values(series), series.incomplete) == (expected, "")
    hinted = fetch(TENANT, "rate(ecc_errors_seen[60s])", NODES, NOW)
    assert (set(hinted.samples), hinted.incomplete) == (set(NODES), "")
    assert "fan_rpm" in metric_names(TENANT["names"])


@pytest.mark.parametrize(
    ("response", "status"),
    [
        (RESPONSES["no tenant"]["fan_rpm"], 401),
        (RESPONSES["other tenants"]["two tenants"], 400),
        (RESPONSES["other tenants"]["an invalid name"], 400),
    ],
    ids=["no tenant", "two tenants", "an invalid name"],
)
def test_refused_tenant_names_the_flag(response: Mapping[str, Any], status: int) -> None:
    assert response["status"] == status
    with pytest.raises(Refused, match=rf"HTTP status {status}: .*--prometheus-header X-Scope-OrgID=TENANT"):
        fetch({"fan_rpm * 2": response}, "fan_rpm * 2", NODES, NOW)
    cause = missing_values.cause_of_error(error_of(response), source_table.PROMETHEUS)
    assert cause.reason == "SourceRefusesAccess"


def test_timeout_of_a_request_is_ignored() -> None:
    """A limit: the server goes on with a query for which nodewise does not wait any more."""
    query = "max_over_time(fan_rpm[1d:1ms])"
    assert set(fetch(RESPONSES["a query that takes 5 s"], query, NODES, NOW).samples) == set(NODES)


def test_unknown_tenant_has_no_series() -> None:
    """A limit: the response does not say that there is no such tenant."""
    response = RESPONSES["other tenants"]["a tenant without series"]
    assert fetch({"fan_rpm * 2": response}, "fan_rpm * 2", NODES, NOW).samples == {}


@pytest.mark.parametrize("query", RESPONSES["errors in queries"])
def test_message_is_shown_unless_it_is_about_series(query: str) -> None:
    response = RESPONSES["errors in queries"][query]
    cause = missing_values.cause_of_error(error_of(response), source_table.PROMETHEUS)
    message = " (HTTP status 422)" if query in OTHER_ERRORS else f": {response['body']['error']}"
    assert (cause.reason, cause.text) == ("InvalidQuery", f"Prometheus cannot run the query{message}")


@pytest.mark.parametrize("limit", RESPONSES["limits"])
def test_limit_of_a_tenant_is_the_fault_of_the_query(limit: str) -> None:
    error = error_of(RESPONSES["limits"][limit])
    assert isinstance(error, BadInput)
    assert missing_values.cause_of_error(error, source_table.PROMETHEUS).reason == "InvalidQuery"


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("when", ["one of two ingesters was killed", "75 s later"])
def test_there_is_no_response_without_the_series_of_an_ingester(when: str, query: str) -> None:
    """It fails by default, also if the result would be empty."""
    with pytest.raises(NoValues, match="HTTP status 500: server_error") as caught:
        fetch(RESPONSES[when], query, NODES, NOW)
    assert caught.value.cause.reason == "IncompleteAnswer"
    assert "127.0.0.1" not in str(caught.value.cause)


class TestQueryPartialData:
    """A tenant with the option `query_partial_data`, of which one of two ingesters was killed."""

    def test_nodes_in_a_partial_response_have_values(self) -> None:
        before = fetch(BEFORE, "fan_rpm", NODES, NOW)
        assert (len(before.samples), before.incomplete) == (8, "")
        series = fetch(PARTIAL, "fan_rpm", NODES, NOW)
        assert values(series) == {"m2": 2002.0, "m3": 2003.0, "m4": 2004.0, "m7": 2007.0}
        assert series.incomplete == "query result may contain partial data"

    def test_result_of_an_expression_is_partial_too(self) -> None:
        assert set(fetch(BEFORE, "fan_rpm > 2006", NODES, NOW).samples) == {"m7", "m8"}
        series = fetch(PARTIAL, "fan_rpm > 2006", NODES, NOW)
        assert (values(series), series.incomplete) == (
            {"m7": 2007.0},
            "query result may contain partial data",
        )

    def test_partial_response_without_series_is_a_failure_although_empty_means_healthy(self) -> None:
        with pytest.raises(NoValues, match="an incomplete response: query result may contain") as caught:
            fetch(PARTIAL, "fan_rpm > 9000", NODES, NOW)
        assert caught.value.cause.reason == "IncompleteAnswer"

    @pytest.mark.parametrize("query", ["fan_fault_a > 0", "rate(ecc_errors_seen[60s])"])
    def test_response_has_no_warning_if_no_series_of_its_metrics_remain(self, query: str) -> None:
        """A limit: the series were in the killed ingester, and the response looks healthy."""
        assert fetch(PARTIAL, query, NODES, NOW).samples == {}
        with pytest.raises(NoValues, match="no series"):
            fetch(PARTIAL, query, NODES, NOW, empty_is_healthy=False)

    def test_series_of_the_other_ingester_remain(self) -> None:
        for query in ("fan_fault_a > 0", "fan_fault_d > 0"):
            assert set(fetch(BEFORE, query, NODES, NOW).samples) == {"m3"}
        series = fetch(PARTIAL, "fan_fault_d > 0", NODES, NOW)
        assert (set(series.samples), bool(series.incomplete)) == ({"m3"}, True)
