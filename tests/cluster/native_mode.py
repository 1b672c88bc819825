"""Native mode in tests: the manifest, and the names that it uses."""

from typing import Final

from tests.cluster import extender_process
from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.namespace_sandboxes import wait
from tests.cluster.placement_policy_specs import GROUP, PLURALS

MANIFEST: Final[list[Object]] = extender_process.manifest("native.yaml")
NAMED: Final = "nodewise-native-named"
"""The policies for pods that name a TASPolicy."""
LABEL_PREFIX: Final = "policy.nodewise.node-restriction.kubernetes.io/"
GATE: Final = {"name": "nodewise.io/policy-not-active"}
POLICY_ANNOTATION: Final = "nodewise.io/telemetry-policy"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
DEFINITIONS: Final = ("placementpolicies", "clusterplacementpolicies", "taspolicies")


def define_kinds(api: ClusterApi) -> None:
    """Creates the definitions of all kinds of policies, and waits until the API server serves them."""
    for name in DEFINITIONS:
        for document in extender_process.manifest(f"crds/{name}.yaml"):
            api.ensure(document)
    for plural in PLURALS.values():
        wait(f"{plural} are served", lambda path=f"/apis/{GROUP}/{plural}": api.answers(path) or None)  # type: ignore[misc]
    extender_process.define(api)
