"""The manifest of `nodewise configure --mode native` is removed in any order, and pods are created all the time."""

import random

import pytest
import yaml

from nodewise.install import platform_manifests as manifests
from tests import short_and_long_case_counts
from tests.cluster import admission_policy_waits, extender_process, kubernetes_objects, native_mode
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import ApiError, ClusterApi, Object, path_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import HOT, policy

WEB = {"app": "web"}
MANIFEST: list[Object] = list(
    yaml.load_all(manifests.build_native_manifest(native_mode.NAMESPACE, "none", ()), yaml.CSafeLoader)
)


def admit(api: ClusterApi, labels: Object) -> Object:
    """The spec of a pod with these labels, as the API server would store it."""
    pod = kubernetes_objects.pod("probe", labels=labels)
    spec: Object = api.request("POST", "/api/v1/namespaces/default/pods", json=pod, params=DRY_RUN).json()[
        "spec"
    ]
    return spec


def check_others(sandbox: Sandbox) -> None:
    """Checks that pods without a policy, or without kube-scheduler, are created, and that nodes can be labelled."""
    native_mode.admit_pods_that_are_left_alone(sandbox.api, "default", {"telemetry-policy": "none"})
    for labels in ({}, {"app": "other"}):
        assert "affinity" not in admit(sandbox.api, labels)
    admission_policy_waits.try_patch(sandbox.api, "/api/v1/nodes/a", {"metadata": {"labels": {"x": "y"}}})


def is_free(api: ClusterApi) -> bool | None:
    """Whether pods that a policy selected are created unchanged, and pods that name one are created."""
    try:
        return ("affinity" not in admit(api, WEB) and bool(admit(api, {"telemetry-policy": "none"}))) or None
    except ApiError:
        return None


@pytest.mark.parametrize("seed", range(short_and_long_case_counts.of(1, 6)))
def test_pods_are_created_while_native_mode_is_removed_in_any_order(
    plane: ControlPlane, sandbox: Sandbox, seed: int
) -> None:
    api = plane.api
    sandbox.nodes(kubernetes_objects.node("a"))
    extender_process.define(api)
    for document in MANIFEST:
        api.ensure(document)
    sandbox.create(policy({"podSelector": {"matchLabels": WEB}, "avoid": [HOT]}))
    wait("the policy applies", lambda: "affinity" in admit(api, WEB) or None)
    paths = [path_of(document) for document in MANIFEST if document["kind"] != "Namespace"]
    random.Random(seed).shuffle(paths)
    for path in paths:
        api.delete(path)
        check_others(sandbox)
    wait("nothing refuses or changes a pod", lambda: is_free(api))
    check_others(sandbox)
    for path in paths:
        wait(f"{path} is gone", lambda path=path: api.find(path) is None or None)  # type: ignore[misc]
