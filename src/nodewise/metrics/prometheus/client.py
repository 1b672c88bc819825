"""Client of Prometheus' `/api/v1/query` and `/api/v1/query_range`.

It translates the exceptions of httpx2, and removes secrets from errors.
"""

import asyncio
import contextlib
import io
from collections.abc import Iterator, Mapping
from typing import Final

import httpx2

from nodewise.base.errors import BadInput, NodewiseError, Problem, Unavailable
from nodewise.kube import http_client as kube_client
from nodewise.kube.api_server_interface import BeforeBody
from nodewise.metrics import missing_values
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.prometheus.prometheus_connection import PrometheusConnection
from nodewise.metrics.prometheus.query_responses import QueryResponse

_PATH: Final = "/api/v1/query"
_RANGE_PATH: Final = "/api/v1/query_range"
_NAMES_PATH: Final = "/api/v1/label/__name__/values"
MAX_METRIC_NAMES: Final = 20_000
_COMPLETE_AND_CURRENT: Final = {
    "nocache": "1",
    "latency_offset": "1ms",
    "partial_response": "false",
    "deny_partial_response": "1",
}
"""Parameters that only some servers know, and that Prometheus ignores.

Without `nocache`, VictoriaMetrics answers an instant query as of 30 s ago, and moves the times of a range query.
Without `latency_offset`, it repeats an older value for the last 30 s of a range query; 1 ms is its lowest value.
The others ask Thanos and clusters of VictoriaMetrics for an error in place of an incomplete answer.
"""
_BAD_REQUEST: Final = 400
_MAX_ERROR: Final = 10_000
_LONGEST_URL: Final = 2000
"""A longer query is sent as a form with POST, which fewer proxies allow."""

MOST_BYTES: Final = 64 * 2**20
"""Limit of a response. 5,000 series with a minute of samples are 3 MB."""


class PrometheusClient:
    """Sends queries to one Prometheus. Errors are kinds of `NodewiseError` that name the query and the server."""

    def __init__(self, connection: PrometheusConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._own_parameters: Mapping[str, str] = _COMPLETE_AND_CURRENT
        """Empty once the server has refused them, as Google's managed Prometheus does."""

    async def query(
        self, query: str, before_body: BeforeBody | None = None, *, at: float | None = None
    ) -> QueryResponse:
        """The response to an instant query at the current time, or at one in seconds since 1970. `before_body` is
        called when it begins, and may wait; until then its body stays in the buffers of the connection.

        Errors as in `_query`.
        """
        # not the modifier `@`: VictoriaMetrics ignores it in a query that is a selector with a range
        times = {} if at is None else {"time": f"{at:.3f}"}
        return await self._query(_PATH, {"query": query, **times}, before_body)

    async def query_range(self, query: str, start: float, end: float, step_s: float) -> QueryResponse:
        """The values of a query at `start`, `start + step_s` and so on until `end`, in seconds since 1970.

        Prometheus refuses more than 11,000 points per series. Errors as in `_query`.
        """
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:.3f}"}
        return await self._query(_RANGE_PATH, {"query": query, **times})

    async def metric_names(self, start: float) -> list[str]:
        """The names of metrics since a time, in seconds since 1970; at most `MAX_METRIC_NAMES`."""
        what = f"names of metrics of {self._connection.url}"
        parameters = {"start": f"{start:.3f}", "limit": str(MAX_METRIC_NAMES)}
        with self._errors_without_secrets(what):
            return query_responses.decode_metric_names(await self._call(_NAMES_PATH, parameters, what))

    async def _query(
        self, path: str, parameters: Mapping[str, str], before_body: BeforeBody | None = None
    ) -> QueryResponse:
        """The response to a query.

        `BadInput` for a query that Prometheus cannot parse or execute, `Refused` for rejected credentials,
        `Unavailable` for errors that a retry may solve.
        """
        query = parameters["query"]
        what = f"query {query if len(query) <= 200 else query[:199] + '…'} to {self._connection.url}"  # noqa: PLR2004
        with self._errors_without_secrets(what):
            body = await self._call(path, parameters, what, before_body)
            return query_responses.decode_response(body, self._connection.hide)

    async def _call(
        self,
        path: str,
        parameters: Mapping[str, str],
        what: str,
        before_body: BeforeBody | None = None,
    ) -> bytes:
        """The body of a successful response of one endpoint."""
        try:
            return await self._response_body(path, parameters, what, before_body)
        except tuple(kube_client.TRANSLATED) as error:
            actual = str(error) or type(error).__name__
            remedy = missing_values.cause("SourceUnreachable", missing_values.PROMETHEUS, "").remedy
            raise Unavailable(what, [self._hide_secrets(Problem("", actual, ""))], remedy=remedy) from error

    async def _response_body(
        self, path: str, parameters: Mapping[str, str], what: str, before_body: BeforeBody | None
    ) -> bytes:
        http = self._connection.http
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await http.send(self._build_request(http, path, parameters), stream=True)
                try:
                    if before_body is not None:
                        await before_body()
                    body = await _read_body(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            problem = Problem("", f"no answer within {self._timeout_s:g} s", "")
            remedy = "a cheaper query, or --prometheus-timeout"
            raise Unavailable(what, [problem], remedy=remedy, timeout_s=self._timeout_s) from error
        if response.status_code == _BAD_REQUEST and self._refuses_own_parameters(body, parameters):
            self._own_parameters = {}
            # `before_body` was called, and what it waited for is still held
            return await self._response_body(path, parameters, what, None)
        if not response.is_success:
            retry_after = response.headers.get("retry-after", "")
            raise query_responses.error_from_response(
                what, response.status_code, body, retry_after, self._timeout_s, self._connection.hide
            )
        return body

    def _build_request(
        self, http: httpx2.AsyncClient, path: str, parameters: Mapping[str, str]
    ) -> httpx2.Request:
        timeout = f"{max(round(self._timeout_s * 1000), 1)}ms"
        form = {**parameters, "timeout": timeout, **self._own_parameters}
        if len(parameters.get("query", "")) <= _LONGEST_URL:
            return http.build_request("GET", path, params=form)
        return http.build_request("POST", path, data=form)

    @contextlib.contextmanager
    def _errors_without_secrets(self, what: str) -> Iterator[None]:
        """Errors in this context name the request, and show no secrets: a server may repeat them."""
        try:
            yield
        except NodewiseError as error:
            error.what = what
            error.problems = [self._hide_secrets(problem) for problem in error.problems]
            raise

    def _refuses_own_parameters(self, body: bytes, parameters: Mapping[str, str]) -> bool:
        """Whether an error names a parameter that not every server knows.

        A query is a tenant's text, and must not have this effect. An error about it repeats its text, also without its
        escapes if the server parses PromQL, and then has a type.
        """
        if query_responses.has_error_type(body):
            return False
        text, query = body[:_MAX_ERROR].decode(errors="replace"), parameters.get("query", "")
        return any(name in text and name not in query for name in self._own_parameters)

    def _hide_secrets(self, problem: Problem) -> Problem:
        return Problem(*map(self._connection.hide, problem))


async def _read_body(response: httpx2.Response) -> bytes:
    if problem := kube_client.compression_problem(response):
        raise BadInput("", [problem])
    content = io.BytesIO()
    async for piece in response.aiter_bytes():
        content.write(piece)
        if content.tell() > MOST_BYTES:
            problem = Problem("answer", f"more than {MOST_BYTES // 2**20} MiB", "a series or two a node")
            raise BadInput("", [problem], remedy="aggregate in the rule's query")
    return content.getvalue()
