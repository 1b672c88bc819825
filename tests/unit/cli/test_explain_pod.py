"""`nodewise explain`: its argument, the state of the pod, and the changes that `--watch` shows."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from nodewise.agent import Verdict
from nodewise.base.errors import BadInput, BadSettings
from nodewise.cli import explain
from nodewise.cli.explain import parse_pod_argument, pod_state
from nodewise.cli.explain.explanation import PodExplanation, VisibleState, comparable_answer
from nodewise.cli.explain.pod_state import PodReadResult, PodState, SelectingPolicy
from nodewise.engine.decision_json import StaticDetails, StaticReason
from nodewise.kube.resource_kinds import NAMESPACES
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.unit.cli.test_explain_output import WAITS, create_explanation
from tests.unit.engine.decision_notation import AT, of


@pytest.mark.parametrize(
    ("text", "option", "expected"),
    [
        ("web-1", "", ("", "web-1")),
        ("web-1", "shop", ("shop", "web-1")),
        ("pod/web-1", "shop", ("shop", "web-1")),
        ("pods/web-1", "", ("", "web-1")),
        ("po/web-1", "", ("", "web-1")),
        ("Pod/web-1", "", ("", "web-1")),
        ("shop/web-1", "", ("shop", "web-1")),
        ("shop/web-1", "shop", ("shop", "web-1")),
        ("po", "", ("", "po")),
    ],
)
def test_forms_of_the_argument(text: str, option: str, expected: tuple[str, str]) -> None:
    assert parse_pod_argument(text, option) == expected


@pytest.mark.parametrize("kind", ["deployment", "deployments", "deploy", "rs", "StatefulSet", "ds", "job"])
def test_owner_of_pods_is_no_namespace(kind: str) -> None:
    with pytest.raises(BadSettings, match=f"POD: '{kind}/web'; expected a pod") as raised:
        parse_pod_argument(f"{kind}/web", "shop")
    assert f"kubectl describe {kind}/web shows its selector" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "option"),
    [("", ""), ("shop/", ""), ("/web", ""), ("pod/", ""), ("pod/shop/web", ""), ("shop/web", "other")],
)
def test_invalid_forms_of_the_argument(text: str, option: str) -> None:
    with pytest.raises(BadSettings, match="NAME, pod/NAME or NAMESPACE/NAME, and one namespace"):
        parse_pod_argument(text, option)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["web-1"],
            "pod default/web-1 does not exist (default is the namespace of the context, -n names another one)",
        ),
        (["web-1", "-n", "default"], "pod default/web-1 does not exist"),
        (["default/web-1"], "pod default/web-1 does not exist"),
    ],
)
def test_a_missing_pod_in_the_namespace_of_the_context(
    tmp_path: Path, arguments: list[str], line: str
) -> None:
    api = FakeApi()
    api.put(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
    with in_memory_api_http_server.serving(api) as server:
        kubeconfig = str(server.kubeconfig(tmp_path))
        result = CliRunner().invoke(explain.command, [*arguments, "--kubeconfig", kubeconfig])
    assert result.stdout.splitlines()[0] == line


def parse_pod(spec: Any = None, status: Any = None, **metadata: Any) -> PodState:
    pod = {"metadata": metadata, "spec": spec or {}, "status": status or {}}
    return pod_state.to_pod_state(pod_state.decode_pod(msgspec.json.encode(pod)))


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


def test_scheduling_gates() -> None:
    assert parse_pod({"schedulingGates": [{"name": "quota"}]}).gates == ("quota",)


def test_json_that_is_no_pod() -> None:
    with pytest.raises(BadInput, match="the pod"):
        pod_state.decode_pod(b"[]")


def answer(text: str, *, rejected: bool = False) -> object:
    """What counts of an attempt at one node with these details."""
    details = StaticDetails([text], np.zeros(1))
    verdict = Verdict(np.array([rejected], np.int16), (StaticReason("policy d/pol: heat"),), details=details)
    return comparable_answer(create_explanation(of(("telemetry", verdict))))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("heat above 80: broken for 950ms of 2m", "heat above 80: broken for 1m59s of 2m"),
        ("heat above 80: rejected for 9m59s", "heat above 80: rejected for 1h10m"),
        ("heat above 80: no longer broken for 1s of 10m", "heat above 80: no longer broken for 2s of 10m"),
        ("cpu 62 % ± 10 %, risk 0.03 %", "cpu 61.5 % ± 9.21 %, risk 1.2e-05 %"),
        ("type web: reward 0.81 after 12 tries", "type web: reward -0.2 after 1,300 tries"),
        ("card0 has 3G left, 5G wanted", "card0 has 4G left, 5G wanted"),
    ],
)
def test_time_that_passes_and_values_are_no_change(before: str, after: str) -> None:
    assert answer(before) == answer(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "heat above 80: broken for 0ms of 2m"),
        ("heat above 80: broken for 2m of 2m", "heat above 80: rejected for 0ms"),
        ("heat above 80: rejected for 5m", "heat above 80: no longer broken for 0ms of 10m"),
        ("heat above 80: rejected for 5m", "heat above 80: rejected for 5m; power above 9: rejected for 0ms"),
        ("train: card0", "train: card1"),
        ("train: card0 gt0", "train: card0 gt1"),
    ],
)
def test_another_state_of_a_node_is_a_change(before: str, after: str) -> None:
    assert answer(before) != answer(after)


def test_another_verdict_is_a_change() -> None:
    assert answer("same", rejected=True) != answer("same")


def with_status(line: str, visible: VisibleState | None) -> PodExplanation:
    """The explanation of a pod with a policy that has this status."""
    policy = SelectingPolicy("placement policy d/pol", "2026-11-21T09:00:00Z", "", (line,))
    return PodExplanation("d/p", PodReadResult(WAITS, policies=(policy,)), (), None, AT, visible)


@pytest.mark.parametrize("visible", [None, VisibleState((), "", "no right")])
def test_the_status_of_policies_counts_where_it_is_shown(visible: VisibleState | None) -> None:
    answers = [comparable_answer(with_status(f"1 heat above 80: {n} nodes met", visible)) for n in (3, 4)]
    assert (answers[0] != answers[1]) == (visible is not None)
