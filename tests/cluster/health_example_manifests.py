"""The manifests of `examples/health-metric`, adapted to the namespace of a test."""

from collections.abc import Mapping
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
POLICY = "healthy-disks"
LABEL = {"health.nodewise.io/disk": "failed"}
"""The label that the ClusterPlacementPolicy sets on a node that is to be drained."""
POD_LABELS = {"app": "demo-app"}
"""The labels by which the PlacementPolicy selects pods."""


def read(file: Path) -> Any:
    """The content of a YAML file."""
    return yaml.safe_load(file.read_text())


def put_policies(sandbox: Sandbox, metric: str = "health_metric") -> None:
    """Creates the PlacementPolicy in the sandbox, and the ClusterPlacementPolicy. Their rules use this metric."""
    text = (FOLDER / "policy.yaml").read_text().replace("health_metric", metric)
    in_namespace, in_cluster = yaml.safe_load_all(text)
    sandbox.put(_at_home(in_namespace))
    sandbox.create(in_cluster)


def deployment(limits: Mapping[str, str] | None = None) -> Object:
    """The Deployment of the demo application. Its pods have these limits, as `deploy/extender-pods.yaml` adds them,
    and no grace period, since no kubelet ends them.
    """
    deployment = _at_home(read(CLUSTER / "deployment.yaml"))
    spec = deployment["spec"]["template"]["spec"]
    spec["terminationGracePeriodSeconds"] = 0
    if limits:
        spec["containers"][0]["resources"]["limits"] = dict(limits)
    return deployment


def pod(name: str, limits: Mapping[str, str] | None = None) -> Object:
    """A pod as the demo application's Deployment creates it."""
    template = deployment(limits)["spec"]["template"]
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
