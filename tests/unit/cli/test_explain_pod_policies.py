"""The policies that select a pod, read from the API server."""

import asyncio
from typing import Any

import msgspec
import pytest

from nodewise.agents.telemetry import KIND
from nodewise.base.errors import Problem, Refused
from nodewise.cli.explain import pod_state
from nodewise.cli.explain.pod_state import PodReadResult
from nodewise.kube.resource_kinds import NAMESPACES, PODS, RESOURCE_CLAIMS
from nodewise.policies.options import TelemetryOptions
from nodewise.scheduling_model.in_memory_api import FakeApi

RESOURCES = {
    watched.resource.kind: watched.resource
    for watched in KIND.watched(TelemetryOptions())
    if watched.resource != NAMESPACES
}
AVOID = [{"metric": "heat", "above": 80}]
ALL: dict[str, Any] = {}
WEB = {"matchLabels": {"app": "web"}}


def policy(
    name: str, namespace: str = "", created: str = "2026-11-21T09:00:00Z", **spec: Any
) -> dict[str, Any]:
    metadata = {"name": name, "creationTimestamp": created} | ({"namespace": namespace} if namespace else {})
    return {"metadata": metadata, "spec": {"avoid": AVOID, **spec}}


def api_with(
    *policies: dict[str, Any], served: bool = True, pod_spec: Any = None, **pod_metadata: Any
) -> FakeApi:
    """An API server with a pod `web/shop`, its namespace, and policies: cluster policies are those without one."""
    api = FakeApi(*RESOURCES.values()) if served else FakeApi()
    api.put(NAMESPACES, {"metadata": {"name": "web", "labels": {"team": "a"}}})
    api.put(NAMESPACES, {"metadata": {"name": "other", "labels": {"team": "b"}}})
    metadata = {"name": "shop", "namespace": "web", "labels": {"app": "web"}, **pod_metadata}
    api.put(PODS, {"metadata": metadata, "spec": pod_spec or {}})
    for item in policies:
        kind = "PlacementPolicy" if "namespace" in item["metadata"] else "ClusterPlacementPolicy"
        api.put(RESOURCES[kind], item)
    return api


def read(api: FakeApi, own_namespace: str = "nodewise") -> PodReadResult:
    return asyncio.run(pod_state.read_pod(api, "web", "shop", 5.0, own_namespace=own_namespace))


def names(api: FakeApi, own_namespace: str = "nodewise") -> list[str]:
    return [policy.policy for policy in read(api, own_namespace).policies]


def test_policies_that_select_the_pod_are_found() -> None:
    api = api_with(
        policy("cool", "web", podSelector=WEB),
        policy("batch", "web", podSelector={"matchLabels": {"app": "batch"}}),
        policy("elsewhere", "other", podSelector=ALL),
        policy("wide", namespaceSelector={"matchLabels": {"team": "a"}}, podSelector=ALL),
        policy("narrow", namespaceSelector={"matchLabels": {"team": "b"}}, podSelector=ALL),
    )
    cool, wide = read(api).policies
    assert (cool.policy, wide.policy) == ("placement policy web/cool", "cluster placement policy wide")
    assert (cool.not_enforced, wide.not_enforced) == ("", "")
    created = {
        item["metadata"]["creationTimestamp"] for item in api.objects(RESOURCES["PlacementPolicy"]).values()
    }
    assert cool.created in created


def test_pods_that_no_selector_selects() -> None:
    cool = policy("cool", "web", podSelector=ALL)
    owner = {"kind": "DaemonSet", "name": "d", "apiVersion": "apps/v1", "uid": "u", "controller": True}
    node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [node]}}
    spec = {"affinity": {"nodeAffinity": required}}
    assert names(api_with(cool, ownerReferences=[owner], pod_spec=spec)) == []
    assert names(api_with(cool, ownerReferences=[owner])) == ["placement policy web/cool"]
    assert names(api_with(cool), own_namespace="web") == []


def test_policy_beyond_the_limit_is_not_enforced() -> None:
    many = [policy(f"p{n:02}", "web", podSelector=ALL) for n in range(51)]
    *enforced, late = read(api_with(*many)).policies
    assert not any(policy.not_enforced for policy in enforced)
    assert late.policy == "placement policy web/p50"
    assert "50" in late.not_enforced


