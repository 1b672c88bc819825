"""Preferences in native mode on a real control plane: classes of nodes as labels, and preferred terms in pods."""

import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import (
    extender_process,
    fake_metrics_server,
    kubernetes_objects,
    native_mode,
    read_only_commands,
)
from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import GROUP, policy

pytestmark = pytest.mark.kubernetes_versions(oldest=36)

ACCOUNT = "system:serviceaccount:nodewise:nodewise"
NODES = [f"n{number}" for number in range(10)]


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> User:
    return native_mode.install_with_account(plane)


def classes(api: ClusterApi, uid: str) -> dict[str, str]:
    """The class of each node for a policy, by its label."""
    key = f"{native_mode.LABEL_PREFIX}{uid}.preference"
    nodes = api.get("/api/v1/nodes")["items"]
    labels = {node["metadata"]["name"]: node["metadata"].get("labels", {}) for node in nodes}
    return {name: each[key] for name, each in labels.items() if key in each}


def create_policy(sandbox: Sandbox, app: str, **spec: object) -> Object:
    return sandbox.put(policy({"podSelector": {"matchLabels": {"app": app}}} | spec, name=app))


def preferred_terms(pod: Object) -> list[tuple[int, list[Object]]]:
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    return [(term["weight"], term["preference"]["matchExpressions"]) for term in terms]


def admitted(sandbox: Sandbox, app: str) -> Object:
    """A pod as the API server would store it."""
    pod = kubernetes_objects.pod("probe", labels={"app": app})
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    made: Object = sandbox.api.request("POST", path, json=pod, params={"dryRun": "All"}).json()
    return made


def explanation(sandbox: Sandbox, pod: str, plane: ControlPlane) -> str:
    explained = read_only_commands.run(
        "explain", f"{sandbox.namespace}/{pod}", f"--kubeconfig={plane.admin.kubeconfig}"
    )
    assert explained.returncode == 0, explained.stderr
    return explained.stdout


def has_classes(api: ClusterApi, uid: str, expected: dict[str, str]) -> bool | None:
    return classes(api, uid) == expected or None


def prefers_classes(sandbox: Sandbox, app: str, uid: str, weight: int) -> bool | None:
    """Whether a new pod has a term for each class but the last."""
    key = f"{native_mode.LABEL_PREFIX}{uid}.preference"
    terms = preferred_terms(admitted(sandbox, app))
    return (
        all(
            (weight * (5 - number), [{"key": key, "operator": "In", "values": [str(number)]}]) in terms
            for number in (1, 2, 3, 4)
        )
        or None
    )


