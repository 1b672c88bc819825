"""Native mode in tests: the manifest, and the names that it uses."""

from collections.abc import Mapping
from typing import Final

from tests.cluster import extender_process, kubernetes_objects
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import ClusterApi, Object, path_of
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import GROUP

MANIFEST: Final[list[Object]] = extender_process.manifest("native.yaml")
NAMED: Final = "nodewise-native-named"
"""The policies for pods that name a TASPolicy."""
LABEL_PREFIX: Final = "policy.nodewise.node-restriction.kubernetes.io/"
GATE: Final = {"name": "nodewise.io/policy-not-active"}
POLICY_ANNOTATION: Final = "nodewise.io/telemetry-policy"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def install(api: ClusterApi) -> None:
    """Creates the definitions, and then the admission policies."""
    extender_process.define(api)
    for document in MANIFEST:
        api.create(document)


def key_of_active_policy(sandbox: Sandbox, labels: Mapping[str, str], **rule: str) -> str:
    """Creates a policy for the pods of a namespace with these labels, and returns the key of its node label.

    It counts as active, so that pods are not gated, and has an effect on new pods.
    """
    avoid = {"metric": "temp", "above": 80} | rule
    spec = {"podSelector": {"matchLabels": dict(labels)}, "avoid": [avoid]}
    metadata = {"name": "cool", "namespace": sandbox.namespace}
    policy = {"apiVersion": GROUP, "kind": "PlacementPolicy", "metadata": metadata, "spec": spec}
    made = sandbox.api.create(policy)
    sandbox.api.patch(f"{path_of(made)}/status", {"status": {"active": True, "mode": "Enforce"}})
    probe = kubernetes_objects.pod("probe", labels=labels)
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"

    def applies() -> bool | None:
        admitted = sandbox.api.request("POST", path, json=probe, params=DRY_RUN).json()["spec"]
        return ("affinity" in admitted and "schedulingGates" not in admitted) or None

    wait("the policy applies to new pods", applies)
    return LABEL_PREFIX + str(made["metadata"]["uid"])
