"""The cluster of the demo: `examples/health-metric` in an API server in memory."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

import nodewise
from nodewise.engine.pod_requeueing import ANNOTATION
from nodewise.kube import object_files
from nodewise.kube.resource_kinds import NAMESPACES, NODES, PODS
from nodewise.policies import KIND as TELEMETRY
from nodewise.policies.options import TelemetryOptions
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise.scheduling_model.in_memory_api_http_server import ApiServer

NAMESPACE: Final = "health-metric-demo"
RESOURCE: Final = "telemetry/scheduling"
"""The resource by which kube-scheduler sends pods to the extender."""
METRIC: Final = "health_metric"
_METRICS: Final = "/apis/custom.metrics.k8s.io"
_VERSION: Final = {"groupVersion": "custom.metrics.k8s.io/v1beta2", "version": "v1beta2"}

_POLICY_KINDS: Final = tuple(
    watched.resource for watched in TELEMETRY.watched(TelemetryOptions()) if watched.resource != NAMESPACES
)

Object = dict[str, Any]


def example() -> Path:
    """The folder `examples/health-metric`: beside the package, or in the checkout."""
    package = Path(nodewise.__file__).parent
    inside = package / "examples/health-metric"
    return inside if inside.exists() else package.parents[1] / "examples/health-metric"


def objects(group: str, kind: str) -> list[Object]:
    """The example's objects of a kind."""
    return [json.loads(entry.data) for entry in object_files.read([example()]).entries(group, kind)]


def create_example_pod(name: str) -> Object:
    """A pod like those of the example, with another name, as the API server stores it."""
    pod = _with_resource(objects("", PODS.kind)[0])
    return pod | {"metadata": pod["metadata"] | {"name": name}}


def create_unselected_pod(name: str) -> Object:
    """A pod with the resources of the example's pods that no policy selects."""
    pod = objects("", PODS.kind)[0]
    metadata = {"name": name, "namespace": NAMESPACE}
    return pod | {"metadata": metadata, "spec": {"containers": pod["spec"]["containers"]}}


def _with_resource(pod: Object) -> Object:
    """A selected pod as `deploy/extender-pods.yaml` changes it when it is created."""
    container, *others = pod["spec"]["containers"]
    marked = {
        part: {**container["resources"].get(part, {}), RESOURCE: "1"} for part in ("requests", "limits")
    }
    return pod | {"spec": pod["spec"] | {"containers": [container | {"resources": marked}, *others]}}


class DemoCluster:
    """The cluster of the demo, changed through its API server; nodewise's updates are read from there."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self._server = server
        self.kubeconfig = server.kubeconfig(folder)
        self.nodes = objects("", NODES.kind)
        self.pods = [_with_resource(pod) for pod in objects("", PODS.kind)]
        self.names: list[str] = [node["metadata"]["name"] for node in self.nodes]
        [cluster_policy] = objects("nodewise.io", "ClusterPlacementPolicy")
        [(self.label, self.label_value)] = cluster_policy["spec"]["nodeLabels"][0]["labels"].items()
        self.values: Mapping[str, int] = {}
        for node in self.nodes:
            server.call(lambda api, node=node: api.put(NODES, node))  # type: ignore[misc]
        for kind in _POLICY_KINDS:
            for policy in objects(kind.group, kind.kind):
                server.call(lambda api, kind=kind, policy=policy: api.put(kind, policy))  # type: ignore[misc]
        values = objects("custom.metrics.k8s.io", "MetricValue")
        self.measure({value["describedObject"]["name"]: int(value["value"]) for value in values})

    def measure(self, values: Mapping[str, int]) -> None:
        """Set the values of the nodes' metric."""
        self.values = values
        items = [{"describedObject": {"kind": "Node", "name": n}, "value": str(v)} for n, v in values.items()]
        group = {"name": "custom.metrics.k8s.io", "preferredVersion": _VERSION, "versions": [_VERSION]}
        answers = {
            _METRICS: msgspec.json.encode(group),
            f"{_METRICS}/v1beta2/nodes/%2A/{METRIC}": msgspec.json.encode({"items": items}),
        }
        self._server.call(lambda api: api.raw.update(answers))

    def put_unschedulable_pod(self, pod: Object, message: str) -> Object:
        """Store a pod with the status of an unschedulable one. Returns it as stored."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        waiting = pod | {"status": {"phase": "Pending", "conditions": [condition]}}
        return self._server.call(lambda api: api.put(PODS, waiting))

    def remove_pod(self, name: str) -> None:
        self._server.call(lambda api: api.remove(PODS, name, NAMESPACE))

    def _nodes_by_name(self) -> dict[str, Object]:
        objects_by_key = self._server.call(lambda api: api.objects(NODES))
        return {name: node for (_, name), node in objects_by_key.items()}

    def node_with_requeue_annotation(self) -> str | None:
        """The node with nodewise's requeueing annotation, if there is one."""
        for name, node in self._nodes_by_name().items():
            if ANNOTATION in node["metadata"].get("annotations", {}):
                return name
        return None

    def labels(self) -> dict[str, str]:
        """Values of the label of the cluster policy by node."""
        values = {
            name: node["metadata"].get("labels", {}).get(self.label)
            for name, node in self._nodes_by_name().items()
        }
        return {name: value for name, value in values.items() if value}

    def count_label_changes(self) -> int:
        """Number of label changes of all nodes so far."""
        changes = self._server.call(lambda api: api.changes(NODES))
        return sum(bool(old and new and _labels(old) != _labels(new)) for old, new in changes)


def _labels(node: Object) -> Object:
    labels: Object = node["metadata"].get("labels") or {}
    return labels


@contextlib.contextmanager
def demo_cluster(folder: Path) -> Iterator[DemoCluster]:
    """Run the cluster of the demo until the block ends."""
    with in_memory_api_http_server.serving(FakeApi(*_POLICY_KINDS)) as server:
        yield DemoCluster(server, folder)
