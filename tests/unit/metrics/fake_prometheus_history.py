"""A test double of Prometheus for range queries: it evaluates nothing, and has the limits of Prometheus."""

import json
import re
from collections.abc import Callable, Mapping

import httpx2

from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.prometheus.history import PrometheusHistory
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe.metrics_registry import MetricsRegistry

URL = "http://prometheus:9090"
Value = Callable[[float], str | None]
"""The text of a series' value at a time; None for none."""


class FakeHistory:
    """Series by their labels, with a limit of points in a response, and the queries that it received."""

    def __init__(
        self, series: Mapping[tuple[tuple[str, str], ...], Value], most_points: int = 11_000
    ) -> None:
        self.series = series
        self.most_points = most_points
        self.queries: list[dict[str, str]] = []
        self.unanswered = 0
        """The number of the next requests that fail with 503."""
        self.now = 1_700_000_000.0
        self.instant: Mapping[str, list[dict[str, object]]] = {}
        """Results of instant queries, by the name of a metric in them."""

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        query = dict(request.url.params)
        self.queries.append(query)
        if self.unanswered:
            self.unanswered -= 1
            return httpx2.Response(503, text="overloaded", headers={"retry-after": "0"})
        if request.url.path.endswith("/query"):
            return _response("vector", self._instant(query["query"]))
        start, end, step = (float(query[name]) for name in ("start", "end", "step"))
        times = [start + step * number for number in range(int((end - start) / step) + 1)]
        if len(times) > self.most_points:
            error = f"exceeded maximum resolution of {self.most_points:,} points per timeseries."
            return httpx2.Response(400, json={"status": "error", "errorType": "bad_data", "error": error})
        name = re.search(r'__name__="(\w+)"', query["query"])
        result = [
            {
                "metric": dict(labels),
                "values": [[at, text] for at in times if (text := value(at)) is not None],
            }
            for labels, value in self.series.items()
            if name is None or dict(labels)["__name__"] == name[1]
        ]
        return _response("matrix", [entry for entry in result if entry["values"]])

    def _instant(self, query: str) -> list[dict[str, object]]:
        if query == "vector(time())":
            return [{"metric": {}, "value": [self.now, f"{self.now:.3f}"]}]
        return next((result for name, result in self.instant.items() if name in query), [])


def _response(kind: str, result: object) -> httpx2.Response:
    body = {"status": "success", "data": {"resultType": kind, "result": result}}
    return httpx2.Response(200, content=json.dumps(body).encode())


def history_of(fake: FakeHistory, names: tuple[str, ...]) -> PrometheusHistory:
    attributes = NodeAttributes({}, {name: name for name in names})
    options = PrometheusOptions(prometheus_url=(URL,))
    history = PrometheusHistory(URL, options, attributes, NodeIndex(names), MetricsRegistry())
    history._connection.http = httpx2.AsyncClient(base_url=URL, transport=httpx2.MockTransport(fake.answer))
    return history


def request_of(metric: str, aggregate: str = "") -> MetricRequest:
    return MetricRequest(metric, max_age_s=60.0, aggregate=aggregate)
