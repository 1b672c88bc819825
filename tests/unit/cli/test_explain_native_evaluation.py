"""`nodewise explain` in native mode with the evaluation of a replica: values, differences from labels, and paths."""

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest

from nodewise.agent import Verdict
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import parse_rfc3339
from nodewise.cli.explain import explanation, native_evaluation, rendering, replica_queries
from nodewise.cli.explain.explanation import PodExplanation
from nodewise.cli.explain.native_evaluation import Evaluation
from nodewise.cli.explain.pod_state import PodReadResult, PodState, SelectingPolicy
from nodewise.cli.explain.replica_queries import DECISIONS, EVALUATION, PodQuery, ReplicaResponse
from nodewise.engine import decision_json, pod_evaluation_endpoint
from nodewise.engine.decision import Decision, DecisionRing
from nodewise.engine.decision_json import StaticReason
from nodewise.engine.pod_evaluation_endpoint import EvaluationPage, PodEvaluation
from nodewise.kube.resource_kinds import PODS
from nodewise.policies.policy_objects import RESOURCES
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.cluster import asgi_server_thread, read_only_commands
from tests.unit.cli.running_replica import ForwardingApi
from tests.unit.cli.test_explain_native_mode import CALM, COOL, NOW, pod, policy, read
from tests.unit.cli.test_explain_visible_state import EVENTS
from tests.unit.engine.decision_notation import evidence, of, policies_verdict, prioritize_decision

COOL_POLICY, CALM_POLICY = "placement policy web/cool", "placement policy web/calm"
CONTROLLER = "Pod/nodewise/nodewise-controller-7d9f"
HEAT = (COOL_POLICY, [evidence("heat", "90 50")])
"""A rule that rejects the node a, which has the label violating, and not b."""
LOAD = (CALM_POLICY, [evidence("load", "0.9 0.5", "atLeast 0.7")])


def decisions(verdict: Verdict | None, nodes: str = "a b") -> tuple[Decision, Decision]:
    filtered = of(*[("telemetry", verdict)] if verdict else (), nodes=nodes)
    passing = filtered.names[filtered.feasible()].tolist()
    return filtered, prioritize_decision(nodes=" ".join(passing))


def response(
    verdict: Verdict | None,
    *,
    leads: bool = True,
    nodes: str = "a b",
    more: int = 0,
    replica: str = CONTROLLER,
    shards: tuple[int, list[int]] = (1, []),
) -> ReplicaResponse:
    filtered, scored = decisions(verdict, nodes)
    page = EvaluationPage(
        decisions=[],
        leads=leads,
        nodes=len(filtered.names) + more,
        passing=int(filtered.feasible().sum()),
        shards=shards[0],
        own_shards=shards[1],
    )
    return ReplicaResponse(replica, None, (filtered, scored), "", page)


def explained(lookup: PodReadResult, *responses: ReplicaResponse) -> PodExplanation:
    evaluation = native_evaluation.choose_evaluation(responses)
    return PodExplanation("web/shop", lookup, responses, None, parse_rfc3339(NOW), evaluation=evaluation)


def printed(
    capsys: pytest.CaptureFixture[str],
    pod_explanation: PodExplanation,
    form: str = "text",
    *,
    nodes: bool = False,
) -> list[str]:
    rendering.PRINTERS[form](pod_explanation, every_node=nodes)
    return capsys.readouterr().out.splitlines()


BOTH = read(pod(COOL, ok=CALM), policy("cool"), policy("calm"))


def test_the_values_are_shown_beside_the_labels(capsys: pytest.CaptureFixture[str]) -> None:
    lookup = read(pod(COOL), policy("cool"))
    assert printed(capsys, explained(lookup, response(policies_verdict(HEAT)))) == [
        "web/shop waits, placed by native mode: 1 of 2 nodes have the labels that it requires",
        "controller-0 evaluated the policies 4s ago",
        "it requires nodes without the label violating of placement policy web/cool: 1 of 2 nodes are rejected",
        "",
        "NODE  VERDICT   placement policy web/cool  LABELS CHANGED  MEASURED            REJECTED",
        "b     passes    -                          -               heat 50 (2.5s old)  -",
        f"a     rejected  violating                  3m ago          heat 90 (2.5s old)  {COOL_POLICY} rejects it",
        "",
        "What would change it:",
        "  heat GreaterThan: 1 more node passes at 90 instead of 80",
    ]


