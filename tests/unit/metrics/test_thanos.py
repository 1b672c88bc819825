"""Responses of a real Thanos, as `recorded_answers/thanos.json` contains them."""

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from nodewise.base.errors import BadInput
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.metrics_source import NoValues
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.series import Series
from tests.unit.metrics import recorded_responses
from tests.unit.metrics.recorded_responses import recorded

RESPONSES: Final = recorded("thanos")
COMPLETE: Final = RESPONSES["all stores respond"]
WITHOUT_PROMETHEUS: Final = RESPONSES["the Prometheus of a sidecar does not respond"]
WITHOUT_SIDECAR: Final = RESPONSES["a sidecar of --endpoint-strict does not respond"]
REMOVED_SIDECAR: Final = RESPONSES["a sidecar of --endpoint does not respond for 20 s"]


def fetch(responses: Mapping[str, Any], query: str) -> Series:
    return recorded_responses.fetch(responses, query, ("a", "b"), 1795945188.0)


@pytest.mark.parametrize(
    ("query", "nodes"), [("gpu_temp", {"a", "b"}), ("gpu_temp > 90", {"b"}), ("rate(bar[60s])", {"a", "b"})]
)
def test_complete_responses(query: str, nodes: set[str]) -> None:
    series = fetch(COMPLETE, query)
    assert (set(series.samples), series.incomplete) == (nodes, "")


@pytest.mark.parametrize("query", ["gpu_temp", "gpu_temp > 90", "rate(bar[60s])"])
def test_refused_incomplete_response_is_no_wrong_query(query: str) -> None:
    with pytest.raises(NoValues, match=r"HTTP status 422: execution: expanding series") as caught:
        fetch(WITHOUT_PROMETHEUS, query)
    cause = missing_values.cause_of_error(caught.value, source_table.PROMETHEUS)
    assert cause.reason == "IncompleteAnswer"
    assert cause.text.startswith("Prometheus refuses an incomplete response")
    assert "127.0.0.1" not in str(cause)


@pytest.mark.parametrize("query", ["gpu_temp", "rate(bar[60s])"])
def test_response_with_the_warning_of_a_store_is_incomplete(query: str) -> None:
    series = fetch(WITHOUT_SIDECAR, query)
    assert set(series.samples) == {"a"}
    assert series.incomplete.startswith('fetch series for {site="b"} Addr: 127.0.0.1:29292')
    assert "PromQL info" not in series.incomplete


def test_empty_response_with_the_warning_of_a_store_is_a_failure() -> None:
    with pytest.raises(NoValues, match="an incomplete response: fetch series for"):
        fetch(WITHOUT_SIDECAR, "gpu_temp > 90")


def test_store_that_thanos_has_removed_is_not_known() -> None:
    """A limit: the response does not say that series are missing."""
    actual = (set(fetch(REMOVED_SIDECAR, "gpu_temp").samples), fetch(REMOVED_SIDECAR, "gpu_temp").incomplete)
    assert actual == ({"a"}, "")
    assert fetch(REMOVED_SIDECAR, "gpu_temp > 90").samples == {}


LIMITS = {
    "Thanos": "expanding series: proxy Series(): rpc error: code = Aborted desc = receive series from Addr: x"
    " MinTime: 1 MaxTime: 2: rpc error: code = ResourceExhausted desc = exceeded series limit",
    "Prometheus": "query processing would load too many samples into memory in query execution",
}


@pytest.mark.parametrize("message", LIMITS.values(), ids=LIMITS)
def test_limit_of_a_storage_is_the_fault_of_the_query(message: str) -> None:
    body = json.dumps({"status": "error", "errorType": "execution", "error": message}).encode()
    error = query_responses.error_from_response("query", 422, body)
    assert isinstance(error, BadInput)
    assert missing_values.cause_of_error(error, source_table.PROMETHEUS).reason == "InvalidQuery"