def test_pods_prefer_the_best_class_of_a_metric(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    account: User,
    audit_log: AuditLog,
    tmp_path: Path,
) -> None:
    api = sandbox.api
    sandbox.nodes(*map(kubernetes_objects.node, NODES))
    metrics.set("power", {name: 100 - number for number, name in enumerate(NODES)})
    metrics.set("heat", {name: 90 if name == "n9" else 20 for name in NODES})
    rank = {"metric": "power", "order": "Ascending", "weight": 3}
    avoid = [{"metric": "heat", "above": 80}]
    only, both, soft = (
        create_policy(sandbox, app, prefer=[rank], **more)["metadata"]["uid"]
        for app, more in (
            ("only", {}),
            ("both", {"avoid": avoid}),
            ("soft", {"avoid": avoid, "enforcement": "Preferred"}),
        )
    )
    create_policy(sandbox, "shadow", prefer=[rank], mode="Shadow")
    expected = {name: str(5 - number // 2) for number, name in enumerate(NODES)}
    with (
        plane.start_scheduler({}),
        extender_process.controller(account, tmp_path, "--namespace=nodewise", "--sync-period=500ms"),
    ):
        for app, uid in (("only", only), ("both", both), ("soft", soft)):
            wait(f"nodes have classes of {app}", partial(has_classes, api, uid, expected))
            wait(f"pods of {app} prefer them", partial(prefers_classes, sandbox, app, uid, 3))
        assert native_mode.requires(admitted(sandbox, "both"), both)
        assert not native_mode.requires(admitted(sandbox, "only"), only)
        assert len(preferred_terms(admitted(sandbox, "soft"))) == 5
        assert preferred_terms(admitted(sandbox, "shadow")) == []
        sandbox.pods(*(kubernetes_objects.pod(app, labels={"app": app}) for app in ("only", "both", "soft")))
        assert sandbox.expect_bound("only") in {"n8", "n9"}
        assert sandbox.expect_bound("both") == "n8"
        assert sandbox.expect_bound("soft") == "n8"
        text = explanation(sandbox, "only", plane)
        assert "it prefers nodes by the classes of placement policy" in text
        assert "2 in class 1, 2 in class 2, 2 in class 3, 2 in class 4, 2 in class 5" in text
        # the metric is lost: classes stay; a deleted policy takes its labels along
        metrics.fail("power")
        api.delete(f"/apis/{GROUP}/namespaces/{sandbox.namespace}/placementpolicies/only")
        wait("the labels are removed", partial(has_classes, api, only, {}))
        assert classes(api, both) == expected
    assert [request for request in audit_log.requests(ACCOUNT) if request.is_refused] == []


def test_labels_survive_a_new_leader_and_follow_edits_and_modes(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, account: User, tmp_path: Path
) -> None:
    api = sandbox.api
    sandbox.nodes(*map(kubernetes_objects.node, NODES))
    metrics.set("power", {name: number for number, name in enumerate(NODES)})
    rank = {"metric": "power", "order": "Ascending"}
    more = {
        "kept": {},
        "percent": {"mode": "Canary", "canary": {"percent": 50}},
        "canary": {"mode": "Canary", "canary": {"podSelector": {"matchLabels": {"track": "canary"}}}},
        "harmful": {"avoid": [{"metric": "power", "above": 90}], "guard": {"maxRejectedShare": "0.5"}},
        "dropped": {"avoid": [{"metric": "power", "above": 90}]},
    }
    policies = {app: create_policy(sandbox, app, prefer=[rank], **spec) for app, spec in more.items()}
    uids = {app: each["metadata"]["uid"] for app, each in policies.items()}
    path = f"/apis/{GROUP}/namespaces/{sandbox.namespace}/placementpolicies"
    expected = {name: str(1 + number // 2) for number, name in enumerate(NODES)}
    controller = partial(extender_process.controller, account, tmp_path, "--namespace=nodewise")
    with controller():
        for app in ("kept", "canary", "harmful", "dropped"):
            wait(f"nodes have classes of {app}", partial(has_classes, api, uids[app], expected))
        assert preferred_terms(admitted(sandbox, "canary")) == []
    assert classes(api, uids["percent"]) == {}
    generation = policies["harmful"]["metadata"]["generation"]
    stepped_back = {"generation": generation, "time": "2026-01-01T00:00:00Z", "message": "harm"}
    api.patch(f"{path}/harmful/status", {"status": {"steppedBack": stepped_back}})
    api.patch(f"{path}/canary", {"spec": {"mode": "Shadow"}})
    api.patch(f"{path}/dropped", {"spec": {"prefer": None}})
    metrics.fail("power")
    with controller():
        for app in ("harmful", "canary", "dropped"):
            wait(f"no node has classes of {app}", partial(has_classes, api, uids[app], {}))
            assert preferred_terms(admitted(sandbox, app)) == []
        assert classes(api, uids["kept"]) == expected
        metrics.set("power", {name: number for number, name in enumerate(NODES)})
        api.patch(f"{path}/kept", {"spec": {"prefer": [rank | {"order": "Descending"}]}})
        turned = {name: str(6 - int(number)) for name, number in expected.items()}
        wait("nodes have the classes of the new order", partial(has_classes, api, uids["kept"], turned))


PODS: Final = 100
_PERIOD_S: Final = 0.1
_USE_MILLI: Final = 120
"""What a pod uses. It requests 100 milli-CPU."""


def is_evaluated(controller: Process, at: float) -> bool | None:
    """Whether the labels are those of a snapshot of this time or later."""
    return (extender_process.gauge(controller, "evaluation_timestamp_seconds") or 0.0) >= at or None


def test_a_burst_avoids_busy_nodes_and_is_spread_by_the_predicted_load(
    plane: ControlPlane, sandbox: Sandbox, account: User, tmp_path: Path
) -> None:
    """A few pods come in each period of labels."""
    api = sandbox.api
    sandbox.nodes(*map(kubernetes_objects.node, NODES))
    base = {name: 3_600 if name in {"n0", "n1"} else 200 + 10 * number for number, name in enumerate(NODES)}
    spec = {"podSelector": {}, "prefer": [{"metric": "predicted_cpu_share", "order": "Ascending"}]}
    uid = sandbox.put(policy(spec))["metadata"]["uid"]
    options = ("--namespace=nodewise", f"--sync-period={_PERIOD_S}s", "--metrics=resource")
    with (
        fake_metrics_server.behind(api, tmp_path) as metrics,
        plane.start_scheduler({}),
        extender_process.controller(account, tmp_path, *options) as controller,
    ):
        metrics.cpu = {name: f"{milli}m" for name, milli in base.items()}
        wait("all nodes have classes", lambda: len(classes(api, uid)) == len(NODES) or None)
        assert {classes(api, uid)[name] for name in ("n0", "n1")} == {"5"}
        counts: Counter[str] = Counter()
        for number in range(PODS):
            sandbox.pods(kubernetes_objects.pod(f"p{number}"))
            counts[sandbox.expect_bound(f"p{number}")] += 1
            metrics.cpu = {name: f"{milli + _USE_MILLI * counts[name]}m" for name, milli in base.items()}
            if number % 4 == 3:
                wait("labels follow", partial(is_evaluated, controller, time.time() + 2 * _PERIOD_S))
    assert counts["n0"] + counts["n1"] == 0, counts
    others = [counts[name] for name in NODES[2:]]
    assert max(others) - min(others) <= 2, counts
