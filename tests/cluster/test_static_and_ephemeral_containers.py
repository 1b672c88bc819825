"""Mirror pods of static pods and ephemeral containers, which come without kube-scheduler: nodewise neither refuses nor
changes them, also while its webhook is down.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from nodewise_cpu import cmk_names
from tests.cluster import controlplane, kubernetes_objects, namespace_sandboxes, native_mode
from tests.cluster.api_client import ApiError, Object
from tests.cluster.namespace_sandboxes import Sandbox
from tests.cluster.test_cpu_webhook import RunningWebhook, pod, running
from tests.cluster.test_policy_label_admission import enforced, manifests

MIRROR: Final = "kubernetes.io/config.mirror"
LABELED: Final = {"telemetry-policy": "none"}
CORES: Final = {cmk_names.EXCLUSIVE_CORES: "1"}


def mirror_pod(
    name: str, *, labels: dict[str, str] | None = None, limits: dict[str, str] | None = None
) -> Object:
    """The pod that the kubelet creates for a static pod."""
    made = kubernetes_objects.pod(name, labels=labels, limits=limits)
    made["metadata"]["annotations"] = {MIRROR: "0123456789abcdef", "kubernetes.io/config.source": "file"}
    made["spec"]["nodeName"] = "static-node"
    made["spec"]["automountServiceAccountToken"] = False
    return made


def add_ephemeral_container(sandbox: Sandbox, name: str, **fields: Any) -> Object:
    """`kubectl debug` of a pod."""
    container = {"name": "debug", "image": "none", **fields}
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods/{name}/ephemeralcontainers"
    return sandbox.api.patch(path, {"spec": {"ephemeralContainers": [container]}})


@pytest.mark.parametrize("labels", [LABELED, {"telemetry-polcy": "pol"}], ids=["no request", "misspelt"])
def test_the_admission_of_policy_labels_refuses_no_mirror_pod(
    sandbox: Sandbox, labels: dict[str, str]
) -> None:
    """Without its mirror pod, kube-scheduler would not count what a static pod requests."""
    with enforced(sandbox, manifests("Deny")):
        sandbox.put(mirror_pod("static", labels=labels))
        with pytest.raises(ApiError, match="telemetry-policy"):
            sandbox.put(kubernetes_objects.pod("other", labels=labels))


def test_native_mode_neither_refuses_nor_changes_mirror_pods_and_ephemeral_containers(
    plane: controlplane.ControlPlane, sandbox: Sandbox
) -> None:
    native_mode.install(plane.api)
    key = native_mode.key_of_active_policy(sandbox, {"app": "web"})
    created = sandbox.put(mirror_pod("static", labels={"app": "web", **LABELED}))
    assert "affinity" not in created["spec"]
    assert "schedulingGates" not in created["spec"]
    sandbox.put(kubernetes_objects.pod("web", labels={"app": "web"}))
    before = sandbox.pod("web")
    assert before is not None
    assert key in str(before["spec"]["affinity"])
    after = add_ephemeral_container(sandbox, "web")
    assert after["spec"].pop("ephemeralContainers")
    assert after["spec"] == before["spec"]


def test_a_pod_cannot_pretend_to_be_a_mirror_pod_and_still_be_scheduled(sandbox: Sandbox) -> None:
    """What the admission rules rely on: the API server accepts the annotation only together with a node."""
    pretended = kubernetes_objects.pod("pretended", labels=LABELED)
    pretended["metadata"]["annotations"] = {MIRROR: "0123456789abcdef"}
    with pytest.raises(ApiError, match="nodeName"):
        sandbox.put(pretended)


@pytest.mark.parametrize(
    "resource", ["gpu.intel.com/i915", "telemetry/scheduling", cmk_names.EXCLUSIVE_CORES]
)
def test_ephemeral_containers_request_nothing(sandbox: Sandbox, resource: str) -> None:
    """What GPU allocation and the CPU manager rely on, as they count only containers and init containers."""
    sandbox.put(kubernetes_objects.pod("debugged"))
    with pytest.raises(ApiError, match="cannot be set for an Ephemeral Container"):
        add_ephemeral_container(sandbox, "debugged", resources={"limits": {resource: "1"}})


@pytest.fixture(scope="module")
def stopped(
    plane: controlplane.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningWebhook]:
    """A webhook with failurePolicy Fail that has ended. Before, it has admitted the pod `before`."""
    folder = tmp_path_factory.mktemp("webhook")
    with (
        namespace_sandboxes.created(plane) as sandbox,
        running(sandbox, folder, "--insecure=True") as webhook,
    ):
        sandbox.put(pod("before", requests=CORES))
        admitted = sandbox.put(mirror_pod("static-before", limits=CORES))
        assert "env" not in admitted["spec"]["containers"][0]
        webhook.process.stop()
        yield webhook


def test_without_the_webhook_only_pods_with_cores_are_refused(stopped: RunningWebhook) -> None:
    sandbox = stopped.sandbox
    with pytest.raises(ApiError, match="failed calling webhook"):
        sandbox.put(pod("cores", requests=CORES))
    sandbox.put(pod("unrelated"))
    sandbox.put(pod("annotated", annotations={"cmk.intel.com/other": "true"}))
    sandbox.put(mirror_pod("static", limits=CORES))
    add_ephemeral_container(sandbox, "before")
    sandbox.api.patch(
        f"/api/v1/namespaces/{sandbox.namespace}/pods/before", {"metadata": {"labels": {"changed": "yes"}}}
    )
