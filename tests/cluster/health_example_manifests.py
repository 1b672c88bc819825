"""The manifests of `examples/health-metric`, adapted to the namespace of a test."""

from pathlib import Path
from typing import Any

import yaml

from tests.cluster import namespace_sandboxes
from tests.cluster.api_client import Object
from tests.cluster.namespace_sandboxes import Sandbox, wait

FOLDER = Path(__file__).parents[2] / "examples" / "health-metric"
CLUSTER = FOLDER / "cluster"

ADAPTER_RULES = CLUSTER / "adapter-rules.yaml"
DESCHEDULER_POLICY = CLUSTER / "descheduler-policy.yaml"

NODES = ("rack1-a", "rack1-b", "rack2-a")
POLICY = "demo-policy"
LABEL = {POLICY: "violating"}
"""The label that nodewise sets on a node that breaks the policy's deschedule rules."""


def read(file: Path) -> Any:
    """The content of a YAML file."""
    return yaml.safe_load(file.read_text())


def policy() -> Object:
    """The TASPolicy without a namespace; the test adds its own."""
    return _at_home(read(FOLDER / "policy.yaml"))


def deployment(replicas: int = 1) -> Object:
    """The Deployment of the demo application. Its pods have no grace period, since no kubelet ends them."""
    deployment = _at_home(read(CLUSTER / "deployment.yaml"))
    deployment["spec"]["replicas"] = replicas
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    return deployment


def pod(name: str) -> Object:
    """A pod as the demo application's Deployment creates it."""
    template = deployment()["spec"]["template"]
    metadata = template["metadata"] | {"name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def pods(sandbox: Sandbox) -> list[Object]:
    """The pods of the demo application that are not being deleted."""
    pods = sandbox.api.get(f"/api/v1/namespaces/{sandbox.namespace}/pods", labelSelector="app=demo-app")[
        "items"
    ]
    return [pod for pod in pods if not namespace_sandboxes.is_leaving(pod)]


def placed(sandbox: Sandbox) -> str:
    """Waits until the only pod of the demo application is bound, and returns its node."""

    def node() -> str | None:
        nodes = [namespace_sandboxes.node_of(pod) for pod in pods(sandbox)]
        return nodes[0] if len(nodes) == 1 else None

    return wait("the demo application is placed", node, show=lambda: pods(sandbox))


def _at_home(obj: Object) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "namespace"}
    return obj | {"metadata": metadata}
