"""Objects of the custom metrics API: an API group with its versions, and an item of a MetricValueList."""

from typing import Any


def group(preferred: str, *versions: str) -> dict[str, Any]:
    """An APIGroup that offers these versions."""
    return {
        "preferredVersion": {"version": preferred},
        "versions": [{"version": version} for version in versions],
    }


def item(node: str, value: Any = "1", **more: Any) -> dict[str, Any]:
    """A MetricValue of a node."""
    return {"describedObject": {"kind": "Node", "name": node}, "value": value} | more
