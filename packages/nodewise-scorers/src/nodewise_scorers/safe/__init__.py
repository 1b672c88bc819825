"""The safe agent: keeps pods off nodes that would probably be overloaded, by the measured usage of nodes.

| module | content |
|---|---|
| `options.py` | settings |
| `state.py` | the load of nodes, without and with a pod |
| `beta_distribution.py` | the beta distribution as a model of a node's load |
| `risk_scores.py` | verdicts and scores from mean and deviation, for all nodes at once, and the risk as text |
| `agent.py` | answers requests |

Replaces the agent `safe` of kube-safe-scheduler.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from nodewise.agent import AgentKind, DeferredType, LoadScoring
from nodewise_scorers.safe.options import SafeOptions

if TYPE_CHECKING:
    # imported when a kind is used: commands declare the options of all agents
    from nodewise_scorers.safe.agent import SafeAgent
    from nodewise_scorers.safe.state import SafeStateBuilder
    from nodewise_scorers.statistics.node_usage_reader import UsageNode


class SafeKind(AgentKind):
    """The agent `safe`."""

    name = "safe"
    summary = "avoid nodes that would probably be overloaded, by measured usage"
    options = SafeOptions
    load_scoring: LoadScoring = "whole"

    pod_fields = DeferredType("nodewise_scorers.safe.agent", "PodFields")
    node_fields = DeferredType("nodewise_scorers.statistics.node_usage_reader", "UsageNode")

    def concerns(self, options: SafeOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any node has statistics, or statistics come from metrics."""
        return options.statistics == "metrics" or any(_has_statistics(node) for node in nodes)

    def state(self, options: SafeOptions, sync_period_s: float) -> "SafeStateBuilder":  # noqa: ARG002
        from nodewise_scorers.safe.state import SafeStateBuilder

        return SafeStateBuilder(options)

    def agent(self, options: SafeOptions) -> "SafeAgent":
        from nodewise_scorers.safe.agent import SafeAgent

        return SafeAgent(options)


def _has_statistics(node: "UsageNode") -> bool:
    from nodewise_scorers.statistics.load_annotations import UsageAnnotations

    annotations = node.metadata.annotations  # those of all agents, with fields of other agents
    return annotations is not None and any(
        getattr(annotations, field) is not None
        for field in UsageAnnotations.__struct_fields__
        if field != "annotated_at"
    )


KIND: Final = SafeKind()
