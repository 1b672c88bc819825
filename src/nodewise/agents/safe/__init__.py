"""The safe agent: keeps pods off nodes that are probably overloaded with them, by what nodes really use.

| file | what lives there |
|---|---|
| `options.py` | settings |
| `beta.py` | the beta distribution as a model of what a node uses |
| `tail.py` | from mean and deviation to verdicts and scores, for all nodes at once |
| `balance.py` | the score that spreads load |
| `shares.py` | what of each node would be used with a pod there |
| `details.py` | the numbers of each node, and words for them |
| `reasons.py` | why a node is rejected, in words |
| `state.py` | node statistics in, the slot of the snapshot out |
| `agent.py` | answers a request |

Takes over from the agent `safe` of kube-safe-scheduler.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from nodewise.agent import AgentKind, LoadScoring
from nodewise.agents.safe.agent import PodFields, SafeAgent
from nodewise.agents.safe.options import SafeOptions
from nodewise.agents.safe.state import SafeState
from nodewise.statistics.annotations import UsageAnnotations
from nodewise.statistics.load import UsageNode


class SafeKind(AgentKind):
    """The row of the registry."""

    name = "safe"
    summary = "avoid nodes that are probably overloaded, by measured use"
    options = SafeOptions
    pod_fields = PodFields
    node_fields = UsageNode
    load_scoring: LoadScoring = "whole"

    def concerns(self, options: SafeOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any node has statistics, or they are asked of metrics."""
        return options.statistics == "metrics" or any(_has_statistics(node) for node in nodes)

    def state(self, options: SafeOptions, sync_period_s: float) -> SafeState:  # noqa: ARG002
        return SafeState(options)

    def agent(self, options: SafeOptions) -> SafeAgent:
        return SafeAgent(options)


_STATISTICS: Final = tuple(
    field.name for field in msgspec.structs.fields(UsageAnnotations) if field.name != "annotated_at"
)


def _has_statistics(node: UsageNode) -> bool:
    given = node.metadata.annotations
    return given is not None and any(getattr(given, field) is not None for field in _STATISTICS)


KIND: Final = SafeKind()
