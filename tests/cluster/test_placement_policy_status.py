"""The status of PlacementPolicies and ClusterPlacementPolicies that a running extender writes, as kubectl shows it."""

import re
from pathlib import Path
from typing import Any

from tests.cluster import extender_process, kubernetes_objects
from tests.cluster.api_client import Object
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

    with extender_process.extender(plane, tmp_path):
        wait("the pods are counted", lambda: status("cool").get("selectedPods"), show=lambda: status("cool"))
        together = f"placement policy {space}/cool, cluster placement policy {space} reject every node"
        wait("both are named", lambda: together in condition("cool", "AllNodesRejected")["message"] or None)

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
        assert re.split(" {2,}", head.strip()) == ["NAME", "MODE", "PODS", "NODES REJECTED", "METRICS", "AGE"]
        wait(
            "pods are counted",
            lambda: plane.kubectl("get", "cplp", space).split()[9:11] == ["3", "2"] or None,
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
