"""Servers that refuse the parameters of VictoriaMetrics and Thanos get queries without them."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import httpx2
import pytest

from nodewise.base.errors import BadInput
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus.source import PrometheusSource
from tests.unit.metrics.prometheus_suite import source, values

URL: Final = "http://managed:9090"
OWN: Final = ("nocache", "latency_offset", "partial_response", "deny_partial_response")
Answer = Callable[[httpx2.Request], httpx2.Response]


def unknown(name: str) -> dict[str, Any]:
    """The error of Google's managed Prometheus (pyrra-dev/pyrra#1063)."""
    text = (
        f"Invalid JSON payload received. Unknown name \"{name}\": Cannot bind query parameter. Field '{name}' could not"
        " be found in request message."
    )
    return {"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}


class StrictServer:
    """A server that refuses parameters that it does not know, of which it names one."""

    def __init__(self, named: str) -> None:
        self.named = named
        self.requests: list[dict[str, str]] = []

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        form = dict(request.url.params) or dict(httpx2.QueryParams(request.content.decode()))
        self.requests.append(form)
        if set(OWN) & form.keys():
            return httpx2.Response(400, json=unknown(self.named))
        result = [{"metric": {"instance": "a"}, "value": [1.0, "5"]}]
        data = {"resultType": "vector", "result": result}
        return httpx2.Response(200, json={"status": "success", "data": data})


def source_of(answer: Answer) -> PrometheusSource:
    made = source(URL)
    made._connection.http = httpx2.AsyncClient(base_url=URL, transport=httpx2.MockTransport(answer))
    return made


@pytest.mark.parametrize("named", OWN)
@pytest.mark.parametrize("query", ["m * 1", f"m + {' + m' * 1000}"], ids=["GET", "POST"])
def test_refused_parameters_are_sent_once(named: str, query: str) -> None:
    server = StrictServer(named)
    made = source_of(server.answer)

    async def fetch_twice() -> list[dict[str, float]]:
        request = MetricRequest("m", query)
        return [values(await made.fetch(request, 1.0)) for _ in range(2)]

    assert asyncio.run(fetch_twice()) == [{"a": 5.0}] * 2
    assert [bool(set(OWN) & form.keys()) for form in server.requests] == [True, False, False]
    assert all({"query", "timeout"} <= form.keys() for form in server.requests)


def test_many_concurrent_first_queries_are_answered() -> None:
    server = StrictServer("partial_response")
    made = source_of(server.answer)

    async def fetch_all() -> list[dict[str, float]]:
        requests = [MetricRequest(f"m{number}", f"m{number} * 1") for number in range(100)]
        series = await asyncio.gather(*(made.fetch(request, 1.0) for request in requests))
        return list(map(values, series))

    assert asyncio.run(asyncio.wait_for(fetch_all(), 60)) == [{"a": 5.0}] * 100


@pytest.mark.parametrize(
    "query", ["nocache{", "partial_response deny_partial_response", r'm{a=~"nocach\x65("}', "{latency_offset"]
)
def test_query_that_contains_a_parameter_changes_no_other_query(query: str) -> None:
    """The query is a tenant's text, and the server repeats it."""
    requests: list[dict[str, str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(dict(request.url.params))
        text = request.url.params["query"].replace(r"\x65", "e")
        error = f"1:9: parse error: unexpected end of input in {text}"
        return httpx2.Response(400, json={"status": "error", "errorType": "bad_data", "error": error})

    made = source_of(answer)

    async def fetch_twice() -> None:
        for _ in range(2):
            with pytest.raises(BadInput, match="parse error"):
                await made.fetch(MetricRequest("m", query), 1.0)

    asyncio.run(fetch_twice())
    assert [set(OWN) <= form.keys() for form in requests] == [True, True]
