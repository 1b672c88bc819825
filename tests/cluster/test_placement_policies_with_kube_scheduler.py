"""A real kube-scheduler follows placement policies that select pods by labels."""

from pathlib import Path
from typing import Any

from tests.cluster import extender_process, kubernetes_objects
from tests.cluster.api_client import Object, path_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import LIMITS
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy


def pod(name: str, app: str) -> Object:
    """A pod that kube-scheduler sends to nodewise, without the label of a TASPolicy."""
    return kubernetes_objects.pod(name, labels={"app": app}, limits=LIMITS)


def test_two_policies_select_one_pod(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """The union of both rejects nodes. When one is deleted, the pod that waits is requeued and bound."""
    extender_process.define(plane.api)
    sandbox.nodes(*kubernetes_objects.nodes("a b c"))
    metrics.set("heat", {"a": 90, "b": 30, "c": 30})
    metrics.set("noise", {"a": 1, "b": 9, "c": 1})
    web: Any = {"matchLabels": {"app": "web"}}
    own = {"matchLabels": {"kubernetes.io/metadata.name": sandbox.namespace}}
    cool = sandbox.put(policy({"podSelector": web, "avoid": [{"metric": "heat", "above": 80}]}, name="cool"))
    quiet = {"namespaceSelector": own, "podSelector": web, "avoid": [{"metric": "noise", "atLeast": 9}]}
    wide = sandbox.create(policy(quiet, "ClusterPlacementPolicy", f"quiet-{sandbox.namespace}"))
    with extender_process.extender(plane, tmp_path) as nodewise:
        nodewise.wait_fetched("heat")
        nodewise.wait_fetched("noise")
        nodewise.wait_leading()
        with plane.start_scheduler({"extenders": [nodewise.entry()]}):
            sandbox.pods(pod("first", "web"))
            assert sandbox.expect_bound("first") == "c"
            rejected = nodewise.decisions("first")[-1]["rejected"]
            assert set(rejected) == {"a", "b"}
            metrics.set("noise", {"a": 1, "b": 9, "c": 9})
            wait(
                "c is noisy",
                lambda: nodewise.rejects(sandbox.namespace, "c", labels=web["matchLabels"]) or None,
            )
            sandbox.pods(pod("second", "web"), pod("other", "db"))
            assert sandbox.expect_bound("other") in {"a", "b", "c"}
            message = sandbox.expect_rejected("second")
            assert f"1 placement policy {sandbox.namespace}/cool: heat above 80" in message
            assert f"2 cluster placement policy quiet-{sandbox.namespace}: noise atLeast 9" in message
            plane.api.delete(path_of(wide))
            assert sandbox.expect_bound("second") in {"b", "c"}
            # no policy is left
            metrics.set("heat", {"a": 90, "b": 90, "c": 90})
            wait(
                "all nodes are hot",
                lambda: nodewise.rejects(sandbox.namespace, "c", labels=web["matchLabels"]) or None,
            )
            sandbox.pods(pod("third", "web"))
            assert "3 placement policy" in sandbox.expect_rejected("third")
            plane.api.delete(path_of(cool))
            sandbox.expect_bound("third")


def test_an_extender_that_receives_all_pods_selects_them_itself(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """As with `--filter-all-pods`, where the API server cannot add the resource to pods. Pods that have it fit, too."""
    extender_process.define(plane.api)
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    metrics.set("heat", {"a": 90, "b": 90})
    web: Any = {"matchLabels": {"app": "web"}}
    sandbox.put(policy({"podSelector": web, "avoid": [{"metric": "heat", "above": 80}]}, name="cool"))
    with extender_process.extender(plane, tmp_path) as nodewise:
        nodewise.wait_fetched("heat")
        nodewise.wait_leading()
        every = nodewise.entry(managedResources=[])
        marks = {field: value for field, value in nodewise.entry().items() if not field.endswith("Verb")}
        with plane.start_scheduler({"extenders": [every, marks]}):
            sandbox.pods(*(kubernetes_objects.pod(app, labels={"app": app}) for app in ("web", "db")))
            sandbox.pods(kubernetes_objects.pod("marked", limits=extender_process.LIMITS))
            for pod in ("db", "marked"):
                assert sandbox.expect_bound(pod) in {"a", "b"}
            assert f"2 placement policy {sandbox.namespace}/cool" in sandbox.expect_rejected("web")
            metrics.set("heat", {"a": 90, "b": 20})
            assert sandbox.expect_bound("web") == "b"
