"""Responses of a cluster of VictoriaMetrics, of which a storage node does not respond.

The programs of a cluster are not in the Go module proxy, so their responses are not recorded. The responses here have
the form in its documentation (Cluster-VictoriaMetrics, cluster availability). The errors are those of public reports,
of which `ERRORS` has the numbers, and of app/vmselect/netstorage/netstorage.go in the branch `cluster`: a storage node
that does not respond has the HTTP status 503, in old versions 422; an error that a storage node responds with has 422.
"""

import asyncio
import json
from typing import Any, Final

import httpx2
import pytest

from nodewise.base.errors import BadInput, NodewiseError, Unavailable
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.metrics_source import MetricRequest, NoValues
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.series import Series
from tests.unit.metrics.prometheus_suite import source, values

NOW: Final = 1795942300.0
RANGE: Final = {
    "resultType": "matrix",
    "result": [
        {
            "metric": {"__name__": "inlet_temp", "node": "a"},
            "values": [[1795942270, "31"], [1795942285, "32"]],
        },
        {
            "metric": {"__name__": "inlet_temp", "node": "c"},
            "values": [[1795942275, "47"], [1795942290, "NaN"]],
        },
    ],
}
INSTANT: Final = {"resultType": "vector", "result": [{"metric": {"node": "a"}, "value": [1795942300, "64"]}]}
EMPTY: Final = {"resultType": "vector", "result": []}


def fetch(data: dict[str, Any], query: str, *, is_partial: bool = True) -> Series:
    """The series of a response; no series is healthy."""
    body = {
        "status": "success",
        "isPartial": is_partial,
        "data": data,
        "stats": {"seriesFetched": "1", "executionTimeMsec": 2},
    }
    url = "http://vmselect:8481/select/0/prometheus"

    async def once() -> Series:
        made = source(url)
        transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=body))
        made._connection.http = httpx2.AsyncClient(base_url=url, transport=transport)
        request = MetricRequest("inlet_temp", query, max_age_s=60.0, empty_is_healthy=True)
        try:
            return await made.fetch(request, NOW)
        finally:
            await made.close()

    return asyncio.run(once())


@pytest.mark.parametrize(
    ("data", "query", "expected"),
    [(RANGE, "inlet_temp[60s]", {"a": 32.0, "c": 47.0}), (INSTANT, "inlet_temp * 2", {"a": 64.0})],
    ids=["a range", "an instant"],
)
def test_nodes_in_a_partial_response_have_values(
    data: dict[str, Any], query: str, expected: dict[str, float]
) -> None:
    series = fetch(data, query)
    assert (values(series), series.incomplete) == (expected, "isPartial: a storage node did not respond")
    assert fetch(data, query, is_partial=False).incomplete == ""


def test_partial_response_without_series_is_a_failure_although_empty_means_healthy() -> None:
    with pytest.raises(NoValues, match="an incomplete response: isPartial") as caught:
        fetch(EMPTY, "inlet_temp > 60")
    assert caught.value.cause.reason == "IncompleteAnswer"
    assert fetch(EMPTY, "inlet_temp > 60", is_partial=False).samples == {}


