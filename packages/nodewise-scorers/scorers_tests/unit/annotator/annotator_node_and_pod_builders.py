"""Nodes and pods as manifests and as the annotator's structs."""

from typing import Any

import msgspec

from nodewise.kube.struct_type_merge import merge
from nodewise.metrics.node_attributes import NodeAttributeFields
from nodewise_scorers.annotator.node_patches import POD, AnnotatedNode

NODE: Any = merge("Node", NodeAttributeFields, AnnotatedNode)
Object = dict[str, Any]


def node(
    name: str, annotations: dict[str, str] | None = None, *, ready: str = "True", **allocatable: Any
) -> Object:
    """A node with 4 CPUs and 16 GiB unless `allocatable` differs, with `_` for `-`."""
    amounts = {"cpu": "4", "memory": "16Gi", "pods": "110"} | allocatable
    return {
        "metadata": {"name": name, "uid": f"uid-of-{name}", "annotations": annotations or {}},
        "status": {
            "allocatable": {key.replace("_", "-"): value for key, value in amounts.items()},
            "conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": ready}],
            "addresses": [{"type": "Hostname", "address": name}],
        },
    }


def pod(
    name: str, on: str, *requests: dict[str, Any], phase: str = "Running", init: tuple[Object, ...] = ()
) -> Object:
    """A pod with a container for each request."""
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": on,
            "containers": [
                {"name": str(number), "resources": {"requests": amounts}}
                for number, amounts in enumerate(requests)
            ],
            "initContainers": list(init),
        },
        "status": {"phase": phase},
    }


def read_node(manifest: Object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(manifest), type=NODE)


def read_pods(*manifests: Object) -> list[Any]:
    return [msgspec.json.decode(msgspec.json.encode(manifest), type=POD) for manifest in manifests]
