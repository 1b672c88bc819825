"""Client of Prometheus' `/api/v1/query`. Translates the exceptions of httpx2, and removes secrets from errors."""

import asyncio
import io
from typing import Final

import httpx2

from nodewise.errors import BadInput, NodewiseError, Problem, Unavailable
from nodewise.kube import http_client as kube_client
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.prometheus.prometheus_connection import PrometheusConnection
from nodewise.metrics.prometheus.query_responses import QueryResponse

_PATH: Final = "/api/v1/query"
_LONGEST_URL: Final = 2000
"""A longer query is sent as a form with POST, which fewer proxies allow."""

MOST_BYTES: Final = 64 * 2**20
"""Limit of a response. 5,000 series with a minute of samples are 3 MB."""


class PrometheusClient:
    """Sends queries to one Prometheus. Errors are kinds of `NodewiseError` that name the query and the server."""

    def __init__(self, connection: PrometheusConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    async def query(self, query: str) -> QueryResponse:
        """The response to an instant query at the current time.

        `BadInput` for a query that Prometheus cannot parse or execute, `Refused` for rejected credentials,
        `Unavailable` for errors that a retry may solve.
        """
        what = f"query {query if len(query) <= 200 else query[:199] + '…'} to {self._connection.url}"  # noqa: PLR2004
        try:
            return query_responses.decode_response(await self._query_body(query, what))
        except tuple(kube_client.TRANSLATED) as error:
            actual = str(error) or type(error).__name__
            raise Unavailable(what, [self._hide_secrets(Problem("", actual, ""))]) from error
        except NodewiseError as error:
            error.what = what
            error.problems = [self._hide_secrets(problem) for problem in error.problems]
            raise

    async def _query_body(self, query: str, what: str) -> bytes:
        http = self._connection.http
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await http.send(self._build_query_request(http, query), stream=True)
                try:
                    body = await _read_body(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            problem = Problem("", f"no answer within {self._timeout_s:g} s", "")
            remedy = "a cheaper query, or --prometheus-timeout"
            raise Unavailable(what, [problem], remedy=remedy, timeout_s=self._timeout_s) from error
        if not response.is_success:
            retry_after = response.headers.get("retry-after", "")
            raise query_responses.error_from_response(
                what, response.status_code, body, retry_after, self._timeout_s
            )
        return body

    def _build_query_request(self, http: httpx2.AsyncClient, query: str) -> httpx2.Request:
        form = {"query": query, "timeout": f"{max(round(self._timeout_s * 1000), 1)}ms"}
        if len(query) <= _LONGEST_URL:
            return http.build_request("GET", _PATH, params=form)
        return http.build_request("POST", _PATH, data=form)

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
