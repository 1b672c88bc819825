"""The memory for decoding the responses about many metrics at the same time."""

import asyncio
import tracemalloc
from typing import Any

from bench import generated_cluster_objects

from nodewise.kube.api_server_interface import BeforeBody
from nodewise.metrics.custom_metrics_api import CustomMetricsSource
from nodewise.metrics.metrics_source import MetricRequest

NAMES = generated_cluster_objects.names(1000)
BODY = generated_cluster_objects.answer("m", NAMES, 0).replace(
    generated_cluster_objects.TIMESTAMP_PLACEHOLDER, b"2026-11-20T10:00:00Z"
)


class MetricsApi:
    """Responds to all metrics at once, each with a copy of the same bytes."""

    async def get(self, path: str, timeout_s: float = 0.0, before_body: BeforeBody | None = None) -> bytes:
        if path.endswith("custom.metrics.k8s.io"):
            return b'{"preferredVersion": {"version": "v1beta2"}}'
        assert before_body is not None
        await before_body()
        return bytes(bytearray(BODY))


def peak_bytes(metrics: int) -> int:
    """The largest memory while so many metrics are fetched at the same time."""

    async def fetch_all() -> Any:
        source = CustomMetricsSource(MetricsApi())  # type: ignore[arg-type]
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


def test_few_responses_are_read_and_decoded_at_the_same_time() -> None:
    """The decoded form of 40 responses at once would take ten times the memory of that of 4."""
    assert peak_bytes(40) < 3 * peak_bytes(4)
