"""A real kubelet fails the pods of native mode if it starts on a node that violates their policy."""

import pytest

from tests.cluster import native_mode
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox
from tests.node import script_pods
from tests.node.kubelet import Kubelet

pytestmark = pytest.mark.cluster

SLEEP = "exec busybox sleep 1000000"


def selected_pod(name: str, app: str) -> Object:
    pod = script_pods.pod(name, SLEEP)
    return pod | {"metadata": {"name": name, "labels": {"app": app}}}


def test_a_kubelet_that_starts_on_a_violating_node_fails_the_selected_pods(
    plane: ControlPlane, sandbox: Sandbox, node: Kubelet
) -> None:
    """The requirement of one pod is node affinity, and that of another one a node selector."""
    native_mode.install(plane.api)
    allowing = native_mode.key_of_active_policy(sandbox, {"app": "web"})
    rejecting = native_mode.key_of_active_policy(sandbox, {"app": "strict"}, whenMissing="Reject")
    node.label({rejecting: "ok"})
    with plane.start_scheduler({}):
        names = ("web", "strict", "other")
        sandbox.pods(*(selected_pod(name, name) for name in names))
        for name in names:
            script_pods.running(sandbox, name)
    node.label({allowing: "violating", rejecting: "violating"})
    node.restart()
    for name in ("web", "strict"):
        failed = script_pods.ended(sandbox, name)
        assert (failed["status"]["phase"], failed["status"]["reason"]) == ("Failed", "NodeAffinity")
    script_pods.running(sandbox, "other")
