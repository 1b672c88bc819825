"""`nodewise explain` for pods of native mode: requirements, labels of nodes, gates, and policies that do not cover."""

import asyncio
from typing import Any

import pytest

from nodewise.base.clock import SystemClock, format_micro_time, parse_rfc3339
from nodewise.base.errors import Problem, Refused
from nodewise.cli.explain import explanation, pod_state, rendering
from nodewise.cli.explain.explanation import PodExplanation
from nodewise.cli.explain.pod_state import PodReadResult
from nodewise.kube.resource_kinds import LEASES, NAMESPACES, NODES, PODS
from nodewise.policies.native_mode_admission import GATE
from nodewise.policies.policy_objects import RESOURCES
from nodewise.policies.verdict_labels import label_key
from nodewise.scheduling_model.in_memory_api import FakeApi

NOW = "2026-11-21T10:00:00Z"
COOL, CALM = label_key("uid-1"), label_key("uid-2")
"""The labels of the first two policies."""


def pod(*keys: str, ok: str = "", prefers: str = "", gated: bool = False) -> dict[str, Any]:
    expressions = [{"key": key, "operator": "NotIn", "values": ["violating"]} for key in keys]
    preference = {"matchExpressions": [{"key": prefers, "operator": "NotIn", "values": ["violating"]}]}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": expressions}]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": preference}]
        if prefers
        else [],
    }
    gates = [{"name": GATE}] if gated else []
    metadata = {
        "name": "shop",
        "namespace": "web",
        "labels": {"app": "web"},
    }
    spec = {
        "affinity": {"nodeAffinity": affinity},
        "nodeSelector": {ok: "ok"} if ok else {},
        "schedulingGates": gates,
    }
    return {"metadata": metadata, "spec": spec}


def policy(name: str, *, active: bool = True, labelled: bool = True) -> Any:
    metadata = {"name": name, "namespace": "web"}
    spec = {"podSelector": {"matchLabels": {"app": "web"}}, "avoid": [{"metric": "heat", "above": 80}]}
    status = {"nodeLabel": "its label" if labelled else "", "active": active}
    return {"metadata": metadata, "spec": spec, "status": status}


class ForbiddenNodes(FakeApi):
    async def get(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        if path == NODES.path():
            raise Refused(f"get {path}", [Problem("", "nodes is forbidden", "")])
        return await super().get(path, *args, **kwargs)


def read(
    item: dict[str, Any],
    *policies: Any,
    later: tuple[Any, ...] = (),
    lease_age_s: float | None = 1.0,
    lease: str = "nodewise-controller",
    api: FakeApi | None = None,
) -> PodReadResult:
    """The pod, with policies that are older than it, and `later` ones."""
    api = api or FakeApi(*RESOURCES.values())
    for made in policies:
        api.put(RESOURCES["PlacementPolicy"], made)
    api.put(NAMESPACES, {"metadata": {"name": "web"}})
    api.put(PODS, item)
    for made in later:
        api.put(RESOURCES["PlacementPolicy"], made)
    written = {"manager": "nodewise-native", "operation": "Apply", "time": "2026-11-21T09:57:00Z"}
    api.put(NODES, {"metadata": {"name": "a", "labels": {COOL: "violating"}, "managedFields": [written]}})
    api.put(NODES, {"metadata": {"name": "b", "labels": {CALM: "ok"}}})
    if lease_age_s is not None:
        renewed = format_micro_time(SystemClock().now() - lease_age_s)
        metadata = {
            "name": lease,
            "namespace": "nodewise",
            "annotations": {"nodewise.io/last-evaluation": "2026-11-21T09:59:56Z"},
        }
        spec = {"holderIdentity": "controller-0", "renewTime": renewed, "leaseDurationSeconds": 15}
        api.put(LEASES, {"metadata": metadata, "spec": spec})
    return asyncio.run(pod_state.read_pod(api, "web", "shop", 5.0, own_namespace="nodewise"))


def printed(result: PodReadResult, capsys: pytest.CaptureFixture[str]) -> list[str]:
    pod_explanation = PodExplanation("web/shop", result, (), None, parse_rfc3339(NOW))
    rendering.print_text(pod_explanation, every_node=False)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("track", "is_named"), [("canary", True), ("stable", False)])
def test_a_policy_in_the_mode_canary_has_to_cover_its_canary_only(track: str, is_named: bool) -> None:
    canary, item = policy("cool"), pod()
    canary["spec"] |= {"mode": "Canary", "canary": {"podSelector": {"matchLabels": {"track": "canary"}}}}
    item["metadata"]["labels"]["track"] = track
    native = read(item, canary).native
    assert bool(native and native.not_covering) == is_named


def test_requirements_are_compared_with_the_labels_of_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    result = read(pod(COOL, ok=CALM), policy("cool"), policy("calm"))
    assert printed(result, capsys) == [
        "web/shop waits, placed by native mode: 1 of 2 nodes have the labels that it requires",
        "controller-0 evaluated the policies 4s ago",
        "it requires nodes with the label ok of placement policy web/calm: 1 of 2 nodes are rejected",
        "it requires nodes without the label violating of placement policy web/cool: 1 of 2 nodes are rejected",
        "",
        "NODE  VERDICT   placement policy web/calm  placement policy web/cool  LABELS CHANGED",
        "b     passes    ok                         -                          -",
        "a     rejected  -                          violating                  3m ago",
        "",
        "The rules are in the pod's event NoNodePasses. For the values behind them:",
        "  nodewise decide --cluster --namespace web -o wide",
    ]


