"""Native mode with a tenant who wants labels on every node, and with a node that refuses labels."""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests import short_and_long_case_counts
from tests.cluster import (
    admission_policy_waits,
    extender_process,
    kubernetes_objects,
    namespace_sandboxes,
    native_mode,
)
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import ClusterApi, Object, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

OPTIONS: Final = ("--native-mode", "--namespace=nodewise")
NODES: Final = "a b c"
MAX_LABELS: Final = 10
"""Labels with verdicts of one namespace."""
REFUSING: Final = "b"
NODE_REFUSAL: Final = "nobody changes this node"
TENANTS: Final = short_and_long_case_counts.of(30, 150)
MAX_BYTES: Final = 16 * 1024
"""Keys and values of all labels of nodewise on a node."""


@pytest.fixture
def nodes(sandbox: Sandbox, metrics: FakeCustomMetricsApi) -> None:
    """Nodes that are too hot."""
    sandbox.nodes(*kubernetes_objects.nodes(NODES))
    metrics.set("heat", dict.fromkeys(NODES.split(), 90))


@pytest.fixture
def controller(native_account: User, tmp_path: Path) -> Iterator[None]:
    with extender_process.controller(native_account, tmp_path, *OPTIONS):
        yield


def _avoiding(name: str, app: str = "web", **rule: str) -> Object:
    spec = {"podSelector": {"matchLabels": {"app": app}}, "avoid": [{"metric": "heat", "above": 80, **rule}]}
    return policy(spec, name=name)


def _labels(api: ClusterApi) -> dict[str, dict[str, str]]:
    """By node, its labels with verdicts by uid of the policy."""
    return {
        node["metadata"]["name"]: native_mode.labels_of(node) for node in api.get("/api/v1/nodes")["items"]
    }


def _wait_labels(api: ClusterApi, uids: set[str]) -> None:
    """Waits until every node has the labels of exactly these policies."""

    def is_so() -> bool | None:
        return all(labels.keys() == uids for labels in _labels(api).values()) or None

    wait(f"{len(uids)} labels", is_so, show=lambda: _labels(api))


def _wait_required(sandbox: Sandbox, pod: Object, uids: set[str]) -> None:
    """Waits until the API server, which learns policies later, adds the requirements of all of them."""
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"

    def are_required() -> bool | None:
        admitted = sandbox.api.request("POST", path, json=pod, params=DRY_RUN).json()
        return all(native_mode.requires(admitted, uid) for uid in uids) or None

    wait("the policies apply", are_required)


@pytest.mark.usefixtures("controller", "nodes")
@pytest.mark.parametrize("is_selected", [True, False], ids=["selected_pods", "other_pods"])
def test_policies_that_are_created_and_deleted_in_a_loop_leave_no_more_labels_than_the_limit(
    sandbox: Sandbox, is_selected: bool
) -> None:
    """Pods that require the labels, and wait for a scheduler that does not exist, keep them for an hour at most."""
    app = "web" if is_selected else "other"
    for number in range(3):
        made = [sandbox.put(_avoiding(f"p{number}-{part}")) for part in range(MAX_LABELS)]
        uids = {str(each["metadata"]["uid"]) for each in made}
        _wait_labels(sandbox.api, uids)
        selector = {native_mode.LABEL_PREFIX + uid: "violating" for uid in uids}
        pod = kubernetes_objects.pod(f"waits{number}", labels={"app": app})
        pod = pod | {"spec": pod["spec"] | {"nodeSelector": selector, "schedulerName": "nobody"}}
        if is_selected:
            _wait_required(sandbox, pod, uids)
        sandbox.pods(pod)
        for each in made:
            sandbox.api.delete(path_of(each))
        _wait_labels(sandbox.api, uids if is_selected else set())
    for number in range(3):
        sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/waits{number}")
    _wait_labels(sandbox.api, set())


@pytest.fixture
def refusing_node(plane: ControlPlane, native_account: User, nodes: None) -> Iterator[str]:
    """The path of an admission policy by which a node refuses every change by nodewise. It is enforced."""
    label = {"metadata": {"labels": {f"{native_mode.LABEL_PREFIX}0123": "violating"}}}
    write = partial(admission_policy_waits.try_patch, native_account.api, f"/api/v1/nodes/{REFUSING}", label)
    write()  # no other policy refuses it
    name = "refuse-changes-of-a-node"
    metadata = {"name": name}
    made = plane.api.create(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {
                "matchConstraints": {
                    "resourceRules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["UPDATE"],
                            "resources": ["nodes"],
                        }
                    ]
                },
                "validations": [
                    {
                        "expression": "!request.userInfo.username.endsWith(':nodewise') ||"
                        f" object.metadata.name != '{REFUSING}'",
                        "message": NODE_REFUSAL,
                    }
                ],
            },
        }
    )
    binding = plane.api.create(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        }
    )
    admission_policy_waits.wait_denied(write)
    yield path_of(binding)
    for document in (binding, made):
        plane.api.delete(path_of(document))


def _wait_active(sandbox: Sandbox, made: Object, **expected: object) -> None:
    def status() -> Object:
        current: Object = sandbox.api.get(path_of(made)).get("status", {})
        return current

    def is_so() -> bool | None:
        current = status()
        return (current.get("active", False), current.get("excludedNodes", [])) == (
            True,
            expected.get("excluded", []),
        ) or None

    wait("the policy is active", is_so, show=status)


