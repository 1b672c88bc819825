"""Native mode on a real control plane: a kube-scheduler without extenders enforces policies, with the controller."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.cluster import (
    admission_policy_waits,
    extender_process,
    kubernetes_objects,
    native_mode,
    read_only_commands,
)
from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import HOT, tas_policy
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import GROUP, policy

pytestmark = pytest.mark.kubernetes_versions(oldest=36)

ACCOUNT = "system:serviceaccount:nodewise:nodewise"


@pytest.fixture(scope="module")
def account(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> User:
    """nodewise's account with the shipped rights, and native mode installed by `nodewise configure`."""
    file = tmp_path_factory.mktemp("native") / "native.yaml"
    environment = {"KUBECONFIG": str(plane.admin.kubeconfig), "PATH": "/usr/bin:/bin"}
    command = [extender_process.NODEWISE, "configure", "--mode", "native"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "could not be read" not in done.stderr
    file.write_text(done.stdout)
    plane.kubectl("apply", "--server-side", "--validate=strict", f"--filename={file}")
    user = plane.service_account("nodewise", "nodewise")
    admission_policy_waits.wait_nodes(plane.api, user.api)
    admission_policy_waits.wait_pods(plane.api, user.api)
    return user


def placement_policy(sandbox: Sandbox, name: str, app: str, **rule: object) -> Object:
    spec = {"podSelector": {"matchLabels": {"app": app}}, "avoid": [{"metric": "heat", "above": 80} | rule]}
    return sandbox.put(policy(spec, name=name))


def preferred_policy(sandbox: Sandbox, app: str) -> str:
    """Creates a policy with `enforcement: Preferred`, waits until it applies to new pods, and returns its uid."""
    avoid = [{"metric": "heat", "above": 80}]
    spec = {"podSelector": {"matchLabels": {"app": app}}, "avoid": avoid, "enforcement": "Preferred"}
    made = sandbox.api.create(policy(spec, name=app, namespace=sandbox.namespace))
    probe = kubernetes_objects.pod("probe", labels={"app": app})
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"

    def applies() -> bool | None:
        admitted = sandbox.api.request("POST", path, json=probe, params=admission_policy_waits.DRY_RUN).json()
        return "affinity" in admitted["spec"] or None

    wait("the preference is added to new pods", applies)
    return str(made["metadata"]["uid"])


def labels_of(api: ClusterApi, node: str) -> dict[str, str]:
    """The labels with verdicts of a node, by uid of the policy."""
    return native_mode.labels_of(api.get(f"/api/v1/nodes/{node}"))


def has_node(sandbox: Sandbox, pod: str) -> bool | None:
    return (
        bool(sandbox.api.get(f"/api/v1/namespaces/{sandbox.namespace}/pods/{pod}")["spec"].get("nodeName"))
        or None
    )


def assert_explained(sandbox: Sandbox, pod: str, plane: ControlPlane, controller: Process) -> None:
    """An operator sees why no node passes: in the pod's events, and node by node in `nodewise explain`, with the values
    if the controller can be reached.
    """
    note = wait("an event names the rule", lambda: _note(sandbox, pod))
    assert note.startswith("policies reject all 3 nodes: 3 placement policy "), note
    assert "/cool: heat above 80; relax a rule" in note
    text = explanation(sandbox, pod, plane)
    assert "waits, placed by native mode: 0 of 3 nodes have the labels that it requires" in text
    assert text.count("rejected  violating") == 3

    def names_leader() -> bool | None:
        text = explanation(sandbox, pod, plane)
        return bool(re.search(r"^\S+ evaluated the policies \S+ ago$", text, re.MULTILINE)) or None

    health = json.loads(next(line for line in controller.log.read_text().splitlines() if '"started"' in line))
    lines = explanation(sandbox, pod, plane, f"--server={health['health']}").splitlines()
    for node in "abc":
        row = next(line.split() for line in lines if line.startswith(f"{node} "))
        assert row[1:3] == ["rejected", "violating"]
        assert row[row.index("heat") + 1] == "90"
    assert "  heat above: 3 more nodes pass at 90 instead of 80" in lines
    # a new leader first writes all labels and statuses
    wait("it names the leader", names_leader, show=lambda: explanation(sandbox, pod, plane))


def explanation(sandbox: Sandbox, pod: str, plane: ControlPlane, *more: str) -> str:
    """What `nodewise explain` prints about a pod."""
    arguments = (f"{sandbox.namespace}/{pod}", f"--kubeconfig={plane.admin.kubeconfig}", *more)
    explained = read_only_commands.run("explain", *arguments)
    assert explained.returncode == 0, explained.stderr
    return explained.stdout


def put_gated_pod(sandbox: Sandbox, name: str, labels: dict[str, str]) -> None:
    """Creates a pod that waits for something else than a policy."""
    pod = kubernetes_objects.pod(name, labels=labels)
    sandbox.pods(pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": "example.com/wait"}]}})


def names_uncovered_pod(sandbox: Sandbox, name: str, pod: str) -> bool | None:
    """Whether the condition of a policy names a pod that native mode does not apply it to."""
    path = f"/apis/{GROUP}/namespaces/{sandbox.namespace}/placementpolicies/{name}"
    conditions = sandbox.api.get(path).get("status", {}).get("conditions", [])
    messages = [
        each["message"] for each in conditions if (each["type"], each["status"]) == ("PodsNotCovered", "True")
    ]
    return any(f"such as {sandbox.namespace}/{pod}," in message for message in messages) or None


def wait_gauges(controller: Process, **expected: int) -> None:
    """Waits until the metrics of the alerts have these values."""

    def values() -> dict[str, float | None]:
        return {name: extender_process.gauge(controller, name) for name in expected}

    wait(f"the metrics are {expected}", lambda: values() == expected or None, show=values)


def _note(sandbox: Sandbox, pod: str) -> str | None:
    """The note of the controller's event on a pod."""
    events = sandbox.api.get(f"/apis/events.k8s.io/v1/namespaces/{sandbox.namespace}/events")["items"]
    notes = [
        event["note"]
        for event in events
        if (event["regarding"]["name"], event["reason"]) == (pod, "NoNodePasses")
    ]
    return notes[0] if notes else None


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
    put_gated_pod(sandbox, "older", {"app": "web", "created": "before"})
    uid = placement_policy(sandbox, "cool", "web")["metadata"]["uid"]
    strict = placement_policy(sandbox, "strict", "db", whenMissing="Reject")["metadata"]["uid"]
    named = sandbox.put(tas_policy("pol", {"dontschedule": {"rules": [HOT]}}))["metadata"]["uid"]
    soft = preferred_policy(sandbox, "soft")
    pods = {"web": {"app": "web"}, "db": {"app": "db"}, "named": {"telemetry-policy": "pol"}}
    for labels in pods.values():
        native_mode.wait_gated(sandbox, labels)
    sandbox.pods(*(kubernetes_objects.pod(name, labels=labels) for name, labels in pods.items()))

    def until(node: str, **expected: str) -> None:
        names = {"cool": uid, "strict": strict, "pol": named, "soft": soft}
        wanted = {names[name]: value for name, value in expected.items()}
        wait(
            f"{node} has {expected}",
            lambda: labels_of(api, node) == wanted or None,
            show=lambda: labels_of(api, node),
        )

    options = ("--native-mode", "--namespace=nodewise")
    with plane.start_scheduler({}), extender_process.controller(account, tmp_path, *options) as controller:
        for name in pods:
            until_node(sandbox, name, "b")
        hot = {"cool": "violating", "strict": "violating", "pol": "violating", "soft": "violating"}
        until("a", **hot)
        until("b", strict="ok")
        wait("the older pod is named", lambda: names_uncovered_pod(sandbox, "cool", "older"))
        sandbox.pods(kubernetes_objects.pod("soft", labels={"app": "soft"}))
        until_node(sandbox, "soft", "b")
        # a new node has no label at first; the metric has no value for it
        sandbox.nodes(kubernetes_objects.node("c"))
        until("c", strict="violating")
        # recovery: a waiting pod is bound as soon as a label changes
        metrics.set("heat", {"a": 90, "b": 90, "c": 90})
        until("c", **hot)
        sandbox.pods(kubernetes_objects.pod("anywhere", labels={"app": "soft"}))
        wait("a preference stops no pod", lambda: has_node(sandbox, "anywhere"))
        sandbox.pods(kubernetes_objects.pod("late", labels={"app": "web"}))
        assert_explained(sandbox, "late", plane, controller)
        wait_gauges(controller, native_pods_waiting=1, policies_without_nodes=3)
        metrics.set("heat", {"a": 90, "b": 90, "c": 20})
        until_node(sandbox, "late", "c")
        wait_gauges(controller, native_pods_waiting=0, policies_without_nodes=0)
        # labels of others are overwritten
        key = native_mode.LABEL_PREFIX + uid
        api.patch("/api/v1/nodes/a", {"metadata": {"labels": {key: "ok"}}})
        until("a", **hot)
        # deletion
        api.delete(f"/apis/{GROUP}/namespaces/{sandbox.namespace}/placementpolicies/cool")
        until("a", strict="violating", pol="violating", soft="violating")
    assert [request for request in audit_log.requests(ACCOUNT) if request.is_refused] == []
