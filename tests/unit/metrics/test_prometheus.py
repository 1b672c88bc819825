"""Prometheus as a source: the suite with the double, and cases that only a double can produce."""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
import trustme

from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Refused, Unavailable
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus import client as clients
from nodewise.metrics.prometheus.source import PrometheusSource
from nodewise.metrics.series import Series
from tests.unit.metrics.fake_prometheus import PrometheusDouble, SeriesSamples, run_prometheus
from tests.unit.metrics.prometheus_suite import Holding, PrometheusSuite, fetch, source, values
from tests.unit.server.certificate_files import ServerCertificateFiles

ONE = {'temp{instance="a"}': "1"}


class TestDouble(PrometheusSuite):
    @pytest.fixture
    def prometheus(self) -> Iterator[Holding]:
        with ExitStack() as stack:

            def holding(series: SeriesSamples) -> str:
                return stack.enter_context(run_prometheus(PrometheusDouble(series))).url

            yield holding


@pytest.fixture
def server() -> Iterator[PrometheusDouble]:
    with run_prometheus(PrometheusDouble(ONE)) as prometheus:
        yield prometheus


def fetch_repeatedly(made: PrometheusSource, *between: Callable[[], None]) -> list[Series]:
    """The series of a first fetch, and of one more fetch after each step."""

    async def calls() -> list[Series]:
        fetched = [await made.fetch(MetricRequest("temp"), time.time())]
        for step in between:
            step()
            fetched.append(await made.fetch(MetricRequest("temp"), time.time()))
        await made.close()
        return fetched

    return asyncio.run(calls())


def test_a_selector_is_asked_with_its_deadline(server: PrometheusDouble) -> None:
    fetch(server.url + "/prefix/", max_age_s=90.5)
    assert server.requests == [
        {
            "query": '{__name__="temp"}[90500ms]',
            "timeout": "60000ms",
            "nocache": "1",
            "latency_offset": "1ms",
            "partial_response": "false",
            "deny_partial_response": "1",
            "method": "GET",
            "path": "/prefix/api/v1/query",
        }
    ]


def test_each_request_is_for_a_complete_and_current_answer(server: PrometheusDouble) -> None:
    async def calls() -> None:
        made = source(server.url)
        await made.samples("temp[60s]")
        await made.existing_metrics(["temp"])
        await made.metric_names()
        await made.close()

    asyncio.run(calls())
    fetch(server.url, query=f"max by (instance, {'x' * 3000}) (temp)")
    names = ("nocache", "latency_offset", "partial_response", "deny_partial_response")
    assert [tuple(request[name] for name in names) for request in server.requests] == [
        ("1", "1ms", "false", "1")
    ] * 4


def test_a_long_query_goes_as_a_form(server: PrometheusDouble) -> None:
    fetch(server.url, query=f"max by (instance, {'x' * 3000}) (temp)")
    assert server.requests[0]["method"] == "POST"


def error_response(kind: str, error: str) -> dict[str, str]:
    return {"status": "error", "errorType": kind, "error": error}


REFUSALS: dict[str, tuple[int, Any, type[NodewiseError], str]] = {
    "a bad query": (
        400,
        error_response("bad_data", "parse error"),
        BadInput,
        "HTTP status 400: bad_data: parse error",
    ),
    "a query that cannot be carried out": (
        422,
        error_response("execution", "many-to-many matching"),
        BadInput,
        "execution: many-to-many",
    ),
    "too slow": (
        503,
        error_response("timeout", "query timed out"),
        Unavailable,
        "503: timeout: query timed out",
    ),
    "its own fault": (500, error_response("internal", "disk"), Unavailable, "internal: disk"),
    "a proxy's login": (401, b"<html>who are you", Refused, "<html>who are you.*--prometheus-token-file"),
    "no right": (403, b"", Refused, "may not query: grant"),
    "another server": (404, b"404 page not found", Unavailable, "does --prometheus-url lead"),
    "a redirect": (302, b"", Unavailable, "HTTP status 302: no message .does --prometheus-url lead"),
    "too many": (429, b"later", Unavailable, "429: later"),
    "a good status with bad news": (
        200,
        error_response("internal", "x"),
        BadInput,
        "status 'error', internal: x",
    ),
    "something else": (200, b"hello", BadInput, "Prometheus' JSON"),
    "deep": (200, b"[" * 100_000, BadInput, "Prometheus' JSON"),
    "no data": (200, {"status": "success"}, BadInput, "nothing; expected series"),
}


