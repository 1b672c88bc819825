"""The cluster of the extender under test: three nodes, one of which violates the policy d/demo."""

import json
from pathlib import Path
from typing import Any

NODES = ("n1", "n2", "n3")
HOT = "n3"
WHY = "telemetry policy d/demo: temp GreaterThan 80"


def objects() -> list[dict[str, Any]]:
    """The policy and the nodes of the cluster as Kubernetes objects."""
    rule = {"metricname": "temp", "operator": "GreaterThan", "target": 80}
    prefer = {"metricname": "temp", "operator": "LessThan"}
    policy = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": "demo", "namespace": "d", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"strategies": {"dontschedule": {"rules": [rule]}, "scheduleonmetric": {"rules": [prefer]}}},
    }
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in NODES]
    return [policy, *nodes]


def values() -> dict[str, Any]:
    """The response of the metrics API for `temp`."""
    items = [
        {
            "describedObject": {"kind": "Node", "name": name},
            "metric": {"name": "temp"},
            "value": str(70 + 10 * place),
        }
        for place, name in enumerate(NODES)
    ]
    return {"apiVersion": "custom.metrics.k8s.io/v1beta2", "kind": "MetricValueList", "items": items}


def write(folder: Path) -> Path:
    """Writes the cluster as files."""
    made = folder / "objects"
    made.mkdir()
    for number, item in enumerate([*objects(), values()]):
        (made / f"{number}.json").write_text(json.dumps(item))
    return made
