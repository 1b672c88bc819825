"""`GET /metric-values`, and decoding its response."""

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodewise import agents
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.errors import BadInput
from nodewise.engine import metric_values_endpoint
from nodewise.engine.agent_chain import ChainOptions
from nodewise.engine.metric_values_endpoint import MetricValuesEndpoint, MetricValuesPage
from nodewise.engine.recording_file import Header
from nodewise.engine.request_recorder import ReplaySettings
from nodewise.engine.third_party_agents import ThirdPartyKind
from nodewise.metrics import missing_values, series
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise.policies.options import TelemetryOptions
from nodewise.server.application import Request

NOW = 1_000_000.0
TELEMETRY = agents.load("telemetry")


def header(**options: Any) -> Header:
    return metric_values_endpoint.build_header(
        [TELEMETRY],
        {"telemetry": TelemetryOptions(**options)},
        ReplaySettings(2.0, ChainOptions(weights="5")),
        ["custom", "prometheus"],
        NOW,
    )


def metric(name: str, nodes: int = 3, **fields: Any) -> Series:
    samples = {
        f"n{number}": Sample(number * 10**9, None if number == 1 else NOW - number, 30.0)
        for number in range(nodes)
    }
    return Series(name, "custom", NOW, samples, **fields)


def packed(unpacked: Series) -> Series:
    samples = cooperative_scheduling.run_without_pauses(series.pack_samples(unpacked.samples))
    return Series(unpacked.metric, unpacked.source, unpacked.fetched_at, samples, unpacked.invalid)


def encode(metrics: MetricsSnapshot, after: str = "", **options: Any) -> bytes:
    page = metric_values_endpoint.encode_page(header(**options), metrics, after, NOW + 5)
    return cooperative_scheduling.run_without_pauses(page)


def pages(metrics: MetricsSnapshot) -> Generator[MetricValuesPage]:
    after = ""
    while True:
        page = metric_values_endpoint.decode_page(encode(metrics, after))
        yield page
        if page.is_last:
            return
        after = max(page.metrics.series.keys() | page.metrics.failures.keys())


@pytest.mark.parametrize("form", [packed, lambda unpacked: unpacked], ids=["packed", "dict"])
def test_values_times_failures_and_settings_survive(form: Any) -> None:
    metrics = MetricsSnapshot(
        {
            "heat": form(metric("heat", invalid={"n7": "not a number"})),
            "idle": form(metric("idle", nodes=0)),
            "max(heat) by q": form(metric("max(heat) by q", nodes=2)),
        },
        {"heat": "custom: HTTP status 503", "cold": "no such metric"},
        {"cold": missing_values.UNKNOWN},
    )
    page = metric_values_endpoint.decode_page(encode(metrics, when_missing="reject"))
    assert page.metrics == metrics
    assert (page.at, page.is_last) == (NOW + 5, True)
    assert page.header.sync_period_s == 2
    assert (page.header.weights, page.header.metrics) == ("5", ("custom", "prometheus"))
    ((name, options),) = [(agent.name, agent.options) for agent in page.header.agents]
    assert (name, options["when_missing"]) == ("telemetry", "reject")


def test_metrics_that_exceed_a_response_are_in_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_values_endpoint, "MAX_PAGE_VALUES", 200)
    names = [f"m{number:02}" for number in range(10)]
    metrics = MetricsSnapshot(
        {name: metric(name, nodes=40) for name in names[:8]}, dict.fromkeys(names[7:], "no")
    )
    read = list(pages(metrics))
    assert [len(page.metrics.series) for page in read] == [2, 2, 2, 2, 0]
    assert {name: values for page in read for name, values in page.metrics.series.items()} == metrics.series
    assert {name: why for page in read for name, why in page.metrics.failures.items()} == metrics.failures


def test_options_of_agents_of_other_packages_are_left_out() -> None:
    foreign = ThirdPartyKind.__new__(ThirdPartyKind)
    foreign.name = "foreign"
    kinds = [TELEMETRY, cast("Any", foreign)]
    options = {"telemetry": TelemetryOptions(), "foreign": TelemetryOptions(allowed_metrics="s3cret")}
    built = metric_values_endpoint.build_header(kinds, options, ReplaySettings(5.0, ChainOptions()), [], NOW)
    expected = [("telemetry", True), ("foreign", False)]
    assert [(agent.name, bool(agent.options)) for agent in built.agents] == expected


@pytest.mark.parametrize("body", [b"", b"{}", encode(MetricsSnapshot())[:30]], ids=["empty", "json", "cut"])
def test_other_responses_are_errors(body: bytes) -> None:
    with pytest.raises(BadInput, match="recording"):
        metric_values_endpoint.decode_page(body)


async def test_a_response_has_the_newest_values() -> None:
    refresher = cast("Any", SimpleNamespace(snapshot=MetricsSnapshot({"heat": metric("heat")})))
    route = MetricValuesEndpoint(header(), refresher, clock.SystemClock()).route()
    response = await cast("Any", route.handler(Request("GET", route.path, {}, b"", "", "")))
    assert metric_values_endpoint.decode_page(response.body).metrics == refresher.snapshot
