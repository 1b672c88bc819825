"""`deploy/native.yaml` is installed and removed in any order, and pods that no policy selects are always created."""

from pathlib import Path
from typing import Final

from tests.cluster import controlplane, extender_process, kubernetes_objects, native_mode
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import ApiError, ClusterApi, Object, path_of
from tests.cluster.child_processes import Process
from tests.cluster.namespace_sandboxes import wait
from tests.cluster.placement_policy_specs import HOT, policy

NAMESPACES: Final = ("default", "kube-system")
SELECTING: Final = policy({"podSelector": {"matchLabels": {"app": "web"}}, "avoid": [HOT]})
NAMING: Final = {"telemetry-policy": "none"}


def admit(api: ClusterApi, labels: Object, namespace: str = "default") -> Object:
    pod = kubernetes_objects.pod("probe", labels=labels)
    made: Object = api.request(
        "POST", f"/api/v1/namespaces/{namespace}/pods", json=pod, params=DRY_RUN
    ).json()
    return made


def check_others(api: ClusterApi) -> None:
    """Checks that pods are created unchanged if no policy selects them, or if they come without kube-scheduler."""
    for namespace in NAMESPACES:
        for pod in native_mode.admit_pods_that_are_left_alone(api, namespace, NAMING):
            assert "affinity" not in pod["spec"]
        for labels in ({}, {"app": "other"}):
            assert "affinity" not in admit(api, labels, namespace)["spec"]


def denies(api: ClusterApi) -> bool:
    """Whether a pod is denied because it names a policy that does not exist."""
    try:
        admit(api, NAMING)
    except ApiError as error:
        if native_mode.NAMED in str(error):
            return True
        raise
    return False


def until_denied(api: ClusterApi) -> None:
    wait("a pod without its policy is denied", lambda: denies(api) or None)


def until_selected(api: ClusterApi, *, selected: bool) -> None:
    wait(
        f"the policy applies: {selected}",
        lambda: ("affinity" in admit(api, {"app": "web"})["spec"]) is selected or None,
    )


def delete_definitions(api: ClusterApi) -> None:
    for group, plural in extender_process.POLICY_KINDS:
        api.delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{group}")
        path = f"/apis/{group}/v1alpha1/{plural}"
        wait(f"{plural} are gone", lambda path=path: not api.answers(path) or None)  # type: ignore[misc]


def test_other_pods_are_created_in_every_order_of_installation(
    control_plane_programs: Path, tmp_path: Path
) -> None:
    with controlplane.running(control_plane_programs, tmp_path) as plane:
        api, server = plane.api, plane.processes[1]
        native_mode.install(api)
        api.create(SELECTING)
        until_selected(api, selected=True)
        until_denied(api)
        check_others(api)
        # the definitions are deleted, and the policies with them
        delete_definitions(api)
        until_selected(api, selected=False)
        check_others(api)
        assert denies(api)
        # an API server that starts without the definitions
        command = server.command
        server.kill()
        with Process(command, server.log) as again:
            again.wait_ready(lambda: api.answers("/readyz"))
            check_others(api)
            until_denied(api)
            check_others(api)
            # definitions that are created after the admission policies; they have an effect within half a minute
            extender_process.define(api)
            check_others(api)
            for document in native_mode.MANIFEST:
                api.delete(path_of(document))
            wait("a pod without its policy is created", lambda: not denies(api) or None)
            check_others(api)
