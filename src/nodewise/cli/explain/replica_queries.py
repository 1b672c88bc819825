"""Requests the decisions of all replicas about a pod."""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlencode

import httpx2

from nodewise.base.errors import BadInput, NodewiseError, Problem, Refused, Unavailable
from nodewise.engine import decision_endpoint
from nodewise.engine.decision import Decision
from nodewise.engine.decision_endpoint import DecisionPage
from nodewise.kube import replicas
from nodewise.kube.http_client import HttpApi
from nodewise.kube.replicas import Replica

_PATH: Final = "/decisions"
_MAX_DECISIONS: Final = "30"
"""Decisions requested from each replica: a few attempts of three calls."""


class ReplicaResponse(NamedTuple):
    """A replica's page with its decisions, or the error."""

    replica: str
    """The pod, `Pod/nodewise/nodewise-7d9f`, or the URL of --server."""
    page: DecisionPage | None
    decisions: Sequence[Decision] = ()
    error: str = ""


def build_query(namespace: str, pod: str) -> Mapping[str, str]:
    """The query for the newest decisions about a pod."""
    return {"namespace": namespace, "pod": pod, "limit": _MAX_DECISIONS, "form": "arrays"}


async def query_replicas(
    api: HttpApi, endpoints: Sequence[Replica], query: Mapping[str, str], timeout_s: float
) -> list[ReplicaResponse]:
    """The decisions of each replica, by port-forward. `Refused` without the right to forward ports."""
    answers = await replicas.ask(api, endpoints, _PATH, query, timeout_s)
    return [
        _decode_response(str(answer.replica), answer.body)
        if answer.body is not None
        else ReplicaResponse(str(answer.replica), None, (), answer.error)
        for answer in answers
    ]


async def query_servers(
    urls: Sequence[str], query: Mapping[str, str], timeout_s: float
) -> list[ReplicaResponse]:
    """The decisions of replicas whose admin ports this machine can reach."""
    # reading the system's CAs takes longer than a replica's response, and admin ports have no TLS
    no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with httpx2.AsyncClient(verify=no_tls, timeout=timeout_s, trust_env=False) as client:
        return list(await asyncio.gather(*(_query_server(client, url, query) for url in urls)))


async def _query_server(client: httpx2.AsyncClient, url: str, query: Mapping[str, str]) -> ReplicaResponse:
    try:
        return _decode_response(url, await _request_decisions(client, url, query))
    except NodewiseError as error:
        return ReplicaResponse(url, None, (), str(error))


async def _request_decisions(client: httpx2.AsyncClient, url: str, query: Mapping[str, str]) -> bytes:
    try:
        response = await client.get(f"{url.rstrip('/')}{_PATH}?{urlencode(query)}")
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise Unavailable("no answer", [Problem("", str(error) or type(error).__name__, "")]) from error
    if not response.is_success:
        remedy = (
            "the admin port has /decisions, --health-port"
            if response.status_code == httpx2.codes.NOT_FOUND
            else ""
        )
        raise Refused(f"HTTP status {response.status_code}", remedy=remedy)
    return response.content


def _decode_response(replica: str, body: bytes) -> ReplicaResponse:
    try:
        return ReplicaResponse(replica, *decision_endpoint.decode_page(body))
    except BadInput as error:
        return ReplicaResponse(replica, None, (), str(error))
