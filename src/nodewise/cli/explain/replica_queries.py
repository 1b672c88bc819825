"""Requests about a pod to replicas of nodewise: their stored decisions, or an evaluation of their newest snapshot.

The extender stores decisions (`/decisions`). In native mode there are none, and a replica evaluates the pod on request
(`/evaluation`). A replica answers a path that it does not have with the status 404.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import httpx2

from nodewise.base.errors import BadInput, NodewiseError
from nodewise.engine import decision_json, pod_evaluation_endpoint
from nodewise.engine.decision import Decision
from nodewise.engine.decision_json import DecisionPage
from nodewise.engine.pod_evaluation_endpoint import EvaluationPage
from nodewise.kube import replicas
from nodewise.kube.http_client import HttpApi
from nodewise.kube.replicas import AdminServer, Replica

DECISIONS: Final = "/decisions"
EVALUATION: Final = pod_evaluation_endpoint.PATH
_MAX_DECISIONS: Final = "30"  # decisions requested from each replica: a few attempts of three calls
_NOT_FOUND: Final = f"HTTP status {httpx2.codes.NOT_FOUND}"


class PodQuery(NamedTuple):
    """The pod that requests are about."""

    namespace: str
    name: str
    timeout_s: float
    """For each request."""

    def parameters(self, path: str) -> Mapping[str, str]:
        pod = {"namespace": self.namespace, "pod": self.name}
        return pod if path == EVALUATION else pod | {"limit": _MAX_DECISIONS, "form": "arrays"}


class ReplicaResponse(NamedTuple):
    """A replica's page with its decisions or its evaluation, or the error."""

    replica: str
    """The pod, `Pod/nodewise/nodewise-7d9f`, or the URL of --server."""
    page: DecisionPage | None
    decisions: Sequence[Decision] = ()
    """Those of `page` or of `evaluation`."""
    error: str = ""
    """Empty if there is a page."""
    evaluation: EvaluationPage | None = None


async def query_replicas(
    api: HttpApi, endpoints: Sequence[Replica], path: str, query: PodQuery
) -> list[ReplicaResponse]:
    """The response of each replica, by port-forward. `Refused` without the right to forward ports."""
    answers = await replicas.ask(api, endpoints, path, query.parameters(path), query.timeout_s)
    return [_decode(str(answer.replica), path, answer.body, answer.error) for answer in answers]


async def query_servers(urls: Sequence[str], paths: Sequence[str], query: PodQuery) -> list[ReplicaResponse]:
    """The responses of replicas whose admin ports this machine can reach, each of the first path that it has."""

    async def query_server(url: str) -> ReplicaResponse:
        for path in paths:
            parameters = query.parameters(path)
            try:
                body = await replicas.get_from_server(AdminServer(url), path, parameters, query.timeout_s)
            except NodewiseError as error:
                if error.http_status != httpx2.codes.NOT_FOUND:
                    return ReplicaResponse(url, None, (), error.problems[0].found)
            else:
                return _decode(url, path, body, "")
        return ReplicaResponse(url, None, (), f"{_NOT_FOUND} (the admin port has {DECISIONS}, --health-port)")

    return list(await asyncio.gather(*map(query_server, urls)))


def _decode(replica: str, path: str, body: bytes | None, error: str) -> ReplicaResponse:
    if body is None:
        if error == _NOT_FOUND:
            error = f"{error}: it has no {path}, as an older version of nodewise"
        return ReplicaResponse(replica, None, (), error)
    try:
        if path == EVALUATION:
            evaluation, decisions = pod_evaluation_endpoint.decode_page(body)
            return ReplicaResponse(replica, None, decisions, "", evaluation)
        return ReplicaResponse(replica, *decision_json.decode_page(body))
    except BadInput as problem:
        return ReplicaResponse(replica, None, (), str(problem))
