"""Native mode in tests: the manifest, and the names that it uses."""

from collections.abc import Mapping
from typing import Final

from tests.cluster import admission_policy_waits, extender_process, kubernetes_objects
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import ApiError, ClusterApi, Object, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import HOT, policy

MANIFEST: Final[list[Object]] = extender_process.manifest("native.yaml")
NAMED: Final = "nodewise-native-named"
"""The policies for pods that name a TASPolicy."""
LABEL_PREFIX: Final = "policy.nodewise.node-restriction.kubernetes.io/"
GATE: Final = {"name": "nodewise.io/policy-not-active"}
POLICY_ANNOTATION: Final = "nodewise.io/telemetry-policy"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
NAMESPACE: Final = "nodewise"
"""The namespace of the installation."""


DAEMON_SET_CONTROLLER: Final = "system:serviceaccount:kube-system:daemon-set-controller"
_OWNER: Final = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1", "controller": True}


def admit_pods_that_are_left_alone(api: ClusterApi, namespace: str, labels: Object) -> list[Object]:
    """Creates, as a dry run, a pod with a node, a mirror pod and a pod of a DaemonSet. Raises ApiError if refused."""
    bound, mirror, owned = (kubernetes_objects.pod("probe", labels=labels) for _ in range(3))
    for pod in (bound, mirror):
        pod["spec"] |= {"nodeName": "any-node", "automountServiceAccountToken": False}
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "0123456789abcdef"}
    owned["metadata"]["ownerReferences"] = [_OWNER]
    path = f"/api/v1/namespaces/{namespace}/pods"
    users: tuple[tuple[Object, dict[str, str]], ...] = (
        (bound, {}),
        (mirror, {}),
        (owned, {"Impersonate-User": DAEMON_SET_CONTROLLER}),
    )
    return [
        api.request("POST", path, json=pod, params=DRY_RUN, headers=headers).json() for pod, headers in users
    ]


def install(api: ClusterApi) -> None:
    """Creates the definitions, and then the admission policies."""
    extender_process.define(api)
    for document in MANIFEST:
        api.ensure(document)


def uninstall(api: ClusterApi) -> None:
    """Deletes the admission policies, and waits until the API server neither changes nor denies pods by them.

    The API server receives the changes of one kind in order, and the policy of the key is deleted after those that add
    requirements and gates.
    """
    for document in MANIFEST:
        api.delete(path_of(document))
    key = f"{LABEL_PREFIX}0123"
    probe = kubernetes_objects.pod("probe", labels={"telemetry-policy": "absent"})
    probe["spec"]["nodeSelector"] = {key: "ok"}

    def is_unchanged() -> bool | None:
        try:
            made = api.request("POST", "/api/v1/namespaces/default/pods", json=probe, params=DRY_RUN).json()
        except ApiError:
            return None
        return key in made["spec"].get("nodeSelector", {}) or None

    wait("new pods are not changed", is_unchanged)


def install_with_account(plane: ControlPlane) -> User:
    """Creates everything of native mode except the Deployment, and returns the controller's account."""
    install(plane.api)
    for name in ("rbac.yaml", "controller.yaml"):
        for document in extender_process.manifest(name):
            if document["kind"] != "Deployment":
                plane.api.ensure(document)
    account = plane.service_account("nodewise", NAMESPACE)
    admission_policy_waits.wait_nodes(plane.api, account.api)
    admission_policy_waits.wait_pods(plane.api, account.api)
    return account


def labels_of(node: Object) -> dict[str, str]:
    """The labels with verdicts of a node, by uid of the policy."""
    labels: dict[str, str] = node["metadata"].get("labels", {})
    return {
        key.removeprefix(LABEL_PREFIX): value for key, value in labels.items() if key.startswith(LABEL_PREFIX)
    }


def key_of_active_policy(sandbox: Sandbox, labels: Mapping[str, str], **rule: str) -> str:
    """Creates a policy for the pods of a namespace with these labels, and returns the key of its node label.

    It counts as active, so that pods are not gated, and has an effect on new pods.
    """
    spec = {"podSelector": {"matchLabels": dict(labels)}, "avoid": [HOT | rule]}
    made = sandbox.put(policy(spec, name="-".join(["cool", *labels.values()])))
    sandbox.api.patch(f"{path_of(made)}/status", {"status": {"active": True, "mode": "Enforce"}})
    probe = kubernetes_objects.pod("probe", labels=labels)
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"

    def applies() -> bool | None:
        admitted = sandbox.api.request("POST", path, json=probe, params=DRY_RUN).json()
        is_required = requires(admitted, made["metadata"]["uid"])
        return (is_required and "schedulingGates" not in admitted["spec"]) or None

    wait("the policy applies to new pods", applies)
    return LABEL_PREFIX + str(made["metadata"]["uid"])


def wait_gated(sandbox: Sandbox, labels: Mapping[str, str]) -> None:
    """Waits until new pods with these labels are gated, because their policy is not active.

    The API server learns policies of one kind in the order of their creation.
    """
    probe = kubernetes_objects.pod("probe", labels=labels)
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"

    def is_gated() -> bool | None:
        try:
            admitted = sandbox.api.request("POST", path, json=probe, params=DRY_RUN).json()
        except ApiError:  # the API server does not know the TASPolicy yet
            return None
        return GATE in admitted["spec"].get("schedulingGates", []) or None

    wait("new pods are gated", is_gated)


def requires(pod: Object, uid: str) -> bool:
    """Whether the node selector of the pod, or every term of its node affinity, names the label of a policy."""
    if LABEL_PREFIX + uid in pod["spec"].get("nodeSelector", {}):
        return True
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {})
    terms = affinity.get("nodeSelectorTerms", [])
    keys = [{item["key"] for item in term.get("matchExpressions", [])} for term in terms]
    return bool(keys) and all(LABEL_PREFIX + uid in each for each in keys)