@pytest.mark.parametrize(("status", "body", "kind", "words"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(
    server: PrometheusDouble, status: int, body: Any, kind: type[NodewiseError], words: str
) -> None:
    server.fail(status, body)
    with pytest.raises(kind, match=words) as caught:
        fetch(server.url)
    assert str(caught.value).startswith(f'query {{__name__="temp"}}[60s] to {server.url}: ')


def test_a_server_that_asks_for_patience_is_heard(server: PrometheusDouble) -> None:
    server.fail(503, Retry_After="7")
    with pytest.raises(Unavailable) as caught:
        fetch(server.url)
    assert caught.value.retry_after_s == 7.0


def test_one_that_hangs_ends_at_its_deadline(server: PrometheusDouble) -> None:
    server.delay_s = 2.0
    with pytest.raises(Unavailable, match=r"no answer within 0.05 s .*--prometheus-timeout"):
        fetch_repeatedly(source(server.url, prometheus_timeout_s=0.05))


def test_one_that_is_not_there(server: PrometheusDouble) -> None:
    with pytest.raises(Unavailable, match=r'query \{__name__="temp"\}'):
        fetch("http://127.0.0.1:1")


def test_an_answer_without_end_is_left(server: PrometheusDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MOST_BYTES", 100)
    server.fail(200, b" " * 101)
    with pytest.raises(BadInput, match=r"more than 0 MiB.*aggregate"):
        fetch(server.url)


ODD_SERIES: dict[str, Any] = {
    "a histogram": {"metric": {"instance": "a"}, "histograms": [[1, {}]]},
    "a label that is no text": {"metric": {"instance": 7}, "values": [[1, "1"]]},
    "no series": 3,
    "no pair": {"metric": {"instance": "a"}, "values": []},
}


@pytest.mark.parametrize("odd", ODD_SERIES.values(), ids=ODD_SERIES)
def test_an_odd_series_spoils_no_other(server: PrometheusDouble, odd: Any) -> None:
    good = {"metric": {"instance": "b"}, "values": [[1.5, "7"], [2, "8"]]}
    server.fail(200, {"status": "success", "data": {"resultType": "matrix", "result": [odd, good]}})
    series = fetch(server.url)
    assert values(series) == {"b": 8.0}
    assert series.samples["b"].at == 2.0


def test_histogram_has_its_own_error(server: PrometheusDouble) -> None:
    odd = ODD_SERIES["a histogram"]
    server.fail(200, {"status": "success", "data": {"resultType": "matrix", "result": [odd]}})
    assert "a histogram is no number" in fetch(server.url).invalid["a"]


class TestSecrets:
    def test_a_token_is_read_at_every_query(self, server: PrometheusDouble, tmp_path: Path) -> None:
        file = tmp_path / "token"

        def renew() -> None:
            file.write_text("two\n")
            server.authorization = "Bearer two"

        file.write_text("one")
        server.authorization = "Bearer one"
        # a file that is being replaced is missing for a moment
        assert (
            len(fetch_repeatedly(source(server.url, prometheus_token_file=str(file)), renew, file.unlink))
            == 3
        )

    def test_user_and_password(self, server: PrometheusDouble, tmp_path: Path) -> None:
        (tmp_path / "password").write_text("s3cret\n")
        server.authorization = "Basic bWU6czNjcmV0"
        options = {"prometheus_user": "me", "prometheus_password_file": str(tmp_path / "password")}
        assert values(*fetch_repeatedly(source(server.url, **options))) == {"a": 1.0}

    @pytest.mark.parametrize("user", ["", "me"])
    def test_a_secret_is_in_no_error(self, server: PrometheusDouble, tmp_path: Path, user: str) -> None:
        (tmp_path / "secret").write_text("s3cret")
        flag = "prometheus_password_file" if user else "prometheus_token_file"
        server.authorization = "another"  # the response of the test server contains the credentials
        with pytest.raises(Refused, match=r"who is (Bearer|Basic) \(hidden\)") as caught:
            fetch_repeatedly(source(server.url, **{flag: str(tmp_path / "secret"), "prometheus_user": user}))
        assert "s3cret" not in str(caught.value)
        assert "bWU6czNjcmV0" not in str(caught.value)

    @pytest.mark.parametrize("content", [None, "two\nlines", "kaé"])
    def test_a_file_without_a_secret_is_named(
        self, server: PrometheusDouble, tmp_path: Path, content: str | None
    ) -> None:
        if content:
            (tmp_path / "token").write_text(content)
        with pytest.raises(Refused, match=f"{tmp_path}/token"):
            fetch_repeatedly(source(server.url, prometheus_token_file=str(tmp_path / "token")))


BAD_SETTINGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no scheme": ("prometheus:9090", {}, "--prometheus-url: 'prometheus:9090'; expected http://host:port"),
    "another scheme": ("ftp://h", {}, "expected http://host:port"),
    "no host": ("http://", {}, "expected http://host:port"),
    "a bad port": ("http://h:x", {}, "no URL"),
    "a query": ("http://h?x=s3cret", {}, "http://h with . or #"),
    "a password in the URL": (
        "http://me:s3cret@h",
        {},
        "a URL with credentials in it; expected --prometheus-user",
    ),
    "two ways to say who": (
        "http://h",
        {"token_file": "t", "user": "u", "password_file": "p"},
        "one of the two",
    ),
    "a user alone": (
        "http://h",
        {"user": "u"},
        "no --prometheus-password-file beside this option; expected both options or neither",
    ),
    "a certificate alone": ("http://h", {"cert": "c"}, "no --prometheus-key beside this option"),
    "no CA": ("http://h", {"ca": "/nowhere"}, "--prometheus-ca: /nowhere"),
    "no certificate": ("http://h", {"cert": "/nowhere", "key": "/nowhere"}, "--prometheus-cert"),
    "no label": ("http://h", {"node_label": ()}, "--prometheus-node-label: no label"),
}


@pytest.mark.parametrize(("url", "options", "words"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_settings(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSettings, match=words) as caught:
        source(url, **{f"prometheus_{key}": value for key, value in options.items()})
    assert "s3cret" not in str(caught.value)


class TestTls:
    def tls(self, tls_files: ServerCertificateFiles) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls_files.cert, tls_files.key)
        context.load_verify_locations(tls_files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def write(self, tls_files: ServerCertificateFiles, leaf: Any) -> dict[str, str]:
        cert, key, ca = (tls_files.folder / name for name in ("me.crt", "me.key", "server-ca.crt"))
        cert.write_bytes(leaf.cert_chain_pems[0].bytes())
        key.write_bytes(leaf.private_key_pem.bytes())
        ca.write_bytes(tls_files.server_ca.cert_pem.bytes())
        return {"prometheus_cert": str(cert), "prometheus_key": str(key), "prometheus_ca": str(ca)}

    def test_a_client_certificate_that_is_renewed(self, tmp_path: Path) -> None:
        tls_files = ServerCertificateFiles(tmp_path)
        options = self.write(tls_files, tls_files.server_ca.issue_cert("stranger.example"))
        with run_prometheus(PrometheusDouble(ONE), self.tls(tls_files)) as server:
            made = source(server.url, **options)
            with pytest.raises(Unavailable):
                asyncio.run(made.fetch(MetricRequest("temp"), 0.0))
            self.write(tls_files, tls_files.client)
            with pytest.raises(Unavailable):  # the next call applies the change if it is stable
                asyncio.run(made.fetch(MetricRequest("temp"), 0.0))
            assert values(*fetch_repeatedly(made)) == {"a": 1.0}

    def test_a_ca_that_was_taken_away_is_not_trusted_any_longer(self, tmp_path: Path) -> None:
        """This also applies to a connection that is still open."""
        tls_files = ServerCertificateFiles(tmp_path)
        options = self.write(tls_files, tls_files.client)

        async def calls() -> list[dict[str, float]]:
            made = source(server.url, **options)
            trusted = Path(options["prometheus_ca"])
            other = trustme.CA().cert_pem.bytes()
            results = [values(await made.fetch(MetricRequest("temp"), 0.0))]
            for text in (trusted.read_bytes() + other, other):
                trusted.write_bytes(text)
                results.append(values(await made.fetch(MetricRequest("temp"), 0.0)))
            with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await made.fetch(MetricRequest("temp"), 0.0)
            await made.close()
            return results

        with run_prometheus(PrometheusDouble(ONE), self.tls(tls_files)) as server:
            assert asyncio.run(calls()) == [{"a": 1.0}] * 3
            assert len(server.requests) == 3

    def test_without_a_ca_the_authorities_of_the_system_are_trusted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tls_files = ServerCertificateFiles(tmp_path)
        options = self.write(tls_files, tls_files.client)
        monkeypatch.setenv("SSL_CERT_FILE", options.pop("prometheus_ca"))
        with run_prometheus(PrometheusDouble(ONE), self.tls(tls_files)) as server:
            assert values(fetch(server.url, options=options)) == {"a": 1.0}

    def test_http_loads_no_authorities_of_the_system(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ssl.SSLContext, "load_default_certs", None)
        with run_prometheus(PrometheusDouble(ONE)) as server:
            assert values(fetch(server.url)) == {"a": 1.0}

    def test_a_server_of_another_ca_is_not_asked(self, tmp_path: Path) -> None:
        tls_files = ServerCertificateFiles(tmp_path)
        with run_prometheus(PrometheusDouble(ONE), self.tls(tls_files)) as server:
            with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
                fetch(server.url)
            assert server.requests == []


class TestLogs:
    def test_warning_is_logged_once_until_it_is_gone(self, server: PrometheusDouble) -> None:
        partial = "store x: partial response"
        steps = [partial], [], [partial]
        server.warnings = [partial]
        with structlog.testing.capture_logs() as lines:
            fetch_repeatedly(source(server.url), *(with_warnings(server, step) for step in steps))
        assert [(line["event"], line["warnings"]) for line in lines] == [("metric_warning", partial)] * 2

    def test_series_without_a_node_are_counted_and_logged_once(self) -> None:
        series = ONE | {'temp{instance="x:1"}': "2", 'temp{instance="y:1"}': "3"}
        with run_prometheus(PrometheusDouble(series)) as server, structlog.testing.capture_logs() as lines:
            made = source(server.url)
            fetch_repeatedly(made, lambda: None)
        assert [line["example"] for line in lines] == ['2 series, such as instance="x:1"']
        assert b'nodewise_metric_series_unmatched{metric="temp"} 2.0' in made._metrics_registry.exposition()


def with_warnings(server: PrometheusDouble, warnings: list[str]) -> Callable[[], None]:
    return lambda: setattr(server, "warnings", warnings)


def test_a_query_that_times_out_closes_its_connection() -> None:
    """Prometheus ends a query whose connection is closed."""

    async def run() -> None:
        is_requested = asyncio.Event()
        opened, closed = 0, 0

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened, closed
            opened += 1
            while await reader.read(1024):
                is_requested.set()
            closed += 1
            writer.close()

        async def wait_until_all_are_closed() -> None:
            while closed < opened:
                await asyncio.sleep(0.001)

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        made = source(url, prometheus_timeout_s=0.05)
        while not is_requested.is_set():  # a slow machine may not send the query in time
            with pytest.raises(Unavailable, match=r"no answer within 0\.05 s") as raised:
                await made.fetch(MetricRequest("temp"), 0.0)
            assert raised.value.timeout_s == 0.05
        await wait_until_all_are_closed()
        is_requested.clear()
        cancelled = source(url)
        fetching = asyncio.create_task(cancelled.fetch(MetricRequest("temp"), 0.0))
        await is_requested.wait()
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        await wait_until_all_are_closed()
        await cancelled.close()
        await made.close()
        server.close()

    asyncio.run(run())


def test_a_query_that_prometheus_ends_at_its_timeout_is_a_timeout(server: PrometheusDouble) -> None:
    server.fail(503, {"status": "error", "errorType": "timeout", "error": "query timed out"})
    with pytest.raises(Unavailable, match="query timed out") as raised:
        asyncio.run(source(server.url, prometheus_timeout_s=4.0).fetch(MetricRequest("temp"), 0.0))
    assert raised.value.timeout_s == 4.0
    server.fail(503, b"no server")
    with pytest.raises(Unavailable) as raised:
        asyncio.run(source(server.url).fetch(MetricRequest("temp"), 0.0))
    assert raised.value.timeout_s == 0.0