def test_a_cluster_without_the_kinds_has_no_such_policies() -> None:
    assert read(api_with(served=False)).policies == ()


def test_policies_that_may_not_be_listed_hide_nothing_else() -> None:
    class Restricted(FakeApi):
        async def get(self, path: str, *args: Any, **options: Any) -> bytes:
            if "placementpolicies" in path:
                raise Refused(f"get {path}", [Problem("", "forbidden", "")])
            return await super().get(path, *args, **options)

    api = Restricted(*RESOURCES.values())
    api.put(
        PODS, msgspec.json.decode(b'{"metadata":{"name":"shop","namespace":"web"},"spec":{"nodeName":"a"}}')
    )
    result = read(api)
    assert result.state is not None
    assert result.state.node == "a"
    assert result.policies_error == (
        "no right to list placementpolicies.nodewise.io and clusterplacementpolicies.nodewise.io"
    )


@pytest.mark.parametrize(("is_own", "conditions"), [(True, ("attached",)), (False, ())])
def test_conditions_of_devices_that_are_allocated_for_the_pod(
    is_own: bool, conditions: tuple[str, ...]
) -> None:
    api = FakeApi(RESOURCE_CLAIMS)
    spec = {"resourceClaims": [{"name": "nic", "resourceClaimName": "c"}]}
    pod = api.put(PODS, {"metadata": {"name": "shop", "namespace": "web"}, "spec": spec})
    consumer = pod["metadata"]["uid"] if is_own else "other"
    device = {"request": "r", "driver": "d", "pool": "p", "device": "f-1", "bindingConditions": ["attached"]}
    status = {
        "allocation": {"devices": {"results": [device]}},
        "reservedFor": [{"resource": "pods", "name": "shop", "uid": consumer}],
    }
    api.put(RESOURCE_CLAIMS, {"metadata": {"name": "c", "namespace": "web"}, "status": status})
    state = read(api).state
    assert state is not None
    assert (state.devices, state.binding_conditions) == (("r: f-1",), conditions)


def test_a_pod_that_does_not_exist() -> None:
    missing = "namespace web does not exist"
    assert read(FakeApi()) == PodReadResult(None, gone=True, missing=missing)


@pytest.mark.parametrize(
    ("namespace", "name", "missing"),
    [
        ("web", "shp", 'pod web/shp does not exist; did you mean "shop"?'),
        ("web", "unlike", "pod web/unlike does not exist"),
        ("wbe", "shop", 'namespace wbe does not exist; did you mean "web"?'),
    ],
)
def test_similar_names_of_pods_and_namespaces(namespace: str, name: str, missing: str) -> None:
    result = asyncio.run(pod_state.read_pod(api_with(), namespace, name, 5.0, own_namespace="nodewise"))
    assert result == PodReadResult(None, gone=True, missing=missing)


@pytest.mark.parametrize(
    ("label", "policies", "missing"),
    [
        ("cool", ["cool"], ""),
        ("col", ["cool"], 'TASPolicy web/col does not exist; did you mean "cool"?'),
        ("unlike", ["cool"], "TASPolicy web/unlike does not exist"),
        ("placed", ["cool"], "TASPolicy web/placed does not exist; there is a PlacementPolicy of this name"),
    ],
)
def test_a_label_that_names_a_policy(label: str, policies: list[str], missing: str) -> None:
    api = api_with(policy("placed", "web", podSelector=WEB), labels={"telemetry-policy": label})
    for name in policies:
        rules = {"rules": [{"metricname": "heat", "operator": "GreaterThan", "target": 80}]}
        item = {
            "metadata": {"name": name, "namespace": "web"},
            "spec": {"strategies": {"dontschedule": rules}},
        }
        api.put(RESOURCES["TASPolicy"], item)
    result = read(api)
    assert result.state is not None
    assert result.missing_policy.startswith(missing)
    assert bool(result.missing_policy) == bool(missing)


@pytest.mark.parametrize("pod", [b"[]", b'{"metadata": 1}'])
def test_a_pod_that_cannot_be_read(pod: bytes) -> None:
    api = FakeApi()
    api.raw[PODS.path("web", "shop")] = pod
    assert "the pod" in read(api).error
