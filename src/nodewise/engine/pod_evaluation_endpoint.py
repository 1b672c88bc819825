"""The response of `GET /evaluation`: what agents decide about one pod, computed from the newest snapshot on request.

In native mode kube-scheduler compares node labels, so there are no decisions to store. The snapshot has the evidence
of the newest evaluation, and `decide` and the extender compute decisions from it with the same code, so nothing is kept
for a pod. Every replica answers, because every replica evaluates the policies; the leader alone writes labels. With
shards, a replica evaluates and labels the nodes of its shards, which the response names.

The size of a response is limited: beyond `MAX_VALUES`, the nodes that are closest to passing are in it.
"""

import asyncio
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.agent import Names, Snapshot, Watched
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import UNREADABLE, BadInput, Problem
from nodewise.engine import counterfactuals, decision_json, object_feed
from nodewise.engine.agent_chain import AgentChain
from nodewise.engine.decision import Decision
from nodewise.kube.api_server_interface import Api
from nodewise.kube.resource_kinds import PODS, selector
from nodewise.server.application import ConcurrencyLimit, Request, Response, Route

PATH: Final = "/evaluation"
MAX_VALUES: Final = 2**18
"""Limit of the product of nodes and rules in a response: 26 rules at 10,000 nodes. It then has about 7 MB."""
_MAX_CONCURRENT: Final = 2
_MAX_REQUESTS: Final = 16
"""Requests under way, of which all but `_MAX_CONCURRENT` wait."""


class EvaluationPage(msgspec.Struct, frozen=True, kw_only=True):
    decisions: list[msgspec.Raw]
    """A `filter` decision about nodes, then a `prioritize` decision about those that pass; empty if there is no such
    pod."""
    leads: bool
    """Whether this replica leads, and so writes the labels of nodes."""
    nodes: int
    """The number of nodes, also of those that are left out."""
    passing: int
    """How many of them pass."""
    shards: int = 1
    """The number of shards of all replicas."""
    own_shards: list[int] = []
    """With shards, those of this replica, whose nodes alone it evaluates."""


class PodEvaluation(NamedTuple):
    """The decisions about one pod."""

    filtered: Decision
    scored: Decision
    nodes: int
    """As in `EvaluationPage`, like the next field."""
    passing: int


def evaluate(chain: AgentChain, pod: Any, snapshot: Snapshot) -> PodEvaluation:
    """Filter all nodes and score those that pass, as `decide` does, at the time of the snapshot."""
    filtered, scored = _decide(chain, pod, snapshot.nodes.every, snapshot)
    nodes, passing = len(filtered.names), int(filtered.feasible().sum())
    rules = sum(1 for decision in (filtered, scored) for _ in decision.evidence())
    most = max(1, MAX_VALUES // max(rules, 1))
    if nodes > most:
        # rejected nodes first: suggestions are computed from them
        order = np.lexsort((counterfactuals.distance_from_passing(filtered), filtered.feasible()))
        chosen = snapshot.nodes.named(filtered.names[np.sort(order[:most])].tolist())
        filtered, scored = _decide(chain, pod, chosen, snapshot)
    return PodEvaluation(filtered, scored, nodes, passing)


def _decide(chain: AgentChain, pod: Any, names: Names, snapshot: Snapshot) -> tuple[Decision, Decision]:
    filtered = chain.filter(pod, names, snapshot, snapshot.at)
    left = filtered.names[filtered.feasible()].tolist()
    return filtered, chain.prioritize(pod, left, snapshot, snapshot.at)


class PodEvaluationEndpoint:
    """Reads a pod from the API server and evaluates it.

    As for a request of kube-scheduler, the evaluation is one step of the event loop. The encoding pauses.
    """

    def __init__(
        self,
        chain: AgentChain,
        api: Api,
        pod_type: type[msgspec.Struct],
        snapshot: Callable[[], Snapshot],
        leads: Callable[[], bool],
        shards: Callable[[], tuple[int, list[int]]] = lambda: (1, []),
    ) -> None:
        self._chain = chain
        self._api = api
        self._pods = Watched("pods", PODS, pod_type)
        self._snapshot = snapshot
        self._leads = leads
        self._shards = shards
        """Returns the number of shards, and those of this replica."""
        self._turn = asyncio.Semaphore(_MAX_CONCURRENT)

    def route(self) -> Route:
        """For loopback or mutual TLS only: it shows the pods and metric values of all tenants."""
        return Route("GET", PATH, self._handle_request, ConcurrencyLimit(_MAX_REQUESTS), pinned_only=True)

    async def _handle_request(self, request: Request) -> Response:
        namespace, name = _parse_query(request.query)
        # by a list: the account of nodewise has the right to list pods, and not to get them
        fields = selector("metadata.name", name)
        async with self._turn:
            pods = await object_feed.list_once(self._api, self._pods, namespace, fields)
            pod = pods.get((namespace, name))
            evaluation = None if pod is None else evaluate(self._chain, pod, self._snapshot())
            page = encode_page(evaluation, self._shards(), leads=self._leads())
            return Response(200, await cooperative_scheduling.run(page))


def _parse_query(query: Mapping[str, str]) -> tuple[str, str]:
    """Namespace and name of the pod. `BadInput` if one is missing."""
    missing = [name for name in ("namespace", "pod") if not query.get(name)]
    if missing:
        expected = "a pod, as in ?namespace=web&pod=shop-7"
        raise BadInput("query", [Problem(name, "no value", expected) for name in missing])
    return query["namespace"], query["pod"]


def encode_page(
    evaluation: PodEvaluation | None, shards: tuple[int, list[int]] = (1, []), *, leads: bool
) -> Generator[None, None, bytes]:
    """The response, with decisions in the form `arrays`; None for a pod that does not exist. Yields between parts."""
    decisions = []
    for decision in (evaluation.filtered, evaluation.scored) if evaluation else ():
        decisions.append(msgspec.Raw((yield from decision_json.encode_arrays(decision))))
        yield
    nodes, passing = (evaluation.nodes, evaluation.passing) if evaluation else (0, 0)
    count, own = shards
    page = EvaluationPage(
        decisions=decisions, leads=leads, nodes=nodes, passing=passing, shards=count, own_shards=own
    )
    return msgspec.json.encode(page) + b"\n"


def decode_page(body: bytes) -> tuple[EvaluationPage, list[Decision]]:
    """Decode a response. `BadInput` for any other, for example of another version of nodewise."""
    try:
        page = msgspec.json.decode(body, type=EvaluationPage)
        decisions = [decision_json.decode_arrays(decision) for decision in page.decisions]
        verbs = [decision.verb for decision in decisions]
        if verbs not in ([], ["filter", "prioritize"]):
            raise ValueError(f"decisions {verbs}")
    except UNREADABLE as error:
        raise BadInput("evaluation", [Problem("", str(error), "the form of this version")]) from error
    return page, decisions
