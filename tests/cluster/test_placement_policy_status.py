"""The status of PlacementPolicies and ClusterPlacementPolicies that a running extender writes, as kubectl shows it."""

import re
from pathlib import Path
from typing import Any

from tests.cluster import extender_process, kubernetes_objects
from tests.cluster.api_client import Object, path_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import GROUP, policy

HOT = {"metric": "heat", "above": 80}
COLD = {"metric": "heat", "below": 50}


def selecting(app: str) -> Object:
    return {"podSelector": {"matchLabels": {"app": app}}, "avoid": [HOT]}


def test_counts_conditions_columns_and_events(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    extender_process.define(plane.api)
    space = sandbox.namespace
    sandbox.nodes(*kubernetes_objects.nodes("a b c"))
    metrics.set("heat", {"a": 90, "b": 10, "c": 10})
    for name, app in (("cool", "web"), ("typo", "wbe")):
        sandbox.put(policy(selecting(app), name=name))
    by_name = {"matchLabels": {"kubernetes.io/metadata.name": space}}
    wide = {"namespaceSelector": by_name, "podSelector": {}, "avoid": [COLD]}
    sandbox.create(policy(wide, "ClusterPlacementPolicy", space))
    sandbox.pods(*(kubernetes_objects.pod(f"web-{number}", labels={"app": "web"}) for number in (1, 2)))
    sandbox.pods(kubernetes_objects.pod("other"))

    def status(name: str) -> Any:
        return plane.api.get(f"/apis/{GROUP}/namespaces/{space}/placementpolicies/{name}").get("status", {})

    def condition(name: str, kind: str) -> Any:
        conditions = {part["type"]: part for part in status(name).get("conditions", ())}
        return conditions.get(kind, {"status": "", "message": ""})

    with extender_process.extender(plane, tmp_path) as extender:
        wait("the pods are counted", lambda: status("cool").get("selectedPods"), show=lambda: status("cool"))
        together = f"placement policy {space}/cool, cluster placement policy {space} reject every node"
        wait("both are named", lambda: together in condition("cool", "AllNodesRejected")["message"] or None)

        def without_nodes() -> float | None:
            return extender_process.gauge(extender.process, "policies_without_nodes")

        wait("both are counted for the alert", lambda: without_nodes() == 2 or None, show=without_nodes)

        def table() -> list[str]:
            lines: list[str] = plane.kubectl("get", "plp", "-n", space).splitlines()
            return lines

        expected = [["cool", "Enforce", "2", "1", "True"], ["typo", "Enforce", "0", "1", "True"]]
        wait(
            "both rows are complete",
            lambda: [row.split()[:5] for row in table()[1:]] == expected or None,
            show=table,
        )
        head = table()[0]
        columns = ["NAME", "MODE", "PODS", "NODES REJECTED", "METRICS", "READY", "AGE", "MESSAGE"]
        assert re.split(" {2,}", head.strip()) == columns
        wait(
            "pods are counted",
            lambda: plane.kubectl("get", "cplp", space).splitlines()[1].split()[2:4] == ["3", "2"] or None,
        )
        assert status("cool")["rules"] == [
            {"rule": "avoid[0]", "expression": "heat above 80", "nodes": 1, "missing": 0}
        ]
        assert (status("cool")["observedGeneration"], condition("cool", "Ready")["status"]) == (1, "True")
        wait("typo has no pods", lambda: condition("typo", "NoPodsSelected")["status"] == "True" or None)
        wait("the event is recorded", lambda: "NoPods" in plane.kubectl("events", "-n", space) or None)
        for number in (1, 2):
            plane.api.delete(f"/api/v1/namespaces/{space}/pods/web-{number}")
        wait("no pod is left", lambda: condition("cool", "NoPodsSelected")["status"] == "True" or None)
        wait(
            "no pod has every node rejected",
            lambda: condition("cool", "AllNodesRejected")["status"] == "False" or None,
        )
        assert without_nodes() == 0


def test_a_restart_continues_with_the_states_in_the_status(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    extender_process.define(plane.api)
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    sandbox.put(policy({"podSelector": {}, "avoid": [HOT | {"release": 40}]}, name="held"))
    path = f"/apis/{GROUP}/namespaces/{sandbox.namespace}/placementpolicies/held"

    def counts(status: Any) -> Any:
        """How many nodes the policy rejects, and how many are above the threshold."""
        return status.get("rejectedNodes"), [rule["nodes"] for rule in status.get("rules", ())]

    states = []
    for heat, expected in ((90, (1, [1])), (50, (1, [0]))):
        metrics.set("heat", {"a": heat, "b": 50})
        with extender_process.extender(plane, tmp_path):
            wait(
                f"a has the heat {heat}",
                lambda expected=expected: counts(plane.api.get(path).get("status", {})) == expected or None,
                show=lambda: plane.api.get(path),
            )
        states.append(plane.api.get(path)["status"]["rules"][0]["nodeStates"])
    assert states[0] == states[1]
    assert [(group["state"], group["nodes"]) for group in states[0]] == [("Rejected", ["a"])]


def conditions_of(policy_object: Object) -> dict[str, Any]:
    """The conditions of a policy, by type."""
    return {part["type"]: part for part in policy_object.get("status", {}).get("conditions", ())}


def wait_condition(plane: ControlPlane, path: str, kind: str, status: str) -> Any:
    """Waits until a policy has a condition with this status, and returns the condition."""

    def see() -> Any:
        condition = conditions_of(plane.api.get(path)).get(kind, {})
        return condition if condition.get("status") == status else None

    return wait(f"{kind} is {status}", see, show=lambda: plane.api.get(path))


def test_a_rule_that_rejects_nodes_again_and_again_flaps_until_it_has_the_suggested_for(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """The second and third rejection of five nodes are the ten from which the condition is true."""
    extender_process.define(plane.api)
    nodes = "abcde"
    sandbox.nodes(*kubernetes_objects.nodes(" ".join(nodes)))
    metrics.set("heat", dict.fromkeys(nodes, 10))
    path = path_of(sandbox.put(policy({"podSelector": {}, "avoid": [HOT]})))
    with extender_process.extender(plane, tmp_path) as running:

        def wait_rejected(rejected: set[str]) -> None:
            def see() -> bool | None:
                return {
                    node for node in nodes if running.rejects(sandbox.namespace, node, labels={"app": "web"})
                } == rejected or None

            wait(f"the rejected nodes are {rejected}", see)

        wait_rejected(set())
        for _ in range(3):
            metrics.set("heat", dict.fromkeys(nodes, 90))
            wait_rejected({*nodes})
            metrics.set("heat", dict.fromkeys(nodes, 10))
            wait_rejected(set())
        flapping = wait_condition(plane, path, "Flapping", "True")
        assert flapping["reason"] == "NodesFlap"
        text = (
            "avoid[0] rejected nodes again at least 10 times in the last hour (a, b, c, d, e); consider for: "
        )
        assert flapping["message"].startswith(text)
        wait(
            "the event is recorded",
            lambda: "NodesFlap" in plane.kubectl("events", "-n", sandbox.namespace) or None,
        )
        suggested = flapping["message"].removeprefix(text)
        plane.api.patch(path, {"spec": {"avoid": [HOT | {"for": suggested}]}})
        wait_condition(plane, path, "Flapping", "False")


def test_nodes_that_pass_for_lack_of_a_value_are_named_in_a_condition(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    extender_process.define(plane.api)
    sandbox.nodes(*kubernetes_objects.nodes("fan-1 fan-2 shelf.rack.example.org"))
    metrics.set("heat", {"fan-1": 90, "fan-2": 10, "shelf": 95})
    path = path_of(sandbox.put(policy({"podSelector": {}, "avoid": [HOT]})))
    with extender_process.extender(plane, tmp_path):
        condition = wait_condition(plane, path, "NodesWithoutValues", "True")
        assert condition["reason"] == "NoValueOnNodes"
        assert condition["message"] == (
            'no series of heat on 1 node: shelf.rack.example.org; closest names in series of no node: "shelf" for'
            " shelf.rack.example.org; a node without a value passes these rules, unless whenMissing is Reject"
        )
        metrics.set("heat", {"fan-1": 90, "fan-2": 10, "shelf.rack.example.org": 95})
        wait_condition(plane, path, "NodesWithoutValues", "False")


def test_node_labels_of_another_owner_are_a_conflict_until_they_are_removed(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    extender_process.define(plane.api)
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    metrics.set("heat", {"a": 90, "b": 10})
    key = "heat.nodewise.io/state"
    first, second = (
        path_of(sandbox.create(policy({"nodeLabels": [rule]}, "ClusterPlacementPolicy", name)))
        for name, rule in (
            (f"{sandbox.namespace}-1", HOT | {"labels": {key: "hot"}}),
            (f"{sandbox.namespace}-2", HOT | {"labels": {key: "warm"}}),
        )
    )

    def set_label(value: str | None) -> None:
        plane.api.patch("/api/v1/nodes/a", {"metadata": {"labels": {key: value}}})

    def wait_label(value: str) -> None:
        def see() -> bool | None:
            return plane.api.get("/api/v1/nodes/a")["metadata"]["labels"].get(key) == value or None

        wait(f"a has the label {value}", see)

    set_label("mine")
    with extender_process.extender(plane, tmp_path):
        conflict = wait_condition(plane, first, "LabelConflict", "True")
        assert (conflict["reason"], conflict["message"]) == (
            "OwnedElsewhere",
            "another manager owns a label with that key on node a; it is not changed",
        )
        wait_label("mine")
        set_label(None)
        wait_label("hot")
        wait_condition(plane, first, "LabelConflict", "False")
        conflict = wait_condition(plane, second, "LabelConflict", "True")
        assert f"{sandbox.namespace}-1" in conflict["message"]
        plane.api.delete(first)
        wait_label("warm")
        wait_condition(plane, second, "LabelConflict", "False")