_QUERY: Final = 'error when executing query="m" for (time=1795942300000, step=300000): '
_SEARCH: Final = (
    f"{_QUERY}error occured during search: cannot fetch query results from vmstorage nodes: cannot perform search on "
    "vmstorage vmstorage-1:8401: "
)
_CALL: Final = f'{_SEARCH}cannot execute funcName="search_v7" on vmstorage "10.0.0.9:8401"'
_POOL: Final = f"{_SEARCH}cannot obtain connection from a pool: "
_HINT: Final = "the timeout can be adjusted with `-search.maxQueryDuration` command-line flag"
ERRORS: Final = {
    "no route (1148)": f"{_POOL}cannot dial vmstorage-1:8401: dial tcp4 10.0.0.9:8401: connect: no route to host",
    "no connection in time (1767)": f"{_POOL}cannot dial vmstorage-1:8401: dial tcp4 10.0.0.9:8401: i/o timeout",
    "no name": f"{_POOL}cannot dial vmstorage-1:8401: lookup vmstorage-1 on 10.0.0.10:53: no such host",
    "no handshake (11428)": f'{_POOL}cannot perform "vmselect" handshake with server "127.0.0.1:8500": invalid "ok"',
    "closed (4736)": f"{_CALL}: EOF",
    "closed in a message (1562)": (
        f"{_CALL} with timeout 30.000 seconds (elapsed 0.329 seconds); {_HINT}: cannot read error message: cannot read"
        " 8 bytes with data size: cannot read data in 0.000 seconds: unexpected EOF; read only 0 bytes"
    ),
    "no response in time": (
        f"{_CALL} with timeout 4.000 seconds (elapsed 6.001 seconds); {_HINT}: cannot read error message: cannot read 8"
        " bytes with data size: read tcp4 10.0.0.2:5->10.0.0.9:8401: i/o timeout"
    ),
    "a vmselect below it (5790)": (
        "cannot obtain values for label: cannot fetch label values from vmstorage nodes: cannot get label values from"
        f" vmstorage vmselect-1:8401: {_POOL}cannot dial vmstorage-1:8401: dial tcp4 10.0.0.9:8401: i/o timeout"
    ),
    "before 1.47 (891)": (
        f'{_QUERY}cannot evaluate "m": cannot return full response, since some of vmstorage nodes are unavailable'
    ),
}
TIMEOUTS: Final = {
    "before a node is called (4967)": (
        f"{_SEARCH}request timeout reached: 60.000 seconds (elapsed 62.000 seconds); {_HINT}"
    ),
    "in a node (10701)": (
        f"{_CALL}: search error: error when searching for tagFilters=[] on the time range [a..b]: deadline exceeded"
    ),
}
LIMITS: Final = {
    "series": f"{_CALL}: error when searching tsids: the number of matching timeseries exceeds 300000",
    "retention": (
        f"{_CALL}: the given time range is outside the allowed -retentionPeriod=1d according to"
        " -denyQueriesOutsideRetention"
    ),
}


def error_of(status: int, message: str) -> NodewiseError:
    body = {"status": "error", "errorType": str(status), "error": message}
    return query_responses.error_from_response("query", status, json.dumps(body).encode(), timeout_s=4.0)


def reason_of(error: NodewiseError) -> str:
    return missing_values.cause_of_error(error, source_table.PROMETHEUS).reason


@pytest.mark.parametrize("status", [422, 503])
@pytest.mark.parametrize("message", ERRORS.values(), ids=ERRORS)
def test_refused_partial_response_is_no_wrong_query(status: int, message: str) -> None:
    error = error_of(status, message)
    assert reason_of(error) == "IncompleteAnswer"
    assert "10.0.0.9" not in str(missing_values.cause_of_error(error, source_table.PROMETHEUS))


def test_any_reason_why_a_node_does_not_respond_is_an_incomplete_response() -> None:
    message = f"{_CALL}: cannot write requestData: write: broken pipe"
    assert reason_of(error_of(503, message)) == "IncompleteAnswer"
    assert reason_of(error_of(422, message)) == "InvalidQuery", "a storage node responds with this"


@pytest.mark.parametrize("status", [422, 503])
@pytest.mark.parametrize("message", TIMEOUTS.values(), ids=TIMEOUTS)
def test_timeout_of_a_storage_node_is_a_timeout(status: int, message: str) -> None:
    error = error_of(status, message)
    assert isinstance(error, Unavailable)
    assert (reason_of(error), error.timeout_s) == ("SourceTimesOut", 4.0)


@pytest.mark.parametrize("message", LIMITS.values(), ids=LIMITS)
def test_limit_of_a_storage_node_is_the_fault_of_the_query(message: str) -> None:
    error = error_of(422, message)
    assert isinstance(error, BadInput)
    assert reason_of(error) == "InvalidQuery"


def test_query_outside_of_the_retention_is_no_incomplete_response() -> None:
    assert reason_of(error_of(503, LIMITS["retention"])) == "SourceFails"
