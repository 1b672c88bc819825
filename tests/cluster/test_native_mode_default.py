"""`nodewise controller` without `--native-mode` follows the admission policies of native mode in the cluster."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import extender_process, kubernetes_objects, native_mode
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import HOT, policy

WEB = {"app": "web"}
LEASE = "/apis/coordination.k8s.io/v1/namespaces/nodewise/leases/nodewise-controller"


class Cluster:
    """Two nodes, one of which a policy rejects, and what a controller does with them."""

    def __init__(self, sandbox: Sandbox, metrics: FakeCustomMetricsApi) -> None:
        self.sandbox, self.api = sandbox, sandbox.api
        sandbox.nodes(*kubernetes_objects.nodes("a b"))
        metrics.set("temp", {"a": 90, "b": 50})
        made = sandbox.put(policy({"podSelector": {"matchLabels": WEB}, "avoid": [HOT]}, name="cool"))
        self.path, self.uid = path_of(made), str(made["metadata"]["uid"])

    def status(self) -> Any:
        return self.api.get(self.path).get("status", {})

    def labels(self) -> list[str]:
        """The value of the policy's label on both nodes; empty without the label."""
        nodes = (self.api.get(f"/api/v1/nodes/{name}") for name in "ab")
        return [native_mode.labels_of(node).get(self.uid, "") for node in nodes]

    def wait_status(self, *, active: bool) -> None:
        wait(
            f"active is {active}",
            lambda: self.status().get("active", False) is active or None,
            show=self.status,
        )

    def covers_new_pods(self) -> bool | None:
        path = f"/api/v1/namespaces/{self.sandbox.namespace}/pods"
        probe = kubernetes_objects.pod("probe", labels=WEB)
        admitted = self.api.request("POST", path, json=probe, params=DRY_RUN).json()
        return native_mode.requires(admitted, self.uid) or None

    def wait_lease(self, native: str) -> None:
        def annotation() -> Any:
            return self.api.get(LEASE)["metadata"].get("annotations", {}).get("nodewise.io/native-mode")

        wait(f"the Lease says {native}", lambda: annotation() == native or None, show=annotation)


@pytest.fixture
def cluster(native_account: User, sandbox: Sandbox, metrics: FakeCustomMetricsApi) -> Cluster:
    del native_account  # the definitions and rights
    native_mode.uninstall(sandbox.api)
    return Cluster(sandbox, metrics)


@contextlib.contextmanager
def controller(account: User, folder: Path, *more: str) -> Iterator[Process]:
    with extender_process.controller(account, folder, "--namespace=nodewise", *more) as process:
        yield process


def events(process: Process, name: str) -> list[Any]:
    lines = (line for line in process.log.read_text().splitlines() if line.startswith("{"))
    return [event for event in map(json.loads, lines) if event["event"] == name]


def test_native_mode_begins_and_ends_with_its_admission_policies(
    plane: ControlPlane, native_account: User, cluster: Cluster, tmp_path: Path
) -> None:
    sandbox = cluster.sandbox
    with controller(native_account, tmp_path) as process, plane.start_scheduler({}):
        wait("the policy has a status", lambda: cluster.status().get("rejectedNodes"))
        cluster.wait_lease("off")
        assert cluster.labels() == ["", ""]
        native_mode.install(cluster.api)
        wait("new pods require the label", cluster.covers_new_pods)
        sandbox.pods(kubernetes_objects.pod("placed", labels=WEB))
        assert sandbox.expect_bound("placed") == "b"
        cluster.wait_status(active=True)
        cluster.wait_lease("on")
        assert cluster.labels() == ["violating", ""]
        # a pod that waits when native mode is removed keeps its labels, and others lose theirs
        cluster.api.patch("/api/v1/nodes/b", {"spec": {"unschedulable": True}})
        sandbox.pods(kubernetes_objects.pod("waits", labels=WEB))
        sandbox.expect_rejected("waits")
        native_mode.uninstall(cluster.api)
        cluster.wait_lease("off")
        assert cluster.labels() == ["violating", ""]
        cluster.api.patch("/api/v1/nodes/b", {"spec": {"unschedulable": False}})
        assert sandbox.expect_bound("waits") == "b"
        wait("no node has a label", lambda: cluster.labels() == ["", ""] or None, show=cluster.labels)
        cluster.wait_status(active=False)
        assert [event["native_mode"] for event in events(process, "native_mode_changed")] == ["on", "off"]


def test_a_controller_without_native_mode_reports_the_pods_that_nothing_releases(
    native_account: User, cluster: Cluster, tmp_path: Path
) -> None:
    native_mode.install(cluster.api)
    with controller(native_account, tmp_path, "--no-native-mode") as process:

        def ready() -> Any:
            conditions = {part["type"]: part for part in cluster.status().get("conditions", ())}
            return conditions.get("Ready", {})

        wait("it is not ready", lambda: ready().get("reason") == "PodsGated" or None, show=cluster.status)
        assert "a scheduling gate that nothing removes: native mode is off" in ready()["message"]
        cluster.wait_lease("off")
        [event] = events(process, "native_mode_off")
        assert (event["level"], event["policies"]) == ("error", 1)
        native_mode.uninstall(cluster.api)
        wait("it is ready", lambda: ready().get("status") == "True" or None, show=cluster.status)
