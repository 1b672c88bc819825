"""`nodewise explain` for a user without rights in nodewise's namespace."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodewise.base.errors import Problem, Refused
from nodewise.kube.resource_kinds import NAMESPACES, NODES, PODS, Resource
from nodewise.policies.policy_objects import RESOURCES
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.cluster.read_only_commands import run

EVENTS = Resource("", "v1", "events", "Event")
RULE = "placement policy web/cool: heat above 80"
CONDITION = {
    "type": "MetricsAvailable",
    "status": "False",
    "reason": "NoSeries",
    "message": "heat: Prometheus has no series of this name",
}
POLICY: dict[str, Any] = {
    "metadata": {"name": "cool", "namespace": "web", "uid": "u1"},
    "spec": {"podSelector": {}, "avoid": [{"metric": "heat", "above": 80}]},
    "status": {
        "conditions": [CONDITION, {"type": "Suspended", "status": "False"}],
        "rules": [{"rule": "avoid[0]", "expression": "heat above 80", "nodes": 2, "missing": 1}],
    },
}


class TenantApi(FakeApi):
    """Permits what the ClusterRole `edit` permits in the namespace `web`."""

    async def get(self, path: str, *args: Any, **options: Any) -> bytes:
        if "/namespaces/web/" not in path:
            raise Refused(f"get {path}", [Problem("", "is forbidden", "")])
        return await super().get(path, *args, **options)


def event(name: str, pod: str = "waits", namespace: str = "web", **fields: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"kind": "Pod", "name": pod, "namespace": namespace, "uid": f"uid-{pod}"},
        "reason": "NoNodePasses",
        "message": f"none of 3 candidates passes: 2 {RULE}; 1 no fresh value of heat",
        "reportingComponent": "nodewise.io/extender",
        "eventTime": "2026-11-21T10:00:00.000000Z",
        **fields,
    }


@pytest.fixture
def api() -> FakeApi:
    api = TenantApi(EVENTS, *RESOURCES.values())
    api.put(NODES, {"metadata": {"name": "node-of-nobody"}})
    api.put(NAMESPACES, {"metadata": {"name": "web"}})
    api.put(RESOURCES["PlacementPolicy"], POLICY)
    api.put(RESOURCES["PlacementPolicy"], POLICY | {"metadata": {"name": "hidden", "namespace": "other"}})
    limits = {"resources": {"limits": {"telemetry/scheduling": "1"}}}
    for namespace, name in (("web", "waits"), ("other", "secret")):
        metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
        api.put(PODS, {"metadata": metadata, "spec": {"containers": [limits]}, "status": {}})
    uid = json.loads(asyncio.run(api.get(PODS.path("web", "waits"))))["metadata"]["uid"]
    own = event("first")["involvedObject"] | {"uid": uid}
    series = {"count": 4, "lastObservedTime": "2026-11-21T10:00:09.000000Z"}
    api.put(EVENTS, event("first", involvedObject=own, series=series))
    api.put(EVENTS, event("other", pod="another", message="about another pod"))
    api.put(
        EVENTS, event("foreign", involvedObject=own, reportingComponent="kubelet", message="of the kubelet")
    )
    api.put(EVENTS, event("hidden", "secret", "other", message="a secret"))
    return api


@pytest.fixture
def kubeconfig(api: FakeApi, tmp_path: Path) -> Iterator[str]:
    with in_memory_api_http_server.serving(api) as server:
        yield f"--kubeconfig={server.kubeconfig(tmp_path)}"


def test_events_and_the_status_of_policies_explain_the_pod(kubeconfig: str) -> None:
    done = run("explain", "web/waits", kubeconfig)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "web/waits waits"
    assert lines[1].startswith("nodewise, ")
    assert lines[1].endswith(
        f"ago, 4 times: NoNodePasses: none of 3 candidates passes: 2 {RULE}; 1 no fresh value of heat"
    )
    assert lines[2:5] == [
        "placement policy web/cool selects it",
        "  avoid[0] heat above 80: 2 nodes met, 1 node without a fresh value",
        "  MetricsAvailable is False: heat: Prometheus has no series of this name",
    ]


def test_missing_rights_are_named_with_the_hidden_data(kubeconfig: str) -> None:
    lines = run("explain", "web/waits", kubeconfig).stdout.splitlines()
    hidden = lines[lines.index("Not visible to you:") + 1 :]
    assert len(hidden) == 2
    assert (
        "in namespace nodewise you need the rights to list pods, and to get and create pods/portforward"
        in hidden[0]
    )
    assert hidden[1].endswith("no right to list clusterplacementpolicies.nodewise.io")


def test_nothing_of_other_pods_and_namespaces_appears(kubeconfig: str) -> None:
    for form in ("text", "wide", "json"):
        done = run("explain", "web/waits", kubeconfig, "-o", form)
        for word in ("secret", "other", "another", "kubelet", "hidden/", "node-of-nobody"):
            assert word not in done.stdout.replace("policies that may", "") + done.stderr
    document = json.loads(run("explain", "web/waits", kubeconfig, "-o", "json").stdout)
    assert [(item["reason"], item["times"]) for item in document["visible"]["events"]] == [
        ("NoNodePasses", 4)
    ]


def test_a_pod_of_another_namespace_is_refused(kubeconfig: str) -> None:
    done = run("explain", "other/secret", kubeconfig)
    assert (done.returncode, done.stdout) == (1, "")
    assert "forbidden" in done.stderr
    assert "a secret" not in done.stderr


def test_missing_pod_is_named_once(kubeconfig: str) -> None:
    done = run("explain", "web/wait", kubeconfig)
    assert done.returncode == 3
    missing, event, *hidden = done.stdout.splitlines()
    assert (missing, event) == (
        'pod web/wait does not exist; did you mean "waits"?',
        "nodewise has written no event about it",
    )
    assert hidden[0] == "Not visible to you:"


def test_without_an_event_the_likely_causes_are_listed(api: FakeApi, kubeconfig: str) -> None:
    asyncio.run(api.delete(EVENTS.path("web", "first"), b""))
    done = run("explain", "web/waits", kubeconfig)
    assert done.returncode == 3
    assert "nodewise has written no event about it" in done.stdout
    assert "  no scheduler has reported on it yet" in done.stdout
