"""Tests of the control plane that the other cluster tests use."""

import contextlib
from pathlib import Path

import pytest

from tests.cluster import api_user_kubeconfigs, controlplane, kubernetes_objects, program_cache
from tests.cluster.api_client import ApiError, Object
from tests.cluster.api_user_kubeconfigs import rule
from tests.cluster.child_processes import NotReadyError, Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait

pytestmark = pytest.mark.kubernetes_versions

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"


def test_the_version_is_one_that_clients_can_parse(plane: ControlPlane) -> None:
    assert plane.api.get("/version")["gitVersion"] == program_cache.VERSION


def test_kubectl_sees_a_ready_node_without_taints(plane: ControlPlane, sandbox: Sandbox) -> None:
    sandbox.nodes(kubernetes_objects.node("a"))
    assert "Ready" in plane.kubectl("get", "nodes", "a").split()
    assert "taints" not in sandbox.api.get(f"{NODES}/a")["spec"]


def test_a_user_has_exactly_the_rights_of_the_rules(plane: ControlPlane) -> None:
    reader = plane.user("reader", [rule("get list watch", "nodes")])
    assert reader.api.get(NODES)["kind"] == "NodeList"
    with pytest.raises(ApiError, match='403: pods is forbidden: User "reader" cannot list'):
        reader.api.get(PODS)


def test_rights_can_end_at_a_namespace(plane: ControlPlane, sandbox: Sandbox) -> None:
    reader = plane.user("local-reader", [rule("list", "pods")], namespace=sandbox.namespace)
    assert reader.api.get(f"/api/v1/namespaces/{sandbox.namespace}/pods")["items"] == []
    with pytest.raises(ApiError, match="403"):
        reader.api.get(PODS)


def test_a_service_account_comes_in_by_token(plane: ControlPlane, sandbox: Sandbox) -> None:
    robot = plane.service_account("robot", sandbox.namespace, [rule("list", "nodes")])
    assert robot.token in robot.kubeconfig.read_text()
    assert robot.api.get(NODES)["kind"] == "NodeList"


def test_a_stranger_is_not_let_in(plane: ControlPlane, tmp_path: Path) -> None:
    server = api_user_kubeconfigs.ApiServerAccess(plane.url, plane.authority, tmp_path)
    with pytest.raises(ApiError, match="401"):
        server.bearer("stranger", "no token of ours").api.get(NODES)


def test_a_scheduler_takes_its_configuration_as_yaml(plane: ControlPlane, sandbox: Sandbox) -> None:
    sandbox.nodes(kubernetes_objects.node("a"))
    scheduler = plane.start_scheduler("profiles: [{schedulerName: mine}]")
    sandbox.pods(kubernetes_objects.pod("others"), _scheduled_by("mine", kubernetes_objects.pod("ours")))
    assert sandbox.expect_bound("ours") == "a"
    sandbox.expect_stays_unbound("others", for_s=0.5)
    scheduler.stop()
    assert not scheduler.is_running


def test_the_words_of_a_sandbox(plane: ControlPlane, sandbox: Sandbox) -> None:
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    with plane.start_scheduler({}):
        sandbox.pods(kubernetes_objects.pod("small"), kubernetes_objects.pod("large", cpu="99"))
        assert sandbox.expect_bound("small") in {"a", "b"}
        assert sandbox.expect_rejected("large").startswith("0/2 nodes are available: 2 Insufficient cpu.")
        assert sandbox.expect_event("large") == sandbox.expect_rejected("large")
        assert sandbox.expect_event("small", "Scheduled").startswith("Successfully assigned ")
    sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/small")
    sandbox.expect_gone("small")
    with pytest.raises(AssertionError, match=r"pod small is bound: not so after 0.1 s; None"):
        sandbox.expect_bound("small", deadline_s=0.1)


def test_a_scheduler_that_cannot_start_says_why(plane: ControlPlane) -> None:
    with pytest.raises(
        NotReadyError, match=r"(?s)kube-scheduler ended with code 1:.*percentageOfNodesToScore"
    ):
        plane.start_scheduler({"percentageOfNodesToScore": 200})


def test_a_program_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    with Process(["sh", "-c", "echo so far; exec sleep 60"], tmp_path / "log") as process:
        process.wait_ready(lambda: process.log_line_has("so far"))
        with pytest.raises(NotReadyError, match=r"sh was not ready after 0.5 s:\nso far"):
            process.wait_ready(lambda: False, deadline_s=0.5)
    assert not process.is_running


def test_the_controller_manager_clears_a_namespace(plane: ControlPlane) -> None:
    plane.api.create(kubernetes_objects.namespace("doomed"))
    manager = plane.start_controller_manager("namespace-controller")
    plane.api.delete("/api/v1/namespaces/doomed")
    wait("doomed is gone", lambda: plane.api.find("/api/v1/namespaces/doomed") is None or None, deadline_s=60)
    manager.stop()


def test_nothing_is_left_of_a_control_plane(control_plane_programs: Path, tmp_path: Path) -> None:
    with contextlib.suppress(RuntimeError), controlplane.running(control_plane_programs, tmp_path) as own:
        raise RuntimeError("a test that fails")
    assert [process.name for process in own.processes] == ["etcd", "kube-apiserver"]
    assert not any(process.is_running for process in own.processes)
    assert not own.folder.exists()


def _scheduled_by(name: str, pod: Object) -> Object:
    return pod | {"spec": pod["spec"] | {"schedulerName": name}}
