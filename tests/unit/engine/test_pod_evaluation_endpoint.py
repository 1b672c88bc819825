"""`GET /evaluation`, and decoding its response."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadInput
from nodewise.engine import counterfactuals, pod_evaluation_endpoint
from nodewise.engine.agent_chain import AgentChain
from nodewise.engine.pod_evaluation_endpoint import PodEvaluationEndpoint
from nodewise.kube.resource_kinds import PODS
from nodewise.kube.struct_type_merge import merge
from nodewise.policies.agent import TelemetryAgent
from nodewise.policies.policy_selection import PodFields
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise.server.application import Request
from tests.unit.policies.placement_policy_cluster import ALL, BUSY, HOT, Cluster, placement

CHAIN = AgentChain([TelemetryAgent()])
POD_TYPE = merge("Pod", PodFields)
WEB = {"metadata": {"name": "web", "namespace": "d", "uid": "u"}}
POD = msgspec.convert(WEB, POD_TYPE)
QUERY = {"namespace": "d", "pod": "web"}


def endpoint(cluster: Cluster, api: FakeApi | None = None, *, leads: bool = True) -> PodEvaluationEndpoint:
    if api is None:
        api = FakeApi()
        api.put(PODS, WEB)
        api.put(PODS, {"metadata": {"name": "web", "namespace": "e", "uid": "other"}})
    return PodEvaluationEndpoint(CHAIN, api, POD_TYPE, lambda: cluster.snapshot, lambda: leads)


async def call(served: PodEvaluationEndpoint, **query: str) -> Any:
    route = served.route()
    return await cast("Any", route.handler(Request("GET", route.path, query, b"", "", "")))


async def test_the_response_has_the_decisions_of_the_newest_snapshot() -> None:
    cluster = Cluster(placement("cool", ALL, HOT), placement("calm", ALL, BUSY, created="2"))
    response = await call(endpoint(cluster), **QUERY)
    page, (filtered, scored) = pod_evaluation_endpoint.decode_page(response.body)
    expected = CHAIN.filter(POD, cluster.snapshot.nodes.every, cluster.snapshot, cluster.snapshot.at)
    assert (page.leads, page.nodes, page.passing) == (True, 3, 1)
    assert filtered.pod.uid == "uid-1"  # that of the namespace d
    assert filtered.at == cluster.snapshot.at
    assert scored.names.tolist() == filtered.names[filtered.feasible()].tolist() == ["n3"]
    actual = [rule.policy for rule in filtered.evidence()]
    assert actual == ["placement policy d/cool", "placement policy d/calm"]
    assert list(counterfactuals.policy_removals(filtered)) == list(counterfactuals.policy_removals(expected))
    assert repr(list(counterfactuals.changes(filtered))) == repr(list(counterfactuals.changes(expected)))


async def test_a_replica_that_does_not_lead_says_so() -> None:
    response = await call(endpoint(Cluster(placement("cool")), leads=False), **QUERY)
    assert not pod_evaluation_endpoint.decode_page(response.body)[0].leads


@pytest.mark.parametrize("name", ["absent", "we"])
async def test_a_pod_that_does_not_exist_has_no_decision(name: str) -> None:
    response = await call(endpoint(Cluster(placement("cool"))), namespace="d", pod=name)
    page, decisions = pod_evaluation_endpoint.decode_page(response.body)
    assert (page.nodes, decisions) == (0, [])


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({}, r"namespace: no value.*pod: no value"),
        ({"namespace": "d", "pod": ""}, "pod: no value"),
        ({"namespace": "d", "pod": "web,metadata.namespace=e"}, "metadata.name"),
        ({"namespace": "../e", "pod": "web"}, "segment"),
    ],
)
async def test_queries_without_one_valid_name_are_refused(query: dict[str, str], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        await call(endpoint(Cluster(placement("cool"))), **query)


async def test_nodes_beyond_the_limit_are_those_that_are_furthest_from_passing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(placement("cool", ALL, HOT), placement("calm", ALL, BUSY))
    monkeypatch.setattr(pod_evaluation_endpoint, "MAX_VALUES", 2)
    page, (filtered, _) = pod_evaluation_endpoint.decode_page((await call(endpoint(cluster), **QUERY)).body)
    assert (page.nodes, page.passing) == (3, 1)
    assert filtered.names.tolist() == ["n2"]  # only its load is too high, and n1 is too hot as well


async def test_policies_that_are_not_read_yet_reject_all_nodes() -> None:
    cluster = Cluster(placement("cool"))
    cluster.snapshot = type(cluster.snapshot)(cluster.snapshot.nodes, {}, cluster.snapshot.at)
    page, (filtered, _) = pod_evaluation_endpoint.decode_page((await call(endpoint(cluster), **QUERY)).body)
    assert page.passing == 0
    assert "policies are not read yet" in filtered.verdicts[0][1].reasons[0].text()


async def test_requests_wait_for_their_turn() -> None:
    served = endpoint(Cluster(placement("cool")))
    results = await asyncio.gather(*(call(served, **QUERY) for _ in range(16)))
    assert [result.status for result in results] == [200] * 16


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'{"decisions":[{}],"leads":true,"nodes":1,"passing":1}'],
    ids=["empty", "other", "no decision"],
)
def test_other_responses_are_errors(body: bytes) -> None:
    with pytest.raises(BadInput, match="the form of this version"):
        pod_evaluation_endpoint.decode_page(body)


def test_one_decision_alone_is_an_error() -> None:
    cluster = Cluster(placement("cool"))
    evaluation = pod_evaluation_endpoint.evaluate(CHAIN, POD, cluster.snapshot)
    twice = evaluation._replace(scored=evaluation.filtered)
    body = cooperative_scheduling.run_without_pauses(pod_evaluation_endpoint.encode_page(twice, leads=True))
    with pytest.raises(BadInput, match="the form of this version"):
        pod_evaluation_endpoint.decode_page(body)
