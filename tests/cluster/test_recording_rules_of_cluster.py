"""`nodewise policy recording-rules --cluster` on a real API server."""

import yaml

from tests.cluster import extender_process, read_only_commands
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox

RULE = {"metric": "node_recorded_celsius", "aggregate": "max", "above": 80, "maxAge": "2m"}


def test_policies_of_the_cluster_are_recorded_and_accepted_again(
    plane: ControlPlane, sandbox: Sandbox
) -> None:
    extender_process.define(sandbox.api)
    metadata = {"name": "recorded", "labels": {"team": "a"}, "annotations": {"note": "kept"}}
    spec = {"podSelector": {"matchLabels": {"app": "web"}}, "avoid": [RULE]}
    sandbox.put(
        {"apiVersion": "nodewise.io/v1alpha1", "kind": "PlacementPolicy", "metadata": metadata, "spec": spec}
    )
    user = read_only_commands.reader(plane)
    options = ("policy", "recording-rules", "--cluster", f"--kubeconfig={user.kubeconfig}")
    done = read_only_commands.run(*options, "-oprometheusrule", "--label=release=prometheus")
    [rules] = yaml.safe_load_all(done.stdout)
    assert rules["metadata"] == {"name": "nodewise-recording", "labels": {"release": "prometheus"}}
    name = "node:node_recorded_celsius:nodewise_max"
    assert name in [group["name"] for group in rules["spec"]["groups"]]
    done = read_only_commands.run(*options, "-opolicies")
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    [changed] = [
        document for document in documents if document["metadata"].get("namespace") == sandbox.namespace
    ]
    assert changed["metadata"] == {**metadata, "namespace": sandbox.namespace}
    assert changed["spec"] == {**spec, "avoid": [{**RULE, "metric": name, "maxAge": "1m30s"}]}
    path = f"/apis/nodewise.io/v1alpha1/namespaces/{sandbox.namespace}/placementpolicies/recorded"
    sandbox.api.patch(path, {"spec": changed["spec"]})
    # the rule stays when the policies already use it
    again = read_only_commands.run(*options)
    assert name in [group["name"] for group in yaml.safe_load(again.stdout)["groups"]]
