"""`nodewise doctor` in native mode, with a controller in the cluster and one outside of it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import (
    extender_process,
    healthy_cluster,
    kubernetes_objects,
    native_mode,
    read_only_commands,
)
from tests.cluster.api_client import ClusterApi, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import HOT, policy

WEB = {"app": "web"}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/nodewise/leases"


class NativeCluster:
    """Three nodes with a policy that rejects one, and a pod that the policy selects."""

    def __init__(
        self, plane: ControlPlane, account: User, sandbox: Sandbox, metrics: FakeCustomMetricsApi
    ) -> None:
        self.plane, self.account, self.sandbox, self.metrics = plane, account, sandbox, metrics
        sandbox.nodes(*kubernetes_objects.nodes("a b c"))
        metrics.set("temp", {"a": 90, "b": 50, "c": 50})
        self.policy = path_of(
            sandbox.put(policy({"podSelector": {"matchLabels": WEB}, "avoid": [HOT]}, name="cool"))
        )

    @contextlib.contextmanager
    def controller(self, folder: Path, *more: str, active: bool = True) -> Iterator[None]:
        """A controller outside of the cluster that leads and has written the status of the policy."""
        with extender_process.controller(self.account, folder, "--namespace=nodewise", *more):
            wait("the policy has a status", lambda: self._is_active() is active or None, show=self._is_active)
            yield
        self.plane.api.delete(f"{LEASES}/nodewise-controller")

    def _is_active(self) -> bool | None:
        status = self.plane.api.get(self.policy).get("status", {})
        return status.get("active", False) if status.get("conditions") else None

    def pod(self) -> None:
        self.sandbox.pods(kubernetes_objects.pod("web-0", labels=WEB))

    def findings(self) -> dict[str, Any]:
        """The findings of doctor by id, without notes. The shared control plane has no NodeRestriction."""
        done = read_only_commands.run(
            "doctor",
            f"--kubeconfig={self.plane.admin.kubeconfig}",
            "--skip=verdict-labels-writable",
            "-o",
            "json",
        )
        report = read_only_commands.parse_report(done, done.returncode)
        assert {item["id"] for item in report["not_checked"]}.isdisjoint(report["checked"])
        return {finding["id"]: finding for finding in report["findings"] if finding["severity"] != "note"}


@pytest.fixture
def cluster(
    plane: ControlPlane, native_account: User, sandbox: Sandbox, metrics: FakeCustomMetricsApi
) -> NativeCluster:
    for document in extender_process.manifest("trust.yaml"):
        plane.api.ensure(document)
    return NativeCluster(plane, native_account, sandbox, metrics)


def test_a_sound_controller_outside_of_the_cluster_has_no_findings(
    cluster: NativeCluster, tmp_path: Path
) -> None:
    with cluster.controller(tmp_path):
        cluster.pod()
        assert cluster.findings() == {}


@contextlib.contextmanager
def deployed(api: ClusterApi, *, flag: bool = True) -> Iterator[None]:
    """The shipped Deployment of the controller, or one without the flag --native-mode."""
    deployment: Any = next(
        item for item in extender_process.manifest("controller.yaml") if item["kind"] == "Deployment"
    )
    for container in deployment["spec"]["template"]["spec"]["containers"] if not flag else ():
        container["command"] = [word for word in container["command"] if word != "--native-mode"]
    healthy_cluster.put_deployment(api, deployment)
    try:
        yield
    finally:
        api.delete(path_of(deployment))


def test_a_sound_controller_in_the_cluster_has_no_findings(cluster: NativeCluster, tmp_path: Path) -> None:
    with deployed(cluster.plane.api), cluster.controller(tmp_path):
        cluster.pod()
        assert cluster.findings() == {}


def test_a_controller_with_native_mode_off_is_found(cluster: NativeCluster, tmp_path: Path) -> None:
    with cluster.controller(tmp_path, "--no-native-mode", active=False):
        cluster.pod()
        # the leader says so in its Lease with the next renewal
        finding = wait("it is found", lambda: cluster.findings().get("native-mode-off"))
    assert finding["object"] == "Lease/nodewise/nodewise-controller"
    assert "--no-native-mode" in finding["remedy"]


def test_an_older_controller_without_native_mode_is_found(cluster: NativeCluster) -> None:
    api = cluster.plane.api
    api.create(older_lease())
    try:
        with deployed(api, flag=False):
            finding = cluster.findings()["native-mode-off"]
        with deployed(api):
            assert "native-mode-off" not in cluster.findings()
    finally:
        api.delete(f"{LEASES}/nodewise-controller")
    assert finding["command"].startswith(
        "kubectl set env deployment/nodewise-controller --namespace=nodewise "
    )


def older_lease() -> Any:
    """The Lease of a leader that does not say whether it is in native mode."""
    metadata = {"name": "nodewise-controller", "namespace": native_mode.NAMESPACE}
    spec = {"holderIdentity": "a", "renewTime": "2100-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
