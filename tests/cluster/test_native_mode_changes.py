"""Changes while pods wait in native mode: edits and deletion of policies, recreated nodes, and labels of many nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import extender_process, kubernetes_objects, namespace_sandboxes, native_mode
from tests.cluster.api_client import MERGE, Object, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

OPTIONS = ("--native-mode", "--namespace=nodewise")
WEB = {"app": "web"}
NODES = "a b c d e"


def avoid(metric: str = "heat", above: int = 80, **more: str) -> list[Object]:
    return [{"metric": metric, "above": above, **more}]


class WaitingPods:
    """A namespace with one policy of native mode, whose pods wait."""

    def __init__(self, sandbox: Sandbox, metrics: FakeCustomMetricsApi, rules: list[Object]) -> None:
        self._sandbox = sandbox
        self._metrics = metrics
        self._values = dict.fromkeys(NODES.split(), 90)
        sandbox.nodes(*kubernetes_objects.nodes(NODES))
        self.set_heat()
        made = sandbox.put(policy({"podSelector": {"matchLabels": WEB}, "avoid": rules}, name="cool"))
        self.path, self.uid = path_of(made), made["metadata"]["uid"]
        native_mode.wait_gated(sandbox, WEB)
        self.wait_labels(**violating())

    def set_heat(self, **values: int | None) -> None:
        """Changes the values of some nodes; None removes a value."""
        self._values |= values
        self._metrics.set("heat", {node: value for node, value in self._values.items() if value is not None})

    def edit(self, rules: list[Object]) -> None:
        """Edits the policy, and waits until it is evaluated, since the labels may be the same as before."""
        api = self._sandbox.api
        generation = api.patch(self.path, {"spec": {"avoid": rules}}, MERGE)["metadata"]["generation"]

        def status() -> Object:
            status: Object = api.get(self.path).get("status", {})
            return status

        wait(
            "the edit is evaluated",
            lambda: status().get("observedGeneration") == generation or None,
            show=status,
        )

    def create(self, pod: str) -> None:
        """Creates a pod, and waits until kube-scheduler has found no node for it."""
        self._sandbox.pods(kubernetes_objects.pod(pod, labels=WEB))
        wait(f"{pod} is rejected", lambda: self._is_rejected(pod) or None)

    def _is_rejected(self, pod: str) -> bool:
        """Whether kube-scheduler has found no node for a pod; a gated pod has another reason."""
        condition = namespace_sandboxes.scheduled(self._sandbox.pod(pod)) or {}
        return condition.get("reason") == "Unschedulable"

    def wait_labels(self, **expected: str) -> None:
        """Waits until exactly these nodes have these labels."""

        def labels() -> dict[str, str]:
            nodes = self._sandbox.api.get("/api/v1/nodes")["items"]
            values = {
                node["metadata"]["name"]: native_mode.labels_of(node).get(self.uid, "") for node in nodes
            }
            return {node: value for node, value in values.items() if value}

        wait(f"the labels are {expected}", lambda: labels() == expected or None, show=labels)


@pytest.fixture
def running(plane: ControlPlane, native_account: User, tmp_path: Path) -> Iterator[None]:
    """A kube-scheduler and a controller."""
    with plane.start_scheduler({}), extender_process.controller(native_account, tmp_path, *OPTIONS):
        yield


def violating(nodes: str = NODES) -> dict[str, str]:
    return dict.fromkeys(nodes.split(), "violating")


@pytest.mark.usefixtures("native_account", "running")
def test_an_edit_applies_to_waiting_pods(sandbox: Sandbox, metrics: FakeCustomMetricsApi) -> None:
    pods = WaitingPods(sandbox, metrics, avoid())
    pods.create("web")
    pods.edit(avoid(above=95))
    pods.wait_labels()
    assert sandbox.expect_bound("web") in NODES
    # a pod that was created when the policy rejected missing values
    pods.edit(avoid(whenMissing="Reject"))
    pods.wait_labels(**violating())
    pods.create("strict")
    pods.set_heat(c=None)
    pods.edit(avoid())
    assert sandbox.expect_bound("strict") == "c"  # c is "ok" while the pod waits
    # a pod that was created when the policy allowed them
    pods.set_heat(c=90)
    pods.wait_labels(**violating())
    pods.create("lenient")
    pods.edit(avoid(whenMissing="Reject"))
    pods.set_heat(d=None)
    pods.wait_labels(**violating())
    sandbox.expect_stays_unbound("lenient", 1)
    pods.edit(avoid())
    pods.wait_labels(**violating("a b c e"))
    assert sandbox.expect_bound("lenient") == "d"


@pytest.mark.usefixtures("native_account", "running")
def test_a_deleted_policy_holds_for_waiting_pods_and_not_for_new_ones(
    sandbox: Sandbox, metrics: FakeCustomMetricsApi
) -> None:
    pods = WaitingPods(sandbox, metrics, avoid())
    pods.create("waiting")
    sandbox.api.delete(pods.path)

    def is_bound() -> str | None:
        sandbox.pods(kubernetes_objects.pod("probe", labels=WEB))
        made = sandbox.pod("probe") or {}
        if native_mode.requires(made, pods.uid):  # the API server does not know of the deletion yet
            sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/probe")
            return None
        return sandbox.expect_bound("probe")

    wait("new pods are bound", is_bound)
    sandbox.expect_stays_unbound("waiting", 1)
    pods.wait_labels(**violating())
    sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/waiting")
    pods.wait_labels()


@pytest.mark.usefixtures("native_account", "running")
def test_a_recreated_node_takes_pods_according_to_its_own_label(
    sandbox: Sandbox, metrics: FakeCustomMetricsApi
) -> None:
    pods = WaitingPods(sandbox, metrics, avoid(whenMissing="Reject"))
    pods.create("web")
    for _ in range(3):
        sandbox.api.delete("/api/v1/nodes/a")
        sandbox.nodes(kubernetes_objects.node("a"))
        pods.wait_labels(**violating())
    assert namespace_sandboxes.node_of(sandbox.pod("web")) is None
    sandbox.api.delete("/api/v1/nodes/a")
    pods.set_heat(a=20)
    sandbox.nodes(kubernetes_objects.node("a"))
    pods.wait_labels(**violating("b c d e"), a="ok")
    assert sandbox.expect_bound("web") == "a"


@pytest.mark.usefixtures("native_account", "running")
def test_labels_of_others_do_not_stay(sandbox: Sandbox, metrics: FakeCustomMetricsApi) -> None:
    pods = WaitingPods(sandbox, metrics, avoid())
    pods.set_heat(b=20)
    pods.wait_labels(**violating("a c d e"))
    for node, value in (("a", "ok"), ("b", "violating"), ("b", "ok")):
        labels = {native_mode.LABEL_PREFIX + pods.uid: value}
        sandbox.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})
        pods.wait_labels(**violating("a c d e"))
