"""Failed scrapes, changed labels, late results and errors of each metric back end, with a real exporter."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from nodewise.cli.policy_backtest import history_reading
from nodewise.cli.policy_backtest.history_reading import HistoryRange
from nodewise.errors import BadInput
from nodewise.metrics import missing_values
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.prometheus.history import PrometheusHistory
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.cluster.metric_back_ends import MetricBackEnd, Server
from tests.unit.metrics.prometheus_suite import NODES, fetch, values

_PATIENCE_S = 60.0


class Exporter:
    """An exporter whose text changes; empty text is a failed scrape."""

    text = ""
    address = ""


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    own = Exporter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = own.text.encode()
            self.send_response(200 if content else 500)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    own.address = f"127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield own
    finally:
        server.shutdown()
        server.server_close()


def start(back_end: MetricBackEnd, exporter: Exporter, text: str) -> Server:
    """A server that has scraped the exporter, on node a, with this text."""
    exporter.text = text
    target = {"targets": [exporter.address], "labels": {"node": "a"}}
    scrape = {"job_name": "racks", "static_configs": [target]}
    server = back_end.start({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]})
    wait(lambda: bool(server.ask("rack_temp")))
    return server


def wait(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "the server does not have the samples"
        time.sleep(0.1)


def test_value_before_a_failed_scrape_counts(metric_back_end: MetricBackEnd, exporter: Exporter) -> None:
    """VictoriaMetrics returns NaN for the failed scrape, and Prometheus nothing."""
    server = start(metric_back_end, exporter, 'rack_temp{sensor="0"} 52\n')
    before_s = time.time()
    exporter.text = ""
    wait(lambda: not server.ask("rack_temp"))
    series = fetch(server.url, "rack_temp")
    assert (values(series), series.invalid) == ({"a": 52.0}, {})
    at = series.samples["a"].at
    assert at is not None
    assert at <= before_s + 1.0, "it is as old as the last scrape that did not fail"


@pytest.mark.parametrize(("aggregate", "value"), [("max", 93.0), ("sum", 131.0), ("min", 38.0)])
def test_series_with_changed_labels_replaces_the_one_before(
    metric_back_end: MetricBackEnd, exporter: Exporter, aggregate: str, value: float
) -> None:
    """The labels of a GPU change at each start and end of a job."""
    other = 'rack_temp{gpu="1",pod="z"} 38\n'
    server = start(metric_back_end, exporter, f'rack_temp{{gpu="0",pod="x"}} 44\n{other}')
    exporter.text = f'rack_temp{{gpu="0",pod="y"}} 93\n{other}'
    wait(lambda: len(server.ask('rack_temp{pod="y"}')) == 1 and not server.ask('rack_temp{pod="x"}'))
    series = fetch(server.url, "rack_temp", aggregate=aggregate)
    assert (values(series), series.invalid) == ({"a": value}, {})


def test_result_of_an_expression_is_current(metric_back_end: MetricBackEnd, exporter: Exporter) -> None:
    server = start(metric_back_end, exporter, "rack_temp 5\n")
    exporter.text = "rack_temp 6\n"
    wait(lambda: server.ask("rack_temp")[0]["value"][1] == "6")
    assert values(fetch(server.url, "x", query="rack_temp * 10")) == {"a": 60.0}


def test_hints_do_not_make_a_response_incomplete(metric_back_end: MetricBackEnd, exporter: Exporter) -> None:
    """From 2.53 on, Prometheus remarks that the metric might not be a counter."""
    server = start(metric_back_end, exporter, "rack_temp 5\n")
    wait(lambda: bool(server.ask("rate(rack_temp[1m])")))
    series = fetch(server.url, "x", query="rate(rack_temp[1m])")
    assert (values(series), series.incomplete) == ({"a": 0.0}, "")


def test_clock_has_no_skew(metric_back_end: MetricBackEnd) -> None:
    async def notes() -> list[str]:
        url = metric_back_end.start().url
        options = PrometheusOptions(prometheus_url=(url,))
        history = PrometheusHistory(url, options, NODES, NodeIndex(["a"]), MetricsRegistry())
        found_notes: list[str] = []
        try:
            assert abs(await history.clock() - time.time()) < 10.0
            await history_reading.time_grid(history, HistoryRange(600.0, None, 60.0), found_notes)
        finally:
            await history.close()
        return found_notes

    assert asyncio.run(notes()) == []


@pytest.mark.parametrize(
    "query", ["rack_temp{", "rate(rack_temp[5)", 'rack_temp{pod=~"("}', "fuo(rack_temp)"]
)
def test_message_about_a_wrong_query_is_shown(metric_back_end: MetricBackEnd, query: str) -> None:
    server = metric_back_end.start(series={'rack_temp{node="a"}': "1"})
    with pytest.raises(BadInput, match="bad_data: ") as caught:
        fetch(server.url, "x", query=query)
    cause = missing_values.cause_of_error(caught.value, missing_values.PROMETHEUS)
    assert cause.reason == "InvalidQuery"
    assert cause.text.startswith("Prometheus cannot run the query: ")
    assert "time=" not in cause.text


def test_labels_in_the_message_about_series_are_not_shown(metric_back_end: MetricBackEnd) -> None:
    server = metric_back_end.start(
        series={'rack_temp{node="a",secret="s1"}': "1", 'rack_temp{node="a",secret="s2"}': "2"}
    )
    with pytest.raises(BadInput, match="s1") as caught:
        fetch(server.url, "x", query="rack_temp * on(node) rack_temp")
    cause = missing_values.cause_of_error(caught.value, missing_values.PROMETHEUS)
    assert cause.text == "Prometheus cannot run the query (HTTP status 422)"
