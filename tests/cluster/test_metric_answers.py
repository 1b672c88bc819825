"""Hints, clocks and errors of each metric back end."""

import asyncio
import time

import pytest

from nodewise.base.errors import BadInput
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.prometheus.history import PrometheusHistory
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policy_tools import backtest_history
from nodewise.policy_tools.backtest_history import HistoryRange
from tests.cluster.metric_back_ends import MetricBackEnd
from tests.unit.metrics.prometheus_suite import NODES, fetch, values


def test_hints_do_not_make_a_response_incomplete(metric_back_end: MetricBackEnd) -> None:
    """From 2.53 on, Prometheus remarks that the metric might not be a counter."""
    now = time.time()
    samples = [f'rack_temp{{node="a"}} 5 {now - age_s:.3f}' for age_s in (40, 25, 10)]
    server = metric_back_end.start(samples=samples)
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
            await backtest_history.time_grid(history, HistoryRange(600.0, None, 60.0), found_notes)
        finally:
            await history.close()
        return found_notes

    assert asyncio.run(notes()) == []


def test_labels_in_the_message_about_series_are_not_shown(metric_back_end: MetricBackEnd) -> None:
    server = metric_back_end.start(
        series={'rack_temp{node="a",secret="s1"}': "1", 'rack_temp{node="a",secret="s2"}': "2"}
    )
    with pytest.raises(BadInput, match="s1") as caught:
        fetch(server.url, "x", query="rack_temp * on(node) rack_temp")
    cause = missing_values.cause_of_error(caught.value, source_table.PROMETHEUS)
    assert cause.text == "Prometheus cannot run the query (HTTP status 422)"
