"""A pod that names the node labels of other tenants' policies learns nothing about them, and causes no labels."""

from pathlib import Path
from typing import Final

from tests.cluster import extender_process, kubernetes_objects, namespace_sandboxes, native_mode
from tests.cluster.api_client import MERGE
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

OWN_GATE: Final = "example.com/wait"
AVOID: Final = [{"metric": "heat", "above": 80}]


def test_pod_with_keys_of_other_policies_gets_a_neutral_event_and_causes_no_labels(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, native_account: User, tmp_path: Path
) -> None:
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    metrics.set("heat", {"a": 90, "b": 10})
    secret = sandbox.put(policy({"podSelector": {}, "avoid": AVOID}, name="secret"))
    # it selects no pod of the other tenant
    by_label = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "fenced"}}, "avoid": AVOID}
    wide = sandbox.create(policy(by_label, "ClusterPlacementPolicy", f"{sandbox.namespace}-wide"))
    keys = [native_mode.LABEL_PREFIX + obj["metadata"]["uid"] for obj in (secret, wide)]
    scheduler = plane.start_scheduler({})
    try:
        with (
            namespace_sandboxes.created(plane) as other,
            extender_process.controller(native_account, tmp_path, "--native-mode", "--namespace=nodewise"),
        ):
            pod = kubernetes_objects.pod("curious")
            other.pods(pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": OWN_GATE}]}})
            path = f"/api/v1/namespaces/{other.namespace}/pods/curious"
            # keys are removed from new pods, but a pod with gates may be restricted further
            plane.api.patch(path, {"spec": {"nodeSelector": dict.fromkeys(keys, "ok")}}, MERGE)
            plane.api.patch(path, {"spec": {"schedulingGates": None}}, MERGE)
            note = wait("an event", lambda: _note(other) or None)
            for key in keys:
                wait("the label", lambda key=key: _values(plane, key) == ["violating", None] or None)  # type: ignore[misc]
    finally:
        scheduler.stop()
    assert note == (
        "the pod requires node labels of policies that are not its own; create it again to remove the requirement:"
        f" nodewise explain {other.namespace}/curious shows each node"
    )
    assert [_values(plane, key) for key in keys] == [["violating", None]] * 2


def _note(sandbox: Sandbox) -> str:
    """The note of the controller's event on the pod; empty if there is none yet."""
    events = sandbox.api.get(f"/apis/events.k8s.io/v1/namespaces/{sandbox.namespace}/events")["items"]
    return next((str(event["note"]) for event in events if event["reason"] == "NoNodePasses"), "")


def _values(plane: ControlPlane, key: str) -> list[str | None]:
    """The values of a label on both nodes."""
    return [plane.api.get(f"/api/v1/nodes/{name}")["metadata"].get("labels", {}).get(key) for name in "ab"]
