"""Nodes and pods as `pigeon.yaml` writes them: `n1(4,8Gi;1000,2Gi)` has 4 CPUs, of which 1000m are requested."""

import re
from typing import Any, Final

from nodewise.base import quantity
from scorers_tests.conformance import extender_processes
from scorers_tests.conformance.extender_processes import Object

RESOURCES: Final = ("cpu", "memory", "pods", "gpu", "ephemeral-storage")
_NODE: Final = re.compile(r"(\w+)\(([^;)]*);?([^)]*)\)")


def nodes(text: str) -> list[Object]:
    """Nodes with their allocatable amounts, and with their requested amounts as annotations. Amounts have the order of
    `RESOURCES`.
    """
    return [
        extender_processes.node(name, amounts(has), _requested(requested))
        for name, has, requested in _NODE.findall(text)
    ]


def _requested(text: str) -> dict[str, str | None]:
    """The annotations of requested amounts, in whole units as `nodewise annotate` writes them."""
    return {
        f"requested-{key}": str(quantity.parse(amount) // quantity.NANO)
        for key, amount in amounts(text).items()
    }


def amounts(text: str) -> dict[str, Any]:
    """Amounts by resource. Empty amounts are left out."""
    return {key: amount for key, amount in zip(RESOURCES, text.split(","), strict=False) if amount}
