"""Waiting pods to which native mode does not apply a policy, as `nodewise decide --cluster` reports them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from nodewise.agent import ClusterState, NodeIndex
from nodewise.agents.telemetry import KIND
from nodewise.base import cooperative_scheduling
from nodewise.cli import decide_inputs
from nodewise.cli.decide_inputs import InputSelection
from nodewise.kube.resource_kinds import NAMESPACES, NODES, PODS
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import RESOURCES
from nodewise.scheduling_model.in_memory_api import FakeApi

PREFIX = "policy.nodewise.node-restriction.kubernetes.io/"


def policy(name: str, *, labelled: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "web"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "avoid": [{"metric": "heat", "above": 80}]},
        "status": {"nodeLabel": "its label" if labelled else "", "active": True},
    }


def pod(name: str, *keys: str, node: str = "") -> dict[str, Any]:
    expressions = [{"key": key, "operator": "NotIn", "values": ["violating"]} for key in keys]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    metadata = {"name": name, "namespace": "web", "labels": {"app": "web"}}
    return {"metadata": metadata, "spec": {"nodeName": node, "affinity": affinity}}


def printed(
    capsys: pytest.CaptureFixture[str], policies: list[Any], pods: list[Any], later: Sequence[Any] = ()
) -> list[str]:
    """The messages about pods that are newer than `policies` and older than `later` ones."""
    api = FakeApi(*RESOURCES.values())
    for made in policies:
        api.put(RESOURCES["PlacementPolicy"], made)
    for made in pods:
        api.put(PODS, made)
    for made in later:
        api.put(RESOURCES["PlacementPolicy"], made)
    api.put(NAMESPACES, {"metadata": {"name": "web"}})
    api.put(NODES, {"metadata": {"name": "a"}})
    options = TelemetryOptions()
    selection = InputSelection((), (), ["telemetry"], {"telemetry": options}, "", running=False)
    sources = decide_inputs.read_files(selection, api)
    inputs = asyncio.run(decide_inputs.read_objects(selection, sources))
    cluster = ClusterState(NodeIndex(inputs.node_names), inputs.objects, MetricsSnapshot(), 0.0, inputs.nodes)
    state = cooperative_scheduling.run_without_pauses(KIND.state(options, 5.0).build(cluster))
    decide_inputs.print_uncovered_pods(inputs.pods.values(), state, inputs.objects)
    return capsys.readouterr().err.splitlines()


def test_a_pod_with_the_requirement_and_a_running_pod_are_covered(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, [policy("cool")], [pod("web", f"{PREFIX}uid-1"), pod("runs", node="a")]) == []


def test_a_policy_without_a_label_belongs_to_the_extender(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, [policy("cool", labelled=False)], [pod("web")]) == []


def test_a_canary_has_no_effect_on_other_pods(capsys: pytest.CaptureFixture[str]) -> None:
    canary = policy("cool")
    canary["spec"] |= {"mode": "Canary", "canary": {"podSelector": {"matchLabels": {"track": "canary"}}}}
    other, own = pod("web"), pod("canary")
    own["metadata"]["labels"]["track"] = "canary"
    [message] = printed(capsys, [canary], [other, own])
    assert "to pod web/canary" in message


def test_each_policy_without_an_effect_is_named_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    older, newer = printed(capsys, [policy("cool")], [pod("web")], [policy("new")])
    start = "nodewise: native mode does not apply placement policy"
    assert older == (
        f"{start} web/cool to pod web/web: its selector or the pod's labels have changed since, or the admission"
        " policies were not installed; create the pod again"
    )
    assert newer == f"{start} web/new to pod web/web: it is newer than the pod; create the pod again"


def test_only_the_first_of_many_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, [policy("cool")], [pod(f"web-{number}") for number in range(8)])
    assert len(lines) == 6
    assert lines[-1] == "nodewise: 3 more policies of waiting pods have no effect in native mode"
