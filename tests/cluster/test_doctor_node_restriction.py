"""Whether kubelets can write the labels of native mode: a real API server with and without NodeRestriction."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nodewise.policies.node_labels import VERDICT_LABEL_PREFIX
from tests.cluster import controlplane, kubernetes_objects, read_only_commands
from tests.cluster.api_client import ApiError
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane

pytestmark = pytest.mark.kubernetes_versions
LABEL = f"{VERDICT_LABEL_PREFIX}6f1c"
PLUGIN = {
    "without the plugin": ({}, False),
    "with the plugin": ({"enable-admission-plugins": "NodeRestriction"}, True),
}


@pytest.fixture(scope="module", params=PLUGIN.values(), ids=PLUGIN)
def server(
    request: pytest.FixtureRequest, control_plane_programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ControlPlane, bool]]:
    """An API server with a node that has a verdict, and whether it has the plugin."""
    flags, is_enforced = request.param
    with controlplane.running(control_plane_programs, tmp_path_factory.mktemp("plane"), flags) as plane:
        plane.api.create(kubernetes_objects.node("rack3", labels={LABEL: "violating"}))
        yield plane, is_enforced


def findings(user: User) -> Mapping[str, Any]:
    """The findings of doctor by id."""
    report = read_only_commands.run("doctor", f"--kubeconfig={user.kubeconfig}", "-o", "json")
    parsed = read_only_commands.parse_report(report, code=3)
    return {finding["id"]: finding for finding in parsed["findings"] + parsed["not_checked"]}


def test_a_kubelet_can_write_a_verdict_only_without_the_plugin(server: tuple[ControlPlane, bool]) -> None:
    plane, is_enforced = server
    kubelet = plane.user("system:node:rack3", group="system:nodes")
    change = {"metadata": {"labels": {LABEL: "ok"}}}
    if is_enforced:
        with pytest.raises(ApiError, match="is not allowed to modify labels"):
            kubelet.api.patch("/api/v1/nodes/rack3", change)
    else:
        assert kubelet.api.patch("/api/v1/nodes/rack3", change)["metadata"]["labels"][LABEL] == "ok"


def test_doctor_tries_it_as_an_administrator_and_changes_nothing(
    server: tuple[ControlPlane, bool],
) -> None:
    plane, is_enforced = server
    before = plane.api.get("/api/v1/nodes/rack3")["metadata"]["labels"]
    assert ("verdict-labels-writable" in findings(plane.admin)) == (not is_enforced)
    assert plane.api.get("/api/v1/nodes/rack3")["metadata"]["labels"] == before


def test_doctor_reads_the_flags_of_a_kubeadm_host_without_that_right(
    server: tuple[ControlPlane, bool],
) -> None:
    plane, is_enforced = server
    reader = plane.user("reader", [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}])
    assert "impersonate" in str(findings(reader))
    flag = "--enable-admission-plugins=NodeRestriction" if is_enforced else "--secure-port=6443"
    container = {"name": "kube-apiserver", "image": "none", "command": ["kube-apiserver", flag]}
    metadata = {
        "name": "kube-apiserver-rack3",
        "namespace": "kube-system",
        "labels": {"component": "kube-apiserver"},
    }
    plane.api.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    )
    report = findings(reader)
    assert ("verdict-labels-writable" in report) == (not is_enforced)
    assert "impersonate" not in str(report)
