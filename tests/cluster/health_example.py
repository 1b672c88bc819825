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
"""What nodewise puts on a node that the policy's deschedule rules find violating."""


def read(file: Path) -> Any:
    """What is in a YAML file."""
    return yaml.safe_load(file.read_text())


def policy() -> Object:
    """The TASPolicy; without a namespace, which is the test's."""
    return _at_home(read(FOLDER / "policy.yaml"))


def deployment(replicas: int = 1) -> Object:
    """The demo application; its pods go at once when they are evicted, since no kubelet lets them end."""
    deployment = _at_home(read(CLUSTER / "deployment.yaml"))
    deployment["spec"]["replicas"] = replicas
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    return deployment


def pod(name: str) -> Object:
    """One pod as the demo application's Deployment makes them."""
    template = deployment()["spec"]["template"]
    metadata = template["metadata"] | {"name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def pods(sandbox: Sandbox) -> list[Object]:
    """The pods of the demo application that are there to stay."""
    pods = sandbox.api.get(f"/api/v1/namespaces/{sandbox.namespace}/pods", labelSelector="app=demo-app")[
        "items"
    ]
    return [pod for pod in pods if not namespace_sandboxes.is_leaving(pod)]


def placed(sandbox: Sandbox) -> str:
    """The node of the one pod of the demo application, once it has one."""

    def node() -> str | None:
        nodes = [namespace_sandboxes.node_of(pod) for pod in pods(sandbox)]
        return nodes[0] if len(nodes) == 1 else None

    return wait("the demo application is placed", node, show=lambda: pods(sandbox))


def _at_home(obj: Object) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "namespace"}
    return obj | {"metadata": metadata}