@pytest.mark.usefixtures("nodes")
def test_policies_become_active_without_a_node_that_refuses_labels(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    refusing_node: str,
    native_account: User,
    tmp_path: Path,
) -> None:
    metrics.set("heat", {"a": 90, "b": 90, "c": 10})
    lenient = sandbox.put(_avoiding("lenient"))
    native_mode.wait_gated(sandbox, {"app": "web"})
    sandbox.pods(kubernetes_objects.pod("gated", labels={"app": "web"}))
    with (
        namespace_sandboxes.created(plane) as other,
        plane.start_scheduler({}),
        extender_process.controller(native_account, tmp_path, *OPTIONS),
    ):
        strict = other.put(_avoiding("strict", whenMissing="Reject"))
        _wait_active(other, strict)
        _wait_active(sandbox, lenient, excluded=[REFUSING])
        assert sandbox.expect_bound("gated") == "c"
        metrics.set("heat", {"a": 90, "b": 90, "c": 90})
        uid = lenient["metadata"]["uid"]
        wait("the nodes that take labels have them", lambda: _labels(plane.api)["c"].get(uid) or None)
        sandbox.pods(kubernetes_objects.pod("new", labels={"app": "web"}))
        sandbox.expect_stays_unbound("new", 2)

        def ready() -> Object:
            conditions = sandbox.api.get(path_of(lenient))["status"].get("conditions", [])
            return next((each for each in conditions if each["type"] == "Ready"), {})

        wait("the condition Ready", lambda: ready().get("reason") == "LabelRefused" or None, show=ready)
        assert "node b refuses the node label of the policy" in ready()["message"]
        assert NODE_REFUSAL in ready()["message"]
        plane.api.delete(refusing_node)
        _wait_active(sandbox, lenient)
        wait("the node has its label", lambda: _labels(plane.api)[REFUSING].get(uid) or None)
        wait("the condition Ready", lambda: ready().get("status") == "True" or None, show=ready)


def test_a_policy_becomes_active_while_nodes_are_replaced_all_the_time(
    sandbox: Sandbox, metrics: FakeCustomMetricsApi, native_account: User, tmp_path: Path
) -> None:
    """More nodes join than are labelled, so that some node never has a label."""
    names = [f"n{number}" for number in range(30)]
    sandbox.nodes(*map(kubernetes_objects.node, names))
    ended = threading.Event()

    def replace() -> None:
        for number in itertools.count():
            old, new = names.pop(0), f"joined-{number}"
            names.append(new)
            metrics.set("heat", dict.fromkeys(names, 90))
            sandbox.create(kubernetes_objects.node(new))
            sandbox.api.delete(f"/api/v1/nodes/{old}")
            if ended.wait(0.1):
                break

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        with extender_process.controller(
            native_account, tmp_path, *OPTIONS, "--kube-qps=4", "--kube-burst=1"
        ):
            _wait_active(sandbox, sandbox.put(_avoiding("cool")))
    finally:
        ended.set()
        thread.join()


def _label_bytes(api: ClusterApi) -> int:
    """The largest number of bytes of labels of nodewise on a node."""
    sizes = [
        sum(len(native_mode.LABEL_PREFIX + uid) + len(value) for uid, value in labels.items())
        for labels in _labels(api).values()
    ]
    return max(sizes)


@pytest.mark.usefixtures("nodes", "controller")
def test_policies_of_many_namespaces_share_the_labels_of_a_node(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi
) -> None:
    """Each namespace has policies that reject all nodes, more of them together than labels fit on a node."""
    metrics.set("calm", dict.fromkeys(NODES.split(), 10))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(8) as pool:
        tenants = [stack.enter_context(namespace_sandboxes.created(plane)) for _ in range(TENANTS)]
        for part in range(MAX_LABELS):
            list(pool.map(lambda tenant, name=f"p{part}": tenant.put(_avoiding(name)), tenants))
        calm = {"metric": "calm", "above": 50}
        victim = sandbox.put(policy({"podSelector": {}, "avoid": [calm]}, name="calm"))
        _wait_active(sandbox, victim)
        wait("the nodes are full", lambda: _label_bytes(plane.api) > MAX_BYTES - 200 or None, 120)
        metrics.set("calm", dict.fromkeys(NODES.split(), 90))
        uid = victim["metadata"]["uid"]
        wait(
            "the victim's labels",
            lambda: all(uid in labels for labels in _labels(plane.api).values()) or None,
        )
        assert _label_bytes(plane.api) <= MAX_BYTES

        def refusals() -> list[str]:
            """The messages of the policies beyond the budget."""
            listed = plane.api.get("/apis/nodewise.io/v1alpha1/placementpolicies")["items"]
            conditions = [each for item in listed for each in item.get("status", {}).get("conditions", ())]
            return [
                each["message"]
                for each in conditions
                if (each["type"], each["status"]) == ("NotEnforced", "True")
            ]

        most = MAX_BYTES // (len(native_mode.LABEL_PREFIX) + 36 + len("violating"))
        beyond = TENANTS * MAX_LABELS + 1 - most
        wait(
            "the others are reported", lambda: len(refusals()) == beyond or None, 300, lambda: len(refusals())
        )
        assert all("16384 bytes per node that namespaces share equally" in message for message in refusals())
