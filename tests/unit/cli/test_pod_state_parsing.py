"""The state of a pod, parsed from its JSON."""

from typing import Any

import msgspec
import pytest

from nodewise.base.errors import BadInput
from nodewise.cli.explain import pod_state
from nodewise.cli.explain.pod_state import PodState


def parse_pod(spec: Any = None, status: Any = None, **metadata: Any) -> PodState:
    pod = {"metadata": metadata, "spec": spec or {}, "status": status or {}}
    return pod_state.parse_pod_state(msgspec.json.encode(pod))


def container_requesting(**resources: Any) -> dict[str, Any]:
    return {"name": "main", "resources": resources}


def test_a_pod_that_waits() -> None:
    conditions = [
        {"type": "Ready", "status": "False"},
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"},
    ]
    pod = parse_pod(
        status={"phase": "Pending", "conditions": conditions},
        uid="u",
        creationTimestamp="2026-11-21T10:00:00Z",
    )
    assert (pod.uid, pod.created, pod.node, pod.phase) == ("u", "2026-11-21T10:00:00Z", "", "Pending")
    assert (pod.reason, pod.message) == ("Unschedulable", "0/3 nodes")
    assert pod.scheduler == "default-scheduler"


def test_a_pod_that_runs_has_nothing_against_it() -> None:
    conditions = [{"type": "PodScheduled", "status": "True", "message": "old"}]
    pod = parse_pod({"nodeName": "a"}, {"conditions": conditions})
    assert (pod.node, pod.reason, pod.message) == ("a", "", "")


@pytest.mark.parametrize(
    ("spec", "asks"),
    [
        pytest.param({"containers": [container_requesting(requests={"cpu": 1})]}, (), id="cores are none"),
        pytest.param(
            {"containers": [container_requesting(limits={"telemetry/scheduling": "1"})]},
            ("telemetry/scheduling",),
            id="limits",
        ),
        pytest.param(
            {"containers": [{"name": "x"}], "initContainers": [container_requesting(requests={"a.b/c": 1})]},
            ("a.b/c",),
            id="init containers",
        ),
        pytest.param({"resources": {"limits": {"a.b/c": 1}}}, (), id="the pod's own resources do not count"),
        pytest.param({"containers": None}, (), id="no containers"),
    ],
)
def test_extended_resources(spec: Any, asks: tuple[str, ...]) -> None:
    assert parse_pod(spec).asks == asks


def test_gates() -> None:
    assert parse_pod({"schedulingGates": [{"name": "quota"}]}).gates == ("quota",)


def test_no_pod() -> None:
    with pytest.raises(BadInput, match="the pod"):
        pod_state.parse_pod_state(b"[]")
