"""A cluster changes from the extender to native mode and back while pods run and wait (docs/native.md)."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import (
    admission_policy_waits,
    extender_process,
    kubernetes_objects,
    native_mode,
    read_only_commands,
)
from tests.cluster.api_client import ClusterApi, Object, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import LIMITS, ExtenderProcess
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import HOT, policy

WEB = {"app": "web"}
POLICY = policy({"podSelector": {"matchLabels": WEB}, "avoid": [HOT]}, name="cool")
NATIVE = "--native-mode"
OWN_NAMESPACE = f"--namespace={native_mode.NAMESPACE}"


def account_of_extender(plane: ControlPlane) -> User:
    """The shipped account and its rights, without those of native mode."""
    for document in extender_process.manifest("rbac.yaml"):
        plane.api.ensure(document)
    return plane.service_account("nodewise", native_mode.NAMESPACE)


class SwitchedCluster:
    """A namespace with one policy, and the programs of each step."""

    def __init__(self, sandbox: Sandbox, metrics: FakeCustomMetricsApi, account: User, folder: Path) -> None:
        self._sandbox, self._metrics, self._account, self._folder = sandbox, metrics, account, folder
        sandbox.nodes(*kubernetes_objects.nodes("a b"))
        metrics.set("temp", {"a": 90, "b": 50})
        made = sandbox.put(POLICY)
        self._label = native_mode.LABEL_PREFIX + str(made["metadata"]["uid"])
        self._extender: ExtenderProcess | None = None
        self._is_native = False

    def set_temperature(self, b: int) -> None:
        """Sets the metric of the node b, and waits until it has an effect. The policy always rejects the node a."""
        self._metrics.set("temp", {"a": 90, "b": b})
        is_hot = b > 80

        def is_effective() -> bool | None:
            labels = self._sandbox.api.get("/api/v1/nodes/b")["metadata"]["labels"]
            if self._is_native and (self._label in labels) is not is_hot:
                return None
            running = self._extender
            return (
                running is None or running.rejects(self._sandbox.namespace, "b", labels=WEB) is is_hot or None
            )

        wait(f"the temperature {b} has an effect", is_effective)

    @contextlib.contextmanager
    def extender(self, *more: str) -> Iterator[None]:
        """An extender, and a kube-scheduler that calls it."""
        plane = self._sandbox.plane
        with extender_process.extender(
            plane, self._folder, OWN_NAMESPACE, *more, by=self._account
        ) as running:
            running.wait_fetched("temp")
            self._extender, self._is_native = running, NATIVE in more
            with plane.start_scheduler({"extenders": [running.entry()]}):
                yield

    @contextlib.contextmanager
    def controller(self) -> Iterator[None]:
        """A controller, and a kube-scheduler without extenders."""
        self._extender, self._is_native = None, True
        with (
            extender_process.controller(self._account, self._folder, NATIVE, OWN_NAMESPACE),
            self._sandbox.plane.start_scheduler({}),
        ):
            yield

    def create(self, name: str, *, requests: bool, requires: bool) -> None:
        """Creates a pod with or without a request for the extender. Native mode adds a requirement if it `requires`."""
        pod = kubernetes_objects.pod(name, labels=WEB, limits=LIMITS if requests else {})
        self._sandbox.pods(pod)
        made = self._sandbox.pod(name) or {}
        assert ("affinity" in made["spec"]) is requires
        assert "schedulingGates" not in made["spec"]

    def wait_active(self, *, active: bool) -> None:
        """Waits until new pods get the requirement without a gate, or get none any more."""
        path = f"/api/v1/namespaces/{self._sandbox.namespace}/pods"
        probe = kubernetes_objects.pod("probe", labels=WEB)

        def matches() -> bool | None:
            request = self._sandbox.api.request
            made = request("POST", path, json=probe, params=admission_policy_waits.DRY_RUN).json()
            return (("affinity" in made["spec"]) is active and "schedulingGates" not in made["spec"]) or None

        wait(f"native mode covers new pods: {active}", matches)

    def expect_explained(self, pod: str, *, requires: bool) -> None:
        """The extender in native mode evaluates a pod that `requires` labels, and has a decision about another one."""
        assert self._extender is not None
        place = (f"--kubeconfig={self._sandbox.plane.admin.kubeconfig}", f"--server={self._extender.health}")
        done = read_only_commands.run("explain", f"{self._sandbox.namespace}/{pod}", *place, "-o", "json")
        report = read_only_commands.parse_report(done)
        assert report["evaluation"]["leads"]
        assert {node["node"]: node["passes"] for node in report["evaluation"]["nodes"]}["b"] is not requires
        assert bool(report["attempt"]) is not requires

    def wait_rejected(self, *pods: str) -> None:
        for pod in pods:
            self._sandbox.expect_rejected(pod)

    def expect_on_b(self, *pods: str) -> None:
        for pod in pods:
            assert self._sandbox.expect_bound(pod) == "b"


def test_no_pod_is_placed_against_its_policy_during_the_change_to_native_mode_and_back(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    extender_process.define(plane.api)
    cluster = SwitchedCluster(sandbox, metrics, account_of_extender(plane), tmp_path)
    with cluster.extender():
        cluster.create("runs", requests=True, requires=False)
        cluster.expect_on_b("runs")
        cluster.set_temperature(b=90)
        cluster.create("waits", requests=True, requires=False)
        cluster.wait_rejected("waits")
    native_mode.install_with_account(plane)
    with cluster.extender(NATIVE):
        cluster.wait_active(active=True)
        cluster.create("both", requests=True, requires=True)
        cluster.create("native", requests=False, requires=True)
        cluster.wait_rejected("waits", "both", "native")
        cluster.expect_explained("native", requires=True)
        cluster.expect_explained("waits", requires=False)
        cluster.set_temperature(b=50)
        cluster.expect_on_b("runs", "waits", "both", "native")
        cluster.set_temperature(b=90)
        cluster.create("early", requests=False, requires=True)
        cluster.wait_rejected("early")
    with cluster.controller():
        cluster.create("late", requests=False, requires=True)
        cluster.wait_rejected("early", "late")
        cluster.set_temperature(b=50)
        cluster.expect_on_b("runs", "early", "late")
        cluster.set_temperature(b=90)
        cluster.create("stays", requests=False, requires=True)
        cluster.wait_rejected("stays")
    change_back(cluster, sandbox)


@pytest.mark.parametrize("names_policy", [True, False], ids=["TASPolicy", "PlacementPolicy"])
def test_extender_places_the_pods_of_new_policies_after_native_mode_is_uninstalled(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path, names_policy: bool
) -> None:
    account = native_mode.install_with_account(plane)
    cluster = SwitchedCluster(sandbox, metrics, account, tmp_path)
    with cluster.controller():
        cluster.wait_active(active=True)
        cluster.create("placed", requests=False, requires=True)
        cluster.expect_on_b("placed")
        # docs/native.md: the policies first, until their labels are gone
        sandbox.api.delete(path_of(POLICY | {"metadata": {"name": "cool", "namespace": sandbox.namespace}}))
        wait(
            "no node has a label of native mode",
            lambda: not any(map(native_mode.labels_of, sandbox.api.get("/api/v1/nodes")["items"])) or None,
        )
    native_mode.uninstall(sandbox.api)
    rejects_hot = {
        "dontschedule": {"rules": [{"metricname": "temp", "operator": "GreaterThan", "target": 70}]}
    }
    if names_policy:
        sandbox.put(extender_process.tas_policy("fresh", rejects_hot))
    else:
        sandbox.put(policy({"podSelector": {"matchLabels": {"app": "db"}}, "avoid": [HOT]}, name="fresh"))
    with cluster.extender():
        labels = {"telemetry-policy": "fresh"} if names_policy else {"app": "db"}
        sandbox.pods(kubernetes_objects.pod("fresh", labels=labels, limits=LIMITS))
        cluster.expect_on_b("fresh")
        created = sandbox.pod("fresh") or {}
        assert not {"schedulingGates", "affinity"} & created["spec"].keys()


def status_at(api: ClusterApi, path: str) -> Object:
    """The status of the policy at this path."""
    status: Object = api.get(path)["status"]
    return status


def test_pods_wait_for_labels_when_native_mode_is_installed_after_the_extender_again(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """The policy was active before the extender ran without native mode, and its labels were removed since."""
    account = native_mode.install_with_account(plane)
    cluster = SwitchedCluster(sandbox, metrics, account, tmp_path)
    path = path_of(POLICY | {"metadata": {"name": "cool", "namespace": sandbox.namespace}})
    with cluster.controller():
        cluster.wait_active(active=True)
    native_mode.uninstall(sandbox.api)
    with cluster.extender():
        status = functools.partial(status_at, sandbox.api, path)
        wait("the policy is not active", lambda: not status().get("active") or None, show=status)
        assert "nodeLabel" not in status()
        assert status()["rejectedNodes"] == 1
    key = native_mode.LABEL_PREFIX + sandbox.api.get(path)["metadata"]["uid"]
    sandbox.api.patch("/api/v1/nodes/a", {"metadata": {"labels": {key: None}}})
    native_mode.install_with_account(plane)
    native_mode.wait_gated(sandbox, WEB)
    pods = [f"early-{number}" for number in range(6)]
    sandbox.pods(*(kubernetes_objects.pod(pod, labels=WEB) for pod in pods))
    with cluster.controller():
        cluster.expect_on_b(*pods)


def change_back(cluster: SwitchedCluster, sandbox: Sandbox) -> None:
    """Changes back to the extender while the pod `stays` waits."""
    api = sandbox.api
    with cluster.extender(NATIVE):
        cluster.create("again", requests=True, requires=True)
        cluster.wait_rejected("stays", "again")
        native_mode.uninstall(api)
        cluster.wait_active(active=False)
    with cluster.extender():
        cluster.create("last", requests=True, requires=False)
        cluster.wait_rejected("stays", "again", "last")
        cluster.set_temperature(b=50)
        cluster.expect_on_b("last")
        # a requirement refers to labels that nothing updates any more
        sandbox.expect_stays_unbound("stays", 1)
        for pod in ("stays", "again"):
            api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/{pod}")
        cluster.create("recreated", requests=True, requires=False)
        cluster.expect_on_b("recreated")
