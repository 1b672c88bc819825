"""Finding the replicas of nodewise, and asking each of them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodewise.base.errors import BadInput, Problem, Refused, Unavailable
from nodewise.kube import replicas
from nodewise.kube.http_client import HttpApi
from nodewise.kube.replicas import Replica
from nodewise.kube.resource_kinds import PODS
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.cluster import child_processes
from tests.cluster.fake_port_forward import FakePortForward
from tests.unit.kube import port_forward_suite
from tests.unit.kube.failing_api import FailingApi

TIMEOUT_S = 30.0
HEALTH = {"name": "health", "containerPort": 9102}


def pod(
    name: str,
    namespace: str = "nodewise",
    component: str = "extender",
    phase: str = "Running",
    ports: list[dict[str, Any]] | None = None,
    **metadata: str,
) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "nodewise", "app.kubernetes.io/component": component}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, **metadata},
        "spec": {"containers": [{"name": "nodewise", **({"ports": ports} if ports else {})}]},
        "status": {"phase": phase},
    }


def api_with(*pods: dict[str, Any]) -> FakeApi:
    api = FakeApi()
    for item in pods:
        api.put(PODS, item)
    return api


async def test_running_replicas_are_found_by_their_labels() -> None:
    other = pod("other")
    other["metadata"]["labels"]["app.kubernetes.io/name"] = "something"
    api = api_with(
        pod("a", ports=[{"name": "https", "containerPort": 9001}, HEALTH]),
        pod("b"),
        pod("c", component="controller"),
        pod("annotator", component="annotator"),
        pod("starting", phase="Pending"),
        pod("ending", deletionTimestamp="2026-11-21T10:00:00Z"),
        pod("elsewhere", "default"),
        other,
    )
    assert await replicas.find_replicas(api, [replicas.NAMESPACE], TIMEOUT_S) == [
        Replica("nodewise", "a", "extender", 9102),
        Replica("nodewise", "b", "extender", 9002),
        Replica("nodewise", "c", "controller", 9002),
    ]


async def test_another_namespace_with_replicas_is_named_and_not_used() -> None:
    """Each tenant can create pods with the labels of replicas."""
    api = api_with(pod("a", "scheduling"), pod("b", "tenant"), pod("c", "other", component="annotator"))
    with pytest.raises(Unavailable, match="in namespace nodewise") as error:
        await replicas.find_replicas(api, [replicas.NAMESPACE], TIMEOUT_S)
    assert error.value.remedy == (
        "name its namespace with --nodewise-namespace; pods with its labels are in scheduling, tenant"
    )


async def test_a_named_namespace_without_replicas_is_an_error() -> None:
    api = api_with(pod("a"))
    with pytest.raises(Unavailable, match="no running pod of nodewise in namespace scheduling"):
        await replicas.find_replicas(api, ["scheduling"], TIMEOUT_S)


def restricted_api(namespace: str) -> FakeApi:
    """The user may not list pods of a namespace; an empty one stands for all namespaces together."""
    api, text = FailingApi(), 'pods is forbidden: User "eve" cannot list resource "pods"'
    api.errors["get", PODS.path(namespace)] = Refused("get", [Problem("", text, "")])
    return api


async def test_a_missing_right_to_list_pods_is_named() -> None:
    with pytest.raises(
        Refused, match="in namespace nodewise you need the rights to list pods, and to get and create"
    ):
        await replicas.find_replicas(restricted_api("nodewise"), [replicas.NAMESPACE], TIMEOUT_S)


async def test_without_the_right_to_list_all_pods_only_the_usual_namespace_is_searched() -> None:
    with pytest.raises(Unavailable, match="in namespace nodewise"):
        await replicas.find_replicas(restricted_api(""), [replicas.NAMESPACE], TIMEOUT_S)


def test_a_body_that_is_no_list_is_an_error() -> None:
    with pytest.raises(BadInput, match="a list of Pods"):
        replicas.parse_replicas(b'{"items": 1}')


@pytest.fixture
def http_port() -> Iterator[int]:
    yield from port_forward_suite.serving_large_file()


@pytest.fixture
def fake(http_port: int) -> FakePortForward:
    fake = FakePortForward()
    fake.ports["nodewise", "a", 9002] = http_port
    fake.ports["nodewise", "b", 9002] = child_processes.free_port()
    return fake


@pytest.fixture
async def api(fake: FakePortForward, tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with port_forward_suite.connected(fake, tmp_path) as api:
        yield api


PAIR = [Replica("nodewise", "a", "extender", 9002), Replica("nodewise", "b", "extender", 9002)]


async def test_each_replica_is_asked_and_failures_are_separate(api: HttpApi) -> None:
    reached, failed = await replicas.ask(api, PAIR, "/echo", {"pod": "x"}, TIMEOUT_S)
    assert reached == (PAIR[0], b"pod=x", "")
    assert failed.body is None
    assert "connection refused" in failed.error
    assert str(failed.replica) == "Pod/nodewise/b"


async def test_a_missing_right_to_forward_ports_is_named(api: HttpApi, fake: FakePortForward) -> None:
    fake.refusals = {"a": 403, "b": 403}
    with pytest.raises(
        Refused, match="in namespace nodewise you need the rights to list pods, and to get and create"
    ):
        await replicas.ask(api, PAIR, "/echo", {}, TIMEOUT_S)
