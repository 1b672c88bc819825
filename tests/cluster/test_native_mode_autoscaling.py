"""The real Karpenter beside native mode: for which pods that policies reject everywhere it creates nodes.

The nodes have no machines; the test reports them as ready. kube-scheduler and the controller are real.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import extender_process, karpenter_process, kubernetes_objects, native_mode
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

pytestmark = pytest.mark.root

OPTIONS = ("--native-mode", "--namespace=nodewise")


@pytest.fixture
def karpenter(plane: ControlPlane, sandbox: Sandbox, karpenter_folder: Path) -> Iterator[Process]:
    """Karpenter with a pool of nodes."""
    with karpenter_process.running(plane, karpenter_folder) as process, karpenter_process.pool(sandbox):
        yield process


def create_policy(sandbox: Sandbox, app: str, **more: str) -> str:
    """Creates a policy for pods with this label, waits until it applies to new pods, and returns its uid."""
    rule = {"metric": "heat", "above": 80} | more
    made = sandbox.put(policy({"podSelector": {"matchLabels": {"app": app}}, "avoid": [rule]}, name=app))
    native_mode.wait_gated(sandbox, {"app": app})
    return str(made["metadata"]["uid"])


def labels_of(sandbox: Sandbox, node: str) -> dict[str, str]:
    return native_mode.labels_of(sandbox.api.get(f"/api/v1/nodes/{node}"))


def unknown_labels(sandbox: Sandbox, pod: str) -> list[str]:
    """The events in which Karpenter says that no new node would have a label."""
    return [message for message in sandbox.events(pod) if "does not have known values" in message]


def new_node(sandbox: Sandbox, karpenter: Process) -> str:
    """Waits for a node that Karpenter creates, and returns its name."""

    def find() -> str | None:
        nodes = sandbox.api.get("/api/v1/nodes", labelSelector="karpenter.sh/nodepool")["items"]
        return nodes[0]["metadata"]["name"] if nodes else None

    return wait("Karpenter creates a node", find, show=karpenter.tail)


def report_ready(sandbox: Sandbox, node: str) -> None:
    """Does the work of the kubelet and of the node lifecycle controller."""
    path = f"/api/v1/nodes/{node}"
    ready = {"type": "Ready", "status": "True", "reason": "Test"}
    sandbox.api.patch(f"{path}/status", {"status": {"conditions": [ready]}})
    sandbox.api.patch(path, {"spec": {"taints": None}})


def test_karpenter_creates_nodes_for_pods_whose_policy_allows_missing_values(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    native_account: User,
    karpenter: Process,
    tmp_path: Path,
) -> None:
    sandbox.nodes(*map(kubernetes_objects.node, "ab"))
    metrics.set("heat", {"a": 90, "b": 90})
    lenient, strict = create_policy(sandbox, "web"), create_policy(sandbox, "db", whenMissing="Reject")
    with plane.start_scheduler({}), extender_process.controller(native_account, tmp_path, *OPTIONS):
        for app in ("db", "web"):
            sandbox.pods(kubernetes_objects.pod(app, labels={"app": app}))
        node = new_node(sandbox, karpenter)
        report_ready(sandbox, node)
        assert sandbox.expect_bound("web") == node
        (claim,) = sandbox.api.get(karpenter_process.CLAIMS)["items"]
        # Karpenter chooses a value that the pod accepts, and nodewise removes it
        assert claim["metadata"]["labels"][native_mode.LABEL_PREFIX + lenient] not in {"ok", "violating"}
        wait(
            "only the policy that rejects missing values has a label",
            lambda: labels_of(sandbox, node) == {strict: "violating"} or None,
            show=lambda: labels_of(sandbox, node),
        )
        messages = wait("Karpenter names the missing label", lambda: unknown_labels(sandbox, "db") or None)
        assert all(native_mode.LABEL_PREFIX + strict in message for message in messages)
        sandbox.expect_stays_unbound("db", 1)
        assert len(sandbox.api.get(karpenter_process.CLAIMS)["items"]) == 1
