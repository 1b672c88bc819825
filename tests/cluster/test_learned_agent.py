"""The learned agent with a real kube-scheduler: outcomes of pods change later placements, also after a restart."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import plain_http
from tests.cluster import api_user_kubeconfigs, child_processes, extender_process, kubernetes_objects
from tests.cluster.api_client import ApiError, Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import OWN_NAMESPACE, CertificateFiles, ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox, wait

MEMORY = f"/api/v1/namespaces/{OWN_NAMESPACE}/configmaps/nodewise-memory"
AGENT = "--agents=learned"


@pytest.fixture
def by(plane: ControlPlane) -> Iterator[User]:
    """A user with the shipped rights for agents with stored state, without any state yet."""
    made = plane.user(f"nodewise-{child_processes.number()}", extender_process.rules())
    memory = next(
        manifest for manifest in extender_process.manifest("memory.yaml") if manifest["kind"] == "Role"
    )["rules"]
    api_user_kubeconfigs.grant(
        plane.api, made.name, [*extender_process.rules("Role"), *memory], OWN_NAMESPACE
    )
    _forget(plane)
    yield made
    _forget(plane)


def _forget(plane: ControlPlane) -> None:
    try:
        plane.api.delete(MEMORY)
    except ApiError as error:
        if error.code != 404:
            raise


def web(name: str, node: str = "") -> Object:
    """A pod of the type `web`, limited to a node if one is named."""
    pod = kubernetes_objects.pod(name, cpu="10m", memory="1Mi", labels={"app": "web"})
    pinned = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return pod | {"spec": pod["spec"] | pinned}


def fail(sandbox: Sandbox, name: str) -> None:
    """Sets the phase Failed of a pod, as a kubelet does."""
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods/{name}/status"
    sandbox.api.patch(path, {"status": {"phase": "Failed"}})


def entry(nodewise: ExtenderProcess) -> Object:
    """The extender's entry for all pods, with a weight that exceeds kube-scheduler's own plugins."""
    return nodewise.entry(managedResources=[], weight=100)


def test_pods_avoid_the_node_on_which_their_like_failed_also_after_a_restart(
    plane: ControlPlane, sandbox: Sandbox, by: User, tmp_path: Path
) -> None:
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    certificates = CertificateFiles(tmp_path)
    with extender_process.extender(plane, tmp_path, AGENT, certificates=certificates, by=by) as nodewise:
        nodewise.wait_leading()
        with plane.start_scheduler({"extenders": [entry(nodewise)]}):
            for number in range(3):
                sandbox.pods(web(f"bad-{number}", "a"))
                assert sandbox.expect_bound(f"bad-{number}") == "a"
                fail(sandbox, f"bad-{number}")
            wait("three failures are known", lambda: _tried_count(nodewise, sandbox) == 3 or None)
            sandbox.pods(*(web(f"web-{number}") for number in range(4)))
            assert {sandbox.expect_bound(f"web-{number}") for number in range(4)} == {"b"}
            scored = [
                decision for decision in nodewise.decisions("web-0") if decision["verb"] == "prioritize"
            ]
            numbers = scored[-1]["numbers"]["learned"]
            assert numbers["a"]["reward"] == pytest.approx(0.729, abs=1e-3)
            assert (numbers["a"]["tried"], numbers["a"]["type"]) == (3, "web")
            assert (numbers["b"]["tried"], numbers["b"]["missing"]) == (0, "never tried")
    assert _stored_type(plane, sandbox)["a"][:2] == [pytest.approx(0.729, abs=1e-3), 3]
    with (
        extender_process.extender(plane, tmp_path, AGENT, certificates=certificates, by=by) as nodewise,
        plane.start_scheduler({"extenders": [entry(nodewise)]}),
    ):
        sandbox.pods(*(web(f"later-{number}") for number in range(4)))
        assert {sandbox.expect_bound(f"later-{number}") for number in range(4)} == {"b"}
        assert _tried_count(nodewise, sandbox) == 3
        nodewise.wait_leading()
        fail(sandbox, "later-0")
        wait("another failure is known", lambda: _tried_count(nodewise, sandbox, "b") or None)
    assert _stored_type(plane, sandbox)["b"][1] == 1


def _stored_type(plane: ControlPlane, sandbox: Sandbox) -> Object:
    """The stored statistics of the type `web`, by node."""
    states: Object = json.loads(plane.api.get(MEMORY)["data"]["learned.json"])["types"]
    kept: Object = states[f"{sandbox.namespace}/web"]
    return kept


def _tried_count(nodewise: ExtenderProcess, sandbox: Sandbox, node: str = "a") -> int:
    """The number of attempts of the type `web` on a node."""
    types = plain_http.get(f"{nodewise.health}/state/learned").json()["types"]
    tried: int = types.get(f"{sandbox.namespace}/web", {}).get(node, {}).get("tried", 0)
    return tried
