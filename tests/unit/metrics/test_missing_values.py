"""The cause of each failure of a source, as tenants, explanations and doctor show it."""

import asyncio
import socket
import ssl
from typing import get_args

import httpx2
import pytest

from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise.base.errors import BadInput, NodewiseError, Problem, Refused, Unavailable
from nodewise.kube import api_server_interface, http_client
from nodewise.kube.api_server_interface import ApiCall, ErrorStatus
from nodewise.metrics import missing_values
from nodewise.metrics.missing_values import NONE, Cause, CauseReason
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.series import Sample, Series, build_column, empty_column

SECRET = "https://10.1.2.3:9090/secret"
QUERY = f"query temp to {SECRET}"


def prometheus(status: int, body: bytes = b"<html>10.1.2.3</html>") -> NodewiseError:
    return query_responses.error_from_response(QUERY, status, body)


def api_server(status: int) -> NodewiseError:
    message = f"metric temp at {SECRET}"
    return api_server_interface.error_from_status(
        ApiCall("get", SECRET), status, ErrorStatus("Status", message)
    )


def failed_connection(error: Exception) -> NodewiseError:
    failure = Unavailable(QUERY, [Problem("", str(error), "")])
    failure.__cause__ = error
    return failure


def parse_error(kind: str, message: str) -> bytes:
    return b'{"status":"error","errorType":"%s","error":"%s"}' % (kind.encode(), message.encode())


CASES: dict[str, tuple[str, NodewiseError, str, str, str]] = {
    "status": (
        "prometheus",
        prometheus(503),
        "SourceFails",
        "Prometheus responds with HTTP status 503",
        "--prometheus-url leads to Prometheus itself",
    ),
    "wrong path": (
        "prometheus",
        prometheus(404),
        "SourceFails",
        "Prometheus responds with HTTP status 404",
        "--prometheus-url leads to Prometheus itself",
    ),
    "one of several servers": (
        f"prometheus {SECRET}",
        prometheus(500),
        "SourceFails",
        "Prometheus responds with HTTP status 500",
        "",
    ),
    "credentials": (
        "prometheus",
        prometheus(401),
        "SourceRefusesAccess",
        "Prometheus refuses access with HTTP status 401",
        "--prometheus-token-file",
    ),
    "no credentials": (
        "prometheus",
        Refused("Prometheus' credentials", [Problem("/etc/token", "No such file", "")]),
        "SourceRefusesAccess",
        "Prometheus was not queried: its credentials cannot be read",
        "--prometheus-token-file",
    ),
    "query": (
        "prometheus",
        prometheus(400, parse_error("bad_data", "1:6: parse error: unexpected end of input")),
        "InvalidQuery",
        "Prometheus cannot run the query: 1:6: parse error: unexpected end of input",
        "correct the query",
    ),
    "query that fails while it runs": (
        "prometheus",
        prometheus(422, parse_error("execution", "found duplicate series {tenant=secret}")),
        "InvalidQuery",
        "Prometheus cannot run the query (HTTP status 422)",
        "correct the query",
    ),
    "refused connection": (
        "prometheus",
        failed_connection(ConnectionRefusedError(111, SECRET)),
        "SourceUnreachable",
        "Prometheus is unreachable: connection refused",
        "start Prometheus, or correct --prometheus-url",
    ),
    "TLS": (
        "prometheus",
        failed_connection(ssl.SSLError("CERTIFICATE_VERIFY_FAILED")),
        "SourceUnreachable",
        "Prometheus is unreachable: TLS fails; is its certificate trusted?",
        "",
    ),
    "broken connection": (
        "prometheus",
        failed_connection(httpx2.ReadError("peer closed")),
        "SourceUnreachable",
        "Prometheus is unreachable: no connection",
        "",
    ),
    "time-out": (
        "prometheus",
        Unavailable(QUERY, timeout_s=4.0),
        "SourceTimesOut",
        "Prometheus did not respond within 4 s",
        "--prometheus-timeout",
    ),
    "time-out of the query": (
        "prometheus",
        query_responses.error_from_response(QUERY, 503, parse_error("timeout", "query"), "", 4.0),
        "SourceTimesOut",
        "Prometheus did not respond within 4 s",
        "--prometheus-timeout",
    ),
    "unreadable": (
        "prometheus",
        BadInput(QUERY, [Problem("", "<html>", "Prometheus' JSON")]),
        "ResponseUnreadable",
        "Prometheus gave a response that cannot be read",
        "check that --prometheus-url leads to Prometheus",
    ),
    "adapter down": (
        "custom",
        api_server(503),
        "SourceFails",
        "the custom metrics API responds with HTTP status 503",
        "prometheus-adapter",
    ),
    "no such metric in the adapter": (
        "custom",
        api_server(404),
        "MetricUnknown",
        "the custom metrics API has no metric of this name",
        "add a rule for it to prometheus-adapter",
    ),
    "no right": (
        "custom",
        api_server(403),
        "SourceRefusesAccess",
        "the custom metrics API refuses access with HTTP status 403",
        "nodewise configure manifests rbac",
    ),
    "no right for metrics-server": (
        "resource",
        api_server(403),
        "SourceRefusesAccess",
        "metrics-server refuses access with HTTP status 403",
        "list nodes of metrics.k8s.io",
    ),
    "API server": (
        "custom",
        failed_connection(ConnectionRefusedError(111, SECRET)),
        "SourceUnreachable",
        "the custom metrics API is unreachable: connection refused",
        "API server",
    ),
}


