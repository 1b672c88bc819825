"""Node labels on a real API server: set for fresh values only, without flapping; foreign labels are unchanged."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import api_user_kubeconfigs, extender_process, kubernetes_objects, label_watch
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import HOT, heated, policy
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.label_watch import LabelWatch, NodeLabelChange
from tests.cluster.namespace_sandboxes import Sandbox, wait

PREFIX = "telemetry.aware.scheduling.pol"


@pytest.fixture
def labels(plane: ControlPlane, sandbox: Sandbox) -> Iterator[LabelWatch]:
    """A watch of the changes of node labels."""
    with label_watch.watch_labels(plane) as seen:
        yield seen


def label(sandbox: Sandbox, node: str) -> dict[str, str]:
    labels: dict[str, str] = sandbox.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
    return {key: value for key, value in labels.items() if key != "kubernetes.io/hostname"}


def until(sandbox: Sandbox, node: str, wanted: dict[str, str]) -> None:
    wait(
        f"{node} has {wanted}",
        lambda: label(sandbox, node) == wanted or None,
        show=lambda: label(sandbox, node),
    )


def test_a_node_is_labelled_while_it_violates_and_a_restart_moves_nothing(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    labels: LabelWatch,
    tmp_path: Path,
) -> None:
    heated(sandbox, metrics, {"a": 90, "b": 50, "c": 95}, deschedule=[HOT])
    with extender_process.extender(plane, tmp_path):
        until(sandbox, "a", {"pol": "violating"})
        until(sandbox, "c", {"pol": "violating"})
        metrics.set("heat", {"a": 20, "b": 50, "c": 95})
        until(sandbox, "a", {})
        # irrelevant changes have no effect: the policy's metadata, a failing metric, a node's annotation
        path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{sandbox.namespace}/taspolicies/pol"
        sandbox.api.patch(path, {"metadata": {"annotations": {"touched": "1"}}})
        sandbox.annotate("c", "touched", "1")
        metrics.fail("heat")
    with extender_process.extender(plane, tmp_path) as again:
        again.wait_leading()
        metrics.set("heat", {"a": 20, "b": 90, "c": 95})
        until(sandbox, "b", {"pol": "violating"})
    wait("all changes are seen", lambda: len(labels.of("pol")) >= 4 or None)
    changes = labels.of("pol")
    assert set(changes[:2]) == {
        NodeLabelChange("a", "pol", None, "violating"),
        NodeLabelChange("c", "pol", None, "violating"),
    }
    assert changes[2:] == [
        NodeLabelChange("a", "pol", "violating", None),
        NodeLabelChange("b", "pol", None, "violating"),
    ]
    assert {change.key for change in labels.changes} == {"pol"}


def test_labels_of_a_policy_deleted_during_a_stop_are_removed(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    heated(sandbox, metrics, {"a": 90}, deschedule=[HOT], labeling=[HOT | {"labels": ["hot=yes"]}])
    sandbox.nodes(kubernetes_objects.node("unmeasured"))
    with extender_process.extender(plane, tmp_path):
        until(sandbox, "a", {"pol": "violating", f"{PREFIX}/hot": "yes"})
    sandbox.api.delete(f"/apis/telemetry.intel.com/v1alpha1/namespaces/{sandbox.namespace}/taspolicies/pol")
    with extender_process.extender(plane, tmp_path):
        until(sandbox, "a", {})


def test_labels_of_a_policy_that_lost_trust_during_a_stop_are_removed(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    heated(sandbox, metrics, {"a": 90}, deschedule=[HOT], labeling=[HOT | {"labels": ["hot=yes"]}])
    with extender_process.extender(plane, tmp_path):
        until(sandbox, "a", {"pol": "violating", f"{PREFIX}/hot": "yes"})
    sandbox.trust(granted=False)
    with extender_process.extender(plane, tmp_path):
        until(sandbox, "a", {})


def test_labels_stay_while_nodewise_cannot_read_which_namespaces_are_trusted(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """nodewise is not ready and rejects all nodes, but removes no label."""
    heated(sandbox, metrics, {"a": 90}, deschedule=[HOT])
    certificates = extender_process.CertificateFiles(tmp_path)
    with extender_process.extender(plane, tmp_path, certificates=certificates):
        until(sandbox, "a", {"pol": "violating"})
    less = [rule for rule in extender_process.rules() if "namespaces" not in rule["resources"]]
    blind = plane.user(f"blind-{sandbox.namespace}", less)
    api_user_kubeconfigs.grant(
        plane.api, blind.name, extender_process.rules("Role"), extender_process.OWN_NAMESPACE
    )
    with extender_process.started(
        tmp_path, extender_process.arguments(blind, certificates), certificates
    ) as running:
        wait("the error is logged", lambda: "namespaces" in str(running.events("kube_lost")) or None)
        running.wait_leading()
        time.sleep(2)
        assert not running.is_ready()
        assert running.rejects(sandbox.namespace, "a")
        assert label(sandbox, "a") == {"pol": "violating"}


def test_a_label_of_somebody_else_is_left_alone_and_the_policy_says_so(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    marking = HOT | {"labels": ["hot=yes"]}
    heated(sandbox, metrics, {"a": 90, "b": 10, "c": 90}, deschedule=[HOT], labeling=[marking])
    mine = {"pol": "mine", "telemetry.aware.scheduling.other/x": "1"}
    for node in ("a", "b"):
        sandbox.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": mine}})
    with extender_process.extender(plane, tmp_path):
        until(sandbox, "a", mine | {f"{PREFIX}/hot": "yes"})
        until(sandbox, "c", {"pol": "violating", f"{PREFIX}/hot": "yes"})
        wait(
            "the policy says so",
            lambda: "node a" in extender_process.condition(sandbox, "LabelConflict")["message"] or None,
            show=lambda: extender_process.status(sandbox),
        )
        assert extender_process.condition(sandbox, "LabelConflict")["status"] == "True"
        metrics.set("heat", {"a": 10, "b": 10, "c": 10})
        until(sandbox, "a", mine)
        until(sandbox, "c", {})
        until(sandbox, "b", mine)


def test_labels_of_the_older_system_are_taken_over_without_a_gap(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    labels: LabelWatch,
    tmp_path: Path,
) -> None:
    """The labels are written as the older system writes them: by a JSON patch of the manager `extender`."""
    heated(sandbox, metrics, {"a": 90, "b": 10}, deschedule=[HOT])
    sandbox.nodes(kubernetes_objects.node("unmeasured"))
    add = [
        {"op": "add", "path": "/metadata/labels/pol", "value": "violating"},
        {"op": "add", "path": "/metadata/labels/telemetry.aware.scheduling.gone~1x", "value": "1"},
    ]
    for node in ("a", "b"):
        sandbox.api.request(
            "PATCH",
            f"/api/v1/nodes/{node}",
            json=add,
            headers={"Content-Type": "application/json-patch+json"},
            params={"fieldManager": "extender"},
        )
    wait("the old labels were seen", lambda: len(labels.changes) == 4 or None)
    with extender_process.extender(plane, tmp_path) as running:
        until(sandbox, "a", {"pol": "violating"})
        until(sandbox, "b", {})
        assert len(running.wait_events("labels_taken_over", 2)) == 2
        metrics.set("heat", {"a": 10, "b": 10})
        until(sandbox, "a", {})
    old = "telemetry.aware.scheduling.gone/x"
    gone = [NodeLabelChange("a", old, "1", None), NodeLabelChange("b", old, "1", None)]
    gone += [NodeLabelChange(node, "pol", "violating", None) for node in ("a", "b")]
    wait("all changes are seen", lambda: len(labels.changes) >= 8 or None)
    assert sorted(labels.changes[4:], key=str) == sorted(gone, key=str)


def test_a_metric_that_stops_holds_labels_and_verdicts_and_says_so(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    labels: LabelWatch,
    tmp_path: Path,
) -> None:
    heated(sandbox, metrics, {"a": 90, "b": 50, "c": 95}, deschedule=[HOT], dontschedule=[HOT])
    with extender_process.extender(plane, tmp_path, "--max-age=5s") as running:
        until(sandbox, "a", {"pol": "violating"})
        until(sandbox, "c", {"pol": "violating"})
        metrics.fail("heat")
        wait(
            "it is suspended",
            lambda: (
                "heat GreaterThan 80" in extender_process.condition(sandbox, "Suspended")["message"] or None
            ),
            show=lambda: extender_process.status(sandbox),
        )
        assert extender_process.condition(sandbox, "Suspended")["status"] == "True"
        assert running.rejects(sandbox.namespace, "a")
        assert not running.rejects(sandbox.namespace, "b")
        metrics.set("heat", {"a": 10, "b": 50, "c": 95})
        until(sandbox, "a", {})
        wait(
            "it is well again",
            lambda: extender_process.condition(sandbox, "Suspended")["status"] == "False" or None,
        )
    wait("all changes are seen", lambda: len(labels.of("pol")) >= 3 or None)
    assert len(labels.of("pol")) == 3


def test_an_extended_resource_is_kept_on_every_node(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    tmp_path: Path,
) -> None:
    sandbox.nodes(kubernetes_objects.node("a"))
    policy(sandbox, deschedule=[HOT])

    def advertised(node: str) -> bool | None:
        status = sandbox.api.get(f"/api/v1/nodes/{node}")["status"]
        amounts = {status[part].get("telemetry/scheduling") for part in ("capacity", "allocatable")}
        return amounts == {"1k"} or None

    with extender_process.extender(plane, tmp_path, "--advertise-resource=telemetry/scheduling=1000"):
        wait("a advertises the resource", lambda: advertised("a"))
        gone = [{"op": "remove", "path": "/status/capacity/telemetry~1scheduling"}]
        headers = {"Content-Type": "application/json-patch+json"}
        sandbox.api.request("PATCH", "/api/v1/nodes/a/status", json=gone, headers=headers)
        wait("a advertises the resource again", lambda: advertised("a"))
        sandbox.nodes(kubernetes_objects.node("late"))
        wait("a new node advertises the resource", lambda: advertised("late"))
