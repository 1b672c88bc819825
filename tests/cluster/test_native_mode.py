"""Native mode on a real control plane: a kube-scheduler without extenders enforces policies, with the controller."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import (
    admission_policy_waits,
    child_processes,
    extender_process,
    kubernetes_objects,
    native_mode,
)
from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import HOT, tas_policy
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import GROUP

ACCOUNT = "system:serviceaccount:nodewise:nodewise"
PERIOD_S = 0.5


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> User:
    """nodewise's account with the shipped rights, and native mode installed."""
    native_mode.install(plane.api)
    for name in ("rbac.yaml", "controller.yaml"):
        for document in extender_process.manifest(name):
            if document["kind"] != "Deployment":
                plane.api.create(document)
    user = plane.service_account("nodewise", "nodewise")
    admission_policy_waits.wait_nodes(plane.api, user.api)
    admission_policy_waits.wait_pods(plane.api, user.api)
    return user


@contextlib.contextmanager
def controller(account: User, folder: Path) -> Iterator[Process]:
    words = [
        extender_process.NODEWISE,
        "controller",
        "--native-mode",
        "--log-format=json",
        f"--kubeconfig={account.kubeconfig}",
        "--namespace=nodewise",
        "--health-port=0",
        f"--sync-period={PERIOD_S}s",
    ]
    with Process(words, folder / f"controller-{child_processes.number()}.log") as process:
        yield process


def placement_policy(sandbox: Sandbox, name: str, app: str, **rule: object) -> Object:
    metadata = {"name": name, "namespace": sandbox.namespace}
    spec = {"podSelector": {"matchLabels": {"app": app}}, "avoid": [{"metric": "heat", "above": 80} | rule]}
    made: Object = sandbox.api.create(
        {"apiVersion": GROUP, "kind": "PlacementPolicy", "metadata": metadata, "spec": spec}
    )
    return made


def labels_of(api: ClusterApi, node: str) -> dict[str, str]:
    """The labels with verdicts of a node, by uid of the policy."""
    labels: dict[str, str] = api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
    prefix = native_mode.LABEL_PREFIX
    return {key.removeprefix(prefix): value for key, value in labels.items() if key.startswith(prefix)}


def until_gated(sandbox: Sandbox, labels: dict[str, str]) -> None:
    """Waits until new pods are gated, because the policy is not active."""
    probe = kubernetes_objects.pod("probe", labels=labels)
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"

    def is_gated() -> bool | None:
        if admission_policy_waits.is_denied(
            lambda: admission_policy_waits.try_create(sandbox.api, _in(sandbox, probe))
        ):
            return None
        admitted = sandbox.api.request("POST", path, json=probe, params=admission_policy_waits.DRY_RUN).json()
        return native_mode.GATE in admitted["spec"].get("schedulingGates", []) or None

    wait("new pods are gated", is_gated)


def _in(sandbox: Sandbox, pod: Object) -> Object:
    return pod | {"metadata": pod["metadata"] | {"namespace": sandbox.namespace}}


def until_node(sandbox: Sandbox, pod: str, node: str) -> None:
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods/{pod}"

    def chosen() -> str:
        return str(sandbox.api.get(path)["spec"].get("nodeName", ""))

    wait(f"{pod} is on {node}", lambda: chosen() == node or None, show=lambda: sandbox.api.get(path))


def test_pods_follow_the_verdicts_of_their_policies(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    account: User,
    audit_log: AuditLog,
    tmp_path: Path,
) -> None:
    api = sandbox.api
    sandbox.nodes(*map(kubernetes_objects.node, "ab"))
    metrics.set("heat", {"a": 90, "b": 50})
    uid = placement_policy(sandbox, "cool", "web")["metadata"]["uid"]
    strict = placement_policy(sandbox, "strict", "db", whenMissing="Reject")["metadata"]["uid"]
    named = sandbox.put(tas_policy("pol", {"dontschedule": {"rules": [HOT]}}))["metadata"]["uid"]
    pods = {"web": {"app": "web"}, "db": {"app": "db"}, "named": {"telemetry-policy": "pol"}}
    for labels in pods.values():
        until_gated(sandbox, labels)
    sandbox.pods(*(kubernetes_objects.pod(name, labels=labels) for name, labels in pods.items()))

    def until(node: str, **expected: str) -> None:
        names = {"cool": uid, "strict": strict, "pol": named}
        wanted = {names[name]: value for name, value in expected.items()}
        wait(
            f"{node} has {expected}",
            lambda: labels_of(api, node) == wanted or None,
            show=lambda: labels_of(api, node),
        )

    with plane.start_scheduler({}), controller(account, tmp_path):
        for name in pods:
            until_node(sandbox, name, "b")
        until("a", cool="violating", strict="violating", pol="violating")
        until("b", strict="ok")
        # a new node has no label at first; the metric has no value for it
        sandbox.nodes(kubernetes_objects.node("c"))
        until("c", strict="violating")
        # recovery: a waiting pod is bound as soon as a label changes
        metrics.set("heat", {"a": 90, "b": 90, "c": 90})
        until("c", cool="violating", strict="violating", pol="violating")
        sandbox.pods(kubernetes_objects.pod("late", labels={"app": "web"}))
        metrics.set("heat", {"a": 90, "b": 90, "c": 20})
        until_node(sandbox, "late", "c")
        # labels of others are overwritten
        key = native_mode.LABEL_PREFIX + uid
        api.patch("/api/v1/nodes/a", {"metadata": {"labels": {key: "ok"}}})
        until("a", cool="violating", strict="violating", pol="violating")
        # deletion
        api.delete(f"/apis/{GROUP}/namespaces/{sandbox.namespace}/placementpolicies/cool")
        until("a", strict="violating", pol="violating")
    assert [request for request in audit_log.requests(ACCOUNT) if request.is_refused] == []