@pytest.mark.parametrize(("source", "error", "reason", "text", "remedy"), CASES.values(), ids=CASES)
def test_the_cause_of_an_error(
    source: str, error: NodewiseError, reason: str, text: str, remedy: str
) -> None:
    cause = missing_values.cause_of_error(error, source)
    assert (cause.reason, cause.text) == (reason, text)
    assert remedy in cause.remedy
    assert cause.remedy
    assert "10.1.2.3" not in str(cause), "tenants read it"
    assert "secret" not in str(cause), "tenants read it"


def test_a_refused_connection_is_recognized_below_the_error_of_the_library() -> None:
    async def get() -> NodewiseError:
        async with httpx2.AsyncClient(trust_env=False) as client:
            try:
                await client.get("http://127.0.0.1:1/")
            except tuple(http_client.TRANSLATED) as error:
                return failed_connection(error)
        raise AssertionError

    cause = missing_values.cause_of_error(asyncio.run(get()), "prometheus")
    assert cause.text == "Prometheus is unreachable: connection refused"


def test_a_host_name_that_cannot_be_resolved() -> None:
    library_error = httpx2.ConnectError(SECRET)
    library_error.__cause__ = socket.gaierror(-2, "Name or service not known")
    cause = missing_values.cause_of_error(failed_connection(library_error), "prometheus")
    assert cause.text == "Prometheus is unreachable: its host name cannot be resolved"


def test_a_remedy_never_names_a_source_that_is_not_in_use() -> None:
    for reason in get_args(CauseReason):
        assert "prometheus-adapter" not in missing_values.cause(reason, "prometheus", "x").remedy
        assert "metrics-server" not in missing_values.cause(reason, "prometheus", "x").remedy
        if reason != "NoSource":
            assert "prometheus" not in missing_values.cause(reason, "resource", "x").remedy


def test_the_cause_that_comes_first() -> None:
    absent, down = Cause("SourceNotInstalled", "a"), Cause("SourceUnreachable", "b")
    for causes in ([absent, down], [down, absent]):
        assert missing_values.first_cause(causes) == down


def test_name_of_a_metric_is_suggested() -> None:
    unknown = Cause("MetricUnknown", "Prometheus has no series of this name", "correct the name")
    assert missing_values.suggest(unknown, "rack_temperature").remedy == (
        'correct the name; it has "rack_temperature"'
    )


NODES = NodeIndex(
    ["store-1.rack.example.org", "store-2.rack.example.org", "web-1", "web-2", "web-3", "web-4"]
)
WEB = ("web-1", "web-2", "web-3", "web-4")
STORES = ("store-1.rack.example.org", "store-2.rack.example.org")


def text(
    *nodes: str, unmatched: tuple[str, ...] = (), invalid: dict[str, str] | None = None, healthy: bool = False
) -> str:
    samples = {node: Sample(1, 0.0) for node in nodes}
    series = Series("fan", "prometheus", 0.0, samples, invalid or {}, unmatched=unmatched)
    column = run_without_pauses(build_column(series, NODES))
    without = missing_values.nodes_without_values(series, NODES, column, empty_is_healthy=healthy)
    return run_without_pauses(missing_values.describe("fan", without))


def test_nodes_without_a_series_are_named_with_the_closest_name() -> None:
    assert text(*WEB, unmatched=("store-2.cage.example.org", "store-1", "zzz")) == (
        "no series of fan on 2 nodes: store-1.rack.example.org, store-2.rack.example.org; closest names in series of"
        ' no node: "store-1" for store-1.rack.example.org, "store-2.cage.example.org" for store-2.rack.example.org'
    )


def test_misspelt_name_is_the_closest_one() -> None:
    expected = 'no series of fan on 1 node: web-4; closest names in series of no node: "wbe-4" for web-4'
    assert text(*STORES, *WEB[:3], unmatched=("wbe-4",)) == expected


def test_message_names_a_few_nodes_and_counts_the_others() -> None:
    assert text("web-1") == (
        "no series of fan on 5 nodes: store-1.rack.example.org, store-2.rack.example.org, web-2 and 2 more"
    )


def test_invalid_values_are_named_with_the_reason() -> None:
    invalid = {"web-2": "NaN is no number that a rule can compare"}
    expected = "no valid value of fan on 1 node: web-2: NaN is no number that a rule can compare"
    assert text(*STORES, "web-1", "web-3", "web-4", invalid=invalid) == expected


@pytest.mark.parametrize(
    "nodes", [(), (*STORES, *WEB)], ids=["no node has a value", "every node has a value"]
)
def test_nothing_is_named_unless_some_nodes_have_values(nodes: tuple[str, ...]) -> None:
    assert text(*nodes, unmatched=("store-1",)) == ""


def test_node_without_a_series_is_healthy_where_that_is_the_rule_unless_series_match_no_node() -> None:
    assert text(*WEB, healthy=True) == ""
    assert '"store-1" for store-1.rack.example.org' in text(*WEB, healthy=True, unmatched=("store-1",))


def test_values_under_names_of_no_node_are_compared_too() -> None:
    """Values of the custom metrics API have the name of their node."""
    assert '"store-1" for store-1.rack.example.org' in text(*WEB, "store-1")


def test_equal_situations_are_equal() -> None:
    series = Series("fan", "prometheus", 0.0, {})
    column = empty_column(NODES)
    assert missing_values.nodes_without_values(series, NODES, column) == NONE