def test_no_command_for_waiting_pods_is_named_for_a_pod_that_has_a_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
    placed = pod(COOL)
    placed["spec"]["nodeName"] = "b"
    lines = printed(read(placed, policy("cool")), capsys)
    assert lines[0].startswith("web/shop is on b")
    assert not any("decide" in line or "NoNodePasses" in line for line in lines)


def test_a_preference_rejects_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    result = read(pod(prefers=COOL), policy("cool"))
    assert result.native
    assert [node.passes for node in result.native.nodes] == [True, True]
    assert (
        "it prefers nodes without the label violating of placement policy web/cool: 1 of 2 nodes are not preferred"
        in printed(result, capsys)
    )


def test_the_label_of_a_deleted_policy(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(read(pod(COOL)), capsys)
    assert not any("nodewise decide" in line for line in lines)  # it does not consider deleted policies
    (line,) = (line for line in lines if line.startswith("it requires"))
    assert line.startswith("it requires nodes without the label violating of policy uid-1:")
    assert line.endswith("or is not the pod's own: create the pod again to remove the requirement")


def test_a_gate_is_explained_by_policies_that_are_not_active(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(read(pod(COOL, CALM, gated=True), policy("cool", active=False), policy("calm")), capsys)
    assert (
        f"Warning: it has the scheduling gate {GATE}: not all nodes have the label of placement policy web/cool yet"
        in lines
    )


@pytest.mark.parametrize(
    ("conditions", "problem"),
    [
        (
            [("Ready", "False", "no node has a value of heat: ..."), ("Suspended", "False", "")],
            "no node has a value",
        ),
        ([("Ready", "True", ""), ("Suspended", "True", "the last verdicts hold")], "the last verdicts hold"),
        ([("Ready", "True", ""), ("SteppedBack", "True", "it only observes now")], "it only observes now"),
        ([("Ready", "True", "every rule applies")], ""),
    ],
)
def test_problem_in_the_status_of_a_policy_is_a_warning(
    conditions: list[tuple[str, str, str]], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cool = policy("cool")
    cool["status"]["conditions"] = [
        {"type": kind, "status": status, "message": message} for kind, status, message in conditions
    ]
    lines = printed(read(pod(COOL), cool), capsys)
    warnings = [line for line in lines if line.startswith("Warning: placement policy web/cool: ")]
    assert len(warnings) == bool(problem)
    assert all(problem in line for line in warnings)


def test_policies_that_do_not_cover_the_pod() -> None:
    older = read(pod(COOL), policy("cool"), policy("other")).native
    newer = read(pod(COOL), policy("cool"), later=(policy("other"),)).native
    unlabelled = read(pod(COOL), policy("cool"), policy("other", labelled=False)).native
    assert older
    assert newer
    assert unlabelled
    start = "placement policy web/other selects the pod and has no effect on it: "
    changed = (
        "its selector or the pod's labels have changed since, or the admission policies were not installed"
    )
    assert newer.not_covering == (f"{start}it is newer than the pod; create the pod again",)
    assert older.not_covering == (f"{start}{changed}; create the pod again",)
    assert unlabelled.not_covering == ()


@pytest.mark.parametrize("lease_age_s", [None, 31.0])
def test_labels_that_nothing_updates(lease_age_s: float | None, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(read(pod(COOL), policy("cool"), lease_age_s=lease_age_s), capsys)
    assert any(line.startswith("Warning: no nodewise controller leads") for line in lines)


def test_an_extender_in_native_mode_leads_where_no_controller_has_led(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(read(pod(COOL), policy("cool"), lease="nodewise-extender"), capsys)
    assert "controller-0 evaluated the policies 4s ago" in lines
    assert not any("leads" in line for line in lines)


def test_an_extender_that_has_ended_does_not_lead(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(read(pod(COOL), policy("cool"), lease="nodewise-extender", lease_age_s=31.0), capsys)
    assert any(line.startswith("Warning: no nodewise controller leads since ") for line in lines)


def test_an_extender_does_not_lead_native_mode_if_no_policy_has_a_label(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A leader without native mode resets the label in the status, and removes no gate."""
    cool = policy("cool", active=False, labelled=False)
    lines = printed(read(pod(COOL, gated=True), cool, lease="nodewise-extender"), capsys)
    assert any(line.startswith("Warning: no nodewise controller leads") for line in lines)
    assert any("gates stay" in line for line in lines)


def test_no_cause_of_a_missing_decision_is_in_the_document() -> None:
    """No replica decides about such a pod, so requests of the pod and entries of kube-scheduler are no causes."""
    result = read(pod(COOL), policy("cool"))
    document = explanation.explanation_document(
        PodExplanation("web/shop", result, (), None, parse_rfc3339(NOW))
    )
    assert document["why_none"] is None
    assert document["native"]


def test_a_pod_that_native_mode_does_not_concern() -> None:
    assert read(pod(), policy("cool", labelled=False)).native is None


def test_nodes_that_may_not_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    result = read(pod(COOL), policy("cool"), api=ForbiddenNodes(*RESOURCES.values()))
    lines = printed(result, capsys)
    assert "it requires nodes without the label violating of placement policy web/cool" in lines
    assert any("nodes is forbidden" in line for line in lines)


def test_the_document_has_the_same() -> None:
    result = read(pod(COOL), policy("cool"))
    document = explanation.explanation_document(
        PodExplanation("web/shop", result, (), None, parse_rfc3339(NOW))
    )
    assert document["native"]["requirements"][0]["policy"] == "placement policy web/cool"
    assert document["native"]["nodes"][0]["labels"] == ("violating",)
    assert document["native"]["controller"]["leader"] == "controller-0"
