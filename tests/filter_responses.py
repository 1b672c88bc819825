"""The rejected nodes in the response of a filter call."""

from collections.abc import Mapping
from typing import Any


def rejected_nodes(response: Mapping[str, Any]) -> dict[str, str]:
    """The reasons by node, whether or not evicting pods can help; empty if no agent has a verdict."""
    resolvable, unresolvable = response["FailedNodes"] or {}, response["FailedAndUnresolvableNodes"] or {}
    assert not resolvable.keys() & unresolvable.keys()
    return {**resolvable, **unresolvable}
