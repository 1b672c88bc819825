"""The safe agent: keeps pods off nodes that would probably be overloaded, by the measured usage of nodes.

| module | content |
|---|---|
| `options.py` | settings |
| `state.py` | the load of nodes, without and with a pod |
| `beta_distribution.py` | the beta distribution as a model of a node's load |
| `risk_scores.py` | verdicts and scores from mean and deviation, for all nodes at once |
| `risk_details.py` | the risk of each node, as numbers and text |
| `agent.py` | answers requests |

Replaces the agent `safe` of kube-safe-scheduler.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from nodewise.agent import AgentKind, LoadScoring
from nodewise_scorers.safe.agent import PodFields, SafeAgent
from nodewise_scorers.safe.options import SafeOptions
from nodewise_scorers.safe.state import SafeStateBuilder
from nodewise_scorers.statistics.load_annotations import UsageAnnotations
from nodewise_scorers.statistics.node_usage_reader import UsageNode


class SafeKind(AgentKind):
    """The agent `safe`."""

    name = "safe"
    summary = "avoid nodes that would probably be overloaded, by measured usage"
    options = SafeOptions
    pod_fields = PodFields
    node_fields = UsageNode
    load_scoring: LoadScoring = "whole"

    def concerns(self, options: SafeOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any node has statistics, or statistics come from metrics."""
        return options.statistics == "metrics" or any(_has_statistics(node) for node in nodes)

    def state(self, options: SafeOptions, sync_period_s: float) -> SafeStateBuilder:  # noqa: ARG002
        return SafeStateBuilder(options)

    def agent(self, options: SafeOptions) -> SafeAgent:
        return SafeAgent(options)


_STATISTICS: Final = tuple(
    field.name for field in msgspec.structs.fields(UsageAnnotations) if field.name != "annotated_at"
)


def _has_statistics(node: UsageNode) -> bool:
    annotations = node.metadata.annotations
    return annotations is not None and any(getattr(annotations, field) is not None for field in _STATISTICS)


KIND: Final = SafeKind()