def test_each_rule_has_a_row_in_the_wide_form(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, explained(BOTH, response(policies_verdict(HEAT, LOAD))), "wide")
    assert lines[5:10] == [
        "NODE  LABELS    NOW       RULE                 VALUE  AGE   REJECTS",
        "b     passes    passes    heat GreaterThan 80  50     2.5s  no",
        "                          load atLeast 0.7     0.5    2.5s  no",
        "a     rejected  rejected  heat GreaterThan 80  90     2.5s  yes",
        "                          load atLeast 0.7     0.9    2.5s  yes",
    ]


def test_a_node_that_the_replica_does_not_know_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    lookup = read(pod(COOL), policy("cool"))
    known = response(policies_verdict((COOL_POLICY, [evidence("heat", "90")])), nodes="a")
    assert printed(capsys, explained(lookup, known), "wide")[5].split() == ["b", "passes", *"-----"]


def test_changes_of_several_policies_that_let_more_nodes_pass(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = policies_verdict(HEAT, (CALM_POLICY, [evidence("load", "0.5 0.75", "atLeast 0.7")]))
    lines = printed(capsys, explained(BOTH, response(verdict)))
    assert "no policy alone rejects every node" in lines
    assert "  heat GreaterThan in placement policy web/cool: 1 more node passes at 90 instead of 80" in lines
    assert "  without placement policy web/calm: 1 more node passes" in lines


def test_nodes_whose_labels_differ_have_both_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    lookup = read(pod(COOL), policy("cool"))
    now = (COOL_POLICY, [evidence("heat", "70 90")])
    lines = printed(capsys, explained(lookup, response(policies_verdict(now))))
    difference = (
        "placement policy web/cool: the labels differ from its verdict now on a, b: labels follow an evaluation within "
        "the limit of writes of the leader"
    )
    assert difference in lines
    rows = [line.split() for line in lines]
    assert ["b", "passes", "-", "-", "rejected", "heat", "90"] in [row[:7] for row in rows]
    assert ["a", "rejected", "violating", "3m", "ago", "passes"] in [row[:6] for row in rows]


@pytest.mark.parametrize(
    ("lookup", "cause"),
    [
        (read(pod(COOL), policy("cool"), lease_age_s=31.0), "no replica leads"),
        (read(pod(COOL, gated=True), policy("cool", active=False)), "not active yet"),
        (read(pod(CALM), policy("other"), policy("calm")), "does not select the pod any more"),
        (read(pod(COOL), policy("cool")), "labels follow an evaluation"),
    ],
    ids=["no leader", "new policy", "other selector", "late"],
)
def test_causes_of_differences(lookup: PodReadResult, cause: str) -> None:
    verdict = policies_verdict((COOL_POLICY, [evidence("heat", "70 90")]))
    if cause.startswith("does not select"):
        lookup = lookup._replace(native=with_labels(lookup, "violating"))
    (difference,) = explained(lookup, response(verdict)).label_differences
    assert cause in difference.cause


def with_labels(lookup: PodReadResult, value: str) -> Any:
    assert lookup.native
    nodes = tuple(node._replace(labels=(value,)) for node in lookup.native.nodes)
    return lookup.native._replace(nodes=nodes)


@pytest.mark.parametrize(
    "verdict",
    [policies_verdict(HEAT), Verdict(np.ones(2, np.int16), (StaticReason("starting"),))],
    ids=["equal", "policies are not read yet"],
)
def test_labels_that_agree_or_cannot_be_compared(verdict: Verdict) -> None:
    assert explained(read(pod(COOL), policy("cool")), response(verdict)).label_differences == []


def test_preferred_labels_and_labels_of_deleted_policies_are_not_compared() -> None:
    verdict = policies_verdict((COOL_POLICY, [evidence("heat", "70 90")]))
    assert explained(read(pod(prefers=COOL), policy("cool")), response(verdict)).label_differences == []
    assert explained(read(pod(COOL)), response(policies_verdict(LOAD))).label_differences == []


@pytest.mark.parametrize("later", [(), (policy("calm"),)], ids=["no reason in the pod", "newer than the pod"])
def test_a_policy_whose_label_the_pod_lacks_is_named_once(
    later: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = policies_verdict(HEAT, not_enforced={CALM_POLICY: "the pod does not require its node label"})
    lines = printed(capsys, explained(read(pod(COOL), policy("cool"), later=later), response(verdict)))
    (line,) = (line for line in lines if CALM_POLICY in line)
    assert line.startswith("Warning: ") == bool(later)
    assert "selects the pod and" in line


def test_an_observing_policy_is_explained_without_labels(capsys: pytest.CaptureFixture[str]) -> None:
    """In the mode Shadow no label is written, and the pod requires none."""
    shadow = SelectingPolicy(
        COOL_POLICY, "", "", ("SteppedBack is True: more than 10 pods waited", "1 heat: 3")
    )
    state = PodState("u", "", "", "Pending", "default-scheduler", (), ())
    verdict = policies_verdict(
        (CALM_POLICY, [evidence("load", "0.1 0.1", "atLeast 0.7")]), observing={COOL_POLICY: [True, False]}
    )
    pod_explanation = explained(PodReadResult(state, policies=(shadow,)), response(verdict))
    lines = printed(capsys, pod_explanation)
    assert lines[:2] == [
        "web/shop waits: 2 of 2 nodes pass its policies now",
        f"{CONTROLLER} evaluated the policies 0s ago",
    ]
    assert f"{COOL_POLICY} only observes the pod (its mode or guard): would have rejected 1 node: a" in lines
    assert "  SteppedBack is True: more than 10 pods waited" in lines
    assert [line.split() for line in lines[-3:]] == [
        ["NODE", "VERDICT", "MEASURED", "OBSERVED", "ONLY"],
        ["a", "passes", "load", "0.1", "(2.5s", "old)", *COOL_POLICY.split()],
        ["b", "passes", "load", "0.1", "(2.5s", "old)", "-"],
    ]
    assert explanation.is_placed_natively(pod_explanation)
    document = explanation.explanation_document(pod_explanation)
    assert (document["why_none"], document["warning"]) == (None, None), "no request is necessary"


def test_a_pod_without_policies_is_not_explained_by_an_evaluation() -> None:
    state = PodState("u", "", "", "Pending", "default-scheduler", (), ())
    pod_explanation = explained(PodReadResult(state), response(None))
    assert not explanation.is_placed_natively(pod_explanation)
    assert explanation.explanation_document(pod_explanation)["why_none"]


def test_many_nodes_are_grouped_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    names = " ".join(f"n{number}" for number in range(30))
    heat = " ".join(str(60 + number) for number in range(30))
    reply = response(policies_verdict((COOL_POLICY, [evidence("heat", heat)])), nodes=names, more=70)
    pod_explanation = explained(read(pod(COOL), policy("cool")), reply)
    lines = printed(capsys, pod_explanation)
    assert (
        "70 of 100 nodes are left out: with the values of all rules, the response would be too large" in lines
    )
    assert any(line.startswith("9      placement policy web/cool rejects it  n21: heat 81") for line in lines)
    assert len(printed(capsys, pod_explanation, nodes=True)) > 32


def test_the_evaluation_of_the_leader_counts() -> None:
    old, leader = (
        response(policies_verdict(LOAD), leads=False, replica="other"),
        response(policies_verdict(HEAT)),
    )
    for responses in ((old, leader), (leader, old)):
        evaluation = native_evaluation.choose_evaluation(responses)
        assert evaluation
        assert (evaluation.replica, evaluation.leads) == (CONTROLLER, True)


def test_an_evaluation_of_another_replica_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, explained(BOTH, response(policies_verdict(HEAT, LOAD), leads=False)))
    assert f"the values are those of {CONTROLLER}, which does not lead" in lines


def test_an_evaluation_of_shards_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    leader = response(policies_verdict(HEAT, LOAD), replica="other", shards=(4, []))
    holder = response(policies_verdict(HEAT, LOAD), leads=False, shards=(4, [0, 2]))
    lines = printed(capsys, explained(BOTH, leader, holder))
    text = f"the values are those of the 2 nodes of {CONTROLLER}, which holds shard 0, 2 of 4"
    assert f"{text}; labels are those of all nodes" in lines


def test_the_document_has_the_evaluation() -> None:
    document = explanation.explanation_document(
        explained(
            read(pod(COOL), policy("cool")),
            response(policies_verdict((COOL_POLICY, [evidence("heat", "70 90")]))),
        )
    )
    evaluation = json.loads(decision_json.encode_document(document))["evaluation"]
    assert (evaluation["replica"], evaluation["asked"], evaluation["passing"]) == (CONTROLLER, 2, 1)
    assert [(node["node"], node["score"]) for node in evaluation["nodes"]] == [("a", None), ("b", None)]
    assert evaluation["changes"][0]["more"] == [{"target": 90, "nodes": 1}]
    assert evaluation["differing_labels"][0]["nodes"] == ["a", "b"]


def test_watch_sees_other_verdicts_and_not_other_values() -> None:
    def comparable(heat: str) -> object:
        verdict = policies_verdict((COOL_POLICY, [evidence("heat", heat)]))
        return explanation.comparable_answer(explained(BOTH, response(verdict)))

    assert comparable("90 50") == comparable("91 51")
    assert comparable("90 50") != comparable("90 90")


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A server with the bodies of some paths, and its URL."""
    bodies: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            body = bodies.get(address.path)
            assert dict(parse_qsl(address.query))["pod"] == "shop"
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        threading.Thread(target=http_server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{http_server.server_address[1]}", bodies
        http_server.shutdown()


def evaluation_body() -> bytes:
    filtered, scored = decisions(policies_verdict(HEAT))
    page = pod_evaluation_endpoint.encode_page(PodEvaluation(filtered, scored, 2, 1), leads=True)
    return cooperative_scheduling.run_without_pauses(page)


def decisions_body(*, is_empty: bool = False) -> bytes:
    ring = DecisionRing()
    if not is_empty:
        ring.add(decisions(policies_verdict(HEAT))[0])
    query = {"form": "arrays"}
    return cooperative_scheduling.run_without_pauses(decision_json.encode_page(ring, query))


@pytest.mark.parametrize(
    ("served", "paths", "expected"),
    [
        ((EVALUATION,), (DECISIONS, EVALUATION), EVALUATION),
        ((DECISIONS,), (DECISIONS, EVALUATION), DECISIONS),
        ((DECISIONS,), (EVALUATION, DECISIONS), DECISIONS),
        ((DECISIONS, EVALUATION), (EVALUATION, DECISIONS), EVALUATION),
        ((), (EVALUATION, DECISIONS), ""),
    ],
    ids=["controller", "extender", "extender of a pod of native mode", "both", "neither"],
)
async def test_servers_are_asked_for_the_paths_that_they_have(
    server: tuple[str, dict[str, bytes]], served: tuple[str, ...], paths: tuple[str, ...], expected: str
) -> None:
    url, bodies = server
    made = {EVALUATION: evaluation_body(), DECISIONS: decisions_body()}
    bodies.update({path: made[path] for path in served})
    (answer,) = await replica_queries.query_servers([url], paths, PodQuery("web", "shop", 5.0))
    assert bool(answer.evaluation) == (expected == EVALUATION)
    assert bool(answer.page) == (expected == DECISIONS)
    assert bool(answer.error) == (not expected)
    evaluation = native_evaluation.choose_evaluation([answer])
    assert isinstance(evaluation, Evaluation) == (expected == EVALUATION)


class NativeCluster(NamedTuple):
    """A cluster with a pod of native mode and a controller."""

    forwarding: ForwardingApi
    bodies: dict[str, bytes]
    """The responses of the controller by path."""
    kubeconfig: str

    def explain(self, *more: str) -> subprocess.CompletedProcess[str]:
        return read_only_commands.run("explain", "web/shop", self.kubeconfig, *more)


@pytest.fixture
def cluster(server: tuple[str, dict[str, bytes]], tmp_path: Path) -> Iterator[NativeCluster]:
    api = FakeApi(EVENTS, *RESOURCES.values())
    read(pod(COOL), policy("cool"), api=api)
    labels = {"app.kubernetes.io/name": "nodewise", "app.kubernetes.io/component": "controller"}
    controller = {"name": "nodewise-controller-7d9f", "namespace": "nodewise", "labels": labels}
    api.put(PODS, {"metadata": controller, "spec": {"nodeName": "a"}, "status": {"phase": "Running"}})
    forwarding = ForwardingApi(api)
    port = urlsplit(server[0]).port
    assert port
    forwarding.forward.ports = {("nodewise", controller["name"], 9002): port}
    with asgi_server_thread.serving(forwarding) as url:
        kubeconfig = f"--kubeconfig={asgi_server_thread.kubeconfig(tmp_path, url)}"
        yield NativeCluster(forwarding, server[1], kubeconfig)


@pytest.mark.parametrize("more", [(), ("--server",)], ids=["port-forward", "--server"])
def test_the_controller_evaluates_the_pod(
    cluster: NativeCluster, server: tuple[str, dict[str, bytes]], more: tuple[str, ...]
) -> None:
    cluster.bodies[EVALUATION] = evaluation_body()
    done = cluster.explain(*(f"{option}={server[0]}" for option in more))
    assert (done.returncode, done.stderr) == (0, "")
    assert "What would change it:" in done.stdout
    assert "heat 90 (2.5s old)" in done.stdout


def test_a_controller_of_an_older_version_is_named_and_the_labels_are_shown(cluster: NativeCluster) -> None:
    done = cluster.explain()
    assert done.returncode == 0
    assert f"{CONTROLLER} is left out: HTTP status 404: it has no /evaluation" in done.stderr
    assert "placed by native mode: 1 of 2 nodes have the labels that it requires" in done.stdout
    assert "nodewise decide --cluster --namespace web" in done.stdout


def test_without_the_right_to_forward_ports_the_labels_and_the_missing_right_are_shown(
    cluster: NativeCluster,
) -> None:
    cluster.bodies[EVALUATION] = evaluation_body()
    cluster.forwarding.forward.refusals["nodewise-controller-7d9f"] = 403
    done = cluster.explain()
    assert "placed by native mode: 1 of 2 nodes have the labels that it requires" in done.stdout
    assert "to get and create pods/portforward" in done.stdout
    assert "heat 90" not in done.stdout


def test_a_cluster_without_a_controller_is_reported_and_the_labels_are_shown(cluster: NativeCluster) -> None:
    path = PODS.path("nodewise", "nodewise-controller-7d9f")
    asyncio.run(cluster.forwarding.objects.delete(path, b""))
    done = cluster.explain()
    assert done.returncode == 0
    assert "the values behind the labels are not known: " in done.stderr
    assert "no running pod of nodewise in namespace nodewise" in done.stderr


@pytest.mark.parametrize("app", ["web", "other"])
def test_controllers_beside_an_extender_of_other_agents_evaluate_policies_without_labels(
    cluster: NativeCluster, server: tuple[str, dict[str, bytes]], app: str
) -> None:
    """No node label shows that the cluster is in native mode."""
    api, forward = cluster.forwarding.objects, cluster.forwarding.forward
    shadow = policy("cool")
    shadow["spec"] |= {"mode": "Shadow", "podSelector": {"matchLabels": {"app": app}}}
    api.put(RESOURCES["PlacementPolicy"], shadow)
    api.put(PODS, pod())
    labels = {"app.kubernetes.io/name": "nodewise", "app.kubernetes.io/component": "extender"}
    extender = {"name": "nodewise-5c4d", "namespace": "nodewise", "labels": labels}
    api.put(PODS, {"metadata": extender, "spec": {"nodeName": "a"}, "status": {"phase": "Running"}})
    forward.ports["nodewise", "nodewise-5c4d", 9001] = forward.ports["nodewise", "nodewise-5c4d", 9002] = (
        urlsplit(server[0]).port or 0
    )
    cluster.bodies.update({EVALUATION: evaluation_body(), DECISIONS: decisions_body(is_empty=True)})
    done = cluster.explain()
    assert done.stderr == ""
    assert (f"{CONTROLLER} evaluated the policies" in done.stdout) == (app == "web")
    assert ("none has a decision" in done.stdout) == (app == "other")
