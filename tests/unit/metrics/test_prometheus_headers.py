"""Headers of requests to Prometheus, for tenants and gateways: which ones are sent, refused and hidden in messages."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodewise.base.errors import BadSettings, NodewiseError, Refused, Unavailable
from nodewise.metrics import missing_values
from tests.unit.metrics.fake_prometheus import PrometheusDouble, run_prometheus
from tests.unit.metrics.prometheus_suite import fetch, source
from tests.unit.metrics.test_prometheus import fetch_repeatedly

TENANT = "rack-owners|lab"
"""Two tenants of Mimir in one query."""


@pytest.fixture
def server() -> Iterator[PrometheusDouble]:
    with run_prometheus(PrometheusDouble({'temp{instance="a"}': "1"})) as prometheus:
        yield prometheus


def test_headers_are_sent_with_each_request(server: PrometheusDouble) -> None:
    options = {"prometheus_header": (f"X-Scope-OrgID={TENANT}", "cookie = session=a b; x=1 ")}
    fetch_repeatedly(source(server.url, **options), lambda: None)
    fetch(server.url, query=f"max by (instance, {'x' * 3000}) (temp)", options=options)
    assert [request["method"] for request in server.requests] == ["GET", "GET", "POST"]
    assert [
        (headers["x-scope-orgid"], headers["cookie"], headers["accept-encoding"])
        for headers in server.headers
    ] == [(TENANT, "session=a b; x=1", "identity")] * 3


def test_names_of_metrics_are_requested_with_headers(server: PrometheusDouble) -> None:
    names = asyncio.run(source(server.url, prometheus_header=("X-Org=7",)).metric_names())
    assert (names, server.headers[0]["x-org"]) == (["temp"], "7")


def test_header_of_a_file_is_read_at_every_query(server: PrometheusDouble, tmp_path: Path) -> None:
    file = tmp_path / "tenant"
    file.write_text("first\n")
    made = source(server.url, prometheus_header_file=(f"X-Scope-OrgID={file}",))

    def renew() -> None:
        file.write_text("second")

    # a file that is being replaced is missing for a moment
    fetch_repeatedly(made, renew, file.unlink)
    assert [headers["x-scope-orgid"] for headers in server.headers] == ["first", "second", "second"]


def test_token_and_headers_are_sent_together(server: PrometheusDouble, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken-of-nodewise")
    server.authorization = "Bearer t0ken-of-nodewise"
    options = {"prometheus_token_file": str(tmp_path / "token"), "prometheus_header": ("X-Org=7",)}
    fetch(server.url, options=options)
    assert server.headers[0]["x-org"] == "7"


def test_authorization_of_a_gateway_is_a_header(server: PrometheusDouble) -> None:
    server.authorization = "ApiKey k3y-of-the-gateway"
    fetch(server.url, options={"prometheus_header": ("Authorization=ApiKey k3y-of-the-gateway",)})


@pytest.mark.parametrize("content", [None, "two\nlines", "kaé", "a\x00b"])
def test_file_without_a_value_is_named(server: PrometheusDouble, tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / "tenant").write_text(content)
    with pytest.raises(Refused, match=f"{tmp_path}/tenant") as caught:
        fetch(server.url, options={"prometheus_header_file": (f"X-Scope-OrgID={tmp_path}/tenant",)})
    assert server.requests == []
    assert content is None or content not in str(caught.value)


RESPONSES = {
    "a page of a gateway": (401, b"no access for hunter2-tenant"),
    "a scheme and its credentials": (403, b'{"status":"error","error":"Key hunter2-tenant"}'),
    "an error of the query": (422, b'{"status":"error","errorType":"execution","error":"hunter2-tenant"}'),
    "a success that is none": (200, b'{"status":"hunter2-tenant","data":"hunter2"}'),
}


class TestSecrecy:
    """No message shows a value, even if the server repeats it."""

    @pytest.mark.parametrize(("status", "body"), RESPONSES.values(), ids=RESPONSES)
    @pytest.mark.parametrize("is_file", [False, True], ids=["a flag", "a file"])
    def test_value_is_in_no_error(
        self, server: PrometheusDouble, tmp_path: Path, status: int, body: bytes, *, is_file: bool
    ) -> None:
        server.fail(status, body)
        (tmp_path / "secret").write_text("Key hunter2-tenant")
        options = (
            {"prometheus_header_file": (f"X-Key={tmp_path}/secret",)}
            if is_file
            else {"prometheus_header": ("X-Key=Key hunter2-tenant",)}
        )

        async def names() -> None:
            await source(server.url, **options).metric_names()

        for call in (lambda: fetch(server.url, options=options), lambda: asyncio.run(names())):
            with pytest.raises(NodewiseError) as caught:
                call()
            assert "hunter2" not in str(caught.value)
            assert "hunter2" not in str(missing_values.cause_of_error(caught.value, "prometheus"))

    def test_value_is_not_cut_before_it_is_hidden(self, server: PrometheusDouble) -> None:
        server.fail(401, b"x" * 190 + b" hunter2-tenant-of-the-lab")
        with pytest.raises(Refused) as caught:
            fetch(server.url, options={"prometheus_header": ("X-Key=hunter2-tenant-of-the-lab",)})
        assert "hunter" not in str(caught.value)

    def test_short_value_is_hidden_as_a_word(self, server: PrometheusDouble) -> None:
        server.fail(401, b"tenant 1 of org1 unknown, 1.")
        with pytest.raises(Refused, match=r"401: tenant \(hidden\) of org1 unknown, \(hidden\)\."):
            fetch(server.url, options={"prometheus_header": ("X-Scope-OrgID=1",)})

    def test_value_is_in_no_warning(self, server: PrometheusDouble) -> None:
        server.warnings = ["store of hunter2-tenant is down"]
        made = source(server.url, prometheus_header=("X-Key=hunter2-tenant",))
        answer = asyncio.run(made._client.query("temp"))
        assert answer.warnings == ("store of (hidden) is down",)


@pytest.mark.parametrize(
    ("status", "words"), [(401, "may need --prometheus-header"), (403, "another --prom")]
)
def test_refusal_names_the_flag(server: PrometheusDouble, status: int, words: str) -> None:
    server.fail(status, b"no access\n")
    with pytest.raises(Refused, match=words) as caught:
        fetch(server.url)
    cause = missing_values.cause_of_error(caught.value, "prometheus")
    assert cause.reason == "SourceRefusesAccess"
    assert "--prometheus-header for a tenant" in cause.remedy


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "no equals sign": (
        {"header": ("hunter2",)},
        "header, number 1 of 1: a header without a valid name or value",
    ),
    "a colon": (
        {"header": ("X-A=1", "X-Key: hunter2=")},
        "number 2 of 2.*NAME=VALUE, such as X-Scope-OrgID=team-a",
    ),
    "padding of base64 alone": ({"header": ("hunter2=",)}, "number 1 of 1"),
    "no name": ({"header": ("=hunter2",)}, "number 1 of 1"),
    "a line break": ({"header": ("X-Key=hunter2\r\nHost: b",)}, "number 1 of 1"),
    "a letter of another language": ({"header": ("X-Key=hunter2é",)}, "number 1 of 1"),
    "a space in the name": ({"header": ("X Key=hunter2",)}, "number 1 of 1"),
    "no file": ({"header_file": ("X-Key=",)}, "header-file, number 1 of 1.*NAME=FILE"),
    "the host": (
        {"header": ("HOST=hunter2",)},
        "the header HOST, which nodewise sets itself.*--prometheus-url",
    ),
    "the length": ({"header": ("Content-Length=3",)}, "Content-Length, which nodewise sets itself"),
    "the encoding": (
        {"header_file": ("Accept-Encoding=/f",)},
        "header-file: the header Accept-Encoding, which",
    ),
    "a name twice": (
        {"header": ("X-A=hunter2", "x-a=hunter2")},
        "the header x-a is given twice; expected each",
    ),
    "a name in both flags": (
        {"header": ("X-A=hunter2",), "header_file": ("X-A=/f",)},
        "header-file: .*twice",
    ),
    "a token and its header": (
        {"header": ("authorization=Bearer hunter2",), "token_file": "/t"},
        "authorization is given with --prometheus-token-file or --prometheus-user; expected one of the two",
    ),
}


@pytest.mark.parametrize(("options", "words"), PROBLEMS.values(), ids=PROBLEMS)
def test_invalid_header_is_named_without_its_value(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSettings, match=words) as caught:
        source("http://h", **{f"prometheus_{key}": value for key, value in options.items()})
    assert "hunter2" not in str(caught.value)


def test_unreachable_server_shows_no_value() -> None:
    with pytest.raises(Unavailable) as caught:
        fetch("http://127.0.0.1:1", options={"prometheus_header": ("X-Key=hunter2",)})
    assert "hunter2" not in str(caught.value)
