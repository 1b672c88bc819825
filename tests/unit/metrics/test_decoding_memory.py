"""The memory for receiving and decoding the responses about many metrics at the same time."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from bench import generated_cluster_objects

from nodewise.kube.api_server_interface import BeforeBody
from nodewise.metrics.custom_metrics_api import CustomMetricsSource
from nodewise.metrics.metrics_source import MetricRequest, MetricsSource
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus import client
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import PrometheusSettings, PrometheusSource
from nodewise.observe.metrics_registry import MetricsRegistry

NAMES = generated_cluster_objects.names(200)
BODY = generated_cluster_objects.answer("m", NAMES, 0).replace(
    generated_cluster_objects.TIMESTAMP_PLACEHOLDER, b"2026-11-20T10:00:00Z"
)
PROMETHEUS_SERIES = [{"metric": {"node": name, "job": "x" * 100}, "values": [[1e9, "2"]]} for name in NAMES]
PROMETHEUS_BODY = json.dumps(
    {"status": "success", "data": {"resultType": "matrix", "result": PROMETHEUS_SERIES}}
).encode()


class MetricsApi:
    """Responds to all metrics at once, each with a copy of the same bytes."""

    async def get(self, path: str, timeout_s: float = 0.0, before_body: BeforeBody | None = None) -> bytes:
        if path.endswith("custom.metrics.k8s.io"):
            return b'{"preferredVersion": {"version": "v1beta2"}}'
        assert before_body is not None
        await before_body()
        return bytes(bytearray(BODY))


def custom_metrics(_: pytest.MonkeyPatch) -> MetricsSource:
    return CustomMetricsSource(MetricsApi())  # type: ignore[arg-type]


def prometheus(monkeypatch: pytest.MonkeyPatch) -> MetricsSource:
    """A server that responds likewise."""

    async def body() -> AsyncIterator[bytes]:
        yield bytes(bytearray(PROMETHEUS_BODY))

    async def nodes() -> NodeAttributes:
        return NodeAttributes({}, {name: name for name in NAMES})

    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=body()))
    monkeypatch.setattr(client, "HttpTransport", lambda **_: transport)
    settings = PrometheusSettings(PrometheusOptions(prometheus_timeout_s=600.0), 60.0)
    return PrometheusSource("http://prometheus.example", settings, nodes, MetricsRegistry())


SOURCES = (custom_metrics, prometheus)


def peak_bytes(source: MetricsSource, metrics: int) -> int:
    """The largest memory while so many metrics are fetched at the same time."""

    async def fetch_all() -> Any:
        requests = (
            MetricRequest(f"m{number}", namespaces=frozenset([f"n{number}"])) for number in range(metrics)
        )
        return await asyncio.gather(*(source.fetch(request, 1e9) for request in requests))

    asyncio.run(fetch_all())
    tracemalloc.start()
    try:
        asyncio.run(fetch_all())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("create_source", SOURCES)
def test_few_responses_are_read_and_decoded_at_the_same_time(
    create_source: Callable[[pytest.MonkeyPatch], MetricsSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bodies and decoded forms of 40 responses at once would take ten times the memory of those of 4."""
    source = create_source(monkeypatch)
    assert peak_bytes(source, 40) < 3 * peak_bytes(source, 4)
