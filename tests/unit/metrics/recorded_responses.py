"""Feeds recorded responses of metric back ends to the Prometheus source.

A recorded response is `{"status": 200, "body": {…}}`, or `{"status": 401, "text": "…"}` if it is no JSON.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx2

from nodewise.base.errors import NodewiseError
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import PrometheusSettings, PrometheusSource
from nodewise.metrics.series import Series
from nodewise.observe.metrics_registry import MetricsRegistry

URL: Final = "http://back-end:9090"
Response = Mapping[str, Any]


def recorded(name: str) -> Mapping[str, Mapping[str, Response]]:
    """The responses of a file in `recorded_answers`, by situation and query."""
    file = Path(__file__).parent / "recorded_answers" / f"{name}.json"
    responses: Mapping[str, Mapping[str, Response]] = json.loads(file.read_text())["responses"]
    return responses


def body_of(response: Response) -> bytes:
    return response["text"].encode() if "text" in response else json.dumps(response["body"]).encode()


def error_of(response: Response) -> NodewiseError:
    """The error of a query with a timeout of 4 s."""
    return query_responses.error_from_response("query", response["status"], body_of(response), timeout_s=4.0)


def fetch(
    responses: Mapping[str, Response],
    query: str,
    nodes: Iterable[str],
    now: float,
    *,
    empty_is_healthy: bool = True,
) -> Series:
    """The series of a query, from a server with these responses by query."""
    metric_source = _source(lambda request: responses[request.url.params["query"]], nodes)
    request = MetricRequest("recorded", query, max_age_s=60.0, empty_is_healthy=empty_is_healthy)
    return asyncio.run(metric_source.fetch(request, now))


def metric_names(response: Response) -> list[str]:
    """The names of metrics, from a server with this response."""
    return asyncio.run(_source(lambda _: response, ()).metric_names())


def _source(respond: Any, nodes: Iterable[str]) -> PrometheusSource:
    async def attributes() -> NodeAttributes:
        return NodeAttributes({}, {node: node for node in nodes})

    def answer(request: httpx2.Request) -> httpx2.Response:
        response = respond(request)
        return httpx2.Response(response["status"], content=body_of(response))

    settings = PrometheusSettings(PrometheusOptions(prometheus_url=(URL,)), 60.0)
    made = PrometheusSource(URL, settings, attributes, MetricsRegistry())
    made._connection.http = httpx2.AsyncClient(base_url=URL, transport=httpx2.MockTransport(answer))
    return made
