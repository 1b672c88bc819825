"""Nodes and pods as `pigeon.yaml` writes them: `n1(4,8Gi;1000,2Gi)` has 4 CPUs, of which 1000m are requested."""

import re
from typing import Any, Final

from nodewise import quantity
from tests.conformance.safe import extender_processes
from tests.conformance.safe.extender_processes import Object

RESOURCES: Final = ("cpu", "memory", "pods", "gpu", "ephemeral-storage")
_NODE: Final = re.compile(r"(\w+)\(([^;)]*);?([^)]*)\)")


def nodes(text: str) -> list[Object]:
    """Allocatable, and the annotations that tell what is requested, in the order of the resources."""
    return [
        extender_processes.node(name, amounts(has), _requested(requested))
        for name, has, requested in _NODE.findall(text)
    ]


def _requested(text: str) -> dict[str, str | None]:
    """In whole units, as an annotator writes them."""
    return {
        f"requested-{key}": str(quantity.parse(amount) // quantity.NANO)
        for key, amount in amounts(text).items()
    }


def amounts(text: str) -> dict[str, Any]:
    """By resource; what is empty is left out."""
    return {key: amount for key, amount in zip(RESOURCES, text.split(","), strict=False) if amount}
